// knear/scan/device/device_code_products.hpp -- codes for many queries at once, on a GPU: rows are
// decoded once, coded to 8 bits, and multiplied with the queries of each list on the tensor cores.
//
//   DeviceDecodedLists<Queue> decoded(queue, book, coded_lists, segment, job);
//   auto left = decoded.run(queries, which, probes, segment, 0, job, found, stats, progress);
//
// What a row stands for, the vector of its code and the centroid of its list, is a row of the scan
// of inverted lists (device_scan.hpp), with its certified errors. Keys are not those of that vector
// but what tables give (methods/code_scan.hpp), in float32, which is never farther from them than a
// bound that the queries of a batch share (docs/bounds.md, 14). What passes is measured by codes,
// so that keys and ids are those of the other ways, to the bit.
//
// The look-ups of the fused scan are for a query and a row, the products for 128 queries of a list;
// decoded rows take a byte a column and some 25 more, beside their codes.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/scan/device/device_code_scan.hpp"
#include "knear/scan/device/device_scan.hpp"

namespace knear::detail {

// What queries are multiplied by to be what tables are made with: tables of products have -2 q for
// l2, and -q else.
inline double table_factor(const CodeScanJob& job) {
  if (job.squared) return 1;
  return traits_of(job.metric).squared ? -2 : -1;
}

// Whether so many queries come to each list that multiplying takes less time. begins [lists + 1]:
// of the rows of each list.
//
// By the counts of docs/measurements/gpu.md an H100 looks up 1.8 x 10^12 entries a second, and
// scans 128 columns of a row for a block of 128 queries in 48 ps; so products pay from 0.7 queries
// a list on for each column of a part. Measuring, and what rows that are decoded take of the
// memory, ask for more: three times that, a guess. Entries of 4 bits are looked up three times as
// fast.
inline bool products_pay(const CodeBook& book, std::span<const std::int64_t> begins,
                         MatrixView<Id> probes) {
  const std::int64_t least =
      std::max<std::int64_t>(4, 2 * book.width()) * (book.bits() == 8 ? 1 : 3);
  const std::int64_t lists = std::ssize(begins) - 1;
  if (probes.rows() * probes.cols() < least) return false;
  std::vector<char> seen(lists);
  std::int64_t pairs = 0, different = 0;
  for (std::int64_t q = 0; q < probes.rows(); ++q)
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
      const Id list = probes.row(q)[p];
      if (list >= lists) continue;
      const std::size_t at = list;
      if (begins[at] == begins[at + 1]) continue;
      ++pairs;
      different += seen[at] == 0, seen[at] = 1;
    }
  return different > 0 && pairs >= least * different;
}

// How far the keys of tables are at most from those of the vectors that rows stand for, as these
// are scanned: in float32.
struct KeyDistance {
  Metric metric = Metric::l2;
  std::int64_t parts = 0;
  std::vector<double> centre = {};  // from which lengths are taken; empty: 0
  double longest = 0;               // of rows, so taken
  double rounded = 0;               // what rounding a row to float32 takes off or adds, at most
  double least_scalar = 1;          // of cosine: the length of the shortest row

  static KeyDistance of(const CodeScanJob& job, const CodedLists& lists,
                        MatrixView<float> centroids, std::span<const double> middle) {
    const CodeBook& book = *job.book;
    const std::int64_t width = book.width();
    KeyDistance out{.metric = job.metric, .parts = book.parts()};
    if (job.squared) {
      out.centre.assign(book.dim(), 0.0);
      for (std::int64_t j = 0; j < book.dim(); ++j) {
        double& mean = out.centre[j];
        for (std::int64_t c = 0; c < book.count(); ++c)
          mean += book.part(j / width).row(c)[j % width];
        mean /= static_cast<double>(book.count());
      }
    }
    // The longest of each part, added up: no code stands for a longer vector.
    double squares = 0, all = 0;
    for (std::int64_t m = 0; m < book.parts(); ++m) {
      double most = 0, most_of_all = 0;
      for (std::int64_t c = 0; c < book.count(); ++c) {
        double from_centre = 0, from_zero = 0;
        for (std::int64_t j = 0; j < width; ++j) {
          const double x = book.part(m).row(c)[j],
                       d = out.centre.empty() ? x : x - out.centre[m * width + j];
          from_centre += d * d, from_zero += x * x;
        }
        most = std::max(most, from_centre), most_of_all = std::max(most_of_all, from_zero);
      }
      squares += most, all += most_of_all;
    }
    double of_centroid = 0;
    for (std::int64_t l = 0; l < centroids.rows(); ++l) {
      double sum = 0;
      for (std::int64_t j = 0; j < centroids.cols(); ++j) {
        const double x = double{centroids.row(l)[j]} - (middle.empty() ? 0.0 : middle[j]);
        sum += x * x;
      }
      of_centroid = std::max(of_centroid, sum);
    }
    constexpr double more = 1 + 0x1p-20;
    out.longest = (std::sqrt(squares) + std::sqrt(of_centroid)) * more;
    // Once for the row, and once for its centroid less the middle.
    out.rounded = (std::sqrt(all) + std::sqrt(of_centroid)) * 0x1p-23 * more +
                  static_cast<double>(book.dim()) * 0x1p-147;
    if (traits_of(job.metric).unit_rows)
      out.least_scalar =
          lists.rows() > 0 ? *std::min_element(lists.scalars(), lists.scalars() + lists.rows()) : 1;
    return out;
  }

