// knear/index/faiss/faiss_import.hpp -- makes an index of a file of FAISS. index/faiss_file.hpp
// names the files that are read.
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
