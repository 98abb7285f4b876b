// Tables of bytes for blocks of queries, lists in order, and the candidates of each query.
#include "knear/scan/methods/code_scan.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/scan/kernels/code_kernels.hpp"

namespace knear::detail {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double epsilon = 0x1p-22;  // four roundings of a float32

// Codes that queries go over together: they stay in the second cache.
constexpr std::int64_t chunk_bytes = 1 << 17;
// Tables of no more bytes are kept for every query, beside their bytes.
constexpr std::int64_t most_kept_bytes = 4096;
// Queries of a task at most, and the bytes of their tables.
constexpr std::int64_t most_queries = 1024, most_table_bytes = 16 << 20;
// Rows that a query scores between two looks at its threshold: at first few.
constexpr std::int64_t most_step = 1024;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The tables of a query, rounded down to bytes, of which one stands for `unit`.
struct ByteTables {
  AlignedArray<double> query;         // [dim]
  AlignedArray<std::uint8_t> tables;  // as CodeScanArgs has them
  std::vector<float> kept;            // as they were, where they are small
  double base = 0;                    // what a sum of bytes of 0 stands for
  double unit = 1;
  double magnitude = 0;  // of the entries of all tables, the largest of each, added up

  void make(const CodeScanJob& job, std::int64_t q, std::vector<float>& scratch) {
    const CodeBook& book = *job.book;
    const std::int64_t parts = book.parts(), count = book.count();
    if (query.size() == 0) {
      query = AlignedArray<double>(static_cast<std::size_t>(book.dim()));
      // Of 4 bits, an odd last part is followed by an empty one.
      tables = AlignedArray<std::uint8_t>(
          static_cast<std::size_t>(book.bits() == 8 ? parts * 256 : book.code_size() * 32));
    }
    job.prepare(q, query.data());
    scratch.resize(static_cast<std::size_t>(parts * (count + 2)));
    float* const entries = scratch.data();
    float* const ranges = entries + parts * count;
    book.fill_tables(query.data(), job.squared, job.isa, entries, ranges);
    base = magnitude = 0;
    double widest = 0, sum = 0;
    for (std::int64_t m = 0; m < parts; ++m) {
      const double least = ranges[2 * m], largest = ranges[2 * m + 1];
      base += least;
      magnitude += std::max(std::abs(least), std::abs(largest));
      widest = std::max(widest, largest - least), sum += largest - least;
    }
    const double wanted = std::max(widest / most_table_entry, sum / 65000);
    float scale = static_cast<float>(1 / wanted * (1 - 1e-6));
    if (!(scale > 0 && scale < infinity)) scale = 0;  // then every byte is 0
    unit = scale > 0 ? 1 / static_cast<double>(scale) : 1;
    const CodeKernels& kernels = code_kernels(job.isa);
    for (std::int64_t m = 0; m < parts; ++m) {
      const RoundDownArgs args{entries + m * count, count, ranges[2 * m], scale,
                               tables.data() + m * count};
      kernels.round_down(&args);
    }
    if (keeps(book)) kept.assign(entries, entries + parts * count);
  }
  static bool keeps(const CodeBook& book) {
    return book.parts() * book.count() * 4 <= most_kept_bytes;
  }
  void prefetch() const {
    const auto bytes = std::min<std::size_t>(tables.size(), 1024);
    for (std::size_t b = 0; b < bytes; b += 64) __builtin_prefetch(tables.data() + b);
  }
};

// What is left of the rows of a query: those up to the k-th key so far.
class Candidates {
 public:
  using Item = CodedNeighbors::Row;  // without an id yet

  void begin(std::int64_t k, double upper_bound) {
    k_ = static_cast<std::size_t>(k);
    items_.clear();
    guess_ = infinity, taken_up_to_ = -infinity, list_rows_ = 0;
    bound_ = upper_bound < std::numeric_limits<float>::max() ? static_cast<float>(upper_bound)
                                                             : infinity;
  }
  float bound() const { return std::min(bound_, guess_); }

