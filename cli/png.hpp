// cli/png.hpp -- a small picture as a data URI, so that a report is one file.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace knear::cli {

// An 8-bit greyscale PNG of pixels [height x width], row by row from the top, 0 black; requires
// pixels.size() == width * height, both at least 1.
std::string grey_png(std::span<const std::uint8_t> pixels, int width, int height);

// Bytes as base64 writes them, with padding.
std::string base64(const std::string& bytes);

// Returns that PNG as a "data:image/png;base64,..." URI.
std::string grey_png_uri(std::span<const std::uint8_t> pixels, int width, int height);

}  // namespace knear::cli