  // In g of the scan, for queries no longer than this (from the centre). Infinite where it is no
  // small part of what keys are, or numbers are beyond what float32 holds.
  double slack(double query) const {
    constexpr double none = std::numeric_limits<double>::infinity();
    const double roundings = static_cast<double>(parts + 8);
    double size = 0, vectors = 0;  // of what tables add up; what rounding rows changes
    switch (metric) {
      case Metric::l2:
        size = (query + longest) * (query + longest);
        vectors = (2 * (query + longest) + rounded) * rounded;
        break;
      case Metric::ip:
        size = query * longest, vectors = query * rounded;
        break;
      case Metric::l1:  // these have no codes
      case Metric::hamming:
      case Metric::cosine:
        if (!(least_scalar > 0x1p-40)) return none;
        size = longest / least_scalar, vectors = 0x1p-20 + 0x1p-45 * size;
        break;
    }
    const double out = roundings * (0x1p-22 * size + 0x1p-140) + vectors;
    constexpr double largest = 0x1p120, part = 0x1p-8;
    // Keys of cosine are 2 at most, whatever is added up.
    if (!(size < largest) || !(out <= part * (traits_of(metric).unit_rows ? 1 : size))) return none;
    return traits_of(metric).squared ? out / 2 * (1 + 0x1p-20) : out * (1 + 0x1p-20);
  }
  // Whether slack() is finite for queries of any length.
  bool holds_any() const {
    const auto holds = [&](double query) {
      return slack(query) < std::numeric_limits<double>::infinity();
    };
    switch (metric) {
      case Metric::l2:
        return holds(0) || holds(0x1p59);
      case Metric::ip:
        return longest > 0 && holds(0x1p119 / longest);
      case Metric::l1:
      case Metric::hamming:
      case Metric::cosine:
        break;
    }
    return holds(1);
  }
  double length_of(const double* query, std::int64_t dim) const {
    double squares = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      const double x = query[j] - (centre.empty() ? 0.0 : centre[j]);
      squares += x * x;
    }
    return std::sqrt(squares) * (1 + 0x1p-20);
  }
};

// Rows of a segment, decoded. One search at a time.
template <class Queue>
class DeviceDecodedLists {
  template <class T>
  using Array = typename Queue::template Array<T>;
  template <class T>
  using HostArray = typename Queue::template HostArray<T>;

