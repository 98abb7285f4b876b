// knear/io/row_reader.hpp -- the rows of a matrix file one block after another, whatever its
// format.
//
//   RowReader reader("base.npy.gz", {});
//   while (std::int64_t n = reader.read(block, 1000)) ...
//
// The one place that knows how formats, gzip, headers between rows and byte order combine. Opening
// checks the header against the size of the file, and in .fvecs and the like every row's header.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/io/byte_source.hpp"
#include "knear/io/hdf5.hpp"
#include "knear/io/layout.hpp"
#include "knear/io/open_options.hpp"

namespace knear::io {

struct RowReaderOptions {
  std::optional<RowRange> rows = {};
  // A larger dimension is an InvalidArgument. For ids the limit is only what the formats can say.
  std::int64_t max_dim = std::numeric_limits<std::int32_t>::max();
  bool column = false;       // takes a .npy of one dimension for a matrix of one column
  std::string dataset = {};  // of an HDF5 file whose name says none
};

class RowReader {
 public:
  RowReader(const std::string& path, const RowReaderOptions& options);

  // Describes the whole file. Gzipped data in Fortran order are in memory from the beginning.
  const FileInfo& info() const { return info_; }
  Scalar scalar() const { return layout_.scalar; }
  // The first of the rows that were asked for, and their number.
  std::int64_t first_row() const { return begin_; }
  std::int64_t rows() const { return end_ - begin_; }
  std::int64_t dim() const { return layout_.cols; }
  std::int64_t packed_row_bytes() const { return layout_.packed_row_bytes(); }

  // Copies up to max_rows of the next rows to out, packed and in this machine's byte order.
  // Returns their number, 0 after the last.
  std::int64_t read(std::byte* out, std::int64_t max_rows);
  // Reads what is left of gzip data, for its checksum and length. Call once, after the last row.
  void finish();

  // The address of the rows in the mapped file, row_bytes() apart, if they can be used as they are
  // (uncompressed, aligned, this machine's byte order); else nullptr.
  const std::byte* mapped_rows() const;
  std::int64_t row_bytes() const { return layout_.row_bytes; }
  // Hands over the mapping, which the pointer above points into.
  MappedFile take_mapping() { return std::move(file_); }

 private:
  void open_plain(std::optional<Format> format, bool column);
  void open_gzip(std::optional<Format> format, bool column);
  void open_hdf5(const std::string& name, const RowReaderOptions& options);
  void unpack();
  void gather(std::byte* out, std::int64_t count) const;
  void check_row_headers() const;
  void check_total(std::int64_t found) const;
  void choose_rows(const std::optional<RowRange>& rows);
  std::int64_t count_gzip_rows(Format format);

  FileInfo info_;
  Layout layout_;
  MappedFile file_;
  std::optional<GzipStream> gzip_;
  std::optional<Hdf5Dataset> hdf5_;  // set if its rows have to come through the library
  std::optional<Hdf5Stream> stream_;
  std::vector<std::byte> unpacked_;  // the whole content, where that is needed
  std::int64_t begin_ = 0, end_ = 0, next_ = 0;
};

// Reads all rows: calls f(first, count, block) for one block after another, `first` counted from 0
// for the first row asked for, the block packed; then finish().
template <class F>
void read_rows(RowReader& reader, F&& f) {
  constexpr std::int64_t block_bytes = std::int64_t{1} << 20;
  const std::int64_t row_bytes = reader.packed_row_bytes();
  // Without rows there is no block: a header may well say that there are no rows of 2^31 columns.
  const std::int64_t block_rows =
      std::min(std::max(block_bytes / row_bytes, std::int64_t{1}), reader.rows());
  std::vector<std::byte> block(block_rows * row_bytes);
  for (std::int64_t first = 0; first < reader.rows();) {
    const std::int64_t count = reader.read(block.data(), block_rows);
    f(first, count, static_cast<const std::byte*>(block.data()));
    first += count;
  }
  reader.finish();
}

// Reports to `progress`, if there is one, that `done` of `all` rows are done; throws Cancelled if
// asked to stop.
void report_progress(const Progress& progress, std::string_view stage, std::int64_t done,
                     std::int64_t all);

// Throws MemoryBudgetError if `bytes` is more than the machine has: the system would promise them
// and end the process later.
void check_memory(std::int64_t bytes, const std::string& path);

}  // namespace knear::io
