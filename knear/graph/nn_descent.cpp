#include "knear/graph/nn_descent.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/seconds.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/reference.hpp"
#include "knear/graph/byte_codes.hpp"
#include "knear/graph/copies.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/knn/knn.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear {
namespace {

using detail::ByteCodes;
using detail::GroupHead;
using detail::Hit;
using detail::max_group;
using detail::panel_rows;
using detail::step_bytes;

constexpr std::int64_t most_neighbors = 4096;
constexpr std::int64_t sampled_rows = 2000;
// Fewer rows are joined exactly.
constexpr std::int64_t least_rows = 256;
// Rows that one task takes, for measuring and for joins, and rows whose finds are merged together.
constexpr std::int64_t task_rows = 256, bucket_rows = 1024;
constexpr double infinity = std::numeric_limits<double>::infinity();

// A neighbour in 4 bytes: its row, and whether it is new.
constexpr std::uint32_t new_bit = std::uint32_t{1} << 31, no_row = new_bit - 1;
constexpr std::uint32_t row_of(std::uint32_t neighbor) { return neighbor & ~new_bit; }

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  return Random(a ^ Random(b).next()).next();
}

// Neighbours that a row keeps while it looks for k, and how many rows are brought together by one
// at most: as many as fill the panels of the kernels that a quarter more than k need.
constexpr std::int64_t width_of(std::int64_t k) { return (k + k / 4 + 15) / 16 * 16; }
constexpr std::int64_t most_in_party(std::int64_t width) {
  return std::min<std::int64_t>(128, 2 * width);
}
// Rows whose finds are merged together: so many that all pairs of their parties take 256 MiB, where
// nothing is known to be near yet.
constexpr std::int64_t batch_rows(std::int64_t width) {
  return 16384 * 1024 / (most_in_party(width) * most_in_party(width));
}

template <class F>
void each_task(int threads, std::int64_t count, std::int64_t each, F f) {
  parallel_for(threads, (count + each - 1) / each,
               [&](std::int64_t task) { f(task * each, std::min(count, (task + 1) * each)); });
}

// ---- lists --------------------------------------------------------------------------------------

// The nearest that each row knows of, ascending by (key, id); behind them no_row at infinity.
class Lists {
 public:
  // order: by which ties go. It has to live as long as this does.
  Lists(std::span<const Id> order, std::int64_t width)
      : order_(order),
        keys_(Matrix<double>::unset(std::ssize(order), width)),
        near_(Matrix<std::uint32_t>::unset(std::ssize(order), width)) {
    std::fill_n(keys_.data(), rows() * width, infinity);
    std::fill_n(near_.data(), rows() * width, no_row);
  }
  std::int64_t rows() const { return keys_.rows(); }
  std::int64_t width() const { return keys_.cols(); }
  const double* keys(std::int64_t i) const { return keys_.row(i); }
  const std::uint32_t* near(std::int64_t i) const { return near_.row(i); }
  std::uint32_t* near(std::int64_t i) { return near_.row(i); }
  // No row with a larger key gets in.
  double bound(std::int64_t i) const { return keys_.row(i)[width() - 1]; }
  // No row with a larger key is worth looking for: the last of k or more that there are.
  double reach(std::int64_t i, std::int64_t k) const {
    const double* const keys = keys_.row(i);
    double out = keys[k - 1];
    for (std::int64_t j = k; j < width() && keys[j] < infinity; ++j) out = keys[j];
    return out;
  }
  void prefetch(std::int64_t i) const {
    const char* p = reinterpret_cast<const char*>(near_.row(i));
    for (std::int64_t b = 0; b < width() * 4; b += 64) __builtin_prefetch(p + b);
  }

  bool has(std::int64_t i, std::uint32_t row) const {
    const std::uint32_t* const list = near_.row(i);
    std::uint32_t found = 0;  // no branch: a vector instruction or two
    for (std::int64_t j = 0; j < width(); ++j) found |= (list[j] & ~new_bit) == row;
    return found != 0;
  }
  // Puts a row that is not there into the list of row i, as new. Returns its place, width() if it
  // is too far.
  std::int64_t insert(std::int64_t i, std::uint32_t row, double key) {
    double* const keys = keys_.row(i);
    std::uint32_t* const list = near_.row(i);
    const auto before = [&](std::int64_t j) {
      if (key != keys[j] || row_of(list[j]) == no_row) return key < keys[j];
      return order_[row] < order_[row_of(list[j])];
    };
    std::int64_t j = width();
    while (j > 0 && before(j - 1)) --j;
    if (j == width()) return j;
    std::move_backward(keys + j, keys + width() - 1, keys + width());
    std::move_backward(list + j, list + width() - 1, list + width());
    keys[j] = key, list[j] = row | new_bit;
    return j;
  }

