// cli/explore/page_files.hpp -- the files of the page, which the build puts into the program.
#pragma once
#include <span>
#include <string_view>

namespace knear::cli {

struct PageFile {
  std::string_view name, type, content;  // "page.css", "text/css", ...
};
// page.html first, then the files that it names.
std::span<const PageFile> page_files();

}  // namespace knear::cli