  // The first list, of so many rows, comes next: its first rows may say what the k-th key of all of
  // them will be, about.
  void begin_list(std::int64_t rows) { list_rows_ = rows, looked_at_ = 0; }
  // Ends it. False if the guess was too low: then the list is to be scanned again, for what is
  // beyond it.
  bool end_list() {
    list_rows_ = 0;
    if (guess_ == infinity) return true;
    const bool enough = items_.size() >= k_;
    if (!enough) taken_up_to_ = guess_;
    guess_ = infinity;
    if (enough) settle(0);
    return enough;
  }

  // Ends the second scan of it.
  void end_again() { taken_up_to_ = -infinity; }

  void push(float key, std::uint32_t segment, std::int64_t row,
            std::span<const CodeSegment> segments) {
    if (key > bound() || key <= taken_up_to_) return;
    items_.push_back({key, segment, row, no_id});
    if (items_.size() >= most()) cut(segments);
  }
  // Between two steps, the last one of so many rows, if enough has come since: finds a lower bound
  // that k rows do not exceed, or hardly more. Rows are counted rather than sorted: no branch could
  // be foretold.
  void settle(std::int64_t rows) {
    if (list_rows_ > 0) guess(rows);
    const std::size_t size = items_.size(), enough = k_ + k_ / 8;
    if (size < k_ + std::max<std::size_t>(8, k_ / 2)) return;
    keys_.resize(size);
    for (std::size_t i = 0; i < size; ++i) keys_[i] = items_[i].key;
    float low = keys_[0], high = keys_[0];
    for (const float key : keys_) low = std::min(low, key), high = std::max(high, key);
    for (int round = 0; round < 16 && high < infinity; ++round) {
      const float middle = low + (high - low) / 2;
      std::int32_t count = 0;
      for (std::size_t i = 0; i < size; ++i) count += keys_[i] <= middle;
      if (static_cast<std::size_t>(count) < k_) {
        low = middle;
      } else {
        high = middle;
        if (static_cast<std::size_t>(count) <= enough) break;
      }
    }
    bound_ = std::min(bound_, high);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
      items_[kept] = items_[i];
      kept += keys_[i] <= bound_;
    }
    items_.resize(kept);
  }
  // The k nearest; uses them up.
  void finish(std::span<const CodeSegment> segments, std::span<Item> out) {
    cut(segments);
    sort(segments);
    const std::size_t count = std::min(k_, items_.size());
    std::copy_n(items_.begin(), count, out.begin());
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(count), out.end(), Item{});
    items_ = {};
  }

 private:
  // From the first rows of a list: the key that about half more than k of its rows do not exceed.
  void guess(std::int64_t rows) {
    constexpr std::size_t least_seen = 32;
    looked_at_ += rows;
    const std::size_t seen = items_.size();
    if (seen < least_seen) return;
    const double share = static_cast<double>(seen) / static_cast<double>(looked_at_);
    const double wanted =
        1.5 * static_cast<double>(k_ * seen) / (static_cast<double>(list_rows_) * share);
    list_rows_ = 0;
    const auto place = static_cast<std::size_t>(wanted) + 2;
    if (bound_ != infinity || place >= seen / 2) return;
    keys_.clear();
    for (const Item& item : items_) keys_.push_back(item.key);
    const auto at = keys_.begin() + static_cast<std::ptrdiff_t>(place);
    std::nth_element(keys_.begin(), at, keys_.end());
    guess_ = *at;
    // What is beyond it comes again if the list is scanned again.
    std::erase_if(items_, [&](const Item& item) { return item.key > guess_; });
  }
  std::size_t most() const { return 2 * k_ + 64; }
  void sort(std::span<const CodeSegment> segments) {
    for (Item& item : items_) item.id = segments[item.segment].ids(item.row);
    std::sort(items_.begin(), items_.end());
  }
  void cut(std::span<const CodeSegment> segments) {
    if (items_.size() <= k_) return;
    keys_.clear();
    for (const Item& item : items_) keys_.push_back(item.key);
    const auto kth = keys_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
    std::nth_element(keys_.begin(), kth, keys_.end());
    bound_ = std::min(bound_, *kth);
    std::erase_if(items_, [&](const Item& item) { return item.key > bound_; });
    if (items_.size() < most() - most() / 4) return;
    // So many rows at the very k-th key: their ids decide.
    sort(segments);
    items_.resize(k_);
  }

  std::size_t k_ = 0;
  float bound_ = infinity;
  std::vector<Item> items_;
  std::vector<float> keys_;  // of these, while they are cut
  float guess_ = infinity, taken_up_to_ = -infinity;
  std::int64_t list_rows_ = 0, looked_at_ = 0;
};