 private:
  const std::span<const Id> order_;
  Matrix<double> keys_;
  Matrix<std::uint32_t> near_;
};

// Row `to` may be a neighbour of row `from`.
struct Find {
  std::uint32_t from, to;
};

// ---- rounds -------------------------------------------------------------------------------------

class Descent {
 public:
  Descent(AnyMatrixView base, Metric metric, std::int64_t k, std::int64_t width, int threads,
          std::uint64_t seed, std::span<const Id> order)
      : base_(base),
        metric_(metric),
        k_(k),
        threads_(threads),
        seed_(seed),
        order_(order),
        isa_(active_isa()),
        codes_(base, order, metric, threads),
        lists_(order, width),
        limits_(base.rows(), codes_.limit_of(0, infinity)) {}

  const Lists& lists() const { return lists_; }
  std::int64_t measured() const { return measured_; }

  // Takes in a graph.
  void take(MatrixView<Id> ids) {
    const std::int64_t n = lists_.rows();
    std::vector<std::uint32_t> place(n);
    for (std::size_t i = 0; i < order_.size(); ++i)
      place[order_[i]] = static_cast<std::uint32_t>(i);
    each_row([&](std::int64_t i, std::vector<Find>& out) {
      const auto from = static_cast<std::uint32_t>(i);
      const Id* const near = ids.row(order_[from]);
      for (std::int64_t j = 0; j < ids.cols(); ++j)
        if (near[j] != no_id && near[j] != order_[from]) out.push_back({from, place[near[j]]});
    });
  }

  // Tells each row whose neighbour it is, and gives others by chance to rows that know too few.
  void introduce() {
    const auto n = static_cast<std::uint64_t>(lists_.rows());
    each_row([&](std::int64_t i, std::vector<Find>& out) {
      const auto from = static_cast<std::uint32_t>(i);
      for (std::int64_t j = 0; j < lists_.width(); ++j)
        if (const std::uint32_t to = row_of(lists_.near(i)[j]); to != no_row) {
          const double key = lists_.keys(i)[j];
          if (key <= lists_.bound(to) && !lists_.has(to, from)) out.push_back({to, from});
        }
      if (lists_.bound(i) < infinity || lists_.keys(i)[k_ - 1] < infinity) return;
      Random random(mixed(seed_, static_cast<std::uint64_t>(i)));
      for (std::int64_t j = 0; j < 2 * k_; ++j) {
        const auto to = static_cast<std::uint32_t>(random.below(n));
        if (to != from) out.push_back({from, to});
      }
    });
  }

  // Returns how many of the k neighbours of all rows were replaced.
  std::int64_t round(const Progress& progress, std::string_view stage) {
    take_snapshot();
    Reporter reporter(progress, stage, (lists_.rows() + task_rows - 1) / task_rows);
    const std::int64_t changed =
        in_batches([&](std::int64_t begin, std::int64_t end, std::vector<Find>& out) {
          join(begin, end, out);
          reporter.add(1);
        });
    ++rounds_;
    return changed;
  }

  // Beside base and graph, for all rows and for each.
  static std::int64_t bytes(std::int64_t rows, std::int64_t dim, std::int64_t width) {
    const std::int64_t party = most_in_party(width);
    const std::int64_t batch = std::min(rows, batch_rows(width)) * party * party;
    return batch * 2 * static_cast<std::int64_t>(sizeof(Find)) +
           rows * (ByteCodes::bytes_of_row(dim) + 4 + 20 * width + 24);
  }

