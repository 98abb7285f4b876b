#include "knear/graph/partial_graph.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"
#include "knear/io/lost_pages.hpp"
#include "knear/io/open_file.hpp"

namespace knear::detail {
namespace {

constexpr std::array<char, 8> magic = {'K', 'N', 'E', 'A', 'R', 'p', 'g', '3'};
constexpr std::size_t page = 4096;  // of the format, whatever the pages of the system are
constexpr std::size_t order_sum_at = page - sizeof(std::uint64_t);  // 0: not known yet

struct Header {
  std::array<char, 8> magic;
  std::uint64_t rows, dim, type, checksum, k, block_rows, metric, distinct, order;
  double recall;
  std::uint64_t sum;  // XXH3 of all before it

  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(Header, sum)); }
};

Header header_of(const GraphPlan& plan) {
  Header header{magic,
                static_cast<std::uint64_t>(plan.base.rows),
                static_cast<std::uint64_t>(plan.base.dim),
                static_cast<std::uint64_t>(plan.base.type),
                plan.base.checksum,
                static_cast<std::uint64_t>(plan.k),
                static_cast<std::uint64_t>(plan.block_rows),
                static_cast<std::uint64_t>(plan.metric),
                plan.distinct,
                static_cast<std::uint64_t>(plan.order),
                plan.recall,
                0};
  header.sum = header.right_sum();
  return header;
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }

[[noreturn]] void fail(const std::string& path, const char* doing, int error) {
  throw IoError(SystemError{error, path}, "{}: cannot {}: {}", path, doing,
                std::generic_category().message(error));
}

Header read_header(const std::string& path) {
  const io::OpenFile file(path);
  Header found{};
  const ssize_t size = pread(file.number(), &found, sizeof found, 0);
  if (size == static_cast<ssize_t>(sizeof found) && found.magic != magic &&
      std::equal(magic.begin(), magic.end() - 1, found.magic.begin()))
    throw CorruptFile("{} was begun by another version; remove it to begin anew", path);
  if (size != static_cast<ssize_t>(sizeof found) || found.magic != magic ||
      found.sum != found.right_sum() || found.block_rows < 1 ||
      found.block_rows > std::uint64_t{1} << 62)
    throw CorruptFile("{} is no graph that was begun; remove it to begin anew", path);
  return found;
}

}  // namespace

