#include "cli/explore/items.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>

#include "cli/arguments.hpp"
#include "cli/files.hpp"
#include "cli/gz_file.hpp"
#include "cli/png.hpp"
#include "knear/core/error.hpp"
#include "knear/io/hdf5.hpp"

namespace knear::cli {
namespace {

// More classes than these are shown as texts, without colours.
constexpr std::size_t most_classes = 64;
constexpr std::int64_t most_label_bytes = std::int64_t{1} << 30;

// The whole file, unpacked.
std::string read_unpacked(std::string_view option, const std::string& path) {
  const GzFile file = open_gz(path, io::Accepted::files_and_pipes);
  std::string out;
  std::vector<char> block(1 << 20);
  for (;;) {
    const int got = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()));
    if (got < 0) throw CorruptFile("'{}' cannot be read as a whole", path);
    if (got == 0) break;
    out.append(block.data(), got);
    if (std::ssize(out) > most_label_bytes)
      throw InvalidArgument("{} {} has more than 1 GiB", option, path);
  }
  int status = Z_OK;
  gzerror(file.get(), &status);
  if (status != Z_OK && status != Z_STREAM_END) throw CorruptFile("'{}' is cut off", path);
  return out;
}

std::int64_t big_endian(const char* bytes) {
  std::int64_t out = 0;
  for (int i = 0; i < 4; ++i) out = out << 8 | static_cast<unsigned char>(bytes[i]);
  return out;
}

// Height and width of an idx file of pictures; none for any other file.
std::optional<std::pair<int, int>> idx_shape(const std::string& path) {
  const GzFile file = open_gz(path);
  char header[16];
  if (gzread(file.get(), header, 16) != 16 || header[0] || header[1] || header[2] != 8 ||
      header[3] != 3)
    return {};
  return std::pair{static_cast<int>(big_endian(header + 8)),
                   static_cast<int>(big_endian(header + 12))};
}

std::pair<int, int> parse_shape(const std::string& text, std::int64_t dim) {
  const std::size_t cross = text.find('x');
  if (cross == std::string::npos)
    unparsable(fmt::format("--shape needs WIDTHxHEIGHT, but got '{}'", text));
  const std::int64_t width = parse_whole("--shape", text.substr(0, cross));
  const std::int64_t height = parse_whole("--shape", text.substr(cross + 1));
  if (width < 1 || height < 1 || width > dim || height > dim || width * height != dim)
    throw InvalidArgument("--shape {} has other than the {} columns of the base", text, dim);
  return {static_cast<int>(height), static_cast<int>(width)};
}

// Returns true if the text is UTF-8 by RFC 3629.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int more = first < 0x80   ? 0
                     : first < 0xc2 ? -1
                     : first < 0xe0 ? 1
                     : first < 0xf0 ? 2
                     : first < 0xf5 ? 3
                                    : -1;
    if (more < 0 || i + static_cast<std::size_t>(more) >= text.size()) return false;
    std::uint32_t code = more == 0 ? first : first & (0x3fu >> more);
    for (int j = 1; j <= more; ++j) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(j)]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    if ((more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
        (more == 3 && (code < 0x10000 || code > 0x10ffff)))
      return false;
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::size_t from = 0;
  for (std::size_t to; (to = text.find(at, from)) != std::string::npos; from = to + 1)
    out.push_back(text.substr(from, to - from));
  out.push_back(text.substr(from));
  return out;
}

void check_count(std::string_view option, const std::string& path, std::int64_t bytes,
                 std::int64_t labels, std::string_view owner, std::int64_t rows) {
  if (labels != rows)
    throw ShapeMismatch("{} {}{} has {} labels in {} bytes, but {} has {} rows", option, path,
                        pipe_note(path), labels, bytes, owner, rows);
}

bool is_idx_of_labels(std::string_view bytes) {
  return bytes.starts_with(std::string_view("\0\0\x08\x01", 4));
}

// The lines of `bytes`, one for each row.
std::vector<std::string> lines_of(std::string_view option, const std::string& path,
                                  std::string bytes, std::string_view owner, std::int64_t rows) {
  const std::int64_t size = std::ssize(bytes);
  if (bytes.ends_with('\n')) bytes.pop_back();
  std::vector<std::string> lines = split(bytes, '\n');
  if (bytes.empty() && rows != 1) lines.clear();
  check_count(option, path, size, std::ssize(lines), owner, rows);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].ends_with('\r')) lines[i].pop_back();
    if (!is_utf8(lines[i])) throw CorruptFile("'{}' line {} is no UTF-8", path, i + 1);
  }
  return lines;
}

// Numbers of classes, as the MNIST files have them.
void take_idx_labels(Items& items, const std::string& path, const std::string& bytes,
                     const std::string& names) {
  const std::int64_t announced = bytes.size() < 8 ? -1 : big_endian(bytes.data() + 4);
  if (announced != std::ssize(bytes) - 8)
    throw CorruptFile("'{}'{} announces {} labels, but holds {} bytes behind its head", path,
                      pipe_note(path), announced, std::max<std::int64_t>(0, std::ssize(bytes) - 8));
  check_count("--labels", path, std::ssize(bytes), announced, "the base", items.rows.rows());
  if (!names.empty()) items.class_names = split(names, ',');
  for (std::int64_t i = 0; i < announced; ++i) {
    const auto label = static_cast<unsigned char>(bytes[8 + i]);
    if (!names.empty() && label >= items.class_names.size())
      throw InvalidArgument("--names has {} names, but row {} has the label {}",
                            items.class_names.size(), i, label);
    while (items.class_names.size() <= label)
      items.class_names.push_back(std::to_string(items.class_names.size()));
    items.classes.push_back(label);
  }
}