 private:
  // Calls find(begin, end, finds) for a few rows at a time, and merges what a batch of them found
  // before the next one begins. Returns what merge() does, of all.
  template <class F>
  std::int64_t in_batches(F find) {
    const std::int64_t n = lists_.rows(), batch = batch_rows(lists_.width());
    std::int64_t changed = 0;
    std::vector<std::vector<Find>> finds;
    for (std::int64_t begin = 0; begin < n; begin += batch) {
      const std::int64_t rows = std::min(batch, n - begin);
      finds.resize((rows + task_rows - 1) / task_rows);
      each_task(threads_, rows, task_rows, [&](std::int64_t from, std::int64_t to) {
        auto& out = finds[from / task_rows];
        out.clear();
        find(begin + from, begin + to, out);
      });
      changed += merge(finds);
    }
    return changed;
  }
  template <class F>
  void each_row(F find) {
    in_batches([&](std::int64_t begin, std::int64_t end, std::vector<Find>& out) {
      for (std::int64_t i = begin; i < end; ++i) find(i, out);
    });
  }

  // Neighbours as they are now, and whose neighbour each row is, for the joins of a round; from now
  // on none of them is new.
  void take_snapshot() {
    const std::int64_t n = lists_.rows(), width = lists_.width();
    if (forward_.rows() == 0) forward_ = Matrix<std::uint32_t>::unset(n, width);
    begin_.assign(static_cast<std::size_t>(n) + 1, 0);
    each_task(threads_, n, task_rows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t j = 0; j < width; ++j) {
          forward_.row(i)[j] = lists_.near(i)[j];
          lists_.near(i)[j] = row_of(lists_.near(i)[j]);
        }
    });
    for (std::int64_t i = 0; i < n; ++i) {
      if (i % 4096 == 0) stop_if_asked();
      for (std::int64_t j = 0; j < width; ++j)
        if (const std::uint32_t row = row_of(forward_.row(i)[j]); row != no_row)
          ++begin_[row + std::size_t{1}];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    reverse_.resize(begin_.back());
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    for (std::int64_t i = 0; i < n; ++i) {
      if (i % 4096 == 0) stop_if_asked();
      for (std::int64_t j = 0; j < width; ++j) {
        const std::uint32_t near = forward_.row(i)[j];
        if (row_of(near) != no_row)
          reverse_[next[row_of(near)]++] = static_cast<std::uint32_t>(i) | (near & new_bit);
      }
    }
  }

  // Who is brought together by one row: new ones first, each once.
  struct Party {
    std::vector<std::uint32_t> rows;
    std::int64_t fresh = 0;  // of rows, those that are new
  };
  void invite(std::int64_t host, Party& out, std::vector<std::uint64_t>& drawn) const {
    const std::int64_t most = most_in_party(lists_.width());
    out.rows.clear();
    const std::uint64_t salt = mixed(seed_ + rounds_, static_cast<std::uint64_t>(host));
    const auto take = [&](const std::uint32_t* from, std::int64_t count, std::int64_t room) {
      if (count <= room) {
        out.rows.insert(out.rows.end(), from, from + count);
        return;
      }
      // By chance, the same each time.
      drawn.clear();
      for (std::int64_t j = 0; j < count; ++j)
        drawn.push_back((mixed(salt, row_of(from[j])) & ~std::uint64_t{0xffffffff}) |
                        static_cast<std::uint64_t>(j));
      std::nth_element(drawn.begin(), drawn.begin() + room, drawn.end());
      for (std::int64_t j = 0; j < room; ++j) out.rows.push_back(from[drawn[j] & 0xffffffff]);
    };
    std::int64_t count = lists_.width();
    while (count > 0 && row_of(forward_.row(host)[count - 1]) == no_row) --count;
    take(forward_.row(host), count, most / 2);
    const std::int64_t begin = begin_[host];
    take(reverse_.data() + begin, begin_[host + 1] - begin, most - std::ssize(out.rows));
    // Each once, new if it is so either way.
    std::sort(out.rows.begin(), out.rows.end(), [](std::uint32_t a, std::uint32_t b) {
      return row_of(a) != row_of(b) ? row_of(a) < row_of(b) : a > b;
    });
    out.rows.erase(
        std::unique(out.rows.begin(), out.rows.end(),
                    [](std::uint32_t a, std::uint32_t b) { return row_of(a) == row_of(b); }),
        out.rows.end());
    const auto old = std::partition(out.rows.begin(), out.rows.end(),
                                    [](std::uint32_t x) { return (x & new_bit) != 0; });
    out.fresh = old - out.rows.begin();
    for (std::uint32_t& row : out.rows) row = row_of(row);
  }

  void fetch(const Party& party) const {
    if (party.fresh == 0) return;
    for (const std::uint32_t row : party.rows) {
      const char* p = reinterpret_cast<const char*>(codes_.row(row));
      for (std::int64_t b = 0; b < std::min<std::int64_t>(1024, codes_.steps() * 4); b += 64)
        __builtin_prefetch(p + b);
      lists_.prefetch(row);
      __builtin_prefetch(&limits_[row]);
    }
  }

  // The joins of some rows, in order: what they find.
  void join(std::int64_t begin, std::int64_t end, std::vector<Find>& out) const {
    Joiner joiner(*this);
    std::vector<std::uint64_t> drawn;
    Party party, next;
    invite(begin, next, drawn);
    for (std::int64_t at = begin; at < end; ++at) {
      std::swap(party, next);
      if (at + 1 < end) invite(at + 1, next, drawn), fetch(next);
      if (party.fresh > 0 && party.rows.size() > 1) joiner.run(party, out);
    }
  }

  // The pairs of a party by the tile kernels of the scan: its rows are queries and panels.
  class Joiner {
   public:
    explicit Joiner(const Descent& of) : of_(of), steps_(of.codes_.steps()) {
      const std::int64_t most = most_in_party(of.lists_.width());
      const std::size_t panels = most / panel_rows;
      const std::size_t groups = (most + max_group - 1) / max_group;
      panels_ = AlignedArray<std::uint32_t>(panels * panel_rows * static_cast<std::size_t>(steps_));
      queries_ = AlignedArray<std::uint32_t>(groups * max_group * static_cast<std::size_t>(steps_));
      heads_.resize(groups);
      ids_.assign(panels * panel_rows, 0);
      squares_.assign(panels * panel_rows, 0);
      sums_.assign(panels * panel_rows, 0);
      hits_.resize((panels + 1) * panel_rows * max_group);
    }

    void run(const Party& party, std::vector<Find>& out) {
      const std::int64_t count = std::ssize(party.rows);
      for (std::int64_t i = 0; i < count; ++i) pack(i, party.rows[i]);
      const std::int64_t panels = (count + panel_rows - 1) / panel_rows;
      const std::int64_t groups = (count + max_group - 1) / max_group;
      // What pads the last group and panel is what an earlier party left there.
      for (std::int64_t g = 0; g < groups; ++g) {
        GroupHead& head = heads_[g];
        head.count = static_cast<int>(std::min<std::int64_t>(max_group, count - g * max_group));
        // Pairs of two that are not new are left out where that saves a panel.
        const bool fresh = g * max_group < party.fresh;
        detail::TileArgs args{};
        args.codes = reinterpret_cast<const std::uint8_t*>(panels_.data());
        args.ids = ids_.data(), args.row_squares = squares_.data(), args.row_sums = sums_.data();
        args.sum_shift_mask = 0, args.steps = steps_;
        args.query_codes =
            reinterpret_cast<const std::uint8_t*>(queries_.data() + g * max_group * steps_);
        args.group = &head;
        args.panel = 0;
        args.panel_end = fresh ? panels : (party.fresh + panel_rows - 1) / panel_rows;
        args.hits = hits_.data();
        args.hit_limit = static_cast<int>(args.panel_end * panel_rows * max_group);
        kernel_(&args);
        for (int h = 0; h < args.hit_count; ++h) {
          const auto from = g * max_group + hits_[h].query;
          const auto to = static_cast<std::int64_t>(hits_[h].slot);
          if (from == to || to >= count || (from >= party.fresh && to >= party.fresh)) continue;
          const Find find{party.rows[from], party.rows[to]};
          if (!of_.lists_.has(find.from, find.to)) out.push_back(find);
        }
      }
    }

   private:
    void pack(std::int64_t i, std::uint32_t row) {
      const std::int8_t* const from = of_.codes_.row(row);
      std::uint32_t* panel = panels_.data() + i / panel_rows * panel_rows * steps_ + i % panel_rows;
      std::uint32_t* query = queries_.data() + i / max_group * max_group * steps_ + i % max_group;
      for (std::int64_t s = 0; s < steps_; ++s) {
        std::uint32_t four;
        __builtin_memcpy(&four, from + s * step_bytes, step_bytes);
        *query = four, *panel = four ^ 0x80808080;
        query += max_group, panel += panel_rows;
      }
      GroupHead& head = heads_[i / max_group];
      head.correction[i % max_group] = 128 * of_.codes_.sum(row);
      head.limit[i % max_group] = of_.limits_[row];
      head.limit_bit[i % max_group] = 0;
      head.bound_row[i % max_group] = no_row;
      squares_[i] = of_.codes_.term_of(row);
    }

    const Descent& of_;
    const std::int64_t steps_;
    const detail::TileKernel kernel_ = detail::scan_kernels(of_.isa_).integer[detail::group_12];
    AlignedArray<std::uint32_t> panels_, queries_;
    std::vector<GroupHead> heads_;
    std::vector<std::uint32_t> ids_, squares_;
    std::vector<std::int32_t> sums_;
    std::vector<Hit> hits_;
  };

  // Measures what was found and puts what is near enough into the lists. Returns how many of the
  // first k places got another row.
  std::int64_t merge(const std::vector<std::vector<Find>>& finds) {
    const std::int64_t n = lists_.rows();
    const std::size_t buckets = (n + bucket_rows - 1) / bucket_rows;
    const auto tasks = std::ssize(finds);
    const auto bucket_of = [](const Find& find) { return find.from / std::size_t{bucket_rows}; };
    // Where the finds of each task for each bucket go.
    std::vector<std::int64_t> at(finds.size() * buckets, 0);
    parallel_for(threads_, tasks, [&](std::int64_t task) {
      std::int64_t* const own = at.data() + static_cast<std::size_t>(task) * buckets;
      for (const Find& find : finds[task]) ++own[bucket_of(find)];
    });
    std::vector<std::int64_t> begin(buckets + 1, 0);
    std::int64_t total = 0;
    for (std::size_t b = 0; b < buckets; ++b) {
      begin[b] = total;
      for (std::size_t task = 0; task < finds.size(); ++task)
        total += std::exchange(at[task * buckets + b], total);
    }
    begin[buckets] = total;
    sorted_.resize(total);
    parallel_for(threads_, tasks, [&](std::int64_t task) {
      std::int64_t* const own = at.data() + static_cast<std::size_t>(task) * buckets;
      for (const Find& find : finds[task]) sorted_[own[bucket_of(find)]++] = find;
    });
    std::vector<std::int64_t> changed(buckets, 0), measured(buckets, 0);
    parallel_for(threads_, static_cast<std::int64_t>(buckets), [&](std::int64_t b) {
      const std::size_t bucket = b;
      merge_bucket(b * bucket_rows, std::min(n, (b + 1) * bucket_rows),
                   {sorted_.data() + begin[bucket], sorted_.data() + begin[bucket + 1]},
                   changed[bucket], measured[bucket]);
    });
    measured_ += std::reduce(measured.begin(), measured.end());
    return std::reduce(changed.begin(), changed.end());
  }

  void merge_bucket(std::int64_t first_row, std::int64_t end_row, std::span<Find> finds,
                    std::int64_t& changed, std::int64_t& measured) {
    std::vector<std::int64_t> next(static_cast<std::size_t>(end_row - first_row) + 1, 0);
    for (const Find& find : finds) ++next[static_cast<std::size_t>(find.from - first_row) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<std::uint32_t> rows(finds.size());
    for (const Find& find : finds) rows[next[find.from - first_row]++] = find.to;
    ExactDistance distance(metric_, base_.type(), isa_);
    std::int64_t begin = 0;
    for (std::int64_t i = first_row; i < end_row; ++i) {
      const std::int64_t end = next[i - first_row];
      if (begin < end) {
        std::sort(rows.begin() + begin, rows.begin() + end);
        const auto last = std::unique(rows.begin() + begin, rows.begin() + end);
        distance.set_query(base_, order_[i]);
        measure(i, {rows.data() + begin, rows.data() + (last - rows.begin())}, distance, changed,
                measured);
        limits_[i] = codes_.limit_of(i, lists_.reach(i, k_));
      }
      begin = end;
    }
  }

  void measure(std::int64_t i, std::span<const std::uint32_t> rows, const ExactDistance& distance,
               std::int64_t& changed, std::int64_t& measured) {
    constexpr std::size_t together = ExactDistance::most_rows;
    const std::int64_t ahead = std::min<std::int64_t>(512, base_.cols() * size_of(base_.type()));
    const auto fetch = [&](std::size_t r) {
      const char* p = static_cast<const char*>(base_.row(order_[rows[r]]));
      for (std::int64_t b = 0; b < ahead; b += 64) __builtin_prefetch(p + b);
    };
    for (std::size_t r = 0; r < std::min(rows.size(), 2 * together); ++r) fetch(r);
    for (std::size_t first = 0; first < rows.size(); first += together) {
      const std::size_t some = std::min(together, rows.size() - first);
      for (std::size_t r = first + 2 * together; r < std::min(rows.size(), first + 3 * together);
           ++r)
        fetch(r);
      const void* at[together] = {};
      double keys[together];
      for (std::size_t r = 0; r < some; ++r) at[r] = base_.row(order_[rows[first + r]]);
      distance.keys(at, static_cast<int>(some), keys);
      for (std::size_t r = 0; r < some; ++r)
        if (keys[r] <= lists_.bound(i) && !lists_.has(i, rows[first + r]))
          changed += lists_.insert(i, rows[first + r], keys[r]) < k_;
    }
    measured += std::ssize(rows);
  }

  const AnyMatrixView base_;
  const Metric metric_;
  const std::int64_t k_;
  const int threads_;
  const std::uint64_t seed_;
  const std::span<const Id> order_;
  const Isa isa_;
  const ByteCodes codes_;
  Lists lists_;
  std::vector<std::int32_t> limits_;    // ByteCodes::limit_of() of each row's bound
  Matrix<std::uint32_t> forward_;       // the snapshot: [n x width]
  std::vector<std::int64_t> begin_;     // [n + 1], and
  std::vector<std::uint32_t> reverse_;  // the rows whose neighbour each row is
  std::vector<Find> sorted_;
  std::uint64_t rounds_ = 0;
  std::int64_t measured_ = 0;
};

