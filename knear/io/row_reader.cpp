// Opens a matrix file, checks it against its own header, and reads its rows.
#include "knear/io/row_reader.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::io {

static_assert(std::endian::native == std::endian::little, "files are mapped as they are");

namespace {

Layout parse_fixed_header(Format format, std::span<const std::byte> head, const std::string& path,
                          bool column) {
  if (is_bin(format)) return parse_bin_header(format, head, path);
  return format == Format::npy ? parse_npy_header(head, path, column)
                               : parse_idx_header(head, path);
}

Format known_format(std::optional<Format> by_name, std::span<const std::byte> head,
                    const std::string& path) {
  if (by_name) return *by_name;
  if (const auto by_content = format_of_content(head)) return *by_content;
  throw InvalidArgument(
      "'{}': unknown format; the name ends in none of {} (or these and .gz), and the content is "
      "neither .npy nor idx",
      path, readable_endings());
}

std::int32_t row_dim(const std::byte* header) {
  std::int32_t dim;
  std::memcpy(&dim, header, 4);
  return dim;
}

[[noreturn]] void fail_row_dim(const std::string& path, std::int64_t row, std::int64_t found,
                               std::int64_t expected) {
  throw CorruptFile("'{}': row {} says dimension {}, expected {} as in row 0", path, row, found,
                    expected);
}

void reverse_bytes(std::byte* data, std::int64_t count, int size) {
  for (std::int64_t i = 0; i < count; ++i) std::reverse(data + i * size, data + (i + 1) * size);
}

}  // namespace

void check_memory(std::int64_t bytes, const std::string& path) {
  const std::int64_t machine = machine_memory();
  if (bytes > machine)
    throw MemoryBudgetError("'{}' needs {} bytes of memory, but this machine has {}", path, bytes,
                            machine);
}

void report_progress(const Progress& progress, std::string_view stage, std::int64_t done,
                     std::int64_t all) {
  if (progress && !progress(stage, static_cast<double>(done) / static_cast<double>(all)))
    throw Cancelled("stopped after {} of {} rows", done, all);
}

RowReader::RowReader(const std::string& path, const RowReaderOptions& options)
    : file_(hdf5_path(path) ? hdf5_path(path)->file : path) {
  info_.path = path;
  info_.file_bytes = file_.size();
  std::string_view name = path;
  if (name.ends_with(".gz")) {
    info_.gzipped = true;
    name.remove_suffix(3);
  }
  const std::optional<Format> format = format_of_name(name);
  if (const auto hdf5 = hdf5_path(path))
    open_hdf5(hdf5->dataset, options);
  else if (info_.gzipped)
    open_gzip(format, options.column);
  else
    open_plain(format, options.column);

  if (layout_.cols < 1 || layout_.cols > options.max_dim)
    throw InvalidArgument("'{}' holds vectors of dimension {}, expected 1 to {}", path,
                          layout_.cols, options.max_dim);
  info_.format = layout_.format;
  info_.type = name_of(layout_.scalar);
  info_.rows = layout_.rows;
  info_.dim = layout_.cols;
  info_.element_bytes = layout_.rows * layout_.packed_row_bytes();
  choose_rows(options.rows);
  if (!gzip_ && is_vecs(layout_.format)) check_row_headers();
  if (hdf5_) stream_.emplace(hdf5_path(path)->file, *hdf5_, begin_, end_);
}

void RowReader::open_plain(std::optional<Format> by_name, bool column) {
  const std::span<const std::byte> head(file_.data(), std::min(file_.size(), max_header_bytes));
  const Format format = known_format(by_name, head, info_.path);
  if (is_vecs(format)) {
    layout_ = parse_vecs_header(format, head, file_.size(), info_.path);
  } else {
    layout_ = parse_fixed_header(format, head, info_.path, column);
    check_total(file_.size());
  }
}