// A query and one of its lists.
struct Pair {
  std::uint32_t list, query;  // query: in its block
  float term;
};

// Goes over the codes of some lists for a block of queries.
class BlockScan {
 public:
  BlockScan(std::span<const CodeSegment> segments, const CodeScanJob& job)
      : segments_(segments), job_(job), kernels_(code_kernels(job.isa)) {}

  // Makes the tables of a query, which is number `q` of the block. They are at hand for its scans
  // until those of the next one are made.
  void begin(std::int64_t query, std::uint32_t q) {
    tables_.resize(std::max<std::size_t>(tables_.size(), q + 1));
    tables_[q].make(job_, query, entries_);
    at_hand_ = q;
  }

  std::int64_t rows_of(const Pair& pair) const {
    std::int64_t sum = 0;
    for (const CodeSegment& segment : segments_) {
      const auto [first, last] = segment.lists->rows_of(pair.list);
      sum += last - first;
    }
    return sum;
  }

  // Calls bound(query), the key that is still wanted, and take(query, key, segment, row) for the
  // rows of all lists that do not exceed it; settle(query, rows) after some rows. Of `parts` of the
  // rows takes the one with number `part`.
  template <class Bound, class Take, class Settle>
  void scan(std::span<Pair> pairs, std::int64_t parts, std::int64_t part, Bound bound, Take take,
            Settle settle) {
    std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
      return std::pair(a.list, a.query) < std::pair(b.list, b.query);
    });
    const std::int64_t width = job_.book->code_size();
    // Whole steps, so that parts and chunks divide nothing else.
    const std::int64_t chunk =
        std::max<std::int64_t>(most_step, chunk_bytes / width / most_step * most_step);
    std::int64_t counter = 0;
    for (std::size_t p = 0; p < pairs.size();) {
      std::size_t end = p;
      while (end < pairs.size() && pairs[end].list == pairs[p].list) ++end;
      for (std::uint32_t s = 0; s < segments_.size(); ++s) {
        const auto [first, last] = segments_[s].lists->rows_of(pairs[p].list);
        for (std::int64_t from = first; from < last; from += chunk) {
          if (counter++ % parts != part) continue;
          const std::int64_t to = std::min(last, from + chunk);
          for (std::size_t i = p; i < end; ++i) {
            if (i + 1 < end) tables_[pairs[i + 1].query].prefetch();
            scan_rows(pairs[i], s, last, from, to, bound, take, settle);
          }
        }
      }
      p = end;
    }
  }

  ScanStats stats;

 private:
  // Rows [from, to) of a list that ends with `list_end`; whole groups, but for the last one.
  template <class Bound, class Take, class Settle>
  void scan_rows(const Pair& pair, std::uint32_t s, std::int64_t list_end, std::int64_t from,
                 std::int64_t to, Bound bound, Take take, Settle settle) {
    const CodeSegment& segment = segments_[s];
    const CodedLists& lists = *segment.lists;
    const ByteTables& tables = tables_[pair.query];
    const float* scalars = lists.has_scalars() ? lists.scalars() : nullptr;
    std::uint64_t near[most_step / code_group_rows];
    std::int64_t step = bound(pair.query) == infinity ? code_group_rows : most_step;
    for (std::int64_t row = from; row < to; row += step, step = std::min(2 * step, most_step)) {
      const std::int64_t rows = std::min(step, to - row), groups = (rows + 63) / 64;
      if (!nearest_groups(lists, tables, pair.term, bound(pair.query), row, rows, near)) continue;
      for (std::int64_t g = 0; g < groups; ++g) {
        if (near[g] == 0) continue;
        const std::int64_t group = row + 64 * g,
                           stride = std::min<std::int64_t>(64, list_end - group);
        const std::uint8_t* const codes = lists.groups(group, stride);
        const std::uint8_t* left[64];
        std::int64_t count = 0;
        for (std::uint64_t bits = near[g]; bits != 0; bits &= bits - 1)
          if (const int at = std::countr_zero(bits);
              segment.allowed.all() || segment.allowed(group + at))
            left[count++] = codes + at;
        float sums[64];
        if (!tables.kept.empty() || pair.query == at_hand_)
          job_.book->sums(left, count, stride,
                          tables.kept.empty() ? entries_.data() : tables.kept.data(), sums);
        else
          for (std::int64_t i = 0; i < count; ++i)
            sums[i] = job_.book->sum(left[i], stride, tables.query.data(), job_.squared);
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = group + (left[i] - codes);
          take(pair.query, key_of(pair.term, sums[i], scalars ? scalars[at] : 0), s, at);
        }
        stats.survivors += count;
      }
      settle(pair.query, rows);
    }
  }

  float key_of(float term, float sum, float scalar) const {
    float key = 0;
    switch (job_.metric) {
      case Metric::l2:
        key = (term + scalar) + sum;
        if (key < 0) key = 0;
        break;
      case Metric::ip:
        key = term + sum;
        break;
      case Metric::cosine:
        key = scalar > 0 ? 1 + (term + sum) / scalar : 1;
        break;
    }
    return key < infinity ? key : infinity;  // where float32 does not reach
  }

  // Sets the bits of rows whose key may be up to `bound`; false if there are none.
  bool nearest_groups(const CodedLists& lists, const ByteTables& tables, float term, float bound,
                      std::int64_t row, std::int64_t rows, std::uint64_t* near) {
    const std::int64_t groups = (rows + 63) / 64;
    const bool cosine = job_.metric == Metric::cosine;
    // The float32 roundings of a key, and those of the test itself.
    const double scalar = lists.largest_scalar() * (cosine ? std::abs(double{bound} - 1) + 1 : 1.0),
                 size = tables.magnitude + std::abs(tables.base) + std::abs(term) + scalar +
                        (cosine ? 0 : std::abs(double{bound}));
    const double room = static_cast<double>(job_.book->parts() + 8) * epsilon * size;
    const double known = tables.base + double{term};
    double offset = ((cosine ? 0 : double{bound}) - known + room) / tables.unit;
    double slope = 0;
    if (lists.has_scalars()) slope = (cosine ? double{bound} - 1 : -1) / tables.unit;
    if (bound == infinity || !std::isfinite(offset) || std::abs(offset) > 1e30 ||
        !(std::abs(slope) < 1e30)) {
      std::fill_n(near, groups, ~std::uint64_t{0});
      if (rows % 64 != 0) near[groups - 1] = (std::uint64_t{1} << rows % 64) - 1;
      return true;
    }
    CodeScanArgs args{};
    args.codes = lists.groups(row, rows), args.rows = rows, args.width = lists.width();
    args.tables = tables.tables.data();
    args.scalars = lists.has_scalars() ? lists.scalars() + row : nullptr;
    args.offset = std::nextafter(static_cast<float>(offset), infinity);
    args.slope = static_cast<float>(slope);
    args.near = near;
    (job_.book->bits() == 8 ? kernels_.bits8 : kernels_.bits4)(&args);
    std::uint64_t any = 0;
    for (std::int64_t g = 0; g < groups; ++g) any |= near[g];
    return any != 0;
  }

  const std::span<const CodeSegment> segments_;
  const CodeScanJob& job_;
  const CodeKernels& kernels_;
  std::vector<ByteTables> tables_;
  std::vector<float> entries_;  // the tables of the query at hand, and their ranges
  std::uint32_t at_hand_ = 0;
};