// ---- order ------------------------------------------------------------------------------------

// Rows in an order in which neighbours stand close together, so that what one join reads is at hand
// for the next: around every 256th row, drawn, those that are fewest steps away from it.
std::vector<Id> order_by_graph(MatrixView<Id> ids, std::uint64_t seed) {
  const std::int64_t n = ids.rows();
  constexpr std::uint32_t none = ~std::uint32_t{0};
  std::vector<std::uint32_t> group(n, none), reached;
  reached.reserve(n);
  std::uint32_t groups = 0;
  const auto put = [&](std::int64_t row, std::uint32_t number) {
    group[row] = number;
    reached.push_back(static_cast<std::uint32_t>(row));
  };
  for (std::int64_t i = 0; i < n; ++i)
    if (mixed(seed, static_cast<std::uint64_t>(i)) % 256 == 0) put(i, groups++);
  for (std::size_t at = 0; at < reached.size(); ++at) {
    if (at % 4096 == 0) stop_if_asked();
    const std::uint32_t row = reached[at], number = group[row];
    for (std::int64_t j = 0; j < ids.cols(); ++j)
      if (const Id id = ids.row(row)[j]; id != no_id && group[id] == none) put(id, number);
  }
  // Rows that are nobody's neighbours go to one of theirs, or to the end.
  for (std::int64_t i = 0; i < n; ++i) {
    if (group[i] != none) continue;
    std::uint32_t number = groups;
    for (std::int64_t j = ids.cols() - 1; j >= 0; --j)
      if (const Id id = ids.row(i)[j]; id != no_id && group[id] != none) number = group[id];
    put(i, number);
  }
  std::vector<std::int64_t> begin(std::size_t{groups} + 2, 0);
  for (const std::uint32_t number : group) ++begin[number + std::size_t{1}];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Id> out(n);
  for (const std::uint32_t row : reached) out[begin[group[row]]++] = row;
  return out;
}

