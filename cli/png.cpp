#include "cli/png.hpp"

#include <zlib.h>

#include <vector>

#include "knear/core/error.hpp"

namespace knear::cli {
namespace {

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

// A chunk: length, name, data, and the checksum of name and data.
std::string chunk(const std::string& name, const std::string& data) {
  const std::string body = name + data;
  const auto checksum =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body +
         big_endian(static_cast<std::uint32_t>(checksum));
}

std::string deflate(const std::string& raw) {
  uLongf size = compressBound(raw.size());
  std::string out(size, '\0');
  if (compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                reinterpret_cast<const Bytef*>(raw.data()), raw.size(), 9) != Z_OK)
    throw MemoryBudgetError("no memory to compress a picture of {} bytes", raw.size());
  out.resize(size);
  return out;
}

}  // namespace

std::string base64(const std::string& bytes) {
  static constexpr char digits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<std::uint8_t>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      out += i + j <= bytes.size() ? digits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

std::string grey_png(std::span<const std::uint8_t> pixels, int width, int height) {
  std::string lines;
  for (int y = 0; y < height; ++y) {
    lines += '\0';  // filter type 0: none
    lines.append(reinterpret_cast<const char*>(pixels.data()) + y * width, width);
  }
  // 8 bits, greyscale, and the only methods of compression, filtering and interlacing there are.
  const std::string header =
      big_endian(width) + big_endian(height) + std::string("\x08\0\0\0\0", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", deflate(lines)) +
         chunk("IEND", "");
}

std::string grey_png_uri(std::span<const std::uint8_t> pixels, int width, int height) {
  return "data:image/png;base64," + base64(grey_png(pixels, width, height));
}

}  // namespace knear::cli
