// bench/gpu/tiled_search.hpp -- search by a library's products, tile by tile: the reference path.
//
//   TiledSearch<Lane> search(first, second, choose_tiles(queries, rows, l2_bytes / 2));
//   search.run(base, queries, factor, kept, values, places);
//
// After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs", section 5.1: a tile of
// queries x rows is multiplied by the library and lies in the second-level cache when one kernel
// adds the rows' norms and selects the k best of each query by WarpSelect; two streams, so that one
// multiplies while the other selects. Where the paper selects from the k best of all tiles in the
// end, selection continues here from the k best so far: nearly all values of later tiles then fail
// one comparison, as in one pass over the whole row.
//
// The key is |y|^2 - factor * product, in fp32: the squared distance without |x|^2. With codes of
// fewer bits it is not exact; tiled_codes.hpp proves answers nevertheless.
//
// A Lane is a stream with a workspace: LibraryLane of tiled_bench.cpp, or the one of
// tests/bench/tiled_search_test.cpp:
//   Queue, Code, Product      types: of the stream, of a coordinate, of a product (float or int)
//   queue()
//   multiply(queries, count, rows, n, dim, out, stride)       out[i * stride + j] = query i . row j
//   wait_for(other)           what is given to this one later begins after all given to the other
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "knear/scan/device/scan_launches.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/select/warp/warp_select_layout.hpp"
#include "knear/simt/thread.hpp"
#include "knear/simt/thread_warp.hpp"

namespace knear::bench {

// The sizes of one tile.
struct TileSizes {
  std::int64_t queries, rows;
};

// Tiles of which two, of four bytes an element, take `bytes` together. About 2,000 queries at most,
// a warp for each: two tiles then fill a large device. Blocks of queries come in pairs, so that
// neither stream is left with one. Rows are a multiple of 64, which suits the library's kernels.
// Requires queries, rows >= 1.
inline TileSizes choose_tiles(std::int64_t queries, std::int64_t rows, std::size_t bytes) {
  constexpr std::int64_t most_queries = 2048, step = 64;
  const std::int64_t blocks =
      queries == 1 ? 1 : 2 * ((queries + 2 * most_queries - 1) / (2 * most_queries));
  TileSizes tile;
  tile.queries = (queries + blocks - 1) / blocks;
  const auto fit = static_cast<std::int64_t>(bytes) / (2 * 4 * tile.queries) / step * step;
  tile.rows = std::clamp(fit, step, (rows + step - 1) / step * step);
  return tile;
}

// Reads |y|^2 - factor * product where WarpSelect asks for |y|^2.
template <class Thread, class Product>
class KeyWarp : public ThreadWarp<Thread> {
 public:
  KNEAR_DEVICE KeyWarp(Thread t, const float* norms, const Product* products, float factor)
      : ThreadWarp<Thread>(t), norms_(norms), products_(products), factor_(factor) {}

  KNEAR_DEVICE float load(const float* norm) const {
    const float* const from = norm + this->template lane<int>();
    return *from - factor_ * static_cast<float>(products_[from - norms_]);
  }
  KNEAR_DEVICE float load(const float* norm, int count, float otherwise) const {
    return this->template lane<int>() < count ? load(norm) : otherwise;
  }

 private:
  const float* norms_;
  const Product* products_;
  float factor_;
};

// A warp for each query: selects, from the rows of a tile and those kept before, the k with the
// smallest keys, equal ones by row. R and T are those of WarpSelect.
template <class Thread, class Product, int R, int T>
struct SelectFromTile {
  static constexpr int threads = detail::select_warps_per_block * warp_size;
  static constexpr int resident_blocks = detail::select_resident_blocks(R * warp_size);

  const Product* products;  // [queries x stride]
  std::int64_t stride;
  const float* norms;  // [rows], of this tile
  float factor;
  std::int64_t queries;
  int rows, first_row;  // rows of the tile, and the number of the first
  int k;
  bool going_on;  // values and places hold the result of earlier tiles
  float* values;  // [queries x k], ascending; +infinity and -1 where there are fewer
  int* places;

  KNEAR_KERNEL void operator()(Thread t) const {
    using W = KeyWarp<Thread, Product>;
    const std::int64_t query = detail::select_row(t.block(), t.index());
    if (query >= queries) return;  // a whole warp at a time
    float* const my_values = values + query * k;
    int* const my_places = places + query * k;
    const W w(t, norms, products + query * stride, factor);
    WarpSelect<W, int, R, T> select(w, k);
    for (int first = 0; going_on && first < k; first += warp_size) {
      typename WarpSelect<W, int, R, T>::Item c = no_candidate<int>(w);
      const int i = first + t.index() % warp_size;
      if (i < k && my_places[i] >= 0) c = {my_values[i], my_places[i]};
      select.add(c);
    }
    select.add_row(norms, rows, first_row);
    select.store(my_values, my_places);
  }
};

template <class Queue, class Product>
void launch_select_from_tile(Queue& queue, const Product* products, std::int64_t stride,
                             const float* norms, float factor, std::int64_t queries, int rows,
                             int first_row, int k, float* values, int* places) {
  with_warp_select_shape(k, [&](auto shape) {
    using Kernel =
        SelectFromTile<typename Queue::Thread, Product, decltype(shape)::R, decltype(shape)::T>;
    launch(queue, Grid{detail::select_blocks(queries), 0},
           Kernel{products, stride, norms, factor, queries, rows, first_row, k, first_row != 0,
                  values, places});
  });
}

// In device memory: codes [rows x dim], row after row, and for a base |y|^2 [rows].
template <class Code>
struct TiledRows {
  const Code* codes = nullptr;
  const float* norms = nullptr;
  std::int64_t rows = 0, dim = 0;
};

template <class Lane>
class TiledSearch {
 public:
  using Code = typename Lane::Code;
  using Product = typename Lane::Product;