// ---- accuracy -----------------------------------------------------------------------------------

// Some rows whose exact neighbours are known.
class Sample {
 public:
  Sample(AnyMatrixView base, Metric metric, std::int64_t k, int threads, std::uint64_t seed,
         const Progress& progress)
      : k_(k) {
    Random random(seed ^ 0x5a3b1e);
    rows_ = detail::sample_of(base.rows(), std::min(sampled_rows, base.rows()), random);
    const AnyMatrix queries = detail::rows_at(base, rows_);
    const Neighbors truth =
        knn(queries, base, k + 1, {.metric = metric, .threads = threads, .progress = progress});
    ExactDistance distance(metric, base.type());
    for (std::size_t s = 0; s < rows_.size(); ++s) {
      const auto at = static_cast<std::int64_t>(s);
      distance.set_query(base, rows_[s]);
      double most = -infinity;
      std::int64_t others = 0;
      for (std::int64_t j = 0; j <= k && others < k; ++j)
        if (const Id id = truth.ids.row(at)[j]; id != rows_[s] && id != no_id)
          most = std::max(most, distance.key(base.row(id))), ++others;
      farthest_.push_back(most), others_.push_back(others);
    }
  }

  // Which rows stand where in the lists.
  void set_order(std::span<const Id> order) {
    places_.resize(rows_.size());
    for (std::int64_t i = 0; i < std::ssize(order); ++i) {
      const Id row = order[i];
      const auto at = std::lower_bound(rows_.begin(), rows_.end(), row);
      if (at != rows_.end() && *at == row) places_[at - rows_.begin()] = i;
    }
  }
  struct Seen {
    double found, promised;
  };
  Seen look(const Lists& lists) const {
    double sum = 0, squares = 0;
    for (std::size_t s = 0; s < rows_.size(); ++s) {
      std::int64_t found = 0;
      for (std::int64_t j = 0; j < k_; ++j) found += lists.keys(places_[s])[j] <= farthest_[s];
      const double share = others_[s] == 0 ? 1
                                           : static_cast<double>(std::min(found, others_[s])) /
                                                 static_cast<double>(others_[s]);
      sum += share, squares += share * share;
    }
    const auto n = static_cast<double>(rows_.size());
    const double mean = sum / n;
    return {mean, detail::promised_mean(mean, std::max(0.0, squares / n - mean * mean), n, k_)};
  }

