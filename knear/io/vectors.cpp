// The public calls, on top of RowReader, RowWriter and the conversion of numbers.
#include "knear/io/vectors.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/io/layout.hpp"
#include "knear/io/number_conversion.hpp"
#include "knear/io/row_reader.hpp"
#include "knear/io/row_writer.hpp"

namespace knear::io {
namespace {

constexpr std::int64_t max_vector_dim = 65536;

// Calls append(begin, end) for one block of rows after another, each of about a mebibyte.
template <class Append>
void append_in_blocks(std::int64_t rows, std::int64_t row_bytes, const Progress& progress,
                      Append append) {
  const std::int64_t together =
      std::max<std::int64_t>(1, (1 << 20) / std::max<std::int64_t>(1, row_bytes));
  for (std::int64_t begin = 0; begin < rows; begin += together) {
    const std::int64_t end = std::min(rows, begin + together);
    append(begin, end);
    report_progress(progress, "write", end, rows);
  }
}

}  // namespace

// One of the two members holds what the view points into.
struct VectorFile::Storage {
  std::optional<MappedFile> mapped;
  AnyMatrix matrix;
};

VectorFile::VectorFile(std::string path, AnyMatrixView view, std::unique_ptr<Storage> storage)
    : path_(std::move(path)), view_(view), storage_(std::move(storage)) {}
VectorFile::~VectorFile() = default;
VectorFile::VectorFile(VectorFile&&) noexcept = default;
VectorFile& VectorFile::operator=(VectorFile&&) noexcept = default;

VectorFile VectorFile::open(const std::string& path, const OpenOptions& options) {
  return detail::public_call([&]() -> VectorFile {
    RowReader reader(path,
                     {.rows = options.rows, .max_dim = max_vector_dim, .dataset = options.dataset});
    const ElementType type = options.type.value_or(natural_type(reader.scalar()));
    auto storage = std::make_unique<Storage>();
    const std::byte* mapped = reader.mapped_rows();
    if (mapped && element_type(reader.scalar()) == type) {
      const AnyMatrixView view(type, mapped, reader.rows(), reader.dim(),
                               reader.row_bytes() / size_of(type));
      storage->mapped = reader.take_mapping();
      return {path, view, std::move(storage)};
    }

    std::int64_t bytes;
    if (__builtin_mul_overflow(reader.rows() * reader.dim(), std::int64_t{size_of(type)}, &bytes))
      throw MemoryBudgetError("'{}' is beyond any memory as {}", path, name_of(type));
    check_memory(bytes, path);
    storage->matrix = AnyMatrix(type, reader.rows(), reader.dim());
    read_rows(reader, [&](std::int64_t first, std::int64_t count, const std::byte* block) {
      convert_rows(reader.scalar(), block, count, reader.dim(), type, storage->matrix.row(first),
                   options.type ? Rounding::allowed : Rounding::refused,
                   {path, reader.first_row() + first});
      report_progress(options.progress, "read", first + count, reader.rows());
    });
    const AnyMatrixView view = storage->matrix.view();
    return {path, view, std::move(storage)};
  });
}

struct VectorBlocks::State {
  RowReader reader;
  std::string path;
  ElementType type;
  Rounding rounding;
  std::int64_t read = 0;
  std::vector<std::byte> raw;
  AnyMatrix rows;
};

VectorBlocks::VectorBlocks(const std::string& path, const OpenOptions& options) {
  detail::public_call([&] {
    RowReader reader(path,
                     {.rows = options.rows, .max_dim = max_vector_dim, .dataset = options.dataset});
    const ElementType type = options.type.value_or(natural_type(reader.scalar()));
    state_ = std::make_unique<State>(State{std::move(reader),
                                           path,
                                           type,
                                           options.type ? Rounding::allowed : Rounding::refused,
                                           0,
                                           {},
                                           {}});
  });
}
VectorBlocks::~VectorBlocks() = default;

bool VectorBlocks::is_mapped() const {
  return state_->reader.mapped_rows() && element_type(state_->reader.scalar()) == state_->type;
}
std::int64_t VectorBlocks::rows() const { return state_->reader.rows(); }
std::int64_t VectorBlocks::dim() const { return state_->reader.dim(); }
ElementType VectorBlocks::type() const { return state_->type; }

AnyMatrixView VectorBlocks::next(std::int64_t max_rows) {
  return detail::public_call([&]() -> AnyMatrixView {
    State& s = *state_;
    const std::int64_t n = std::min(max_rows, rows() - s.read);
    if (n <= 0) return {s.type, nullptr, 0, dim(), dim()};
    if (s.rows.rows() < n) s.rows = AnyMatrix(s.type, n, dim());
    // The stored numbers take less memory than what they become, or up to twice as much, so they
    // are read in pieces.
    const std::int64_t piece = std::max<std::int64_t>(1, (1 << 20) / s.reader.packed_row_bytes());
    s.raw.resize(std::min(n, piece) * s.reader.packed_row_bytes());
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t count = s.reader.read(s.raw.data(), std::min(n - done, piece));
      convert_rows(s.reader.scalar(), s.raw.data(), count, dim(), s.type, s.rows.row(done),
                   s.rounding, {s.path, s.reader.first_row() + s.read + done});
      done += count;
    }
    s.read += n;
    if (s.read == rows()) s.reader.finish();
    return s.rows.view().rows(0, n);
  });
}

