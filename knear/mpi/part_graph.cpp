#include "knear/mpi/part_graph.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <vector>

#include "knear/core/public_call.hpp"
#include "knear/core/value_range.hpp"
#include "knear/graph/partial_graph.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {
namespace {

constexpr std::int64_t blocks_of_process = 8, fewest_rows = 4096, most_rows = 131072,
                       usual_chunk_bytes = std::int64_t{1} << 26;

// The graph in one process.
class Builder {
 public:
  Builder(Peers& peers, const BaseMark& base, std::int64_t k, const std::string& path,
          const PartGraphOptions& options)
      : peers_(peers),
        base_(base),
        k_(k),
        path_(path),
        partial_path_(path + ".partial"),
        options_(options),
        threads_(resolve_threads(options.threads)) {}

  void check() const {
    if (k_ < 1 || k_ >= (std::int64_t{1} << 31) - 1)
      throw InvalidArgument("k must be in [1, 2147483646], but is {}", k_);
    detail::check_dim("base", base_.dim);
    if (!is_first() || options_.resume == Resume::yes) return;
    if (detail::PartialGraph::exists(partial_path_))
      throw InvalidArgument("{} is there, of a graph that was begun: resume it, or remove the file",
                            partial_path_);
  }

  // Whether a graph that is to be resumed is there, whole.
  bool is_whole() {
    std::int64_t whole = 0;
    agree(
        [&] {
          if (options_.resume == Resume::no || detail::PartialGraph::exists(partial_path_) ||
              !detail::PartialGraph::exists(path_))
            return 0;
          detail::check_finished(path_, plan(0), 1, "exact", options_.progress);
          return 1;
        },
        whole);
    report_.was_whole = whole == 1;
    return report_.was_whole;
  }

  // How the rows are divided, the same in all.
  void divide() {
    const int ranks = peers_.size();
    agree(
        [&] {
          if (detail::PartialGraph::exists(partial_path_))
            return detail::PartialGraph::open(partial_path_, plan(0)).block_rows();
          if (options_.block_rows > 0) return options_.block_rows;
          const std::int64_t parts = blocks_of_process * ranks;
          return std::clamp((base_.rows + parts - 1) / parts, fewest_rows, most_rows);
        },
        block_rows_);
    blocks_ = (base_.rows + block_rows_ - 1) / block_rows_;
    for (int rank = 0; rank <= ranks; ++rank) first_block_.push_back(blocks_ * rank / ranks);
  }

  void open(const std::function<AnyMatrixView(std::int64_t, std::int64_t)>& open_rows) {
    rows_ = open_rows(begin_of(rank()), begin_of(rank() + 1));
    // Names the row of a NaN before anything is compared.
    find_value_range(rows_, options_.metric, "base", threads_, begin_of(rank()));
  }

  // Makes PATH.partial, or opens it: which blocks are left, the same in all.
  void begin() {
    std::vector<std::byte> done(blocks_);
    together(peers_, [&] {
      if (!is_first()) return;
      if (detail::PartialGraph::exists(partial_path_)) {
        partial_.emplace(detail::PartialGraph::open(partial_path_, plan(block_rows_)));
      } else {
        io::check_free_space(path_, 2 * 12 * k_ * base_.rows,
                             "the graph and what is made on the way");
        partial_.emplace(detail::PartialGraph::create(partial_path_, plan(block_rows_)));
      }
      for (std::int64_t block = 0; block < blocks_; ++block)
        done[block] = std::byte(partial_->has(block));
    });
    peers_.broadcast(0, done);
    left_.resize(peers_.size());
    for (int rank = 0; rank < peers_.size(); ++rank)
      for (std::int64_t b = first_block_[rank]; b < first_block_[rank + 1]; ++b)
        if (done[b] == std::byte(0)) left_[rank].push_back(b);
    for (const auto& of_rank : left_)
      rounds_ = std::max(rounds_, std::ssize(of_rank)), count_ += std::ssize(of_rank);
    report_.blocks = blocks_, report_.blocks_before = blocks_ - count_;
    const std::int64_t row_bytes = base_.dim * size_of(base_.type);
    report_.predicted_passed_bytes = (peers_.size() - 1) * rounds_ * base_.rows * row_bytes;
    if (options_.begun) options_.begun(blocks_);
  }