// Probes [from, to) of a query.
void add_pairs(const CodeProbes& probes, std::int64_t query, std::uint32_t q, std::int64_t from,
               std::int64_t to, std::vector<Pair>& out) {
  for (std::int64_t p = from; p < to && probes.lists.row(query)[p] != no_id; ++p)
    out.push_back(
        {static_cast<std::uint32_t>(probes.lists.row(query)[p]), q, probes.terms.row(query)[p]});
}

// Queries of a task: as many as keep all threads busy and fit.
std::int64_t block_size(const CodeScanJob& job, std::int64_t queries) {
  const std::int64_t each = bytes_of_coded_query(*job.book, job.k);
  const std::int64_t room = std::min(most_table_bytes, job.memory / job.threads);
  const std::int64_t most = std::clamp<std::int64_t>(room / each, 1, most_queries);
  return std::clamp<std::int64_t>((queries + job.threads - 1) / job.threads, 1, most);
}

}  // namespace

std::int64_t bytes_of_coded_query(const CodeBook& book, std::int64_t k) {
  const std::int64_t entries = book.parts() * book.count();
  return entries + (ByteTables::keeps(book) ? 4 * entries : 0) + 16 + book.dim() * 8 + k * 60 +
         3000;
}

std::vector<std::int64_t> by_first_list(MatrixView<Id> probes) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(probes.rows()));
  std::iota(order.begin(), order.end(), 0);
  if (probes.cols() == 0) return order;
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return probes.row(a)[0] < probes.row(b)[0];
  });
  return order;
}