struct PartialGraph::File {
  File(std::string name, const GraphPlan& graph_plan) : path(std::move(name)), plan(graph_plan) {
    const auto rows = plan.base.rows;
    blocks = (rows + plan.block_rows - 1) / plan.block_rows;
    static_assert(PartialGraph::sums_at == page);
    sums_at = page;
    ids_at = sums_at + whole_pages(checked_size(blocks, 1, sizeof(std::uint64_t)));
    distances_at = ids_at + whole_pages(checked_size(rows, plan.k, sizeof(Id)));
    bytes = distances_at + whole_pages(checked_size(rows, plan.k, sizeof(float)));
    arranged_ids_at = ids_at, arranged_distances_at = distances_at;
    if (plan.order == RowOrder::by_number) return;
    const std::size_t size = bytes - ids_at;
    rows_at = bytes;
    if (plan.order == RowOrder::as_found) bytes += whole_pages(checked_size(rows, 1, sizeof(Id)));
    arranged_ids_at = bytes, arranged_distances_at = bytes + (distances_at - ids_at);
    bytes += size;
  }
  ~File() {
    known = {};
    if (memory != nullptr) munmap(memory, bytes);
    if (file >= 0) close(file);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void open_file(int flags) { file = io::OpenFile(path, flags | O_RDWR).release(); }
  void map() {
    void* const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) fail(path, "map it", errno);
    memory = static_cast<std::byte*>(at);
    known = io::KnownMapping(at, bytes, path);
  }
  void put(std::size_t at, const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    while (size > 0) {
      const ssize_t done = pwrite(file, from, size, static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail(path, "write it", done < 0 ? errno : ENOSPC);
      from += done, at += static_cast<std::size_t>(done), size -= done;
    }
  }
  void sync() {
    if (sync_data(file) != 0) fail(path, "bring it to disk", errno);
  }

  std::int64_t rows_of(std::int64_t block) const {
    return std::min(plan.block_rows, plan.base.rows - block * plan.block_rows);
  }
  std::size_t ids_of(std::int64_t block) const {
    return ids_at + static_cast<std::size_t>(block * plan.block_rows * plan.k) * sizeof(Id);
  }
  std::size_t distances_of(std::int64_t block) const {
    return distances_at +
           static_cast<std::size_t>(block * plan.block_rows * plan.k) * sizeof(float);
  }
  std::span<const Id> rows_in(std::int64_t block) const {
    if (plan.order != RowOrder::as_found) return {};
    return {reinterpret_cast<const Id*>(memory + rows_at) + block * plan.block_rows,
            static_cast<std::size_t>(rows_of(block))};
  }
  // Never 0, which stands for a block that is not there.
  static std::uint64_t sum_of(const void* ids, const void* distances, std::size_t elements,
                              std::span<const Id> rows) {
    std::uint64_t sum = XXH3_64bits(ids, elements * sizeof(Id));
    sum = XXH3_64bits_withSeed(distances, elements * sizeof(float), sum);
    if (!rows.empty()) sum = XXH3_64bits_withSeed(rows.data(), rows.size_bytes(), sum);
    return sum | 1;
  }

  const std::string path;
  const GraphPlan plan;
  std::int64_t blocks = 0;
  std::size_t sums_at = 0, ids_at = 0, distances_at = 0, rows_at = 0, bytes = 0;
  std::size_t arranged_ids_at = 0, arranged_distances_at = 0;  // in the order of rows
  int file = -1;
  std::byte* memory = nullptr;
  io::KnownMapping known = {};
};

PartialGraph::PartialGraph(std::unique_ptr<File> file) : file_(std::move(file)) {}
PartialGraph::~PartialGraph() = default;
PartialGraph::PartialGraph(PartialGraph&&) noexcept = default;

bool PartialGraph::exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

PartialGraph PartialGraph::create(const std::string& path, const GraphPlan& plan) {
  auto file = std::make_unique<File>(path, plan);
  file->open_file(O_CREAT | O_EXCL);
  // The header last: what was killed before that is refused (open()).
  if (ftruncate(file->file, static_cast<off_t>(file->bytes)) != 0)
    fail(path, "make it as large as the graph", errno);
  const Header header = header_of(plan);
  file->put(0, &header, sizeof header);
  file->sync();
  file->map();
  return PartialGraph(std::move(file));
}

PartialGraph PartialGraph::open(const std::string& path, GraphPlan plan) {
  const Header found = read_header(path);
  if (plan.block_rows == 0) plan.block_rows = static_cast<std::int64_t>(found.block_rows);
  if (plan.order == RowOrder::as_found &&
      found.order == static_cast<std::uint64_t>(RowOrder::by_number))
    plan.order = RowOrder::by_number;
  auto file = std::make_unique<File>(path, plan);
  file->open_file(0);
  struct stat status {};
  if (fstat(file->file, &status) != 0) fail(path, "look at it", errno);
  const Header wanted = header_of(plan);
  const auto differs = [&](const char* what, auto there, auto here) {
    if (there != here)
      throw InvalidArgument("{} was begun with {} {}, not {}", path, what, there, here);
  };
  differs("rows", found.rows, wanted.rows);
  differs("columns", found.dim, wanted.dim);
  differs("k", found.k, wanted.k);
  differs("recall", found.recall, wanted.recall);
  differs("blocks of", found.block_rows, wanted.block_rows);
  if (found.metric != wanted.metric)
    throw InvalidArgument("{} was begun with another metric than {}", path, name_of(plan.metric));
  if (found.type != wanted.type)
    throw InvalidArgument("{} was begun for a base of another element type than {}", path,
                          name_of(plan.base.type));
  if (found.distinct != wanted.distinct)
    throw InvalidArgument("{} was begun {} copies of rows as neighbours", path,
                          plan.distinct ? "with" : "without");
  if (found.order != wanted.order)
    throw InvalidArgument("{} was begun with rows in another order{}", path,
                          found.order == static_cast<std::uint64_t>(RowOrder::as_found)
                              ? ": by one process, as knear graph, which goes on with it"
                              : "; remove it to begin anew");
  if (found.checksum != wanted.checksum)
    throw InvalidArgument("{} was begun for another base: its checksum is {:016x}, not {:016x}",
                          path, found.checksum, wanted.checksum);
  if (static_cast<std::size_t>(status.st_size) != file->bytes)
    throw CorruptFile("{} has {} bytes, but should have {}; remove it to begin anew", path,
                      static_cast<std::int64_t>(status.st_size), file->bytes);
  file->map();
  return PartialGraph(std::move(file));
}

const std::string& PartialGraph::path() const { return file_->path; }
std::int64_t PartialGraph::blocks() const { return file_->blocks; }
std::int64_t PartialGraph::block_rows() const { return file_->plan.block_rows; }

bool PartialGraph::has(std::int64_t block) const {
  std::uint64_t sum = 0;
  std::memcpy(&sum, file_->memory + file_->sums_at + static_cast<std::size_t>(block) * sizeof sum,
              sizeof sum);
  return sum != 0 &&
         sum == File::sum_of(file_->memory + file_->ids_of(block),
                             file_->memory + file_->distances_of(block),
                             file_->rows_of(block) * file_->plan.k, file_->rows_in(block));
}

RowOrder PartialGraph::order() const { return file_->plan.order; }

std::span<const Id> PartialGraph::rows(std::int64_t block) const {
  const std::span<const Id> rows = file_->rows_in(block);
  for (const Id row : rows)
    if (row < 0 || row >= file_->plan.base.rows)
      throw CorruptFile(
          "{} has row {} in a block, where there are {} rows; remove it to begin anew", file_->path,
          row, file_->plan.base.rows);
  return rows;
}

void PartialGraph::write(std::int64_t block, MatrixView<Id> ids, MatrixView<float> distances,
                         std::span<const Id> rows) {
  const std::size_t elements = file_->rows_of(block) * file_->plan.k;
  if (!rows.empty())
    file_->put(
        file_->rows_at + static_cast<std::size_t>(block * file_->plan.block_rows) * sizeof(Id),
        rows.data(), rows.size_bytes());
  file_->put(file_->ids_of(block), ids.data(), elements * sizeof(Id));
  file_->put(file_->distances_of(block), distances.data(), elements * sizeof(float));
  file_->sync();
  const std::uint64_t sum = File::sum_of(ids.data(), distances.data(), elements, rows);
  file_->put(file_->sums_at + static_cast<std::size_t>(block) * sizeof sum, &sum, sizeof sum);
  file_->sync();
}

void PartialGraph::set_order(std::span<const Id> order) {
  if (order.empty()) return;
  const std::uint64_t sum = XXH3_64bits(order.data(), order.size_bytes()) | 1;
  std::uint64_t there = 0;
  std::memcpy(&there, file_->memory + order_sum_at, sizeof there);
  if (there == sum) return;
  if (there != 0)
    throw InvalidArgument("{} was begun with other inverted lists; remove it to begin anew",
                          file_->path);
  file_->put(order_sum_at, &sum, sizeof sum);
  file_->sync();
}

void PartialGraph::arrange(std::span<const Id> order, std::int64_t bytes) {
  if (std::is_sorted(order.begin(), order.end())) {
    file_->arranged_ids_at = file_->ids_at, file_->arranged_distances_at = file_->distances_at;
    return;
  }
  const std::int64_t rows = file_->plan.base.rows, k = file_->plan.k;
  const MatrixView<Id> ids{reinterpret_cast<const Id*>(file_->memory + file_->ids_at), rows, k};
  const MatrixView<float> distances{
      reinterpret_cast<const float*>(file_->memory + file_->distances_at), rows, k};
  const std::int64_t row_bytes = k * static_cast<std::int64_t>(sizeof(Id) + sizeof(float));
  const std::int64_t most = std::clamp<std::int64_t>(bytes / row_bytes, 1, rows);
  Matrix<Id> some_ids = Matrix<Id>::unset(most, k);
  Matrix<float> some_distances = Matrix<float>::unset(most, k);
  // Everything is read from its beginning to its end for some of the rows at a time.
  for (Id begin = 0; begin < rows; begin += most) {
    const Id end = std::min(rows, begin + most);
    for (std::size_t place = 0; place < order.size(); ++place) {
      const Id row = order[place];
      if (row < begin || row >= end) continue;
      const auto from = static_cast<std::int64_t>(place);
      std::copy_n(ids.row(from), k, some_ids.row(row - begin));
      std::copy_n(distances.row(from), k, some_distances.row(row - begin));
    }
    const auto first = static_cast<std::size_t>(begin * k),
               elements = static_cast<std::size_t>((end - begin) * k);
    file_->put(file_->arranged_ids_at + first * sizeof(Id), some_ids.data(), elements * sizeof(Id));
    file_->put(file_->arranged_distances_at + first * sizeof(float), some_distances.data(),
               elements * sizeof(float));
  }
}

MatrixView<Id> PartialGraph::ids() const {
  return {reinterpret_cast<const Id*>(file_->memory + file_->arranged_ids_at),
          file_->plan.base.rows, file_->plan.k};
}
MatrixView<float> PartialGraph::distances() const {
  return {reinterpret_cast<const float*>(file_->memory + file_->arranged_distances_at),
          file_->plan.base.rows, file_->plan.k};
}

void PartialGraph::check_edges() const {
  const MatrixView<Id> all = ids();
  const MatrixView<float> far = distances();
  for (std::int64_t i = 0; i < all.rows(); ++i)
    for (std::int64_t j = 0; j < all.cols(); ++j) {
      const Id id = all.row(i)[j];
      if (id < no_id || id >= all.rows() || id == i || std::isnan(far.row(i)[j]))
        throw CorruptFile("{}: row {} cannot have the neighbour {} at {}; remove it to begin anew",
                          file_->path, i, id, far.row(i)[j]);
    }
}

void PartialGraph::remove() {
  if (unlink(file_->path.c_str()) != 0) fail(file_->path, "remove it", errno);
}

void check_finished(const std::string& path, const GraphPlan& plan, double promised_recall,
                    const std::string& recall_argument, const Progress& progress) {
  const NeighborGraph there = NeighborGraph::load(path, progress);
  const GraphProperties& has = there.properties();
  const char* const differs =
      there.k() != plan.k             ? "k"
      : there.metric() != plan.metric ? "metric"
      : has.distinct != plan.distinct ? "mark of copies"
      : !(has.base == plan.base)      ? "base"
      : has.promised_recall != promised_recall || has.recall_argument != recall_argument ? "recall"
                                                                                         : nullptr;
  if (differs)
    throw InvalidArgument(
        "{} is whole already, but of another {}, and there is no {}.partial to resume: remove it, "
        "or begin anew without resuming",
        path, differs, path);
}

}  // namespace knear::detail