 private:
  const std::int64_t k_;
  std::vector<std::int64_t> rows_, places_, others_;
  std::vector<double> farthest_;  // the key of the k-th
};

void check(MatrixView<Id> ids, AnyMatrixView base, const RefineOptions& options) {
  if (ids.rows() != base.rows())
    throw ShapeMismatch("{} has {} rows, base has {}", options.name, ids.rows(), base.rows());
  if (ids.cols() < 1 || ids.cols() > most_neighbors)
    throw InvalidArgument("{} has {} neighbours of each row, but refining takes 1 to {}",
                          options.name, ids.cols(), most_neighbors);
  if (base.rows() >= std::int64_t{no_row})
    throw InvalidArgument("base has {} rows, but refining takes fewer than {}", base.rows(),
                          std::int64_t{no_row});
  if (options.recall && !(*options.recall > 0 && *options.recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", *options.recall);
  if (options.most_rounds < 0)
    throw InvalidArgument("most_rounds must not be negative, but is {}", options.most_rounds);
  if (!(options.least_change >= 0 && options.least_change <= 1))
    throw InvalidArgument("least_change must be in [0, 1], but is {}", options.least_change);
  if (options.memory < 0)
    throw InvalidArgument("memory must not be negative, but is {}", options.memory);
  for (std::int64_t i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j)
      if (const Id id = ids.row(i)[j]; id < no_id || id >= base.rows())
        throw InvalidArgument("{}: row {} has the neighbour {}, but there are {} rows",
                              options.name, i, id, base.rows());
}

}  // namespace

Neighbors refine(MatrixView<Id> ids, AnyMatrixView base, Metric metric,
                 const RefineOptions& options, RefineReport* report) {
  return detail::public_call([&] {
    const auto start = std::chrono::steady_clock::now();
    check(ids, base, options);
    const int threads = resolve_threads(options.threads);
    const std::int64_t n = base.rows(), k = ids.cols();
    find_value_range(base, metric, "base", threads);
    RefineReport done;
    const auto end = [&](Neighbors out) {
      done.seconds = detail::seconds_since(start);
      if (report) *report = done;
      return out;
    };
    if (n < least_rows) {
      done.found = done.promised = 1, done.reached = options.recall.has_value();
      return end(self_join(base, k, {.metric = metric, .threads = threads}));
    }
    const std::int64_t width = width_of(k);
    done.memory_bytes = Descent::bytes(n, base.cols(), width);
    if (options.memory > 0 && done.memory_bytes > options.memory)
      throw MemoryBudgetError("refining takes about {} bytes beside base and graph, memory is {}",
                              done.memory_bytes, options.memory);
    std::optional<Sample> sample;
    if (options.recall) sample.emplace(base, metric, k, threads, options.seed, options.progress);
    const std::vector<Id> order = order_by_graph(ids, options.seed);
    if (sample) sample->set_order(order);
    Descent descent(base, metric, k, width, threads, options.seed, order);
    descent.take(ids);
    if (sample) done.found_before = sample->look(descent.lists()).found;
    descent.introduce();
    const auto enough = [&] {
      if (!sample) return false;
      const Sample::Seen seen = sample->look(descent.lists());
      done.found = seen.found, done.promised = seen.promised;
      return done.reached = seen.promised >= *options.recall;
    };
    while (!enough() && done.rounds < options.most_rounds) {
      const std::int64_t changed =
          descent.round(options.progress, fmt::format("round {}", done.rounds + 1));
      ++done.rounds, done.changed += changed;
      if (static_cast<double>(changed) <=
          options.least_change * static_cast<double>(n) * static_cast<double>(k)) {
        enough();
        break;
      }
    }
    done.measured = descent.measured();
    Neighbors out{Matrix<Id>::unset(n, k), Matrix<float>::unset(n, k)};
    const Lists& lists = descent.lists();
    each_task(threads, n, task_rows, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i)
        for (std::int64_t j = 0; j < k; ++j) {
          const std::uint32_t row = row_of(lists.near(i)[j]);
          const Id to_row = order[i];
          out.ids.row(to_row)[j] = row == no_row ? no_id : order[row];
          out.distances.row(to_row)[j] =
              row == no_row ? no_distance(metric)
                            : static_cast<float>(distance_of_key(metric, lists.keys(i)[j]));
        }
    });
    return end(std::move(out));
  });
}

