// cli/serve/serve_files.hpp -- the page of `knear serve` and the description of its paths, which
// are in the program.
#pragma once
#include "cli/explore/page_files.hpp"

namespace knear::cli {

// page.html and openapi.json.
std::span<const PageFile> serve_files();

// The content of one of them.
inline std::string_view serve_file(std::string_view name) {
  for (const PageFile& file : serve_files())
    if (file.name == name) return file.content;
  return {};
}

}  // namespace knear::cli