  void search_all() {
    for (std::int64_t round = 0; round < rounds_; ++round) {
      const std::optional<std::int64_t> own = block_of(rank(), round);
      ExactNeighbors found;
      for (int owner = 0; owner < peers_.size(); ++owner) pass(owner, round, own, found);
      keep(round, own, found);
    }
    if (options_.searched) options_.searched();
  }

  void finish() {
    together(peers_, [&] {
      if (!is_first()) return;
      if (report_.blocks_before > 0) partial_->check_edges();
      detail::save_graph(path_, partial_->ids(), partial_->distances(),
                         {options_.metric, base_, 1, "exact", false}, options_.progress);
      partial_->remove();
    });
  }

  PartGraphReport report() const {
    PartGraphReport out = report_;
    out.seconds = time_.seconds();
    std::int64_t sums[] = {out.searched_rows, out.passed_bytes, out.gathered_bytes};
    peers_.sum(sums);
    out.searched_rows = sums[0], out.passed_bytes = sums[1], out.gathered_bytes = sums[2];
    return out;
  }

 private:
  int rank() const { return peers_.rank(); }
  bool is_first() const { return rank() == 0; }

  detail::GraphPlan plan(std::int64_t block_rows) const {
    return {base_, k_, block_rows, options_.metric, 1, false, detail::RowOrder::by_number};
  }
  // A number that the first process finds.
  template <class F>
  void agree(F find, std::int64_t& number) {
    together(peers_, [&] {
      if (is_first()) number = find();
    });
    peers_.broadcast(0, std::as_writable_bytes(std::span(&number, 1)));
  }
  std::int64_t begin_of(int rank) const {
    return std::min(base_.rows, first_block_[rank] * block_rows_);
  }
  std::int64_t begin_of_block(std::int64_t block) const { return block * block_rows_; }
  std::int64_t end_of_block(std::int64_t block) const {
    return std::min(base_.rows, (block + 1) * block_rows_);
  }
  // The block that a process searches for in a round.
  std::optional<std::int64_t> block_of(int rank, std::int64_t round) const {
    const auto& of_rank = left_[rank];
    if (round >= std::ssize(of_rank)) return {};
    return of_rank[round];
  }
  // Own rows, by their numbers among all.
  AnyMatrixView own_rows(std::int64_t begin, std::int64_t end) const {
    const std::int64_t first = begin_of(rank());
    return rows_.rows(begin - first, end - first);
  }

  // Passes the rows of one process to all, who search them.
  void pass(int owner, std::int64_t round, std::optional<std::int64_t> own, ExactNeighbors& found) {
    const std::int64_t row_bytes = base_.dim * size_of(base_.type),
                       bytes = options_.chunk_bytes > 0 ? options_.chunk_bytes : usual_chunk_bytes,
                       chunk = std::max<std::int64_t>(1, bytes / row_bytes),
                       end = begin_of(owner + 1);
    for (std::int64_t from = begin_of(owner); from < end; from += chunk) {
      const std::int64_t to = std::min(end, from + chunk);
      AnyMatrixView rows;
      if (peers_.size() == 1) {
        rows = own_rows(from, to);
      } else {
        if (passed_.rows() < to - from || passed_.rows() == 0)
          passed_ = AnyMatrix(base_.type, to - from, base_.dim);
        if (owner == rank()) copy_rows(own_rows(from, to));
        peers_.broadcast(owner, {static_cast<std::byte*>(passed_.row(0)),
                                 static_cast<std::size_t>((to - from) * row_bytes)});
        if (owner != rank()) report_.passed_bytes += (to - from) * row_bytes;
        rows = passed_.view().rows(0, to - from);
      }
      together(peers_, [&] {
        if (own) search(*own, round, rows, from, found);
      });
    }
  }

  void copy_rows(AnyMatrixView from) {
    for (std::int64_t i = 0; i < from.rows(); ++i)
      std::memcpy(passed_.row(i), from.row(i), base_.dim * size_of(base_.type));
  }

