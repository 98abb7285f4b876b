// knear/scan/device/coded_base.hpp -- the rows of a base on a GPU, coded, in the order in which
// they are scanned, and queries coded to meet them.
//
//   CodedBase<Queue> base(queue, coding, upload_rows(queue, rows, {}, threads), threads);
//   auto queries = base.upload_queries(device_queries(...), thresholds);      // by the processor
//   base.code_on_device(queries, vectors, pieces, ...);                       // or by the device
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/device/list_work.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/device/query_codes.hpp"
#include "knear/scan/device/query_launches.hpp"
#include "knear/scan/device/scan_views.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

template <class Queue>
class CodedBase {
 public:
  template <class T>
  using Array = typename Queue::template Array<T>;

  // Encodes the rows, which are numbered from 0 on, and keeps the rows unless they are whole
  // numbers. coding: device_coding() for that many rows; whole numbers must have no more than
  // most_integer_dim columns. Throws MemoryBudgetError if codes do not fit the queue's budget.
  CodedBase(Queue& queue, const Coding& coding, DeviceRowData<Queue> rows, int threads)
      : queue_(queue),
        packed_(coding),
        threads_(threads),
        codes_(encode_rows(queue, coding, rows)),
        rows_(std::move(rows)) {
    const std::int64_t all[] = {0, packed_.panels()};
    put_in_order(all);
  }
  // The same of rows by list, for searches that name lists: coding: device_coding_of_panels() for
  // the layout.
  CodedBase(Queue& queue, const Coding& coding, DeviceRowData<Queue> rows, const ListLayout& layout,
            int threads)
      : queue_(queue),
        packed_(coding),
        threads_(threads),
        codes_(encode_rows(queue, coding, rows, layout.row_at)),
        rows_(std::move(rows)),
        first_panel_(layout.first_panel) {
    put_in_order(first_panel_);
  }
  // The same of rows that were coded already, with certified errors, and whose keys others know.
  CodedBase(Queue& queue, const Coding& coding, DeviceCodes<Queue> codes, const ListLayout& layout,
            int threads)
      : queue_(queue),
        packed_(coding),
        threads_(threads),
        codes_(std::move(codes)),
        rows_{{}, nullptr, ElementType::f32, coding.rows, coding.dim},
        first_panel_(layout.first_panel) {
    put_in_order(first_panel_);
  }

  // The rows on the device, for kernels that others launch; valid as long as this object.
  DeviceBaseView base() const {
    const Metric metric = packed_.space.metric;
    return {codes_.codes.data(),
            codes_.heads.data(),
            codes_.tests.data(),
            codes_.bias.data(),
            codes_.squares.data(),
            codes_.sums.data(),
            reinterpret_cast<const std::uint32_t*>(codes_.ids.data()),
            order_.data(),
            packed_.panels(),
            static_cast<int>(slices_of(packed_.steps)),
            packed_.is_integer,
            traits_of(metric).squared,
            traits_of(metric).unit_rows,
            !packed_.is_integer && traits_of(metric).squared ? 2 * packed_.space.slack : 0.0};
  }
  const Coding& packed() const { return packed_; }
  // The rows as they were uploaded; for whole numbers only their type and shape.
  const DeviceRowData<Queue>& rows() const { return rows_; }

  // [lists + 1]: the first panel of each list of rows by list; else empty.
  std::span<const std::int64_t> first_panel() const { return first_panel_; }
  bool by_list() const { return !first_panel_.empty(); }
  Queue& queue() { return queue_; }
  int threads() const { return threads_; }

