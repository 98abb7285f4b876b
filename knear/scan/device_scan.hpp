// knear/scan/device_scan.hpp -- exact search on a GPU: what device_kernels.hpp does, in order.
//
//   DeviceScan<Queue> scan(queue, packed, rows, threads);      // codes and rows go to the device
//   auto left = scan.run(queries, which, found, k, out, stats, batch, progress);
//
// Panels are gone over in an order of chance, so that the first ones are a sample of the base: of
// these all pairs pass, the k-th best of each query is its first threshold, and the next part of
// the base is three times what was seen so far. After each part thresholds are brought up to date.
// A query for whose survivors its list has no room is handed back; the processor answers it.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/device_codes.hpp"
#include "knear/scan/device_launches.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

struct DeviceStats {
  std::int64_t parts = 0;      // of the base, of the last batch
  std::int64_t survivors = 0;  // pairs that were measured (whole numbers: that were left)
  // Called, if set, when the work of a stage is about to be given to the queue, with nullptr after
  // the last of a batch: for one who has a clock of the device. What the processor does within a
  // stage named "... in" or "... out" counts there.
  std::function<void(const char* stage)> at_stage = {};
};

template <class Queue>
class DeviceScan {
  template <class T>
  using Array = typename Queue::template Array<T>;

 public:
  // Most neighbours that kernels have registers for; columns of whole numbers whose sums fit.
  static constexpr std::int64_t most_k = warp_select_max_k, most_integer_dim = 16384;

  // Declared after host memory that copies are made from or to: none is under way when that goes,
  // whatever is thrown.
  struct Settled {
    Queue& queue;
    ~Settled() {
      try {
        queue.wait();
      } catch (...) {  // the next call says so
      }
    }
  };

  // rows: those that were packed, by id; integer codes need none. Requires int8 codes without
  // copies, and of whole numbers no more than most_integer_dim columns. Rows and codes may go
  // afterwards. Throws MemoryBudgetError if they do not fit the queue's budget.
  DeviceScan(Queue& queue, const PackedBase& packed, const BaseRows& rows, int threads,
             std::int64_t piece = 16 << 20)
      : queue_(queue), packed_(packed), threads_(threads), piece_(piece), row_type_(rows.type()) {
    const auto slots = static_cast<std::size_t>(packed.panels() * panel_rows);
    std::vector<std::uint32_t> order(static_cast<std::size_t>(packed.panels()));
    const Settled settled{queue_};
    upload_codes();
    if (packed.is_integer) {
      squares_ = upload(packed.row_squares.data(), slots);
      sums_ = upload(packed.row_sums.data(), slots);
    } else {
      heads_ = upload(packed.heads.data(), static_cast<std::size_t>(packed.panels()));
      bias_ = upload(packed.row_bias.data(), slots);
      upload_rows(rows);
    }
    ids_ = upload(packed.ids.data(), slots);
    std::iota(order.begin(), order.end(), 0u);
    Random random(0x6b6e656172);  // any: answers do not depend on it
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    order_ = upload(order.data(), order.size());
    queue_.wait();
  }

