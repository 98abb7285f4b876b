#include "cli/explore/picture_files.hpp"

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#ifdef KNEAR_EXPLORE
#include <jerror.h>
#include <jpeglib.h>
#include <png.h>
#endif

#include "cli/explore/lower.hpp"
#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/io/open_file.hpp"

namespace knear::cli {
namespace {

std::string read_file(const std::string& path) {
  return io::read_all(path, std::numeric_limits<std::int64_t>::max());
}

#ifdef KNEAR_EXPLORE
constexpr std::int64_t most_pixels = 100'000'000;

// Empty, or why it does not decode.
std::string decode_png(const std::string& bytes) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) return image.message;
  if (std::int64_t{image.width} * image.height > most_pixels) {
    png_image_free(&image);
    return fmt::format("{} x {} pixels are more than 100 million", image.width, image.height);
  }
  image.format = PNG_FORMAT_GRAY;
  std::vector<png_byte> pixels(PNG_IMAGE_SIZE(image));
  const png_color background = {0, 0, 0};
  const bool decoded = png_image_finish_read(&image, &background, pixels.data(), 0, nullptr);
  const std::string said = image.message;
  png_image_free(&image);
  return decoded ? "" : said;
}

// libjpeg leaves by longjmp: nothing between setjmp() and it has a destructor.
struct JpegFailure {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

void leave_jpeg(j_common_ptr info) {
  auto* failure = reinterpret_cast<JpegFailure*>(info->err);
  failure->manager.format_message(info, failure->message);
  std::longjmp(failure->back, 1);
}

// Only warnings about a file that ends too early matter.
void warn_jpeg(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) leave_jpeg(info);
}

bool decode_jpeg_lines(const std::string& bytes, JpegFailure* failure, JSAMPLE* line,
                       std::size_t line_bytes) {
  jpeg_decompress_struct info;
  info.err = jpeg_std_error(&failure->manager);
  failure->manager.error_exit = leave_jpeg;
  failure->manager.emit_message = warn_jpeg;
  if (setjmp(failure->back)) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(&info, TRUE);
  if (std::int64_t{info.image_width} * info.image_height > most_pixels ||
      std::size_t{info.image_width} * 4 > line_bytes) {
    std::snprintf(failure->message, sizeof failure->message,
                  "%u x %u pixels are more than 100 million or a line is too long",
                  info.image_width, info.image_height);
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) jpeg_read_scanlines(&info, &line, 1);
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return true;
}

std::string decode_jpeg(const std::string& bytes) {
  JpegFailure failure = {};
  std::vector<JSAMPLE> line(4 * 65536);  // no JPEG is wider
  return decode_jpeg_lines(bytes, &failure, line.data(), line.size()) ? "" : failure.message;
}

void check_decodes(const std::string& path) {
  const std::string bytes = read_file(path), type = picture_type(bytes);
  if (type.empty()) throw CorruptFile("'{}' is neither PNG nor JPEG", path);
  const std::string wrong = type == "image/png" ? decode_png(bytes) : decode_jpeg(bytes);
  if (!wrong.empty()) throw CorruptFile("'{}' does not decode: {}", path, wrong);
}
#endif

}  // namespace

std::string picture_type(const std::string& bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return "image/png";
  if (bytes.starts_with("\xff\xd8\xff")) return "image/jpeg";
  return "";
}

std::string PictureFolder::read(std::int64_t row) const {
  const std::string file = path + "/" + names[row];
  std::string bytes = read_file(file);
  if (picture_type(bytes).empty()) throw CorruptFile("'{}' is no longer PNG or JPEG", file);
  return bytes;
}

PictureFolder open_pictures(const std::string& path, std::int64_t rows, int threads,
                            const Progress& progress) {
#ifndef KNEAR_EXPLORE
  (void)rows, (void)threads, (void)progress;
  throw InvalidArgument("--images {}: this build decodes no pictures (KNEAR_EXPLORE is off)", path);
#else
  PictureFolder out{path, {}};
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    const std::string ending = lower(at->path().extension().string());
    std::error_code unknown;
    if ((ending != ".png" && ending != ".jpg" && ending != ".jpeg") || at->is_directory(unknown))
      continue;
    // A pipe would be waited for.
    if (!at->is_regular_file(unknown))
      throw IoError("'{}' is not a regular file", at->path().string());
    out.names.push_back(at->path().filename().string());
  }
  if (error) throw IoError("cannot list '{}': {}", path, error.message());
  std::sort(out.names.begin(), out.names.end());
  if (std::ssize(out.names) != rows)
    throw ShapeMismatch("--images {} has {} PNG and JPEG files, but the base has {} rows", path,
                        out.names.size(), rows);
  Reporter reporter(progress, "decode pictures", rows);
  parallel_for(threads, rows, [&](std::int64_t row) {
    check_decodes(path + "/" + out.names[row]);
    reporter.add(1);
  });
  return out;
#endif
}

}  // namespace knear::cli