 public:
  // All must stay but the job. Requires job.vectors.known. Returns when all is there; nothing is
  // where no query could be answered. Throws MemoryBudgetError where it takes more than half of
  // what is free.
  DeviceDecodedLists(Queue& queue, const DeviceCodeBook<Queue>& book,
                     const DeviceCodedLists<Queue>& there, const CodeSegment& here,
                     const CodeScanJob& job)
      : queue_(queue), rows_(there.rows()) {
    if (rows_ == 0) return;
    constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max() - panel_rows;
    if (rows_ > most_rows)
      throw MemoryBudgetError("{} rows are more than {}, which a scan numbers", rows_, most_rows);
    const std::int64_t dim = job.book->dim();
    const std::span<const std::int64_t> begins = there.begins();
    const std::int64_t lists = std::ssize(begins) - 1;
    MatrixView<float> centroids = job.vectors.centroids;
    if (centroids.rows() > 0) centroids = centroids.rows(0, lists);
    distance_ = KeyDistance::of(job, *here.lists, centroids, job.vectors.middle);
    if (!distance_.holds_any()) return;
    const std::int64_t bytes = bytes_for(begins, dim);
    if (bytes > static_cast<std::int64_t>(queue.free_bytes() / 2))
      throw MemoryBudgetError("decoded rows take {} bytes, of {} that are free", bytes,
                              queue.free_bytes());

    number_rows(here.ids);
    std::vector<std::int32_t> number_of(rows_);
    for (std::size_t n = 0; n < number_of.size(); ++n)
      number_of[positions_[n]] = static_cast<std::int32_t>(n);
    const ListLayout layout = ListLayout::of(
        begins, [&](std::int64_t i) { return static_cast<std::uint32_t>(number_of[i]); });
    std::vector<std::int32_t> panel_lists;
    for (std::int64_t l = 0; l < lists; ++l)
      panel_lists.resize(layout.first_panel[l + 1], static_cast<std::int32_t>(l));
    positions_there_ = sent(positions_), panel_lists_ = sent(panel_lists);
    view_ = {book.view(),        there.view(), book.by_centroid(), nullptr, positions_there_.data(),
             panel_lists_.data()};
    // Only decoding wants these.
    Array<float> added;
    if (centroids.rows() > 0) {
      Matrix<float> less(lists, dim);
      parallel_for(job.threads, lists, [&](std::int64_t l) {
        for (std::int64_t j = 0; j < dim; ++j)
          less.row(l)[j] =
              static_cast<float>(double{centroids.row(l)[j]} -
                                 (job.vectors.middle.empty() ? 0.0 : job.vectors.middle[j]));
      });
      added = queue_.template allocate<float>(lists * dim);
      const StreamSyncGuard waits_at_exit{queue_};
      queue_.upload(added.data(), less.data(), added.size());
    }
    DecodedView decoding = view_;
    decoding.centroids = added.data();
    const Coding coding = device_coding_of_panels(certified_coding(space_of(decoding, layout, job)),
                                                  rows_, dim, layout.panels());
    const Array<int> numbers = sent(layout.row_at);
    DeviceCodes<Queue> codes = encode_made_rows(
        queue_, coding, layout.row_at, panels_together(dim),
        [&](std::int64_t first, std::int64_t some, float* rows, int* places) {
          launch_decode_rows(queue_, decoding, numbers.data(), first, some, rows, places);
        });
    scan_.emplace(queue_, coding, std::move(codes), layout, job.threads);
  }
  DeviceDecodedLists(const DeviceDecodedLists&) = delete;
  DeviceDecodedLists& operator=(const DeviceDecodedLists&) = delete;

  // Bytes of the device that rows take while they are decoded, of lists that begin there.
  static std::int64_t bytes_for(std::span<const std::int64_t> begins, std::int64_t dim) {
    const std::int64_t lists = std::ssize(begins) - 1;
    std::int64_t panels = 0;
    for (std::size_t l = 0; l + 1 < begins.size(); ++l)
      panels += (begins[l + 1] - begins[l] + panel_rows - 1) / panel_rows;
    return panels * panel_rows * (device_code_bytes(dim) + 8) + 4 * begins.back() +
           std::min(panels_together(dim), panels) * panel_rows * (4 * dim + 4) + lists * dim * 4;
  }
  // Whether any query of its rows can be answered.
  bool answers_any() const { return rows_ == 0 || scan_.has_value(); }