Matrix<Id> read_ids(const std::string& path, const Progress& progress) {
  return detail::public_call([&] {
    RowReader reader(path, {.column = true, .dataset = "neighbors"});
    if (!is_integer(reader.scalar()))
      throw InvalidArgument(
          "'{}' holds {} numbers; ids are whole numbers (.ivecs, .ibin, or .npy of int64)", path,
          name_of(reader.scalar()));
    std::int64_t bytes;
    if (__builtin_mul_overflow(reader.rows() * reader.dim(), std::int64_t{sizeof(Id)}, &bytes))
      throw MemoryBudgetError("'{}' is beyond any memory as ids", path);
    check_memory(bytes, path);
    Matrix<Id> ids(reader.rows(), reader.dim());
    read_rows(reader, [&](std::int64_t first, std::int64_t count, const std::byte* block) {
      convert_rows_to_ids(reader.scalar(), block, count, reader.dim(), ids.row(first),
                          {path, first});
      report_progress(progress, "read", first + count, reader.rows());
    });
    return ids;
  });
}

void write_vectors(const std::string& path, AnyMatrixView vectors, const Progress& progress) {
  detail::public_call([&] {
    const auto scalar = scalar_of(vectors.type());
    if (!scalar)
      throw InvalidArgument("cannot write '{}': no format here stores {}", path,
                            name_of(vectors.type()));
    RowWriter writer(path, *scalar, vectors.rows(), vectors.cols());
    append_in_blocks(
        vectors.rows(), vectors.cols() * size_of(vectors.type()), progress,
        [&](std::int64_t begin, std::int64_t end) { writer.append(vectors.rows(begin, end)); });
    writer.commit();
  });
}

void write_ids(const std::string& path, MatrixView<Id> ids, const Progress& progress) {
  detail::public_call([&] {
    RowWriter writer(path, id_scalar(path), ids.rows(), ids.cols());
    append_in_blocks(
        ids.rows(), ids.cols() * std::int64_t{sizeof(Id)}, progress,
        [&](std::int64_t begin, std::int64_t end) { writer.append_ids(ids.rows(begin, end)); });
    writer.commit();
  });
}

void write_distances(const std::string& path, MatrixView<float> distances) {
  write_vectors(path, distances);
}

FileInfo inspect(const std::string& path) {
  return detail::public_call([&] {
    RowReader reader(path, {});
    reader.finish();
    return reader.info();
  });
}

}  // namespace knear::io
