// The headers of the formats, read as if their writer were hostile.
#include "knear/io/layout.hpp"

#include <cstring>

#include "knear/core/error.hpp"

namespace knear::io {

int size_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::i8:
    case Scalar::u8:
      return 1;
    case Scalar::f16:
    case Scalar::i16:
    case Scalar::u16:
      return 2;
    case Scalar::f32:
    case Scalar::i32:
    case Scalar::u32:
      return 4;
    case Scalar::f64:
    case Scalar::i64:
    case Scalar::u64:
      return 8;
  }
  return 0;
}

std::string_view name_of(Scalar scalar) {
  constexpr std::string_view names[] = {"f16", "f32", "f64", "i8",  "i16", "i32",
                                        "i64", "u8",  "u16", "u32", "u64"};
  return names[static_cast<int>(scalar)];
}

bool is_integer(Scalar scalar) { return scalar >= Scalar::i8; }

std::optional<ElementType> element_type(Scalar scalar) {
  switch (scalar) {
    case Scalar::f16:
      return ElementType::f16;
    case Scalar::f32:
      return ElementType::f32;
    case Scalar::f64:
      return ElementType::f64;
    case Scalar::i8:
      return ElementType::i8;
    case Scalar::u8:
      return ElementType::u8;
    default:
      return {};
  }
}

ElementType natural_type(Scalar scalar) { return element_type(scalar).value_or(ElementType::f32); }

std::optional<Scalar> scalar_of(ElementType type) {
  switch (type) {
    case ElementType::f32:
      return Scalar::f32;
    case ElementType::f16:
      return Scalar::f16;
    case ElementType::u8:
      return Scalar::u8;
    case ElementType::i8:
      return Scalar::i8;
    case ElementType::f64:
      return Scalar::f64;
    case ElementType::bf16:
      break;
  }
  return {};
}

std::string_view name_of(Format format) {
  constexpr std::string_view names[] = {"fvecs", "bvecs", "ivecs", "fbin", "u8bin",
                                        "i8bin", "ibin",  "npy",   "hdf5", "idx"};
  return names[static_cast<int>(format)];
}

namespace {

constexpr Format formats_by_name[] = {Format::fvecs, Format::bvecs, Format::ivecs, Format::fbin,
                                      Format::u8bin, Format::i8bin, Format::ibin,  Format::npy};

}  // namespace

std::string known_endings() {
  std::string out;
  for (Format format : formats_by_name) {
    if (!out.empty()) out += ' ';
    out.append(".").append(name_of(format));
  }
  return out;
}

std::string readable_endings() { return known_endings() + " .hdf5 .h5"; }

std::optional<Scalar> scalar_of(Format format) {
  switch (format) {
    case Format::fvecs:
    case Format::fbin:
      return Scalar::f32;
    case Format::bvecs:
    case Format::u8bin:
      return Scalar::u8;
    case Format::i8bin:
      return Scalar::i8;
    case Format::ivecs:
    case Format::ibin:
      return Scalar::i32;
    case Format::npy:
    case Format::hdf5:
    case Format::idx:
      break;
  }
  return {};
}

bool is_vecs(Format format) {
  return format == Format::fvecs || format == Format::bvecs || format == Format::ivecs;
}

bool is_bin(Format format) {
  return format == Format::fbin || format == Format::u8bin || format == Format::i8bin ||
         format == Format::ibin;
}

std::optional<Format> format_of_name(std::string_view name) {
  for (Format format : formats_by_name) {
    const std::string_view ending = name_of(format);
    if (name.size() > ending.size() && name.ends_with(ending) &&
        name[name.size() - ending.size() - 1] == '.')
      return format;
  }
  return {};
}

