// knear/io/layout.hpp -- where in a file the numbers of a matrix lie: what its header says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "knear/core/element_type.hpp"
#include "knear/io/open_options.hpp"

namespace knear::io {

// What numbers are stored as in files: more kinds than knear computes with.
enum class Scalar : std::uint8_t { f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64 };

int size_of(Scalar scalar);
std::string_view name_of(Scalar scalar);
// Whether the scalar holds whole numbers, of any width.
bool is_integer(Scalar scalar);
// The element type that is the same as the scalar, if there is one.
std::optional<ElementType> element_type(Scalar scalar);
// The element type as which such numbers are opened when none is asked for: the same, or f32.
ElementType natural_type(Scalar scalar);
// The scalar that stores this type; none for bf16.
std::optional<Scalar> scalar_of(ElementType type);

// The number at row r and column c stands at byte offset + r * row_bytes + c * size_of(scalar); in
// Fortran order at offset + (c * rows + r) * size_of(scalar).
struct Layout {
  Format format = Format::npy;
  Scalar scalar = Scalar::f32;
  bool big_endian = false, fortran = false;
  std::int64_t rows = 0, cols = 0;
  std::int64_t offset = 0;
  std::int64_t row_bytes = 0;

  std::int64_t packed_row_bytes() const { return cols * size_of(scalar); }
  // Bytes of the whole content: of the file, or of what its gzip data unpacks to. An .ibin file may
  // have `distances` more (big-ann ground truth).
  std::int64_t total_bytes = 0;
  std::int64_t distances = 0;
};

// The format that the ending of the name (without .gz) says, if it is a known one.
std::optional<Format> format_of_name(std::string_view name);
// The endings, for messages: ".fvecs .bvecs ...".
std::string known_endings();
// The endings of the formats that are only read.
std::string readable_endings();
// What a format that stores one kind of number stores; none for npy and idx.
std::optional<Scalar> scalar_of(Format format);
// Whether a format has a header of the dimension before each row, or one of two numbers before all
// rows.
bool is_vecs(Format format);
bool is_bin(Format format);
// The format that the first bytes say, npy or idx.
std::optional<Format> format_of_content(std::span<const std::byte> head);

// No header that is accepted is longer than this many bytes.
inline constexpr std::int64_t max_header_bytes = 65536 + 12;

// Reads the header of a .npy or idx file from its first bytes: all of them, or max_header_bytes.
// Sizes are computed with overflow checks but not yet compared with the file's.
// Throws CorruptFile, and InvalidArgument for what is sound but no matrix of plain numbers.
// An array of one dimension is refused, or with `column` a matrix of one column.
Layout parse_npy_header(std::span<const std::byte> head, const std::string& path, bool column);
Layout parse_idx_header(std::span<const std::byte> head, const std::string& path);

// The layout of a .fbin .u8bin .i8bin .ibin content. Throws CorruptFile.
Layout parse_bin_header(Format format, std::span<const std::byte> head, const std::string& path);

// The layout of a .fvecs .bvecs .ivecs content of total_bytes bytes that begins with `head`.
// Only the first row's header is looked at. Throws CorruptFile.
Layout parse_vecs_header(Format format, std::span<const std::byte> head, std::int64_t total_bytes,
                         const std::string& path);
// The dimension that the first four bytes of a row say, checked to be at least 1.
std::int64_t vecs_dim(std::span<const std::byte> head, const std::string& path);

}  // namespace knear::io