  // The rows to which a search is limited: one bit per row, here and on the device, and their
  // number.
  struct Limited {
    std::vector<std::uint32_t> words;
    Array<std::uint32_t> bits;
    std::int64_t count = 0;
  };
  // By place: the thresholds with which the kernels start.
  std::vector<double> thresholds_for(const DeviceQueries& coded,
                                     std::span<const double> upper_bounds) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> out(coded.count, packed_.is_integer ? infinity : -infinity);
    for (std::size_t place = 0; place < out.size() && !upper_bounds.empty(); ++place) {
      const double bound = upper_bounds[coded.order[place]];
      const DeviceQuery& query = coded.heads[place];
      if (bound == infinity) continue;
      out[place] =
          packed_.is_integer
              ? bound
              : KeyScale{packed_.space.metric, query.squares, query.constant}.threshold_for(bound);
    }
    return out;
  }

  // allowed(row): whether it may be found; from several threads. Throws MemoryBudgetError.
  // `limited` must live until the queue has done the copy.
  template <class Allowed = AllowedRows>
  void limit(Limited& limited, const Allowed& allowed) {
    constexpr std::int64_t task_words = 2048;
    const std::int64_t rows = packed_.rows, words = (rows + 31) / 32;
    limited.words.resize(words);
    parallel_for(threads_, (words + task_words - 1) / task_words, [&](std::int64_t task) {
      const std::int64_t end = std::min(words, (task + 1) * task_words);
      for (std::int64_t i = task * task_words; i < end; ++i) {
        std::uint32_t word = 0;
        for (std::int64_t row = 32 * i; row < std::min(rows, 32 * i + 32); ++row)
          word |= static_cast<std::uint32_t>(allowed(row)) << row % 32;
        limited.words[i] = word;
      }
    });
    for (const std::uint32_t word : limited.words) limited.count += std::popcount(word);
    limited.bits = upload(limited.words.data(), limited.words.size());
  }

  // Queries on the device, by place, with a threshold for each. One array holds everything, since
  // each copy and each allocation take about as long as a small kernel.
  struct Queries {
    std::vector<unsigned char> host;  // as they were sent
    Array<unsigned char> there;
    std::int64_t count = 0, blocks = 0, slices = 0;
    bool shifted = false;

    // Bytes of codes, heads, scales and thresholds.
    std::size_t bytes() const {
      return static_cast<std::size_t>(blocks * slices * block_slice_bytes) +
             static_cast<std::size_t>(count) * (sizeof(DeviceQuery) + sizeof(double)) +
             static_cast<std::size_t>(blocks) * sizeof(double);
    }
    struct Arrays {
      std::uint8_t* codes;
      DeviceQuery* heads;
      double *scales, *thresholds;
    };
    Arrays arrays() {
      unsigned char* const bytes = there.data();
      auto* const heads =
          reinterpret_cast<DeviceQuery*>(bytes + blocks * slices * block_slice_bytes);
      auto* const scales = reinterpret_cast<double*>(heads + count);
      return {bytes, heads, scales, scales + blocks};
    }
    // What went along with them.
    const double* more() { return reinterpret_cast<const double*>(there.data() + bytes()); }
    // A view of some queries, from the place `first` on, which begins a block.
    DeviceQueryView view(std::int64_t first, std::int64_t some) {
      const Arrays all = arrays();
      DeviceQueryView out = {all.codes, all.scales, all.heads, all.thresholds, 0, 0, shifted};
      const std::int64_t block = first / block_queries;
      out.codes += block * slices * block_slice_bytes, out.scales += block;
      out.heads += first, out.thresholds += first;
      out.count = some, out.blocks = (some + block_queries - 1) / block_queries;
      return out;
    }
  };
  // thresholds: [coded.count], as DeviceQueryView has them; `more` goes along. The result must live
  // until the queue has done the copy.
  Queries upload_queries(const DeviceQueries& coded, const std::vector<double>& thresholds,
                         std::span<const double> more = {}) {
    Queries out{{}, {}, coded.count, coded.blocks, coded.slices, coded.shifted};
    out.host.resize(out.bytes() + more.size_bytes());
    unsigned char* to = out.host.data();
    const auto put = [&](const auto* from, std::size_t count) {
      if (count != 0) std::memcpy(to, from, count * sizeof *from);
      to += count * sizeof *from;
    };
    put(coded.codes.data(), coded.codes.size());
    put(coded.heads.data(), coded.heads.size());
    put(coded.scales.data(), coded.scales.size());
    put(thresholds.data(), thresholds.size());
    put(more.data(), more.size());
    out.there = upload(out.host.data(), out.host.size());
    return out;
  }

  // The vectors of queries on the device, by place, by which rows are measured; not for whole
  // numbers. All of it must live until the queue has done the copies.
  struct Vectors {
    std::vector<double> widened;  // which hold every element type
    std::vector<double> added;
    Array<double> elements;  // [count x dim]
    Array<double> squares;   // [count], as the reference adds them up; cosine
  };
  void upload_vectors(Vectors& out, AnyMatrixView queries, const std::vector<std::int64_t>& order) {
    out.widened = widened(queries, order);
    out.elements = upload(out.widened.data(), out.widened.size());
    if (!traits_of(packed_.space.metric).unit_rows) return;
    out.added = squares_of(out.widened, packed_.dim);
    out.squares = upload(out.added.data(), out.added.size());
  }

  // The same of both, coded on the device: enqueued. `known` [queries]: their upper bounds, or if
  // `reached` their thresholds; empty: nothing is known. order [which]: in device memory, where
  // place p then holds query which[order[p]]; whole numbers stay as they come, and leave it
  // untouched. With a scale that is the one of all queries, and these stay as they come too.
  // `pieces` carry sent_bytes(), and must live until the queue has done the copies. `there`: where
  // queries and upper bounds are in device memory, those of `which` in this order; then nothing is
  // sent. With `places` there are so many, and `order` [places] has been written: no query at some.
  struct There {
    const void* queries = nullptr;
    const double* known = nullptr;
    std::int64_t places = 0;
  };
  void code_on_device(Queries& out, Vectors& vectors, PiecewiseUpload<Queue>& pieces,
                      AnyMatrixView queries, std::span<const std::int64_t> which,
                      const ValueRange& found, std::span<const double> known, bool reached,
                      std::int32_t* order, double scale = 0, const There& there = {}) {
    const std::int64_t queries_given = std::ssize(which), dim = packed_.dim;
    const std::int64_t count = there.places > 0 ? there.places : queries_given;
    const CodingSpace& space = packed_.space;
    out.count = count, out.blocks = (count + block_queries - 1) / block_queries;
    out.slices = slices_of(packed_.steps), out.shifted = packed_.shifts_queries(found);
    out.there = queue_.template allocate<unsigned char>(out.bytes());
    DeviceQueryCoding coding = {};
    coding.count = count, coding.dim = dim, coding.slices = static_cast<int>(out.slices);
    coding.metric = space.metric, coding.slack = space.slack, coding.reached = reached;
    coding.integer = packed_.is_integer, coding.shift = out.shifted ? 128 : 0;
    coding.scale = scale;
    coding.row_offset = packed_.is_integer ? packed_.row_offset : 128;
    const auto to = out.arrays();
    coding.codes = to.codes, coding.scales = to.scales;
    coding.heads = to.heads, coding.thresholds = to.thresholds;
    if (!packed_.is_integer) {
      vectors.elements = queue_.template allocate<double>(count * dim);
      coding.elements = vectors.elements.data();
    }
    if (traits_of(space.metric).unit_rows) {
      vectors.squares = queue_.template allocate<double>(count);
      coding.added_square = vectors.squares.data();
    }

    // What is wanted until the queries are coded: one array, and then the memory is free for lists.
    const std::int64_t row_bytes = dim * size_of(queries.type());
    const std::int64_t bounds = known.empty() ? 0 : queries_given;
    const std::int64_t sent = there.queries ? 0 : queries_given;
    const std::int64_t sized = packed_.is_integer ? 0 : queries_given;
    auto scratch = queue_.template allocate<unsigned char>(
        8 * bounds + sized * std::int64_t{sizeof(QuerySize)} +
        (sized + 1) / 2 * 2 * std::int64_t{sizeof(float)} + sent * row_bytes);
    auto* const bound = reinterpret_cast<double*>(scratch.data());
    coding.sizes = reinterpret_cast<QuerySize*>(bound + bounds);
    coding.largest = reinterpret_cast<float*>(coding.sizes + sized);
    // Behind an even number of floats, so that doubles are aligned.
    auto* const rows = reinterpret_cast<unsigned char*>(coding.largest + (sized + 1) / 2 * 2);
    const auto send_numbers = [&](double* numbers_on_device, std::int64_t numbers, auto number) {
      pieces.send(reinterpret_cast<unsigned char*>(numbers_on_device), numbers, sizeof(double),
                  [&](std::int64_t begin, std::int64_t end, unsigned char* at) {
                    for (std::int64_t i = begin; i < end; ++i, at += sizeof(double)) {
                      const double x = number(i);
                      std::memcpy(at, &x, sizeof x);
                    }
                  });
    };
    if (mean_.size() > 0)
      coding.mean = mean_.data(),
      coding.mean_squares = dot(space.mean.data(), space.mean.data(), dim);
    if (bounds > 0) {
      send_numbers(bound, bounds, [&](std::size_t i) { return known[which[i]]; });
      coding.known = bound;
    }
    if (there.known) coding.known = there.known;
    pieces.send(rows, sent, row_bytes,
                [&](std::int64_t begin, std::int64_t end, unsigned char* at) {
                  for (std::int64_t i = begin; i < end; ++i, at += row_bytes)
                    std::memcpy(at, queries.row(which[i]), row_bytes);
                });
    coding.queries = there.queries ? there.queries : rows;
    if (!packed_.is_integer) {
      coding.count = queries_given;
      launch_measure_queries(queue_, coding, queries.type());
      if (scale == 0) coding.order = order;
      if (scale == 0 && there.places == 0) launch_order_queries(queue_, coding);
    }
    if (there.places > 0) coding.order = order;
    coding.count = count;
    launch_encode_queries(queue_, coding, queries.type());
    pieces.close();
  }
  // Bytes that code_on_device() sends for so many queries, at most.
  std::int64_t sent_bytes(ElementType type, std::int64_t count) const {
    return count * (packed_.dim * size_of(type) + 8);
  }

  // The queries as doubles, by place.
  static std::vector<double> widened(AnyMatrixView queries,
                                     const std::vector<std::int64_t>& order) {
    std::vector<double> out(order.size() * static_cast<std::size_t>(queries.cols()));
    visit(queries, [&](auto view) {
      double* to = out.data();
      for (const std::int64_t query : order)
        for (std::int64_t i = 0; i < view.cols(); ++i) *to++ = to_double(view.row(query)[i]);
    });
    return out;
  }
  // For each vector, sum x_i x_i as the reference adds it up: minus the key of its product with
  // itself. A sum of zeros is +0, whose sign that key does not have.
  static std::vector<double> squares_of(const std::vector<double>& vectors, std::int64_t dim) {
    const MatrixView<double> view(vectors.data(), std::ssize(vectors) / dim, dim);
    ExactDistance measure(Metric::ip, ElementType::f64);
    std::vector<double> out(view.rows());
    for (std::int64_t i = 0; i < view.rows(); ++i) {
      measure.set_query(view, i);
      out[i] = 0.0 - measure.key(view.row(i));
    }
    return out;
  }

 private:
  template <class T>
  Array<T> upload(const T* from, std::size_t count) {
    Array<T> out = queue_.template allocate<T>(count);
    queue_.upload(out.data(), from, count);
    return out;
  }

  // The order in which panels are scanned: at random, within each list.
  void put_in_order(std::span<const std::int64_t> first_panel) {
    std::vector<std::uint32_t> order(packed_.panels());
    const StreamSyncGuard waits_at_exit{queue_};
    std::iota(order.begin(), order.end(), 0u);
    Random random(0x6b6e656172);  // any seed: answers do not depend on it
    for (std::size_t list = 0; list + 1 < first_panel.size(); ++list) {
      std::uint32_t* const panels = order.data() + first_panel[list];
      const auto count = static_cast<std::uint64_t>(first_panel[list + 1] - first_panel[list]);
      for (std::uint64_t i = count; i > 1; --i) std::swap(panels[i - 1], panels[random.below(i)]);
    }
    order_ = upload(order.data(), order.size());
    if (!packed_.is_integer) mean_ = upload(packed_.space.mean.data(), packed_.space.mean.size());
    queue_.wait();
    if (packed_.is_integer) rows_.own = {};
  }

  Queue& queue_;
  const Coding packed_;
  int threads_;
  DeviceCodes<Queue> codes_;
  DeviceRowData<Queue> rows_;
  const std::vector<std::int64_t> first_panel_;  // [lists + 1] of rows by list; else empty
  Array<std::uint32_t> order_;
  Array<double> mean_;  // of certified codes that are centred, as queries are then
};

}  // namespace knear::detail
