// knear/index/faiss/faiss_import.hpp -- indexes made of what files of FAISS hold (faiss_file.hpp
// says of which).
#pragma once
#include <memory>
#include <string>

#include "knear/index/options.hpp"

namespace knear::detail {

class IndexImpl;

// As is_faiss_file().
bool begins_as_faiss(const std::string& path);
// As read_faiss().
std::unique_ptr<IndexImpl> import_faiss(const std::string& path, const ChangeOptions& options);

}  // namespace knear::detail