  // Fills rows `which` of `out` (shapes [queries x k]); returns the queries handed back, whose rows
  // are untouched: those for whose survivors lists have no room, and where the device has no memory
  // for a block of queries all that are left. Requires 1 <= k <= most_k, finite queries; `found` is
  // of all of them. `batch`: queries at a time, 1 at least. Throws Cancelled.
  std::vector<std::int64_t> run(AnyMatrixView queries, std::span<const std::int64_t> which,
                                const DataSurvey& found, std::int64_t k, ExactLists& out,
                                DeviceStats& stats, std::int64_t batch, const Progress& progress) {
    std::vector<std::int64_t> left;
    const auto count = std::ssize(which);
    Reporter reporter(progress, "search", count * packed_.panels());
    for (std::int64_t first = 0, taken; first < count; first += taken) {
      taken = std::min(batch, count - first);
      const auto some =
          which.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(taken));
      try {
        run_batch(queries, some, found, static_cast<int>(k), out, stats, left,
                  progress ? &reporter : nullptr);
      } catch (const MemoryBudgetError&) {
        if (taken > block_queries) {  // with fewer at a time, from here on
          batch = std::max<std::int64_t>(block_queries, taken / 2), taken = 0;
          continue;
        }
        left.insert(left.end(), which.begin() + first, which.end());
        break;
      }
    }
    return left;
  }

  // How many queries of `count` to take at a time, so that they take no more than half of
  // `free_bytes` of the device; whole blocks of them.
  std::int64_t batch_for(std::int64_t count, std::int64_t k, std::size_t free_bytes) const {
    const std::int64_t each = bytes_for_query(k, packed_.dim, slices_of(packed_.steps));
    const auto held = static_cast<std::int64_t>(free_bytes / 2) / each;
    return std::clamp<std::int64_t>(held / block_queries * block_queries, block_queries,
                                    std::max<std::int64_t>(block_queries, count));
  }

  // The rows on the device, for kernels that others launch; as long as this lives.
  DeviceBaseView base() const { return base_view(); }
  const PackedBase& packed() const { return packed_; }

  // Queries on the device, by place, with a threshold for each.
  struct Queries {
    Array<std::uint8_t> codes;
    Array<double> scales, thresholds;
    Array<DeviceQuery> heads;
    std::int64_t slices = 0;
    bool shifted = false;

    // `count` of them from the place `first` on, which begins a block.
    DeviceQueryView view(std::int64_t first, std::int64_t count) {
      const std::int64_t block = first / block_queries;
      return {codes.data() + block * slices * block_slice_bytes,
              scales.data() + block,
              heads.data() + first,
              thresholds.data() + first,
              count,
              (count + block_queries - 1) / block_queries,
              shifted};
    }
  };
  // thresholds: [coded.count], as DeviceQueryView has them. Both have to stay until the queue has
  // come so far.
  Queries upload_queries(const DeviceQueries& coded, const std::vector<double>& thresholds) {
    const auto count = static_cast<std::size_t>(coded.count);
    return {upload(coded.codes.data(), coded.codes.size()),
            upload(coded.scales.data(), coded.scales.size()),
            upload(thresholds.data(), count),
            upload(coded.heads.data(), count),
            coded.slices,
            coded.shifted};
  }

  // Entries of a list: what may wait of a query between two looks.
  static std::int64_t room_for(std::int64_t k) { return 2048 + 8 * k; }
  // Of device memory that a query takes in a batch.
  static std::int64_t bytes_for_query(std::int64_t k, std::int64_t dim, std::int64_t slices) {
    return room_for(k) * static_cast<std::int64_t>(sizeof(Entry) + sizeof(double)) + 16 * k +
           4 * dim + slices * slice_bytes + 256;
  }
  // And of the processor's, beside the answer; and what packing them takes for each thread.
  static std::int64_t host_bytes_for_query(std::int64_t k, std::int64_t dim, std::int64_t slices) {
    return slices * slice_bytes + 4 * dim + 16 * k + 160;
  }
  static std::int64_t host_bytes_for_thread(std::int64_t dim) {
    return block_queries * (9 * dim + 64);
  }

 private:
  template <class T>
  Array<T> upload(const T* from, std::size_t count) {
    Array<T> out = queue_.template allocate<T>(count);
    queue_.upload(out.data(), from, count);
    return out;
  }

  void upload_codes() {
    const std::int64_t bytes = slices_of(packed_.steps) * panel_slice_bytes;
    const std::int64_t together = std::max<std::int64_t>(1, piece_ / bytes);
    codes_ =
        queue_.template allocate<std::uint8_t>(static_cast<std::size_t>(packed_.panels() * bytes));
    AlignedArray<std::uint8_t> piece(std::min(together, packed_.panels()) * bytes);
    const Settled settled{queue_};
    for (std::int64_t begin = 0; begin < packed_.panels(); begin += together) {
      const std::int64_t end = std::min(packed_.panels(), begin + together);
      device_codes(packed_, begin, end, threads_, piece.data());
      queue_.upload(codes_.data() + begin * bytes, piece.data(),
                    static_cast<std::size_t>((end - begin) * bytes));
      queue_.wait();
    }
  }

  // As they lie in memory: rows may be anywhere.
  void upload_rows(const BaseRows& rows) {
    const std::int64_t bytes = rows.row_bytes();
    rows_ = queue_.template allocate<unsigned char>(static_cast<std::size_t>(rows.rows() * bytes));
    const std::int64_t together = std::max<std::int64_t>(1, piece_ / bytes);
    std::vector<unsigned char> piece(
        static_cast<std::size_t>(std::min(together, rows.rows()) * bytes));
    std::vector<std::byte> scratch(rows.scratch_bytes());
    const Settled settled{queue_};
    for (std::int64_t begin = 0; begin < rows.rows(); begin += together) {
      const std::int64_t end = std::min(rows.rows(), begin + together);
      for (std::int64_t i = begin; i < end; ++i)
        std::memcpy(piece.data() + (i - begin) * bytes, rows.row(i, scratch.data()),
                    static_cast<std::size_t>(bytes));
      queue_.upload(rows_.data() + begin * bytes, piece.data(),
                    static_cast<std::size_t>((end - begin) * bytes));
      queue_.wait();
    }
  }

  DeviceBaseView base_view() const {
    const Metric metric = packed_.space.metric;
    return {codes_.data(),
            heads_.data(),
            bias_.data(),
            squares_.data(),
            sums_.data(),
            ids_.data(),
            order_.data(),
            packed_.panels(),
            static_cast<int>(slices_of(packed_.steps)),
            packed_.is_integer,
            metric == Metric::l2,
            metric == Metric::cosine,
            !packed_.is_integer && metric == Metric::l2 ? 2 * packed_.space.slack : 0.0};
  }

  void run_batch(AnyMatrixView queries, std::span<const std::int64_t> which,
                 const DataSurvey& found, int k, ExactLists& out, DeviceStats& stats,
                 std::vector<std::int64_t>& left, Reporter* watched) {
    const DeviceQueries coded = device_queries(packed_, queries, which, found, threads_);
    const auto count = static_cast<std::size_t>(coded.count);
    const auto stage = [&](const char* name) {
      if (stats.at_stage) stats.at_stage(name);
    };
    stage("queries in");
    const std::vector<double> unknown(count, packed_.is_integer
                                                 ? std::numeric_limits<double>::infinity()
                                                 : -std::numeric_limits<double>::infinity());
    std::vector<float> x;
    std::vector<double> xx;
    const Settled settled{queue_};
    Queries uploaded = upload_queries(coded, unknown);
    const std::int64_t room = room_for(k);
    auto entries = queue_.template allocate<Entry>(count * static_cast<std::size_t>(room));
    auto keys = queue_.template allocate<double>(count * static_cast<std::size_t>(room));
    auto counts = queue_.template allocate<int>(count);
    auto lost = queue_.template allocate<int>(count);
    const std::size_t results = count * static_cast<std::size_t>(k);
    auto out_keys = queue_.template allocate<double>(results);
    auto out_ids = queue_.template allocate<std::int64_t>(results);
    Array<float> vectors;
    Array<double> vector_squares;
    if (!packed_.is_integer) {
      x = widened(queries, coded.order);
      vectors = upload(x.data(), x.size());
      if (packed_.space.metric == Metric::cosine) {
        xx = squares_of(x, packed_.dim);
        vector_squares = upload(xx.data(), xx.size());
      }
    }
    // Nothing is allocated from here on.
    queue_.fill_bytes(counts.data(), 0, count);
    queue_.fill_bytes(lost.data(), 0, count);

    const DeviceBaseView base = base_view();
    const DeviceQueryView view = uploaded.view(0, coded.count);
    const DeviceLists lists = {entries.data(), keys.data(), counts.data(), lost.data(),
                               static_cast<int>(room)};
    // The first part has k rows for certain, and no more than lists have room for.
    stats.parts = 0;
    for (std::int64_t begin = 0, end = 0; begin < base.panels; begin = end, ++stats.parts) {
      end = begin == 0 ? (2 * k + 511) / panel_rows : 4 * begin;
      end = std::min(end, base.panels);
      stage("scan");
      launch_scan(queue_, base, view, lists, begin, end);
      stage("thresholds");
      launch_update(queue_, base, view, lists, k);
      // Work is given in advance of what is done, unless somebody looks on.
      if (!watched) continue;
      queue_.wait();
      watched->add(coded.count * (end - begin));
    }

    if (packed_.is_integer) {
      stage("measure");
      launch_integer_keys(queue_, base, view, lists);
    } else {
      stage("measure");
      launch_measure(queue_, base, view, lists, vectors.data(), vector_squares.data(), rows_.data(),
                     row_type_, packed_.dim);
    }
    stage("rank");
    launch_rank(queue_, base, view, lists, out_keys.data(), out_ids.data(), k);

    stage("answers out");
    std::vector<double> best_keys(results);
    std::vector<std::int64_t> best_ids(results);
    std::vector<int> were_lost(count), survived(count);
    const Settled arrived{queue_};
    queue_.download(best_keys.data(), out_keys.data(), results);
    queue_.download(best_ids.data(), out_ids.data(), results);
    queue_.download(were_lost.data(), lost.data(), count);
    queue_.download(survived.data(), counts.data(), count);
    queue_.wait();
    stage(nullptr);
    for (std::size_t place = 0; place < count; ++place) {
      const std::int64_t query = coded.order[place];
      if (were_lost[place]) {
        left.push_back(query);
        continue;
      }
      stats.survivors += survived[place];
      std::copy_n(best_keys.data() + place * k, k, out.keys.row(query));
      std::copy_n(best_ids.data() + place * k, k, out.ids.row(query));
    }
  }

  // Queries by place as floats, which hold every element type.
  static std::vector<float> widened(AnyMatrixView queries, const std::vector<std::int64_t>& order) {
    std::vector<float> out(order.size() * static_cast<std::size_t>(queries.cols()));
    visit(queries, [&](auto view) {
      float* to = out.data();
      for (const std::int64_t query : order)
        for (std::int64_t i = 0; i < view.cols(); ++i) *to++ = to_float(view.row(query)[i]);
    });
    return out;
  }
  // Of each vector, sum x_i x_i as the reference adds it up: minus the key of products with itself.
  static std::vector<double> squares_of(const std::vector<float>& vectors, std::int64_t dim) {
    const MatrixView<float> view(vectors.data(), std::ssize(vectors) / dim, dim);
    ExactDistance measure(Metric::ip, ElementType::f32);
    std::vector<double> out(static_cast<std::size_t>(view.rows()));
    for (std::int64_t i = 0; i < view.rows(); ++i) {
      measure.set_query(view, i);
      out[static_cast<std::size_t>(i)] = -measure.key(view.row(i));
    }
    return out;
  }

  Queue& queue_;
  const PackedBase& packed_;
  int threads_;
  std::int64_t piece_;
  ElementType row_type_;
  Array<std::uint8_t> codes_;
  Array<PanelHead> heads_;
  Array<float> bias_;
  Array<std::uint32_t> squares_, ids_, order_;
  Array<std::int32_t> sums_;
  Array<unsigned char> rows_;
};

}  // namespace knear::detail