  // A block among rows that begin at number `first`.
  void search(std::int64_t block, std::int64_t round, AnyMatrixView rows, Id first,
              ExactNeighbors& found) {
    KnnOptions options{.metric = options_.metric, .threads = threads_};
    if (options_.progress)
      options.progress = [&](std::string_view, double fraction) {
        const double share =
            (static_cast<double>(first) + fraction * static_cast<double>(rows.rows())) /
            static_cast<double>(base_.rows);
        return options_.progress(
            "graph", (static_cast<double>(round) + share) / static_cast<double>(rounds_));
      };
    detail::PreparedRows prepared(rows, options_.metric,
                                  find_value_range(rows, options_.metric, "base", threads_, first));
    const detail::SearchSegment segment{.rows = &prepared, .ids = {.first = first}};
    detail::search_more({detail::SearchKind::blocks,
                         {&segment, 1},
                         own_rows(begin_of_block(block), end_of_block(block)),
                         k_ + 1,
                         options,
                         detail::Reuse::none},
                        found, nullptr);
  }

  // Brings what processes have found in a round to the first, and to disk.
  void keep(std::int64_t round, std::optional<std::int64_t> own, const ExactNeighbors& found) {
    Neighbors near;
    or_remove([&] {
      together(peers_, [&] {
        if (!own) return;
        const std::int64_t begin = begin_of_block(*own), count = end_of_block(*own) - begin;
        near = rounded(found, options_.metric, count, k_, threads_, begin);
        std::vector<Id> rows(count);
        std::iota(rows.begin(), rows.end(), begin);
        detail::check_distances(path_, rows, near.ids, near.distances);
        report_.searched_rows += count;
      });
    });
    if (own && !is_first()) {
      peers_.send(0, bytes_of(near.ids.data(), near.ids.rows()));
      peers_.send(0, bytes_of(near.distances.data(), near.ids.rows()));
    }
    // One after another, as they take much memory; of all that are sent each is received, whatever
    // is wrong with one.
    std::exception_ptr failure;
    for (int from = 0; is_first() && from < peers_.size(); ++from) {
      const auto block = block_of(from, round);
      if (!block) continue;
      if (from > 0) near = received(from, end_of_block(*block) - begin_of_block(*block));
      try {
        if (!failure) partial_->write(*block, near.ids, near.distances);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    together(peers_, [&] {
      if (failure) std::rethrow_exception(failure);
    });
  }

  // No graph can hold a distance beyond float32: what was begun leads to none.
  template <class F>
  void or_remove(F f) {
    try {
      f();
    } catch (const InvalidArgument&) {
      if (is_first()) partial_->remove();
      throw;
    }
  }

  // What another process sends of so many rows.
  Neighbors received(int from, std::int64_t rows) {
    Neighbors theirs{Matrix<Id>(rows, k_), Matrix<float>(rows, k_)};
    const auto take = [&](auto* to) {
      const std::vector<std::byte> bytes = peers_.receive(from);
      std::memcpy(to, bytes.data(), bytes.size());
      report_.gathered_bytes += std::ssize(bytes);
    };
    take(theirs.ids.data()), take(theirs.distances.data());
    return theirs;
  }

  template <class T>
  std::span<const std::byte> bytes_of(const T* data, std::int64_t rows) const {
    return std::as_bytes(std::span(data, rows * k_));
  }

  const detail::Stopwatch time_;
  Peers& peers_;
  const BaseMark base_;
  const std::int64_t k_;
  const std::string path_, partial_path_;
  const PartGraphOptions& options_;
  const int threads_;
  std::int64_t block_rows_ = 0, blocks_ = 0, rounds_ = 0, count_ = 0;
  std::vector<std::int64_t> first_block_;        // of each process, and their number
  std::vector<std::vector<std::int64_t>> left_;  // blocks of each process
  AnyMatrixView rows_;                           // of this process
  AnyMatrix passed_;                             // a chunk of somebody's
  std::optional<detail::PartialGraph> partial_;  // of the first process
  PartGraphReport report_;
};

}  // namespace

void build_graph_of_parts(
    Peers& peers, const BaseMark& base,
    const std::function<AnyMatrixView(std::int64_t begin, std::int64_t end)>& open_rows,
    std::int64_t k, const std::string& path, const PartGraphOptions& options,
    PartGraphReport* report) {
  detail::public_call([&] {
    Builder builder(peers, base, k, path, options);
    together(peers, [&] { builder.check(); });
    if (!builder.is_whole()) {
      builder.divide();
      together(peers, [&] { builder.open(open_rows); });
      builder.begin();
      builder.search_all();
      builder.finish();
    }
    const PartGraphReport all = builder.report();
    if (report) *report = all;
  });
}

}  // namespace knear