  // The nearest of the rows of this segment, which is number `number`, into those of `out`, where
  // others may be: of the queries `which`, which must not be zero by ip and cosine. queries: as
  // they are, without their table_factor(). Returns those that it could not answer, in any order,
  // of which nothing is known then; adds to `stats`. Throws Cancelled.
  std::vector<std::int64_t> run(const Matrix<double>& queries, std::span<const std::int64_t> which,
                                const CodeProbes& probes, const CodeSegment& here,
                                std::uint32_t number, const CodeScanJob& job, CodedNeighbors& out,
                                DeviceStats& stats, const Progress& progress) {
    if (rows_ == 0 || which.empty() || job.k == 0) return {};
    const std::int64_t k = std::min(job.k, rows_), count = queries.rows();
    if (!scan_ || k > DeviceScan<Queue>::most_k) return {which.begin(), which.end()};
    const std::vector<double> lengths = lengths_of(queries, which, job.threads);
    std::vector<std::int64_t> left, todo;
    for (const std::int64_t q : which) {
      const double slack = distance_.slack(lengths[q]);
      (slack < std::numeric_limits<double>::infinity() ? todo : left).push_back(q);
    }
    which = todo;
    if (which.empty()) return left;
    typename DeviceScan<Queue>::Limited limited;
    const StreamSyncGuard waits_at_exit{queue_};
    if (here.filtered() || here.allowed.live) {
      scan_->limit(limited, [&](std::int64_t n) {
        const std::int64_t row = positions_[n];
        return here.allowed(row) && (!here.allowed_ids || here.allowed_ids->holds(here.ids(row)));
      });
      if (limited.count == 0) return left;
    }
    std::vector<double> bounds(count);
    bool known = false;
    for (const std::int64_t q : which) {
      const CodedNeighbors::Row& last = out.of(q).back();
      bounds[q] = last.key;  // infinite where there is none
      known = known || last.id != no_id;
    }
    const RowKeys keys{
        [&](std::span<const std::int64_t> batch) {
          double longest = 0;
          for (const std::int64_t q : batch) longest = std::max(longest, lengths[q]);
          return distance_.slack(longest);
        },
        [&](const DeviceBaseView& base, const DeviceLists& found, std::span<const std::int64_t> at,
            const double* vectors) { measure(job, probes, base, found, at, vectors); }};
    ExactNeighbors found(count, k);
    std::fill_n(found.keys.data(), count * k, std::numeric_limits<double>::infinity());
    std::fill_n(found.ids.data(), count * k, no_id);
    const std::int64_t batch = scan_->batch_for(std::ssize(which), k, queue_.free_bytes());
    const std::vector<std::int64_t> lost_on_device = scan_->run_by_keys(
        keys, queries.view(), which, k, found, stats, batch, progress,
        known ? std::span<const double>(bounds) : std::span<const double>(), limited, probes.lists);
    std::vector<char> lost(count);
    for (const std::int64_t q : lost_on_device) lost[q] = 1;
    constexpr std::int64_t each = 32;  // queries of a task
    parallel_for(job.threads, (std::ssize(which) + each - 1) / each, [&](std::int64_t task) {
      std::vector<CodedNeighbors::Row> rows(job.k);
      for (std::int64_t i = task * each; i < std::min(std::ssize(which), (task + 1) * each); ++i) {
        const std::int64_t q = which[i];
        if (lost[q] != 0) continue;
        std::fill(rows.begin(), rows.end(), CodedNeighbors::Row{});
        for (std::int64_t j = 0; j < k && found.ids.row(q)[j] != no_id; ++j) {
          const std::int64_t row = positions_[found.ids.row(q)[j]];
          rows[j] = {static_cast<float>(found.keys.row(q)[j]), number, row, here.ids(row)};
        }
        merge_rows(out.of(q), rows, true);
      }
    });
    left.insert(left.end(), lost_on_device.begin(), lost_on_device.end());
    return left;
  }

 private:
  // Bytes of the rows that are decoded at a time.
  static constexpr std::int64_t made_bytes = 32 << 20;
  static std::int64_t panels_together(std::int64_t dim) {
    return std::max<std::int64_t>(1, made_bytes / (panel_rows * dim * 4));
  }

  template <class T>
  Array<T> sent(const std::vector<T>& from) {
    Array<T> out = queue_.template allocate<T>(from.size());
    const StreamSyncGuard waits_at_exit{queue_};
    queue_.upload(out.data(), from.data(), from.size());
    return out;
  }

  // Of these queries, by number.
  std::vector<double> lengths_of(const Matrix<double>& queries, std::span<const std::int64_t> which,
                                 int threads) const {
    std::vector<double> out(queries.rows());
    constexpr std::int64_t each = 64;
    parallel_for(threads, (std::ssize(which) + each - 1) / each, [&](std::int64_t task) {
      for (std::int64_t i = task * each; i < std::min(std::ssize(which), (task + 1) * each); ++i) {
        const std::int64_t q = which[i];
        out[q] = distance_.length_of(queries.row(q), queries.cols());
      }
    });
    return out;
  }