// One line a row; lines that recur are classes.
void take_text_labels(Items& items, const std::string& path, std::string bytes) {
  items.labels = lines_of("--labels", path, std::move(bytes), "the base", items.rows.rows());
  std::map<std::string, std::uint16_t> classes;
  for (const std::string& label : items.labels)
    if (classes.size() <= most_classes) classes.emplace(label, 0);
  if (classes.size() > most_classes || 2 * classes.size() > items.labels.size()) return;
  for (auto& [name, number] : classes) {
    number = static_cast<std::uint16_t>(items.class_names.size());
    items.class_names.push_back(name);
  }
  for (const std::string& label : items.labels) items.classes.push_back(classes.at(label));
  items.labels.clear();  // the classes say it all
}

void take_labels(Items& items, const ItemArguments& arguments) {
  if (arguments.labels.empty()) {
    if (!arguments.names.empty()) unparsable("--names is for the numbers of --labels");
    return;
  }
  std::string bytes = read_unpacked("--labels", arguments.labels);
  if (is_idx_of_labels(bytes))
    return take_idx_labels(items, arguments.labels, bytes, arguments.names);
  if (!arguments.names.empty())
    throw InvalidArgument("--names is for an idx file of numbers, but --labels {} is none",
                          arguments.labels);
  take_text_labels(items, arguments.labels, std::move(bytes));
}

void take_index(Items& items, const std::string& path, const Progress& progress) {
  items.index = Index::load(path, {.progress = progress});
  if (!items.index->keeps_vectors())
    throw InvalidArgument("--index {} keeps codes alone: give its vectors by --base", path);
  const std::vector<Id> ids = items.index->ids();
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] != static_cast<Id>(i))
      throw InvalidArgument("--index {} has the id {} at place {}: rows must be 0, 1, 2, ...", path,
                            ids[i], i);
  items.copies = items.index->reconstruct(ids);
  items.rows = items.copies.view();
}

}  // namespace

std::string_view name_of(Items::Kind kind) {
  switch (kind) {
    case Items::Kind::pixels:
      return "pixels";
    case Items::Kind::images:
      return "images";
    case Items::Kind::texts:
      return "texts";
    case Items::Kind::vectors:
      break;
  }
  return "vectors";
}

std::string Items::label(std::int64_t row) const {
  const std::size_t place = row;
  if (!labels.empty()) return labels[place];
  return classes.empty() ? "" : class_names[classes[place]];
}

std::vector<float> Items::numbers(std::int64_t row) const {
  std::vector<float> out(rows.cols());
  visit(rows, [&](auto typed) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>(to_double(typed.row(row)[i]));
  });
  return out;
}

std::string Items::picture(std::int64_t row) const {
  if (kind == Kind::images) return images.read(row);
  std::vector<std::uint8_t> pixels;
  for (const float value : numbers(row))
    pixels.push_back(static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.0f, 255.0f))));
  return grey_png(pixels, width, height);
}

Items open_items(const ItemArguments& arguments, int threads, const Progress& progress) {
  Items items;
  const std::string& path = arguments.index.empty() ? arguments.base : arguments.index;
  items.name = std::filesystem::path(path).filename().string();
  if (!is_utf8(items.name)) items.name = "base";
  if (arguments.index.empty()) {
    items.file = open_vectors(path, arguments.type, base_dataset);
    items.rows = items.file->view();
  } else {
    if (!arguments.type.empty()) unparsable("--type is for --base");
    take_index(items, path, progress);
  }
  if (items.rows.rows() == 0) throw InvalidArgument("'{}' has no rows: nothing to show", path);
  if (items.rows.rows() > std::int64_t{1} << 31)
    throw InvalidArgument("'{}' has {} rows, a page shows at most 2^31", path, items.rows.rows());
  if (!is_utf8(arguments.names)) throw InvalidArgument("--names is no UTF-8");
  take_labels(items, arguments);
  if (!arguments.images.empty()) {
    // With a shape rows are these pictures in grey, so that others can be looked for.
    if (!arguments.shape.empty())
      std::tie(items.height, items.width) = parse_shape(arguments.shape, items.rows.cols());
    items.images = open_pictures(arguments.images, items.rows.rows(), threads, progress);
    items.kind = Items::Kind::images;
    return items;
  }
  auto shape = arguments.index.empty() && arguments.shape.empty() && !io::hdf5_path(path)
                   ? idx_shape(path)
                   : std::nullopt;
  if (!arguments.shape.empty()) shape = parse_shape(arguments.shape, items.rows.cols());
  if (shape && std::int64_t{shape->first} * shape->second == items.rows.cols()) {
    items.kind = Items::Kind::pixels;
    items.height = shape->first, items.width = shape->second;
  } else if (!items.labels.empty()) {
    items.kind = Items::Kind::texts;
  }
  return items;
}

std::vector<std::string> read_text_labels(std::string_view option, const std::string& path,
                                          std::string_view owner, std::int64_t rows) {
  std::string bytes = read_unpacked(option, path);
  if (is_idx_of_labels(bytes))
    throw InvalidArgument("{} {} is an idx file of numbers; it must have one line of text a row",
                          option, path);
  return lines_of(option, path, std::move(bytes), owner, rows);
}

}  // namespace knear::cli