void RowReader::open_gzip(std::optional<Format> by_name, bool column) {
  gzip_.emplace(file_.data(), file_.size(), info_.path);
  std::vector<std::byte> head(max_header_bytes);
  head.resize(gzip_->read(head.data(), max_header_bytes));
  if (head.empty()) throw CorruptFile("'{}' is empty once unpacked", info_.path);
  const Format format = known_format(by_name, head, info_.path);
  const bool whole = gzip_->at_end();

  gzip_.emplace(file_.data(), file_.size(), info_.path);  // from the start again
  if (is_vecs(format)) {
    // No header gives the size, so the content is unpacked twice: once to count and check it
    // without keeping anything, once to keep it.
    vecs_dim(head, info_.path);
    layout_ = parse_vecs_header(format, head, count_gzip_rows(format), info_.path);
    gzip_.emplace(file_.data(), file_.size(), info_.path);
    return;
  }
  layout_ = parse_fixed_header(format, head, info_.path, column);
  if (whole) {
    check_total(static_cast<std::int64_t>(head.size()));
  } else if (layout_.total_bytes / 1040 > file_.size()) {
    // Deflate makes at most 1,032 bytes of one: such a header is wrong, and refused before memory
    // is taken.
    throw CorruptFile(
        "'{}' says it holds {} x {} {}, {} bytes, which its {} bytes cannot unpack to", info_.path,
        layout_.rows, layout_.cols, name_of(layout_.scalar), layout_.total_bytes, file_.size());
  }
  if (layout_.fortran) {
    unpack();
  } else {
    gzip_->skip(layout_.offset);
  }
}

void RowReader::open_hdf5(const std::string& name, const RowReaderOptions& options) {
  const std::string& path = info_.path;
  const std::string asked = name.empty() ? options.dataset : name;
  const std::string file = hdf5_path(path)->file;
  const Hdf5Contents contents = inspect_hdf5(file, asked);
  const auto is_matrix = [&](const Hdf5Dataset& one) {
    const std::size_t rank = one.shape.size();
    return one.scalar && (rank == 2 || (rank == 1 && options.column && !asked.empty()));
  };
  std::vector<Hdf5Dataset> matrices = contents.datasets;
  std::erase_if(matrices, [&](const Hdf5Dataset& one) { return !is_matrix(one); });
  // One that lies elsewhere may be the one that was meant.
  const bool alone = std::none_of(contents.datasets.begin(), contents.datasets.end(),
                                  [](const Hdf5Dataset& one) { return !one.elsewhere.empty(); });
  if (matrices.size() != 1 || !alone) {
    std::string names;
    for (const Hdf5Dataset& one : contents.datasets)
      if (matrices.size() < 2 && !one.elsewhere.empty())
        throw InvalidArgument("'{}': its dataset '{}' {}, which is not read", path, one.name,
                              one.elsewhere);
    for (const Hdf5Dataset& one : matrices) names += names.empty() ? one.name : ", " + one.name;
    if (!asked.empty() || matrices.empty())
      throw InvalidArgument("'{}': {} no matrix of plain numbers", path,
                            asked.empty() ? "there is" : "its dataset '" + asked + "' is");
    throw InvalidArgument("'{}' has the datasets {}: name one, as in {}:{}", path, names, path,
                          matrices[0].name);
  }
  const Hdf5Dataset& found = matrices.front();
  layout_ = {.format = Format::hdf5, .scalar = *found.scalar, .rows = found.shape[0]};
  layout_.cols = found.shape.size() == 2 ? found.shape[1] : 1;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(layout_.cols, std::int64_t{size_of(layout_.scalar)},
                             &layout_.row_bytes) ||
      __builtin_mul_overflow(layout_.rows, layout_.row_bytes, &bytes))
    throw CorruptFile("'{}' says that its dataset '{}' has {} x {} numbers, beyond 63 bits", path,
                      found.name, layout_.rows, layout_.cols);
  layout_.total_bytes = bytes;
  if (found.offset >= 0) {
    layout_.big_endian = found.big_endian;
    layout_.offset = found.offset;
    if (found.offset > file_.size() || bytes > file_.size() - found.offset)
      throw CorruptFile(
          "'{}' is truncated: its dataset '{}' ends at byte {}, but it has {}", path, found.name,
          static_cast<__int128>(found.offset) + bytes > INT64_MAX ? INT64_MAX
                                                                  : found.offset + bytes,
          file_.size());
    return;
  }
  // Deflate makes at most 1,032 bytes of one. Rows that were never written are refused too.
  if (bytes / 1040 > found.stored_bytes || found.stored_bytes > file_.size())
    throw CorruptFile(
        "'{}' says that its dataset '{}' has {} x {} {}, which its {} bytes cannot "
        "unpack to",
        path, found.name, layout_.rows, layout_.cols, name_of(layout_.scalar), found.stored_bytes);
  hdf5_ = found;
}