namespace {

std::uint32_t little_endian(const std::byte* p, int bytes) {
  std::uint32_t x = 0;
  for (int i = bytes; i-- > 0;) x = (x << 8) | std::to_integer<std::uint32_t>(p[i]);
  return x;
}

std::uint32_t big_endian_u32(const std::byte* p) {
  std::uint32_t x = 0;
  for (int i = 0; i < 4; ++i) x = (x << 8) | std::to_integer<std::uint32_t>(p[i]);
  return x;
}

constexpr std::string_view npy_magic = "\x93NUMPY";

// Fills in row_bytes and total_bytes; false if they do not fit in 63 bits.
bool compute_sizes(Layout& layout) {
  std::int64_t bytes;
  return !__builtin_mul_overflow(layout.cols, std::int64_t{size_of(layout.scalar)},
                                 &layout.row_bytes) &&
         !__builtin_mul_overflow(layout.rows, layout.row_bytes, &bytes) &&
         !__builtin_add_overflow(bytes, layout.offset, &layout.total_bytes);
}

// The Python literal of a .npy header: a dictionary of a string, a bool and a tuple of numbers.
// As strict as the format's definition, which asks for exactly these three keys; as tolerant as
// Python about their order and about blanks.
class NpyDictionary {
 public:
  NpyDictionary(std::string_view text, const std::string& path) : text_(text), path_(path) {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr") {
        once(has_descr_, key);
        if (peek() == '[')
          throw InvalidArgument("'{}' holds records (a .npy of several fields), not plain numbers",
                                path_);
        descr = string();
      } else if (key == "fortran_order") {
        once(has_order_, key);
        fortran_order = boolean();
      } else if (key == "shape") {
        once(has_shape_, key);
        tuple();
      } else {
        fail(fmt::format("has the unknown key '{}'", printable(key)));
      }
      if (!accept(',') && peek() != '}') fail("lacks a comma or a closing brace");
    }
    blanks();
    if (at_ < text_.size()) fail("goes on after its closing brace");
    if (!has_descr_ || !has_order_ || !has_shape_)
      fail("lacks one of the keys 'descr', 'fortran_order', 'shape'");
  }

  std::string_view descr;
  bool fortran_order = false;
  std::int64_t shape[2] = {};  // the first two
  int dimensions = 0;

  // For messages: what a hostile file holds must not reach a terminal as it is.
  static std::string printable(std::string_view text) {
    std::string out;
    for (char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
    return out;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw CorruptFile("'{}' is no sound .npy file: its header {}", path_, what);
  }
  void once(bool& seen, std::string_view key) {
    if (seen) fail(fmt::format("has the key '{}' twice", key));
    seen = true;
  }
  void blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  char peek() {
    blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (at_ >= text_.size() || peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("lacks a '{}' at byte {}", c, at_));
  }
  std::string_view string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail(fmt::format("lacks a string at byte {}", at_));
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\\') ++at_;
    if (at_ >= text_.size() || text_[at_] != quote) fail("has a string without end");
    return text_.substr(begin, at_++ - begin);
  }
  bool boolean() {
    blanks();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("has a 'fortran_order' that is neither True nor False");
  }
  void tuple() {
    expect('(');
    while (!accept(')')) {
      const std::int64_t value = number();
      if (dimensions < 2) shape[dimensions] = value;
      ++dimensions;
      if (!accept(',')) {
        if (peek() != ')' || dimensions < 2) fail("has a 'shape' that is no tuple");
      }
    }
  }
  std::int64_t number() {
    if (peek() < '0' || peek() > '9') fail("has a 'shape' with something else than whole numbers");
    std::int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (__builtin_mul_overflow(value, std::int64_t{10}, &value) ||
          __builtin_add_overflow(value, std::int64_t{text_[at_] - '0'}, &value))
        fail("has a 'shape' beyond 64 bits");
      ++at_;
    }
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written so by Python 2
    return value;
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
};

