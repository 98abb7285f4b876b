// knear/scan/device/query_kernels.hpp -- kernels that code queries in device memory.
//
//   MeasureQueries   the size of each query in coding space
//   OrderQueries     an order that puts queries of similar size beside one another
//   EncodeQueries    codes, what the test needs of queries, thresholds to start from, and the
//                    vectors as doubles, by place in that order
//
// The result is that of device_queries() (query_codes.hpp), which takes the processor longer than
// the scan takes the device where there are thousands of queries: the same codes of those that
// share a block, except where a value is half way between two of them, and lengths and errors with
// sums in another order, which the slack covers (docs/bounds.md, 10). Whole numbers are the same to
// the bit. The order may be another one: any is right.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "knear/core/element_type.hpp"
#include "knear/core/metric.hpp"
#include "knear/scan/device/code_layout.hpp"
#include "knear/scan/device/packing_kernels.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

// A query in coding space.
struct QuerySize {
  double largest;  // coordinate, in magnitude
  double squares;  // sum of squares
  double length;   // by which it was divided; 0: it was not
};

// The queries, how they are coded and where to; all pointers are to device memory. The number of a
// query is its place in `queries`.
struct DeviceQueryCoding {
  const void* queries;      // [count x dim], of any element type
  std::int64_t count, dim;  // count: at least 1, below 2^31
  int slices;
  Metric metric;
  const double* mean;  // [dim]; nullptr: not centred
  double mean_squares, slack;
  bool integer;    // whole numbers, whose codes are the values less `shift`
  int shift;       // 0 for certified codes
  int row_offset;  // what was added to the codes of rows
  double scale;    // of all queries, which suits the largest; 0: each block has one of its own
  // [count], by number; nullptr: nothing is known. Keys that the k-th of a query does not exceed,
  // or if `reached` thresholds as DeviceQueryView has them.
  const double* known;
  bool reached;
  // What one kernel finds for the next; whole numbers need neither.
  QuerySize* sizes;  // [count], by number
  float* largest;    // [count], by number: the largest coordinates again, to be compared
  // The output.
  // [count] the number of the query at each place, -1: none; nullptr: as they come.
  std::int32_t* order;
  std::uint8_t* codes;   // as code_layout.hpp, by place
  double* scales;        // [blocks]
  DeviceQuery* heads;    // [count], by place
  double* thresholds;    // [count], by place
  double* elements;      // [count x dim] the vectors, by place; nullptr: not wanted
  double* added_square;  // [count] their sums of squares as the reference adds them; or nullptr

  KNEAR_HD std::int64_t blocks() const { return (count + block_queries - 1) / block_queries; }
  // The number of the query at a place; beyond the last one that is repeated, and where there is
  // none the first query stands.
  KNEAR_HD std::int64_t query_at(std::int64_t place) const {
    const std::int64_t real = place < count ? place : count - 1;
    if (!order) return real;
    return order[real] < 0 ? 0 : order[real];
  }
  // Not at a place that a self-join leaves free.
  KNEAR_HD bool has_query(std::int64_t place) const {
    return !order || order[place < count ? place : count - 1] >= 0;
  }
  // The threshold with which a query starts: G, lowered where that takes rounding, or a key.
  KNEAR_HD double threshold_of(std::int64_t query, const DeviceQuery& head) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (known && reached) return known[query];
    const double bound = known ? known[query] : infinity;
    if (integer) return bound;
    if (bound == infinity) return -infinity;
    return KeyScale{metric, head.squares, head.constant}.threshold_for(bound);
  }
};

// One warp per query. Not for whole numbers.
template <class Thread, class Element>
struct MeasureQueries {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  DeviceQueryCoding p;

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    for (std::int64_t query = t.block() * warps + t.index() / warp_size; query < p.count;
         query += t.blocks() * warps) {
      const Element* const x = static_cast<const Element*>(p.queries) + query * p.dim;
      const double length = traits_of(p.metric).unit_rows ? row_length(t, x, p.dim) : 0;
      const CodingRow<Element> u = {x, p.mean, length};
      double largest = 0, squares = 0;
      for (std::int64_t i = lane; i < p.dim; i += warp_size) {
        const double size = fabs(u[i]);
        largest = size > largest ? size : largest;
        squares += size * size;
      }
      largest = warp_max(t, largest), squares = warp_sum(t, squares);
      if (lane == 0) {
        p.sizes[query] = {largest, squares, length};
        p.largest[query] = static_cast<float>(largest);
      }
    }
  }
};

// Each query finds its place by comparison with all others of its group, of equal ones by number:
// so it is a permutation of each group. A warp does so for a few queries at once. Larger groups
// would take work that grows with their square, and make blocks no more alike.
template <class Thread>
struct OrderQueries {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size, together = 4;
  static constexpr int group = 8192;
  static_assert(group % block_queries == 0 && group % together == 0);
  DeviceQueryCoding p;

