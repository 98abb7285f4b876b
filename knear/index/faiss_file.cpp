#include "knear/index/faiss_file.hpp"

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/faiss/faiss_import.hpp"
#include "knear/index/faiss/faiss_writer.hpp"
#include "knear/index/impl/index_impl.hpp"

namespace knear {

bool is_faiss_file(const std::string& path) { return detail::begins_as_faiss(path); }

Index read_faiss(const std::string& path, const ChangeOptions& options) {
  return detail::public_call([&] { return Index(detail::import_faiss(path, options)); });
}

void write_faiss(const Index& index, const std::string& path, const Progress& progress) {
  detail::public_call([&] {
    if (!index.is_trained())
      throw InvalidArgument("index {} is not trained, which comes before writing it for FAISS",
                            index.description());
    const auto one = index.body().as_one();
    detail::write_faiss_index(one->shape, *one->state(), path, progress);
  });
}

}  // namespace knear