// "<f4" and its like.
void parse_descr(std::string_view descr, Layout& layout, const std::string& path) {
  constexpr struct {
    std::string_view code;
    Scalar scalar;
  } codes[] = {{"f2", Scalar::f16}, {"f4", Scalar::f32}, {"f8", Scalar::f64}, {"i1", Scalar::i8},
               {"i2", Scalar::i16}, {"i4", Scalar::i32}, {"i8", Scalar::i64}, {"u1", Scalar::u8},
               {"u2", Scalar::u16}, {"u4", Scalar::u32}, {"u8", Scalar::u64}};
  if (descr.size() == 3) {
    const char order = descr[0];
    for (const auto& [code, scalar] : codes) {
      if (descr.substr(1) != code) continue;
      const bool single_byte = size_of(scalar) == 1;
      if (order != '<' && order != '>' && order != '=' && !(order == '|' && single_byte)) break;
      layout.scalar = scalar;
      layout.big_endian = order == '>' && !single_byte;
      return;
    }
  }
  throw InvalidArgument(
      "'{}' holds numbers of type '{}'; expected f2, f4, f8, i1, i2, i4, i8, u1, u2, u4 or u8",
      path, NpyDictionary::printable(descr));
}

}  // namespace

std::optional<Format> format_of_content(std::span<const std::byte> head) {
  if (head.size() >= npy_magic.size() &&
      std::memcmp(head.data(), npy_magic.data(), npy_magic.size()) == 0)
    return Format::npy;
  if (head.size() >= 4 && head[0] == std::byte{0} && head[1] == std::byte{0} &&
      head[2] >= std::byte{0x08} && head[2] <= std::byte{0x0e} && head[3] != std::byte{0})
    return Format::idx;
  return {};
}