NeighborGraph refine(const NeighborGraph& graph, AnyMatrixView base, const RefineOptions& options,
                     RefineReport* report) {
  return detail::public_call([&] {
    graph.check_base(base, options.name, options.progress);
    RefineReport done;
    GraphProperties properties = graph.properties();
    Neighbors found;
    const detail::Copies copies =
        properties.distinct ? detail::find_copies(base) : detail::Copies{};
    if (copies.filter.everything()) {
      found = refine(graph.ids(), base, graph.metric(), options, &done);
    } else {
      // The graph of the first rows of all sets of copies, by their places among these.
      const std::int64_t n = graph.rows(), k = graph.k();
      std::vector<Id> place(n, no_id);
      for (std::size_t i = 0; i < copies.firsts.size(); ++i)
        place[copies.firsts[i]] = static_cast<Id>(i);
      const AnyMatrix firsts = detail::rows_at(base, copies.firsts);
      Matrix<Id> ids(firsts.rows(), k);
      for (std::int64_t i = 0; i < firsts.rows(); ++i)
        for (std::int64_t j = 0; j < k; ++j) {
          const Id id = graph.ids().row(copies.firsts[i])[j];
          ids.row(i)[j] = id == no_id ? no_id : place[id];
        }
      const Neighbors near = refine(ids, firsts, graph.metric(), options, &done);
      found = {Matrix<Id>(n, k), Matrix<float>(n, k)};
      for (std::int64_t i = 0; i < n; ++i) {
        const Id from = place[copies.first[i]];
        for (std::int64_t j = 0; j < k; ++j) {
          const Id id = near.ids.row(from)[j];
          found.ids.row(i)[j] = id == no_id ? no_id : copies.firsts[id];
          found.distances.row(i)[j] = near.distances.row(from)[j];
        }
      }
    }
    if (options.recall)
      properties.promised_recall = done.promised, properties.recall_argument = "calibrated";
    if (report) *report = done;
    return NeighborGraph(std::move(found), std::move(properties));
  });
}

NeighborGraph refined_graph(MatrixView<Id> ids, AnyMatrixView base, Metric metric,
                            const RefineOptions& options, RefineReport* report) {
  return detail::public_call([&] {
    check_by_products(metric, "refined_graph");
    RefineReport done;
    Neighbors found = refine(ids, base, metric, options, &done);
    if (report) *report = done;
    return NeighborGraph(std::move(found), {metric, mark_of(base, options.progress), done.promised,
                                            options.recall ? "calibrated" : "none"});
  });
}

}  // namespace knear