  // Each lane gets a tile of device memory. The caller keeps the lanes.
  TiledSearch(Lane& first, Lane& second, TileSizes tiles)
      : tiles_(tiles), sides_{{first, products_of(first)}, {second, products_of(second)}} {}

  // values, places [queries.rows x kept], in device memory: the `kept` rows with the smallest keys,
  // as SelectFromTile says. It starts after all work enqueued on `first` before, and work enqueued
  // on `first` later starts after it. Requires 1 <= kept <= warp_select_max_k, rows < 2^31.
  void run(const TiledRows<Code>& base, const TiledRows<Code>& queries, float factor, int kept,
           float* values, int* places) {
    for_tiles(base, queries,
              [&](Side& side, std::int64_t query, std::int64_t count, std::int64_t row,
                  std::int64_t rows) {
                launch_select_from_tile(side.lane.queue(), side.products.data(), tiles_.rows,
                                        base.norms + row, factor, count, static_cast<int>(rows),
                                        static_cast<int>(row), kept, values + query * kept,
                                        places + query * kept);
              });
  }
  // As run() without selecting, to time the library's products of these tiles alone.
  void multiply_alone(const TiledRows<Code>& base, const TiledRows<Code>& queries) {
    for_tiles(base, queries, [](auto&&...) {});
  }

 private:
  using Products = typename Lane::Queue::template Array<Product>;
  struct Side {
    Lane& lane;
    Products products;  // [tiles.queries x tiles.rows]
  };

  Products products_of(Lane& lane) const {
    return lane.queue().template allocate<Product>(
        static_cast<std::size_t>(tiles_.queries * tiles_.rows));
  }

  // Two blocks of queries side by side, a lane each, tile after tile in turns: a stream takes about
  // a thousand launches ahead, so neither may get all of its work before the other.
  template <class F>
  void for_tiles(const TiledRows<Code>& base, const TiledRows<Code>& queries, F&& then) {
    sides_[1].lane.wait_for(sides_[0].lane);
    for (std::int64_t pair = 0; pair < queries.rows; pair += 2 * tiles_.queries)
      for (std::int64_t row = 0; row < base.rows; row += tiles_.rows)
        for (int s = 0; s < 2; ++s) {
          const std::int64_t query = pair + s * tiles_.queries;
          if (query >= queries.rows) break;
          const std::int64_t count = std::min(tiles_.queries, queries.rows - query),
                             rows = std::min(tiles_.rows, base.rows - row);
          sides_[s].lane.multiply(queries.codes + query * base.dim, count,
                                  base.codes + row * base.dim, rows, base.dim,
                                  sides_[s].products.data(), tiles_.rows);
          then(sides_[s], query, count, row, rows);
        }
    sides_[0].lane.wait_for(sides_[1].lane);
  }

  TileSizes tiles_;
  Side sides_[2];
};

// Turns the rows kept for each query into the lists of the scan, whose kernels then measure them.
template <class Thread>
struct ListKept {
  static constexpr int threads = 128, resident_blocks = 8;
  const int* places;  // [queries x kept], ascending keys: no -1 before a row
  std::int64_t queries;
  int kept;
  detail::Entry* entries;  // [queries x kept]
  int* counts;             // [queries], zero

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t i = t.block() * threads + t.index();
    if (i >= queries * kept || places[i] < 0) return;
    entries[i] = {static_cast<std::uint32_t>(places[i]), 0};
    t.atomic_add(&counts[i / kept], 1);
  }
};

template <class Queue>
void launch_list_kept(Queue& queue, const int* places, std::int64_t queries, int kept,
                      detail::Entry* entries, int* counts) {
  using Kernel = ListKept<typename Queue::Thread>;
  launch(queue, Grid{(queries * kept + Kernel::threads - 1) / Kernel::threads, 0},
         Kernel{places, queries, kept, entries, counts});
}

// Measures the rows kept by the float64 reference: keys, ids [queries x k], the k best in the order
// (squared distance, row). rows [rows x dim] and queries [queries x dim] are the original vectors,
// ids [rows] 0, 1, ...; all in device memory. Requires k <= kept.
template <class Queue>
void rescore_kept(Queue& queue, const float* rows, const std::uint32_t* row_numbers,
                  const double* queries, std::int64_t count, std::int64_t dim, const int* places,
                  int kept, int k, double* keys, std::int64_t* ids) {
  const auto size = static_cast<std::size_t>(count * kept);
  auto entries = queue.template allocate<detail::Entry>(size);
  auto list_keys = queue.template allocate<double>(size);
  auto counts = queue.template allocate<int>(static_cast<std::size_t>(count));
  queue.fill_bytes(counts.data(), 0, counts.size());
  launch_list_kept(queue, places, count, kept, entries.data(), counts.data());
  detail::DeviceBaseView base = {};
  base.ids = row_numbers, base.l2 = true;
  detail::DeviceQueryView view = {};
  view.count = count;
  const detail::DeviceLists lists = {entries.data(), list_keys.data(), counts.data(), nullptr,
                                     kept};
  detail::launch_measure(queue, base, view, lists, queries, nullptr, rows, ElementType::f32, dim);
  detail::launch_rank(queue, base, view, lists, {}, keys, ids, k);
}

}  // namespace knear::bench