// Rows of Fortran order lie all over the content, so all of it is kept.
void RowReader::unpack() {
  check_memory(layout_.total_bytes, info_.path);
  unpacked_.resize(layout_.total_bytes);
  const std::int64_t found = gzip_->read(unpacked_.data(), layout_.total_bytes);
  check_total(gzip_->at_end() ? found : found + 1);
  gzip_.reset();
}

// Counts the rows of .fvecs.gz and the like, checking every row's header on the way: a bomb of
// zeros ends at its first row, before memory is taken.
std::int64_t RowReader::count_gzip_rows(Format format) {
  std::int64_t rows = 0, dim = 0;
  for (;; ++rows) {
    std::byte header[4];
    const std::int64_t got = gzip_->read(header, 4);
    if (got == 0) break;
    if (got < 4)
      throw CorruptFile("'{}' is truncated: {} bytes follow row {}", info_.path, got, rows - 1);
    if (rows == 0) dim = row_dim(header);
    if (row_dim(header) != dim) fail_row_dim(info_.path, rows, row_dim(header), dim);
    file_.forget_before(gzip_->consumed());
    const std::int64_t bytes = dim * (format == Format::bvecs ? 1 : 4);
    const std::int64_t found = gzip_->skip(bytes);
    if (found < bytes)
      throw CorruptFile("'{}' is truncated: row {} has {} bytes, expected {}", info_.path, rows,
                        found, bytes);
  }
  return rows * (4 + dim * (format == Format::bvecs ? 1 : 4));
}

void RowReader::check_total(std::int64_t found) const {
  if (found == layout_.total_bytes || found - layout_.total_bytes == layout_.distances) return;
  throw CorruptFile("'{}' {}: {} x {} {} and the header make {} bytes, but it has {}", info_.path,
                    found < layout_.total_bytes ? "is truncated" : "has bytes after its end",
                    layout_.rows, layout_.cols, name_of(layout_.scalar), layout_.total_bytes,
                    found);
}

// One read per row, in parallel: the cost is fetching the pages, which the search needs anyway.
void RowReader::check_row_headers() const {
  constexpr std::int64_t block = 1 << 14;
  const std::int64_t blocks = (rows() + block - 1) / block;
  std::atomic<std::int64_t> first_bad{end_};
  parallel_for(0, blocks, [&](std::int64_t b) {
    const std::int64_t stop = std::min(begin_ + (b + 1) * block, end_);
    for (std::int64_t i = begin_ + b * block; i < stop; ++i) {
      if (row_dim(file_.data() + i * layout_.row_bytes) == layout_.cols) continue;
      // The smallest bad row of all, so that the message does not depend on the order of the
      // threads.
      std::int64_t seen = first_bad;
      while (i < seen && !first_bad.compare_exchange_weak(seen, i)) {
      }
      return;
    }
  });
  if (first_bad < end_)
    fail_row_dim(info_.path, first_bad, row_dim(file_.data() + first_bad * layout_.row_bytes),
                 layout_.cols);
}

