// cli/explore/single_page.hpp -- the page of `knear explore` as one HTML file that needs nothing
// else.
//
// It holds graph, map, labels and items, as base64; paths, neighbours and searches are JavaScript.
#pragma once
#include <string>

#include "cli/explore/explorer.hpp"
#include "knear/core/matrix.hpp"

namespace knear::cli {

// What a page may hold, before base64 makes four bytes of three.
inline constexpr std::int64_t most_page_bytes = std::int64_t{64} << 20;

// Throws InvalidArgument if the page would hold more: the numbers of the vectors, the files of
// pictures, 8 k + 16 bytes a row, labels. To be called before what takes long.
void check_page_size(const Items& items, std::int64_t k);

// The whole document. places [n x 2]: the map.
std::string single_page(const Explorer& explorer, MatrixView<float> places);

}  // namespace knear::cli
