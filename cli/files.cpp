#include "cli/files.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "knear/core/cpu.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/hdf5.hpp"

namespace knear::cli {
namespace {

// Names of files that are written beside it are longer: logs, and at most the temporary name of a
// shard, NAME.0123456789abcdef.4095.shard.tmp-0123456789ab.
constexpr std::size_t longest_ending = 48;

void check_name_length(const std::string& option, const std::string& path) {
  const std::filesystem::path named(path);
  const std::string folder = named.has_parent_path() ? named.parent_path().string() : ".";
  const long most = pathconf(folder.c_str(), _PC_NAME_MAX);
  const std::size_t bytes = named.filename().string().size();
  if (most > static_cast<long>(longest_ending) &&
      bytes > static_cast<std::size_t>(most) - longest_ending)
    throw InvalidArgument("{} has a file name of {} bytes, but may have {} in '{}'", option, bytes,
                          static_cast<std::size_t>(most) - longest_ending, folder);
}

io::OpenOptions opening(const std::string& type, const std::string& dataset) {
  io::OpenOptions out{.dataset = dataset};
  if (!type.empty()) out.type = parse_element_type(type);
  return out;
}

}  // namespace

bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code absent;
  const auto hdf5 = io::hdf5_path(b);
  const std::string& file = hdf5 ? hdf5->file : b;
  if (a == b || fs::equivalent(a, file, absent)) return true;
  const auto resolved = [&](const std::string& name) {
    return fs::weakly_canonical(fs::absolute(name, absent), absent);
  };
  const fs::path one = resolved(a);
  return !one.empty() && one == resolved(file);
}

std::string_view pipe_note(const std::string& path) {
  std::error_code absent;
  return std::filesystem::is_fifo(path, absent) ? " (a pipe)" : "";
}

io::VectorFile open_vectors(const std::string& path, const std::string& type,
                            const std::string& dataset) {
  return io::VectorFile::open(path, opening(type, dataset));
}

std::optional<BlockwiseFile> blockwise_file(const std::string& path, const std::string& type,
                                            const std::string& dataset, std::int64_t memory) {
  // A file below a hundredth of the machine's memory is taken to fit, and not opened twice.
  std::error_code absent;
  const auto hdf5 = io::hdf5_path(path);
  const auto bytes = std::filesystem::file_size(hdf5 ? hdf5->file : path, absent);
  if (memory <= 0 && (absent || static_cast<double>(bytes) < 0.01 * double(machine_memory())))
    return {};
  if (memory <= 0) memory = machine_memory();
  BlockwiseFile out{path, opening(type, dataset)};
  const io::VectorBlocks blocks(path, out.options);
  const std::int64_t row_bytes = blocks.dim() * size_of(blocks.type());
  if (blocks.is_mapped() || blocks.rows() <= memory / 2 / row_bytes) return {};
  out.type = blocks.type(), out.rows = blocks.rows(), out.dim = blocks.dim();
  out.block_rows = std::max<std::int64_t>(1, memory / 4 / row_bytes);
  return out;
}

Metric metric_of_file(const std::string& path) {
  const auto hdf5 = io::hdf5_path(path);
  if (!hdf5) return Metric::l2;
  const std::string distance = io::inspect_hdf5(hdf5->file).distance;
  if (distance.empty() || distance == "euclidean") return Metric::l2;
  if (distance == "angular") return Metric::cosine;
  throw InvalidArgument(
      "{} is for the distance '{}', which is none of l2, ip, cosine: --metric says "
      "which to take",
      hdf5->file, distance);
}

void check_output(const std::string& option, const std::string& path,
                  std::initializer_list<std::string_view> endings,
                  std::initializer_list<std::string> inputs) {
  if (path.empty()) return;
  bool fits = endings.size() == 0;
  std::string expected;
  for (std::string_view ending : endings) {
    fits |= path.ends_with(ending);
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", ending);
  }
  if (!fits) throw InvalidArgument("{} must end in {}, but is '{}'", option, expected, path);
  for (const std::string& input : inputs)
    if (!input.empty() && same_file(path, input))
      throw InvalidArgument("{} would overwrite the input {}", option, input);
  check_name_length(option, path);
  io::AtomicFile probe(path);
}

}  // namespace knear::cli