void RowReader::choose_rows(const std::optional<RowRange>& rows) {
  end_ = layout_.rows;
  if (rows) {
    begin_ = rows->begin;
    end_ = rows->end.value_or(layout_.rows);
    if (begin_ < 0 || begin_ >= end_ || end_ > layout_.rows)
      throw InvalidArgument("rows {}:{} asked for, but '{}' has rows 0:{}", begin_, end_,
                            info_.path, layout_.rows);
  }
  next_ = begin_;
  if (gzip_) {
    for (std::int64_t i = 0; i < begin_; ++i) gzip_->skip(layout_.row_bytes);
  }
}

std::int64_t RowReader::read(std::byte* out, std::int64_t max_rows) {
  const std::int64_t count = std::min(max_rows, end_ - next_), bytes = packed_row_bytes();
  const bool vecs = is_vecs(layout_.format);
  if (stream_) {
    stream_->read(out, count * bytes);
  } else if (gzip_) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (vecs) gzip_->skip(4);  // checked when it was counted
      const std::int64_t got = gzip_->read(out + i * bytes, bytes);
      if (got < bytes)
        throw CorruptFile(
            "'{}' is truncated: its header says {} rows, but row {} has {} of {} bytes", info_.path,
            layout_.rows, next_ + i, got, bytes);
    }
  } else if (layout_.fortran) {
    gather(out, count);
  } else {
    const std::byte* from = file_.data() + layout_.offset + next_ * layout_.row_bytes;
    if (layout_.row_bytes == bytes) {
      if (count > 0) std::memcpy(out, from, count * bytes);
    } else {
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(out + i * bytes, from + i * layout_.row_bytes, bytes);
    }
  }
  if (layout_.big_endian) reverse_bytes(out, count * layout_.cols, size_of(layout_.scalar));
  next_ += count;
  if (gzip_)
    file_.forget_before(gzip_->consumed());
  else if (!layout_.fortran && !stream_)
    file_.forget_before(layout_.offset + next_ * layout_.row_bytes);
  return count;
}

// Columns lie one after another, so that the next rows are a piece of each.
void RowReader::gather(std::byte* out, std::int64_t count) const {
  const std::int64_t size = size_of(layout_.scalar), bytes = packed_row_bytes();
  const std::byte* content = unpacked_.empty() ? file_.data() : unpacked_.data();
  for (std::int64_t c = 0; c < layout_.cols; ++c) {
    const std::byte* from = content + layout_.offset + (c * layout_.rows + next_) * size;
    for (std::int64_t r = 0; r < count; ++r)
      std::memcpy(out + r * bytes + c * size, from + r * size, size);
  }
}

void RowReader::finish() {
  if (!gzip_) return;
  const std::int64_t expected = (layout_.rows - next_) * layout_.row_bytes;
  const std::int64_t found = gzip_->skip(expected);
  if (found < expected) check_total(layout_.total_bytes - expected + found);
  if (layout_.distances > 0 && !gzip_->at_end()) {
    const std::int64_t more = gzip_->skip(layout_.distances);
    if (more < layout_.distances) check_total(layout_.total_bytes + more);
  }
  if (!gzip_->at_end())
    throw CorruptFile(
        "'{}' has bytes after its end: {} x {} {} and the header make {}, but more "
        "follow",
        info_.path, layout_.rows, layout_.cols, name_of(layout_.scalar), layout_.total_bytes);
}

const std::byte* RowReader::mapped_rows() const {
  if (gzip_ || stream_ || layout_.big_endian || layout_.fortran) return nullptr;
  // The mapping begins at a page, so an offset that fits the type is an aligned address.
  if (layout_.offset % size_of(layout_.scalar) != 0) return nullptr;
  return file_.data() + layout_.offset + begin_ * layout_.row_bytes;
}

}  // namespace knear::io