void merge_rows(std::span<CodedNeighbors::Row> all, std::span<const CodedNeighbors::Row> more) {
  std::vector<CodedNeighbors::Row> both(all.size() + more.size());
  std::merge(all.begin(), all.end(), more.begin(), more.end(), both.begin());
  std::copy_n(both.begin(), all.size(), all.begin());
}

void scan_codes(std::span<const CodeSegment> segments, const CodeScanJob& job,
                const CodeProbes& probes, CodedNeighbors& out, ScanStats& stats,
                const Progress& progress) {
  const std::int64_t queries = probes.lists.rows(), most = probes.lists.cols();
  const std::int64_t size = block_size(job, queries), blocks = (queries + size - 1) / size;
  // Few queries are shared by threads, which look at parts of their rows.
  const std::int64_t parts =
      std::max<std::int64_t>(1, job.threads / std::max<std::int64_t>(1, queries));
  std::vector<CodedNeighbors> found(static_cast<std::size_t>(parts));
  for (std::int64_t part = 1; part < parts; ++part)
    found[static_cast<std::size_t>(part)] = CodedNeighbors(queries, job.k);
  std::mutex mutex;
  const std::vector<std::int64_t> order = by_first_list(probes.lists);
  Reporter reporter(progress, "scan", blocks * parts);
  parallel_for(job.threads, blocks * parts, [&](std::int64_t task) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t part = task % parts, first = task / parts * size,
                       last = std::min(queries, first + size);
    BlockScan block(segments, job);
    std::vector<Candidates> candidates(static_cast<std::size_t>(last - first));
    const auto bound = [&](std::uint32_t q) { return candidates[q].bound(); };
    const auto take = [&](std::uint32_t q, float key, std::uint32_t segment, std::int64_t row) {
      candidates[q].push(key, segment, row, segments);
    };
    const auto settle = [&](std::uint32_t q, std::int64_t rows) { candidates[q].settle(rows); };
    const auto query = [&](std::uint32_t q) { return order[static_cast<std::size_t>(first + q)]; };
    // The nearest list gives a threshold for the others.
    const auto count = static_cast<std::uint32_t>(last - first);
    const std::int64_t alone = std::min<std::int64_t>(1, most);
    std::vector<Pair> pairs;
    for (std::uint32_t q = 0; q < count; ++q) {
      block.begin(query(q), q);
      candidates[q].begin(job.k, job.upper_bounds ? job.upper_bounds[query(q)]
                                                  : std::numeric_limits<double>::infinity());
      pairs.clear();
      add_pairs(probes, query(q), q, 0, alone, pairs);
      if (pairs.empty()) continue;
      // A part of the rows of one list is a sample of no other.
      if (parts == 1) candidates[q].begin_list(block.rows_of(pairs[0]));
      block.scan(pairs, parts, part, bound, take, settle);
      if (!candidates[q].end_list()) {
        block.scan(pairs, parts, part, bound, take, settle);
        candidates[q].end_again();
      }
    }
    pairs.clear();
    for (std::uint32_t q = 0; q < count; ++q) add_pairs(probes, query(q), q, alone, most, pairs);
    block.scan(pairs, parts, part, bound, take, settle);
    CodedNeighbors& to = part == 0 ? out : found[static_cast<std::size_t>(part)];
    for (std::uint32_t q = 0; q < count; ++q) candidates[q].finish(segments, to.of(query(q)));
    block.stats.scan_seconds = seconds_since(start);
    reporter.add(1);
    const std::lock_guard lock(mutex);
    stats.add(block.stats, bytes_of_coded_query(*job.book, job.k) * size, job.threads);
  });
  for (std::int64_t part = 1; part < parts; ++part)
    for (std::int64_t q = 0; q < queries; ++q)
      merge_rows(out.of(q), found[static_cast<std::size_t>(part)].of(q));
}