Layout parse_npy_header(std::span<const std::byte> head, const std::string& path, bool column) {
  if (format_of_content(head) != Format::npy)
    throw CorruptFile("'{}' does not begin like a .npy file", path);
  if (head.size() < 8) throw CorruptFile("'{}' is truncated within its .npy header", path);
  const int major = std::to_integer<int>(head[6]), minor = std::to_integer<int>(head[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw CorruptFile("'{}' says it is .npy version {}.{}, expected 1.0, 2.0 or 3.0", path, major,
                      minor);
  const std::size_t length_bytes = major == 1 ? 2 : 4, begin = 8 + length_bytes;
  if (head.size() < begin) throw CorruptFile("'{}' is truncated within its .npy header", path);
  const std::int64_t length = little_endian(head.data() + 8, static_cast<int>(length_bytes));
  if (length > 65536)
    throw CorruptFile("'{}' says its .npy header has {} bytes, expected at most 65536", path,
                      length);
  if (head.size() - begin < static_cast<std::size_t>(length))
    throw CorruptFile("'{}' is truncated: its .npy header should have {} bytes, but only {} follow",
                      path, length, head.size() - begin);
  const NpyDictionary dictionary(
      {reinterpret_cast<const char*>(head.data() + begin), static_cast<std::size_t>(length)}, path);

  Layout layout{.format = Format::npy, .offset = static_cast<std::int64_t>(begin) + length};
  parse_descr(dictionary.descr, layout, path);
  if (dictionary.dimensions != 2 && !(column && dictionary.dimensions == 1))
    throw InvalidArgument("'{}' is an array of {} dimension{}, expected 2 (rows and columns)", path,
                          dictionary.dimensions, dictionary.dimensions == 1 ? "" : "s");
  layout.fortran = dictionary.fortran_order;
  layout.rows = dictionary.shape[0];
  layout.cols = dictionary.dimensions == 1 ? 1 : dictionary.shape[1];
  if (!compute_sizes(layout))
    throw CorruptFile("'{}' says it holds {} x {} numbers, more than any file can", path,
                      layout.rows, layout.cols);
  return layout;
}

Layout parse_idx_header(std::span<const std::byte> head, const std::string& path) {
  if (format_of_content(head) != Format::idx)
    throw CorruptFile("'{}' does not begin like an idx file", path);
  Layout layout{.format = Format::idx, .big_endian = true};
  switch (std::to_integer<int>(head[2])) {
    case 0x08:
      layout.scalar = Scalar::u8;
      break;
    case 0x09:
      layout.scalar = Scalar::i8;
      break;
    case 0x0b:
      layout.scalar = Scalar::i16;
      break;
    case 0x0c:
      layout.scalar = Scalar::i32;
      break;
    case 0x0d:
      layout.scalar = Scalar::f32;
      break;
    case 0x0e:
      layout.scalar = Scalar::f64;
      break;
    default:
      throw CorruptFile("'{}' says its idx numbers have type 0x{:02x}, expected 0x08 to 0x0e", path,
                        std::to_integer<int>(head[2]));
  }
  if (size_of(layout.scalar) == 1) layout.big_endian = false;
  const int dimensions = std::to_integer<int>(head[3]);
  if (head.size() < 4 + 4 * static_cast<std::size_t>(dimensions))
    throw CorruptFile("'{}' is truncated within its idx header", path);
  if (dimensions == 1)
    throw InvalidArgument(
        "'{}' holds single numbers (an idx file of one dimension, such as labels), not vectors",
        path);
  layout.offset = 4 + 4 * dimensions;
  layout.rows = big_endian_u32(head.data() + 4);
  layout.cols = 1;
  bool fits = true;
  for (int i = 1; i < dimensions; ++i)
    fits = fits &&
           !__builtin_mul_overflow(
               layout.cols, std::int64_t{big_endian_u32(head.data() + 4 + 4 * i)}, &layout.cols);
  if (!fits || !compute_sizes(layout))
    throw CorruptFile("'{}' says it holds more numbers than any file can", path);
  return layout;
}

Layout parse_bin_header(Format format, std::span<const std::byte> head, const std::string& path) {
  if (head.size() < 8)
    throw CorruptFile("'{}' has {} bytes, too few for the header of .{}: two numbers of 32 bits",
                      path, head.size(), name_of(format));
  Layout layout{.format = format, .scalar = *scalar_of(format), .offset = 8};
  layout.rows = little_endian(head.data(), 4);
  layout.cols = little_endian(head.data() + 4, 4);
  if (!compute_sizes(layout))
    throw CorruptFile("'{}' says it holds {} x {} {}, more than any file can", path, layout.rows,
                      layout.cols, name_of(layout.scalar));
  if (format == Format::ibin) layout.distances = layout.rows * layout.row_bytes;
  return layout;
}

std::int64_t vecs_dim(std::span<const std::byte> head, const std::string& path) {
  if (head.size() < 4)
    throw CorruptFile("'{}' has {} bytes, too few for one row", path, head.size());
  const auto dim = static_cast<std::int32_t>(little_endian(head.data(), 4));
  if (dim < 1) throw CorruptFile("'{}': row 0 says dimension {}, expected at least 1", path, dim);
  return dim;
}

Layout parse_vecs_header(Format format, std::span<const std::byte> head, std::int64_t total_bytes,
                         const std::string& path) {
  Layout layout{.format = format, .scalar = *scalar_of(format)};
  layout.cols = vecs_dim(head, path);
  layout.offset = 4;
  layout.row_bytes = 4 + layout.packed_row_bytes();
  if (total_bytes < layout.row_bytes)
    throw CorruptFile("'{}' is truncated: row 0 says dimension {}, {} bytes, but the file has {}",
                      path, layout.cols, layout.row_bytes, total_bytes);
  if (total_bytes % layout.row_bytes != 0)
    throw CorruptFile(
        "'{}' has {} bytes, no multiple of the {} bytes of a row of dimension {}: truncated, or "
        "rows of different dimensions",
        path, total_bytes, layout.row_bytes, layout.cols);
  layout.rows = total_bytes / layout.row_bytes;
  layout.total_bytes = total_bytes;
  return layout;
}

}  // namespace knear::io