  // The number of blocks of a grid.
  static std::int64_t blocks(std::int64_t count) {
    return (count + warps * together - 1) / (warps * together);
  }

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    const std::int64_t first = (t.block() * warps + t.index() / warp_size) * together;
    if (first >= p.count) return;  // the whole warp
    const std::int64_t begin = first / group * group;
    const int size = static_cast<int>(p.count - begin < group ? p.count - begin : group);
    const int mine = static_cast<int>(first - begin);  // in the group, and those that follow
    const float* const sizes = p.largest + begin;
    float own[together];
    int before[together] = {};
    KNEAR_UNROLL
    for (int q = 0; q < together; ++q) own[q] = sizes[mine + q < size ? mine + q : size - 1];
    for (int other = lane; other < size; other += warp_size) {
      const float x = sizes[other];
      KNEAR_UNROLL
      for (int q = 0; q < together; ++q)
        before[q] += x < own[q] || (x == own[q] && other < mine + q);
    }
    KNEAR_UNROLL
    for (int q = 0; q < together; ++q) {
      for (int step = warp_size / 2; step > 0; step /= 2)
        before[q] += t.shuffle_xor(before[q], step);
      if (lane == 0 && mine + q < size)
        p.order[begin + before[q]] = static_cast<std::int32_t>(first + q);
    }
  }
};

// A warp codes a few queries of a block. What all queries of the block share, their scale, each of
// its warps finds for itself.
template <class Thread, class Element>
struct EncodeQueries {
  static constexpr int threads = 256, resident_blocks = 3;
  static constexpr int warps = threads / warp_size, each = 4;
  static_assert(block_queries % (warps * each) == 0);
  DeviceQueryCoding p;

  // The number of blocks of a grid, for so many blocks of queries.
  static std::int64_t blocks(std::int64_t query_blocks) {
    return query_blocks * (block_queries / (warps * each));
  }

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t first = (t.block() * warps + t.index() / warp_size) * each;
    const std::int64_t block = first / block_queries;
    const double scale = p.integer ? 1 : p.scale > 0 ? p.scale : scale_of(t, block);
    if (first % block_queries == 0 && t.index() % warp_size == 0) p.scales[block] = scale;
    for (int q = 0; q < each; ++q) encode(t, first + q, scale);
  }

 private:
  KNEAR_DEVICE double scale_of(Thread t, std::int64_t block) const {
    double largest = 0, squares = 0;
    for (int q = t.index() % warp_size; q < block_queries; q += warp_size) {
      const std::int64_t place = block * block_queries + q;
      if (!p.has_query(place)) continue;
      const QuerySize size = p.sizes[p.query_at(place)];
      largest = size.largest > largest ? size.largest : largest;
      squares = size.squares > squares ? size.squares : squares;
    }
    return scale_for(format_int8, warp_max(t, largest), sqrt(warp_max(t, squares)));
  }

  KNEAR_DEVICE void encode(Thread t, std::int64_t place, double scale) const {
    const int lane = t.index() % warp_size;
    const bool real = place < p.count;  // of others there are codes alone
    const std::int64_t query = p.query_at(place);
    const Element* const x = static_cast<const Element*>(p.queries) + query * p.dim;
    const CodingRow<Element> u = {x, p.mean, p.integer ? 0 : p.sizes[query].length};
    const bool products = !traits_of(p.metric).squared && p.mean;
    std::uint8_t* const codes = p.codes + place / block_queries * p.slices * block_slice_bytes;
    const double inverse = 1 / scale;
    double squares = 0, error = 0, product = 0;
    int sum = 0;
    for (int step = lane; step < p.slices * slice_steps; step += warp_size) {
      unsigned word = 0;
      for (int j = 0; j < step_bytes; ++j) {
        const std::int64_t i = std::int64_t{step} * step_bytes + j;
        if (i >= p.dim) break;
        const double v = u[i], shifted = v - p.shift;
        const double c = rint(shifted * inverse), e = shifted - c * scale;
        squares += v * v, error += e * e, sum += static_cast<int>(c);
        if (products) product += v * p.mean[i];
        word |= (static_cast<unsigned>(static_cast<int>(c)) & 255u) << 8 * j;
        if (p.elements && real) p.elements[place * p.dim + i] = to_double(x[i]);
      }
      *reinterpret_cast<unsigned*>(
          codes + block_place(step, static_cast<int>(place % block_queries))) = word;
    }
    squares = warp_sum(t, squares), error = warp_sum(t, error), product = warp_sum(t, product);
    for (int step = warp_size / 2; step > 0; step /= 2) sum += t.shuffle_xor(sum, step);
    const double added = p.added_square ? reference_square(t, x) : 0;
    if (!real || lane != 0) return;
    // The rounding of centring, and for cosine that of normalising.
    const double norm = norm_above(squares, p.slack);
    const double size = traits_of(p.metric).unit_rows ? norm + 1 : norm;
    const DeviceQuery head = {norm, error_above(error, size, p.slack), squares,
                              products ? product + p.mean_squares : 0,
                              static_cast<std::int32_t>(std::int64_t{sum} * p.row_offset)};
    p.heads[place] = head;
    p.thresholds[place] = p.threshold_of(query, head);
    if (p.added_square) p.added_square[place] = added;
  }

  // Sum x_i x_i as the reference adds it up (distance/reference.hpp): sixteen partial sums, one in
  // each lane of half a warp. The other half does the same.
  KNEAR_DEVICE double reference_square(Thread t, const Element* x) const {
    double sum = 0;
    for (std::int64_t i = t.index() % 16; i < p.dim; i += 16) {
      const double a = to_double(x[i]);
      sum = rounded_sum(sum, rounded_product(a, a));
    }
    for (int step = 8; step > 0; step /= 2) sum = rounded_sum(sum, t.shuffle_xor(sum, step));
    return sum;
  }
};

}  // namespace knear::detail