void scan_codes_range(std::span<const CodeSegment> segments, const CodeScanJob& job,
                      const CodeProbes& probes, double limit, RangeSink& sink, ScanStats& stats,
                      const Progress& progress) {
  const std::int64_t queries = probes.lists.rows(), size = block_size(job, queries);
  // No key between it and `limit` is a float32.
  float bound = limit < std::numeric_limits<float>::max() ? static_cast<float>(limit) : infinity;
  if (bound > limit) bound = std::nextafter(bound, -infinity);
  std::mutex mutex;
  const std::int64_t blocks = (queries + size - 1) / size;
  Reporter reporter(progress, "scan", blocks);
  parallel_for(job.threads, blocks, [&](std::int64_t b) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t first = b * size, last = std::min(queries, first + size);
    BlockScan block(segments, job);
    RangeLists found(static_cast<std::size_t>(last - first));
    std::vector<Pair> pairs;
    for (std::int64_t q = first; q < last; ++q) {
      block.begin(q, static_cast<std::uint32_t>(q - first));
      add_pairs(probes, q, static_cast<std::uint32_t>(q - first), 0, probes.lists.cols(), pairs);
    }
    block.scan(
        pairs, 1, 0, [&](std::uint32_t) { return bound; },
        [&](std::uint32_t q, float key, std::uint32_t segment, std::int64_t row) {
          if (!(key <= bound)) return;
          sink.count(1);
          found[q].emplace_back(key, segments[segment].ids(row));
        },
        [](std::uint32_t, std::int64_t) {});
    std::vector<std::int64_t> which(static_cast<std::size_t>(last - first));
    std::iota(which.begin(), which.end(), first);
    sink.take(which, found);
    block.stats.scan_seconds = seconds_since(start);
    reporter.add(1);
    const std::lock_guard lock(mutex);
    stats.add(block.stats);
  });
}

}  // namespace knear::detail