  // Rows are numbered by their ids, so that the scan's order of equal keys is that of ids.
  void number_rows(const RowIds& ids) {
    positions_.resize(rows_);
    std::iota(positions_.begin(), positions_.end(), 0);
    if (!ids.ids) return;
    const auto [least, most] = std::minmax_element(ids.ids, ids.ids + rows_);
    const std::int64_t span = *most - *least;
    if (span < 4 * rows_) {  // as they usually are: each has a place of its own
      std::vector<std::int32_t> at(static_cast<std::size_t>(span) + 1, -1);
      std::int64_t taken = 0;
      for (std::int64_t row = 0; row < rows_; ++row) {
        std::int32_t& place = at[ids(row) - *least];
        taken += place < 0, place = static_cast<std::int32_t>(row);
      }
      if (taken == rows_) {
        std::copy_if(at.begin(), at.end(), positions_.begin(), [](auto row) { return row >= 0; });
        return;
      }
    }
    std::sort(positions_.begin(), positions_.end(), [&](std::int32_t a, std::int32_t b) {
      return std::pair(ids(a), a) < std::pair(ids(b), b);
    });
  }

  // In which decoded rows are coded: chosen by some of them.
  CodingSpace space_of(const DecodedView& decoding, const ListLayout& layout,
                       const CodeScanJob& job) {
    const std::int64_t dim = job.book->dim(), slots = std::ssize(layout.row_at),
                       sample = CodingSpace::sample_size(rows_, dim),
                       panels = std::min(layout.panels(), (sample + panel_rows - 1) / panel_rows);
    // Panels from all over, each decoded by itself.
    auto rows = queue_.template allocate<float>(panel_rows * dim);
    auto places = queue_.template allocate<int>(panel_rows);
    const Array<int> numbers = sent(layout.row_at);
    Matrix<float> some(panels * panel_rows, dim);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t panel = i * (slots / panel_rows) / panels;
      launch_decode_rows(queue_, decoding, numbers.data(), panel, 1, rows.data(), places.data());
      std::int64_t filled = 0;
      while (filled < panel_rows && layout.row_at[panel * panel_rows + filled] >= 0) ++filled;
      const StreamSyncGuard arrived{queue_};
      queue_.download(some.row(count), rows.data(), filled * dim);
      queue_.wait();
      count += filled;
    }
    return CodingSpace::choose(some.view().rows(0, count), job.metric, job.isa);
  }

  void measure(const CodeScanJob& job, const CodeProbes& probes, const DeviceBaseView& base,
               const DeviceLists& found, std::span<const std::int64_t> at, const double* vectors) {
    const std::size_t columns = probes.lists.cols(), count = at.size() * columns;
    // Those of the batch before have arrived.
    probed_ = queue_.template allocate_host<std::int32_t>(count);
    terms_ = queue_.template allocate_host<float>(count);
    constexpr std::int64_t each = 64;
    parallel_for(job.threads, (std::ssize(at) + each - 1) / each, [&](std::int64_t task) {
      std::vector<std::pair<std::int32_t, float>> sorted(columns);
      const auto end = std::min(at.size(), static_cast<std::size_t>((task + 1) * each));
      for (auto i = static_cast<std::size_t>(task * each); i < end; ++i) {
        const Id* const lists = probes.lists.row(at[i]);
        for (std::size_t p = 0; p < columns; ++p)
          sorted[p] = {lists[p] == no_id ? std::numeric_limits<std::int32_t>::max()
                                         : static_cast<std::int32_t>(lists[p]),
                       probes.terms.row(at[i])[p]};
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t p = 0; p < columns; ++p)
          probed_.data()[i * columns + p] = sorted[p].first,
                                       terms_.data()[i * columns + p] = sorted[p].second;
      }
    });
    auto probed = queue_.template allocate<std::int32_t>(count);
    auto terms = queue_.template allocate<float>(count);
    queue_.upload(probed.data(), probed_.data(), count);
    queue_.upload(terms.data(), terms_.data(), count);
    const std::int64_t numbers = std::ssize(at) * job.book->dim();
    auto queries = queue_.template allocate<double>(numbers);
    launch_make_table_queries(queue_, vectors, table_factor(job), numbers, queries.data());
    launch_measure_codes(queue_,
                         MeasureCodes<typename Queue::Thread>{
                             view_, base, found, queries.data(), probed.data(), terms.data(),
                             static_cast<int>(columns), 1, job.metric, job.squared},
                         std::ssize(at));
  }

  Queue& queue_;
  const std::int64_t rows_;
  KeyDistance distance_;
  std::vector<std::int32_t> positions_;  // of the row with each number in the segment
  Array<std::int32_t> positions_there_, panel_lists_;
  DecodedView view_ = {};
  std::optional<DeviceScan<Queue>> scan_;
  HostArray<std::int32_t> probed_;
  HostArray<float> terms_;
};

}  // namespace knear::detail
