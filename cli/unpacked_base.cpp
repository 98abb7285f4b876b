#include "cli/unpacked_base.hpp"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/files.hpp"
#include "knear/core/error.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/hdf5.hpp"
#include "knear/io/row_writer.hpp"

namespace knear::cli {
namespace {

constexpr std::int64_t most_block_bytes = std::int64_t{64} << 20;

std::string scratch_name(const BlockwiseFile& base, const std::string& out) {
  const auto hdf5 = io::hdf5_path(base.path);
  const std::filesystem::path file = std::filesystem::canonical(hdf5 ? hdf5->file : base.path);
  const std::string mark = fmt::format(
      "{}\n{}\n{}\n{}\n{}", file.string(), base.path, std::filesystem::file_size(file),
      std::filesystem::last_write_time(file).time_since_epoch().count(), name_of(base.type));
  return fmt::format("{}.base-{:016x}.npy", out, XXH3_64bits(mark.data(), mark.size()));
}

void unpack(const BlockwiseFile& base, const std::string& scratch, const Progress& progress) {
  io::VectorBlocks blocks(base.path, base.options);
  io::RowWriter writer(scratch, *io::scalar_of(base.type), base.rows, base.dim);
  const std::int64_t together = std::clamp<std::int64_t>(
      most_block_bytes / (base.dim * size_of(base.type)), 1, base.block_rows);
  for (std::int64_t done = 0; done < base.rows;) {
    if (progress && !progress("unpack", static_cast<double>(done) / static_cast<double>(base.rows)))
      throw Cancelled("stopped on request");
    const AnyMatrixView rows = blocks.next(together);
    writer.append(rows);
    done += rows.rows();
  }
  writer.commit();
}

}  // namespace

UnpackedBase::UnpackedBase(const std::string& path, const std::string& type, const std::string& out,
                           std::int64_t memory, std::int64_t bytes_a_row,
                           const Progress& progress) {
  const auto base = blockwise_file(path, type, base_dataset, memory);
  if (!base) {
    file_.emplace(open_vectors(path, type, base_dataset));
    io::OpenOptions options{.dataset = base_dataset};
    if (!type.empty()) options.type = parse_element_type(type);
    if (memory > 0 && !io::VectorBlocks(path, options).is_mapped())
      memory_bytes_ = view().rows() * view().cols() * size_of(view().type());
    return;
  }
  const std::int64_t bytes = base->rows * base->dim * size_of(base->type);
  if (!io::scalar_of(base->type))
    throw InvalidArgument(
        "--base {} takes {} bytes as {}, more than half of the memory, and no file of {} can be "
        "mapped: leave out --type, or give --memory {} or more",
        path, bytes, name_of(base->type), name_of(base->type), 2 * bytes);
  const std::string scratch = scratch_name(*base, out);
  if (!std::filesystem::exists(scratch)) {
    io::check_free_space(scratch, bytes + bytes_a_row * base->rows,
                         "the unpacked base and the graph");
    unpack(*base, scratch, progress);
  }
  file_.emplace(open_vectors(scratch, std::string(name_of(base->type)), base_dataset));
  scratch_ = scratch, partial_ = out + ".partial";
  scratch_bytes_ = bytes;
}

UnpackedBase::~UnpackedBase() {
  std::error_code absent;
  if (!scratch_.empty() && !std::filesystem::exists(partial_, absent))
    std::filesystem::remove(scratch_, absent);
}

}  // namespace knear::cli
