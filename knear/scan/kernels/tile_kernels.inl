// knear/scan/kernels/tile_kernels.inl -- the tile kernels, written once and compiled for each
// level.
//
// The including file defines KNEAR_TABLE, KNEAR_WIDTH (int32 lanes of a register), KNEAR_BLOCK (the
// most queries whose accumulators fit the registers, two registers a query) and the few functions
// that have no portable spelling:
//   Ints dot_int8(Ints sum, Ints rows, Ints query)     u8 x s8 products, four to a lane
//   Ints dot_int16(Ints sum, Ints rows, Ints query)    s16 products, two to a lane
//   Floats multiply_add(Floats sum, Floats rows, Floats query)
//   uint32_t sign_bits(Ints)                            one bit a lane
//   Doubles clamp(Doubles, double low, double high)     NaN becomes low
//   Floats at_least(Floats, float low)
// and the types Ints, Floats of a register and Doubles of as many bytes.
// KNEAR_PRODUCTS, where it is defined, is a class that makes the int8 products of a whole group of
// twelve and a panel (tile_kernels_avx512_amx.cpp); what becomes of them is the same.
// KNEAR_BY_LANES, where it is defined: an instruction takes its second factor from one lane of a
// register, so that four queries are one load and no broadcast:
//   Ints dot_int8_by<lane>(Ints sum, Ints rows, Ints queries)   likewise dot_int16_by,
//   multiply_add_by
// KNEAR_SIGNED_ROWS, where it is defined: dot_int8 takes signed bytes for both. Rows lose 128 when
// they are loaded, and sums begin with what that takes from them.
// Everything is static and of C types: no inline function may be shared with another level.
//
// Registers at AVX-512: 24 accumulators (12 queries x 32 rows), two of rows, the rest broadcasts:
// per step 24 dot products against 14 loads, so the multiplier ports limit, not the loads.

namespace knear::detail {
namespace {

static inline Ints load_ints(const void* p) {
  Ints v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
static inline Floats load_floats(const void* p) {
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
static inline Ints broadcast_int(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return Ints{} + x;
}
static inline Floats broadcast_float(const void* p) {
  float x;
  __builtin_memcpy(&x, p, 4);
  return x - Floats{};  // not +: that would turn -0 into +0, so it can't be left out
}

enum class Mode { certified, integer, collect, self_join };

// A block's products are made where they are tested.
struct NoProducts {
  static constexpr bool made = false;
  explicit NoProducts(const TileArgs&) {}
  static bool serves(const TileArgs&) { return true; }
  void compute(const TileArgs&, int64_t) {}
  const int32_t* of(int64_t) const { return nullptr; }
};
#ifdef KNEAR_PRODUCTS
using Products = KNEAR_PRODUCTS;
#else
using Products = NoProducts;
#endif

#ifdef KNEAR_SIGNED_ROWS
constexpr bool signed_rows = true;
#else
constexpr bool signed_rows = false;
#endif

// Codes of rows as dot_int8 takes them.
static inline Ints load_int8_rows(const void* p) {
  if constexpr (signed_rows)
    return load_ints(p) ^ static_cast<int32_t>(0x80808080u);
  else
    return load_ints(p);
}

template <Format format>
struct Arithmetic {
  using Sum = Ints;
  static inline Sum load(const void* p) {
    if constexpr (format == format_int8)
      return load_int8_rows(p);
    else
      return load_ints(p);
  }
  static inline Sum load_queries(const void* p) { return load_ints(p); }
  static inline Sum broadcast(const void* p) { return broadcast_int(p); }
  static inline Sum dot(Sum sum, Sum rows, Sum query) {
    if constexpr (format == format_int8)
      return dot_int8(sum, rows, query);
    else
      return dot_int16(sum, rows, query);
  }
#ifdef KNEAR_BY_LANES
  template <int lane>
  static inline Sum dot_by(Sum sum, Sum rows, Sum queries) {
    if constexpr (format == format_int8)
      return dot_int8_by<lane>(sum, rows, queries);
    else
      return dot_int16_by<lane>(sum, rows, queries);
  }
#endif
};
template <>
struct Arithmetic<format_fp32> {
  using Sum = Floats;
  static inline Sum load(const void* p) { return load_floats(p); }
  static inline Sum load_queries(const void* p) { return load_floats(p); }
  static inline Sum broadcast(const void* p) { return broadcast_float(p); }
  static inline Sum dot(Sum sum, Sum rows, Sum query) { return multiply_add(sum, rows, query); }
#ifdef KNEAR_BY_LANES
  template <int lane>
  static inline Sum dot_by(Sum sum, Sum rows, Sum queries) {
    return multiply_add_by<lane>(sum, rows, queries);
  }
#endif
};

// Adds the products of one step of `queries` queries and two registers of rows to their sums.
#ifdef KNEAR_BY_LANES
template <class A, int queries, int q = 0>
static inline __attribute__((always_inline)) void add_by_lanes(typename A::Sum (*sum)[2],
                                                               typename A::Sum rows0,
                                                               typename A::Sum rows1,
                                                               const typename A::Sum* four) {
  sum[q][0] = A::template dot_by<q % 4>(sum[q][0], rows0, four[q / 4]);
  sum[q][1] = A::template dot_by<q % 4>(sum[q][1], rows1, four[q / 4]);
  if constexpr (q + 1 < queries) add_by_lanes<A, queries, q + 1>(sum, rows0, rows1, four);
}
#endif
template <class A, int queries>
static inline __attribute__((always_inline)) void add_step(typename A::Sum (*sum)[2],
                                                           const uint8_t* rows,
                                                           const uint8_t* query) {
  using Sum = typename A::Sum;
  const Sum rows0 = A::load(rows), rows1 = A::load(rows + KNEAR_WIDTH * step_bytes);
#ifdef KNEAR_BY_LANES
  if constexpr (queries % 4 == 0) {
    Sum four[queries / 4];
#pragma GCC unroll 3
    for (int i = 0; i < queries / 4; ++i) four[i] = A::load_queries(query + 4 * i * step_bytes);
    add_by_lanes<A, queries>(sum, rows0, rows1, four);
    return;
  }
#endif
#pragma GCC unroll 12
  for (int q = 0; q < queries; ++q) {
    const Sum x = A::broadcast(query + q * step_bytes);
    sum[q][0] = A::dot(sum[q][0], rows0, x);
    sum[q][1] = A::dot(sum[q][1], rows1, x);
  }
}

// Per panel: the limit of each query and the term of each row, in code units.
struct Limits {
  alignas(64) int32_t query[head_lanes];  // correction included
  alignas(64) float query_float[head_lanes];
  alignas(64) int32_t row[panel_rows];
  alignas(64) float row_float[panel_rows];
  alignas(64) int32_t blocked[panel_rows];  // -1 for a row that may not pass, else 0
  // For self_join: the limits of the other side of a pair.
  alignas(64) int32_t query_top[head_lanes];
  alignas(64) int32_t row_top[panel_rows];
};

typedef int32_t HalfInts __attribute__((vector_size(KNEAR_WIDTH * 2)));
typedef uint32_t HalfWordsU __attribute__((vector_size(KNEAR_WIDTH * 2)));
typedef float HalfFloats __attribute__((vector_size(KNEAR_WIDTH * 2)));
constexpr int double_lanes = KNEAR_WIDTH / 2;

template <class V, class T>
static inline V load_as(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T, class V>
static inline void store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// Written with vectors: compilers keep comparisons of doubles as branches otherwise, and at small
// dimensions this is a large share of a panel's time.
template <Format format, bool self_join>
static inline void certified_limits(const TileArgs& a, int64_t panel, Limits& out) {
  const PanelHead& p = a.heads[panel];
  const GroupHead& g = *a.group;
  const double unit = unit_of(p, g.scale);
  for (int q = 0; q < head_lanes; q += double_lanes) {
    const auto limit = [&](const double* threshold) __attribute__((always_inline)) {
      return limit_of<Doubles>(p, unit, load_as<Doubles>(threshold + q),
                               load_as<Doubles>(g.norm + q), load_as<Doubles>(g.error + q));
    };
    // NaN, from infinities, becomes the lower end.
    Doubles t = clamp(limit(g.threshold), lowest_limit, highest_limit);
    if constexpr (self_join) {
      // Lowered where it is too high for int32, and everything passes where it is too low. With the
      // corrections, at most 2^26, the starts of both sides still lie within int32.
      const double bound = code_dot_bound;
      Doubles top = limit(g.top);
      t = top >= -bound ? t : Doubles{} + lowest_limit;
      top = clamp(top, -bound, bound - 64);
      const HalfInts correction = load_as<HalfInts>(g.correction + q) - limit_margin;
      store(out.query_top + q, __builtin_convertvector(top, HalfInts) + correction);
      store(out.query + q, __builtin_convertvector(t, HalfInts) + correction);
      continue;
    }
    if constexpr (format == format_fp32) {
      const Doubles size = t < 0 ? -t : t;
      store(out.query_float + q,
            __builtin_convertvector(t - size * 0x1p-22 - 0x1p-100, HalfFloats));
    } else {
      store(out.query + q, (HalfInts)((HalfWordsU) __builtin_convertvector(t, HalfInts) -
                                      static_cast<uint32_t>(limit_margin) +
                                      load_as<HalfWordsU>(g.correction + q)));
    }
  }
  // Rows: (b - bias_max) / (s_q s_p), at most 0.
  const float factor = term_factor(p, unit);
  const float* bias = a.row_bias + panel * panel_rows;
  // For self_join: what a reach is rounded up by beside 2^-21, for truncation; everything passes
  // where no float holds the unit.
  const float lift = unit < 1e38 ? 1.0f : __builtin_inff();
  for (int r = 0; r < panel_rows; r += KNEAR_WIDTH) {
    const Floats x = at_least(load_floats(bias + r) * factor, lowest_term);
    if constexpr (format == format_fp32)
      store(out.row_float + r, x);
    else
      store(out.row + r, __builtin_convertvector(x, Ints));
    if constexpr (self_join) {
      const float* reach = a.row_reach + (panel - a.reach_panel) * panel_rows + r;
      Floats h = load_floats(reach) * static_cast<float>(unit);
      h = h < -0x1p31f ? Floats{} - 0x1p31f : h;
      const Floats size = (h < 0 ? -h : h) - x;
      Floats y = x + h + (size * 0x1p-21f + lift);           // rounded up
      y = y < 0x1p30f - 64 ? y : Floats{} + (0x1p30f - 64);  // NaN: everything passes
      y = y > lowest_top ? y : Floats{} + lowest_top;
      store(out.row_top + r, __builtin_convertvector(y, Ints));
    }
  }
}

static inline void integer_limits(const TileArgs& a, int64_t panel, Limits& out) {
  const GroupHead& g = *a.group;
  const uint32_t* squares = a.row_squares + panel * panel_rows;
  const int32_t* sums = a.row_sums + panel * panel_rows;
  const uint32_t mask = static_cast<uint32_t>(a.sum_shift_mask);
  uint32_t odd = 0;
  for (int r = 0; r < panel_rows; ++r) {
    odd |= squares[r];
    out.row[r] = integer_term(squares[r], sums[r], mask);
  }
  // Twice the limit is |x|^2 - bound, plus 1 where keys must be below the bound. Half of it is
  // rounded down for rows with odd |y|^2, up where there are none.
  const uint32_t least = a.ids[panel * panel_rows], even = ~odd & 1;
  for (int q = 0; q < head_lanes; ++q) {
    const uint32_t bits = g.limit_bit[q] + (least > g.bound_row[q]);
    out.query[q] = static_cast<int32_t>(static_cast<uint32_t>(g.limit[q]) + (bits >> 1) +
                                        (bits & even) + static_cast<uint32_t>(g.correction[q]));
  }
}

// Which rows of a panel may not pass.
static inline void block_rows(uint32_t allowed, Limits& out) {
  Ints lane_bits;
  for (int j = 0; j < KNEAR_WIDTH; ++j) lane_bits[j] = 1 << j;
  for (int r = 0; r < panel_rows; r += KNEAR_WIDTH)
    store(out.blocked + r, ((Ints{} + static_cast<int32_t>(allowed >> r)) & lane_bits) == 0);
}

// Appends the pairs of a block that passed: `kept` has a bit per row for each query.
template <int queries>
static __attribute__((noinline)) void emit(TileArgs& a, int64_t panel, int first_query,
                                           int first_row, const uint32_t* kept,
                                           const int32_t (*raw)[2 * KNEAR_WIDTH]) {
  const int count = a.group->count;
  for (int q = 0; q < queries && first_query + q < count; ++q)
    for (uint32_t keep = kept[q]; keep; keep &= keep - 1) {
      const int lane = __builtin_ctz(keep);
      Hit& hit = a.hits[a.hit_count++];
      hit.score = raw[q][lane];
      hit.slot = static_cast<uint32_t>(panel * panel_rows + first_row + lane);
      hit.query = static_cast<uint32_t>(first_query + q);
    }
}

// As emit, but only slots, in the lists of the queries.
template <int queries>
static __attribute__((noinline)) void emit_slots(TileArgs& a, int64_t panel, int first_query,
                                                 int first_row, const uint32_t* kept) {
  const int count = a.group->count;
  const uint32_t first = static_cast<uint32_t>(panel * panel_rows + first_row);
  for (int q = 0; q < queries && first_query + q < count; ++q) {
    if (kept[q] == 0) continue;
    uint32_t* list = a.lists[first_query + q] + a.list_count[first_query + q];
    const int more = __builtin_popcount(kept[q]);
    for (uint32_t keep = kept[q]; keep; keep &= keep - 1)
      *list++ = first + static_cast<uint32_t>(__builtin_ctz(keep));
    a.list_count[first_query + q] += more;
    if (a.list_count[first_query + q] >= a.list_limit) a.hit_count = a.hit_limit;
  }
}

static inline int32_t sum_of_lanes(Ints x) {
  const Words u = (Words)x;
  uint32_t sum = 0;
  for (int j = 0; j < KNEAR_WIDTH; ++j) sum += u[j];
  return static_cast<int32_t>(sum);
}

// 128 times the sum of the codes of a query, [dim] bytes that go on with zeros to a multiple of a
// register: what a product lacks whose row has lost 128.
static inline int32_t lack_of(const int8_t* query, int64_t dim) {
  Ints sum{};
  for (int64_t i = 0; i < dim; i += KNEAR_WIDTH * 4)
    sum = dot_int8(sum, Ints{} + 0x01010101, load_ints(query + i));
  return static_cast<int32_t>(static_cast<uint32_t>(sum_of_lanes(sum)) << 7);
}
// The same of each query of a group, to a multiple of a register.
template <int group>
static inline void lacks_of(const TileArgs& a, int32_t* out) {
  if constexpr (group % KNEAR_WIDTH == 0) {
    for (int q = 0; q < group; q += KNEAR_WIDTH) {
      Ints sum{};
      for (int64_t step = 0; step < a.steps; ++step)
        sum = dot_int8(sum, Ints{} + 0x01010101,
                       load_ints(a.query_codes + (step * group + q) * step_bytes));
      store(out + q, (Words)sum << 7);
    }
  } else {
    for (int q = 0; q < group; ++q) {
      uint32_t sum = 0;
      for (int64_t step = 0; step < a.steps; ++step)
        for (int i = 0; i < step_bytes; ++i)
          sum += static_cast<uint32_t>(
              static_cast<int8_t>(a.query_codes[(step * group + q) * step_bytes + i]));
      out[q] = static_cast<int32_t>(sum << 7);
    }
  }
}

// Scores one block: `queries` of the group from first_query on against 2 * KNEAR_WIDTH rows.
// `products`: of the panel, [group x panel_rows], if they are made. `lacks`: of the group, where
// the limits of its queries have been lowered by them.
template <Format format, Mode mode, int group, int queries, bool made>
static inline __attribute__((always_inline)) void block(TileArgs& a, int64_t panel,
                                                        const Limits& limits, int first_query,
                                                        int first_row, const int32_t* products,
                                                        const int32_t* lacks) {
  using A = Arithmetic<format>;
  using Sum = typename A::Sum;
  constexpr bool fp32 = format == format_fp32;
  const uint8_t* rows = a.codes + panel * a.steps * panel_step_bytes + first_row * step_bytes;
  const uint8_t* query = a.query_codes + first_query * step_bytes;
  Sum sum[queries][2];
  if constexpr (fp32) {
#pragma GCC unroll 12
    for (int q = 0; q < queries; ++q) sum[q][0] = sum[q][1] = Sum{};
  } else {
    const Ints row0 = load_ints(limits.row + first_row);
    const Ints row1 = load_ints(limits.row + first_row + KNEAR_WIDTH);
    if constexpr (mode == Mode::self_join) {
      const Ints top0 = load_ints(limits.row_top + first_row);
      const Ints top1 = load_ints(limits.row_top + first_row + KNEAR_WIDTH);
#pragma GCC unroll 12
      for (int q = 0; q < queries; ++q) {
        const Ints limit = broadcast_int(limits.query + first_query + q);
        const Ints top = broadcast_int(limits.query_top + first_query + q);
        const Ints own0 = row0 - limit, own1 = row1 - limit;
        const Ints other0 = top0 - top, other1 = top1 - top;
        sum[q][0] = own0 > other0 ? own0 : other0;
        sum[q][1] = own1 > other1 ? own1 : other1;
      }
    } else {
#pragma GCC unroll 12
      for (int q = 0; q < queries; ++q) {
        const Ints limit = broadcast_int(limits.query + first_query + q);
        sum[q][0] = subtract(row0, limit), sum[q][1] = subtract(row1, limit);
      }
    }
  }
  if constexpr (made) {
    products += first_query * panel_rows + first_row;
#pragma GCC unroll 12
    for (int q = 0; q < queries; ++q) {
      sum[q][0] = add(sum[q][0], load_ints(products + q * panel_rows));
      sum[q][1] = add(sum[q][1], load_ints(products + q * panel_rows + KNEAR_WIDTH));
    }
  } else {
    for (int64_t step = 0; step < a.steps; ++step) {
      add_step<A, queries>(sum, rows, query);
      rows += panel_step_bytes, query += group * step_bytes;
      if constexpr (queries <= 4) __builtin_prefetch(rows + 4096);
      if constexpr (queries <= 4) __builtin_prefetch(rows + 4096 + 64);
    }
  }
  // A pair passes if (sum + row term - limit) has its sign bit clear; usually none does.
  Ints signs0 = Ints{} - 1, signs1 = signs0;
  if constexpr (fp32) {
    const Floats row0 = load_floats(limits.row_float + first_row);
    const Floats row1 = load_floats(limits.row_float + first_row + KNEAR_WIDTH);
#pragma GCC unroll 12
    for (int q = 0; q < queries; ++q) {
      const Floats limit = broadcast_float(limits.query_float + first_query + q);
      signs0 &= (Ints)((sum[q][0] + row0) - limit), signs1 &= (Ints)((sum[q][1] + row1) - limit);
    }
  } else {
#pragma GCC unroll 12
    for (int q = 0; q < queries; ++q) signs0 &= sum[q][0], signs1 &= sum[q][1];
  }
  constexpr uint32_t lane_mask = (uint32_t{1} << KNEAR_WIDTH) - 1;
  constexpr bool lists = mode == Mode::collect || mode == Mode::self_join;
  if constexpr (!lists) {
    signs0 |= load_ints(limits.blocked + first_row);
    signs1 |= load_ints(limits.blocked + first_row + KNEAR_WIDTH);
  }
  if (__builtin_expect(sign_bits(signs0 & signs1) == lane_mask, !lists)) return;
  if constexpr (lists) {
    uint32_t kept[queries];
#pragma GCC unroll 12
    for (int q = 0; q < queries; ++q)
      kept[q] = (~sign_bits((Ints)sum[q][0]) & lane_mask) |
                (~sign_bits((Ints)sum[q][1]) & lane_mask) << KNEAR_WIDTH;
    emit_slots<queries>(a, panel, first_query, first_row, kept);
    return;
  }
  // No call while the accumulators are live, or they would all be spilled to memory: first the
  // masks and the scores of the queries that have a pair, then emit().
  alignas(64) int32_t raw[queries][2 * KNEAR_WIDTH];
  uint32_t kept[queries];
#pragma GCC unroll 12
  for (int q = 0; q < queries; ++q) {
    Ints test0, test1;
    if constexpr (fp32) {
      const Floats limit = broadcast_float(limits.query_float + first_query + q);
      test0 = (Ints)((sum[q][0] + load_floats(limits.row_float + first_row)) - limit);
      test1 = (Ints)((sum[q][1] + load_floats(limits.row_float + first_row + KNEAR_WIDTH)) - limit);
    } else {
      test0 = sum[q][0], test1 = sum[q][1];
    }
    test0 |= load_ints(limits.blocked + first_row);
    test1 |= load_ints(limits.blocked + first_row + KNEAR_WIDTH);
    kept[q] = (~sign_bits(test0) & lane_mask) | (~sign_bits(test1) & lane_mask) << KNEAR_WIDTH;
    if (kept[q] == 0) continue;
    Ints score0 = (Ints)sum[q][0], score1 = (Ints)sum[q][1];
    if constexpr (!fp32) {  // what the accumulators started from
      Ints limit = broadcast_int(limits.query + first_query + q);
      if constexpr (signed_rows && format == format_int8 && !made)
        limit = add(limit, broadcast_int(lacks + first_query + q));
      score0 = add(subtract(score0, load_ints(limits.row + first_row)), limit);
      score1 = add(subtract(score1, load_ints(limits.row + first_row + KNEAR_WIDTH)), limit);
    }
    store(raw[q], score0), store(raw[q] + KNEAR_WIDTH, score1);
  }
  emit<queries>(a, panel, first_query, first_row, kept, raw);
}

template <Format format, Mode mode, int group, class Made = NoProducts>
static void tile(TileArgs* args) {
  TileArgs& a = *args;
  if constexpr (Made::made)
    if (!Made::serves(a)) return tile<format, mode, group>(args);
  constexpr int queries = group < KNEAR_BLOCK ? group : KNEAR_BLOCK;
  static_assert(group % queries == 0 && panel_rows % (2 * KNEAR_WIDTH) == 0);
  // The limits of a panel are computed before the previous panel is scored, so that their chain of
  // latencies runs beside dot products. They pass through memory (the asm): a broadcast from there
  // needs no shuffle port, one from a register does.
  Limits limits[2];
  for (Limits& each : limits) block_rows(~uint32_t{0}, each);
  constexpr bool lacking = signed_rows && format == format_int8 && !Made::made;
  alignas(64) int32_t lacks[head_lanes] = {};
  if constexpr (lacking) lacks_of<group>(a, lacks);
  const auto compute = [&](int64_t panel) __attribute__((always_inline)) {
    Limits& out = limits[panel & 1];
    if constexpr (mode == Mode::integer)
      integer_limits(a, panel, out);
    else
      certified_limits<format, mode == Mode::self_join>(a, panel, out);
    if constexpr (lacking)
      for (int q = 0; q < head_lanes; q += KNEAR_WIDTH) {
        const Ints lack = load_ints(lacks + q);
        store(out.query + q, subtract(load_ints(out.query + q), lack));
        if constexpr (mode == Mode::self_join)
          store(out.query_top + q, subtract(load_ints(out.query_top + q), lack));
      }
    if (a.allowed) block_rows(a.allowed[panel], out);
    asm volatile("" : "+m"(out));
  };
  if (a.panel >= a.panel_end) return;
  compute(a.panel);
  Made products(a);
  products.compute(a, a.panel);
  while (a.panel < a.panel_end && a.hit_count < a.hit_limit) {
    compute(a.panel + 1 < a.panel_end ? a.panel + 1 : a.panel);
    if (a.panel + 1 < a.panel_end) products.compute(a, a.panel + 1);
    const bool any = !a.allowed || a.allowed[a.panel] != 0;
    for (int row = 0; any && row < panel_rows; row += 2 * KNEAR_WIDTH)
      for (int q = 0; q < group; q += queries)
        block<format, mode, group, queries, Made::made>(a, a.panel, limits[a.panel & 1], q, row,
                                                        products.of(a.panel), lacks);
    ++a.panel;
  }
}

// ---- all products of few rows -------------------------------------------------------------------

template <int group, int queries>
static inline __attribute__((always_inline)) void score_block(const TileArgs& a, int64_t panel,
                                                              int first_query, int first_row,
                                                              const int32_t* lacks, int32_t* out) {
  const uint8_t* rows = a.codes + panel * a.steps * panel_step_bytes + first_row * step_bytes;
  const uint8_t* query = a.query_codes + first_query * step_bytes;
  Ints sum[queries][2];
#pragma GCC unroll 12
  for (int q = 0; q < queries; ++q) {
    sum[q][0] = Ints{};
    if constexpr (signed_rows) sum[q][0] = broadcast_int(lacks + first_query + q);
    sum[q][1] = sum[q][0];
  }
  for (int64_t step = 0; step < a.steps; ++step) {
    add_step<Arithmetic<format_int8>, queries>(sum, rows, query);
    rows += panel_step_bytes, query += group * step_bytes;
  }
  out += first_query * a.score_stride + first_row;
#pragma GCC unroll 12
  for (int q = 0; q < queries; ++q) {
    store(out + q * a.score_stride, sum[q][0]);
    store(out + q * a.score_stride + KNEAR_WIDTH, sum[q][1]);
  }
}

template <int group>
static void score(TileArgs* args) {
  constexpr int queries = group < KNEAR_BLOCK ? group : KNEAR_BLOCK;
  int32_t* out = args->scores;
  alignas(64) int32_t lacks[head_lanes] = {};
  if constexpr (signed_rows) lacks_of<group>(*args, lacks);
  for (; args->panel < args->panel_end; ++args->panel, out += panel_rows)
    for (int row = 0; row < panel_rows; row += 2 * KNEAR_WIDTH)
      for (int q = 0; q < group; q += queries)
        score_block<group, queries>(*args, args->panel, q, row, lacks, out);
}

static void upper_ends(const int32_t* scores, int32_t correction, const float* bias,
                       const ScoreUnits* units, int64_t panels, float* out) {
  const Ints taken_off = Ints{} + correction;
  for (int64_t panel = 0; panel < panels; ++panel)
    for (int r = 0; r < panel_rows; r += KNEAR_WIDTH) {
      const int64_t at = panel * panel_rows + r;
      const ScoreUnits& by = units[panel];
      const Floats dot =
          __builtin_convertvector(subtract(load_ints(scores + at), taken_off), Floats);
      const Floats rest =
          multiply_add(Floats{} + by.most, load_floats(bias + at), Floats{} + by.bias_unit);
      store(out + at, multiply_add(rest, dot, Floats{} + by.unit));
    }
}

// How many values are at least `least`.
static inline int64_t count_at_least(const float* values, int64_t count, float least) {
  Ints sum{};
  for (int64_t i = 0; i < count; i += KNEAR_WIDTH) sum += load_floats(values + i) >= least;
  int64_t out = 0;
  for (int j = 0; j < KNEAR_WIDTH; ++j) out -= sum[j];
  return out;
}

// The largest of each lane of values begin, begin + stride, ...
static inline Floats largest_of_lanes(const float* values, int64_t count, int64_t begin,
                                      int64_t stride) {
  Floats most = Floats{} - 0x1.fffffep127f;
  for (int64_t i = begin; i < count; i += stride) {
    const Floats x = load_floats(values + i);
    most = x > most ? x : most;
  }
  return most;
}

static float largest_value(const float* values, int64_t count, int64_t k) {
  constexpr float lowest = -0x1.fffffep127f;
  // Of as many parts as k each has a value that is not below the least of their largest: where k
  // is small, few others are.
  constexpr int64_t most_parts = 64 / KNEAR_WIDTH;
  const int64_t parts = (k + KNEAR_WIDTH - 1) / KNEAR_WIDTH;
  float low = -lowest, high = lowest;  // `low` has at least k, `high` fewer or itself
  if (parts <= most_parts) {
    for (int64_t part = 0; part < parts; ++part) {
      const Floats most = largest_of_lanes(values, count, part * KNEAR_WIDTH, parts * KNEAR_WIDTH);
      for (int j = 0; j < KNEAR_WIDTH; ++j) {
        low = most[j] < low ? most[j] : low, high = most[j] > high ? most[j] : high;
      }
    }
  }
  if (parts > most_parts || low <= lowest) {
    Floats least = Floats{} - lowest, most = Floats{} + lowest;
    for (int64_t i = 0; i < count; i += KNEAR_WIDTH) {
      const Floats x = load_floats(values + i), y = x < lowest ? least : x;
      least = y < least ? y : least, most = x > most ? x : most;
    }
    low = least[0], high = most[0];
    for (int j = 1; j < KNEAR_WIDTH; ++j) {
      low = least[j] < low ? least[j] : low, high = most[j] > high ? most[j] : high;
    }
  }
  int64_t above_low = count_at_least(values, count, low), above_high = 0;
  if (above_low < k) return lowest;
  const int64_t enough = k + k / 8 + 1;
  // Between both by how many are above each; by halves where that does not get on.
  for (int step = 0; above_low > enough && step < 64; ++step) {
    const float share = step % 3 == 2 ? 0.5f
                                      : static_cast<float>(above_low - k) /
                                            static_cast<float>(above_low - above_high);
    float middle = low + (high - low) * (share < 0.96875f ? share : 0.96875f);
    if (!(middle > low && middle < high)) middle = low + (high - low) * 0.5f;
    if (!(middle > low && middle < high)) break;
    const int64_t above = count_at_least(values, count, middle);
    if (above >= k)
      low = middle, above_low = above;
    else
      high = middle, above_high = above;
  }
  return low;
}

static int64_t places_at_least(const float* values, int64_t count, float least, uint32_t* out) {
  // Of a panel at a time, two without a look whether there are any: most panels have no more, and
  // whether they have any cannot be foretold.
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += panel_rows) {
    uint32_t bits = 0;
    for (int r = 0; r < panel_rows; r += KNEAR_WIDTH)
      bits |= sign_bits((Ints)(load_floats(values + i + r) >= least)) << r;
    for (int j = 0; j < 2; ++j, bits &= bits - 1) {
      out[found] = static_cast<uint32_t>(i + __builtin_ctz(bits | 1u << 31));
      found += bits != 0;
    }
    for (; bits; bits &= bits - 1) out[found++] = static_cast<uint32_t>(i + __builtin_ctz(bits));
  }
  return found;
}

// ---- packing: sums in any order, since every bound leaves room for float64 rounding ------------

static void load_floats_centred(const float* from, const double* mean, int64_t dim, double* v) {
  int64_t i = 0;
  for (; i + double_lanes <= dim; i += double_lanes) {
    Doubles x = __builtin_convertvector(load_as<HalfFloats>(from + i), Doubles);
    if (mean) x = x - load_as<Doubles>(mean + i);
    store(v + i, x);
  }
  for (; i < dim; ++i) v[i] = mean ? from[i] - mean[i] : from[i];
}

static inline double sum_of_lanes(Doubles x) {
  double sum = 0;
  for (int j = 0; j < double_lanes; ++j) sum += x[j];
  return sum;
}

static VectorSize measure(const double* v, int64_t dim) {
  Doubles squares0{}, squares1{}, largest{};
  int64_t i = 0;
  for (; i + 2 * double_lanes <= dim; i += 2 * double_lanes) {
    const Doubles a = load_as<Doubles>(v + i), b = load_as<Doubles>(v + i + double_lanes);
    squares0 += a * a, squares1 += b * b;
    const Doubles p = a < 0 ? -a : a, q = b < 0 ? -b : b, m = p > q ? p : q;
    largest = m > largest ? m : largest;
  }
  VectorSize out = {0, sum_of_lanes(squares0 + squares1)};
  for (int j = 0; j < double_lanes; ++j)
    out.largest = largest[j] > out.largest ? largest[j] : out.largest;
  for (; i < dim; ++i) {
    const double size = v[i] < 0 ? -v[i] : v[i];
    out.squares += v[i] * v[i];
    out.largest = size > out.largest ? size : out.largest;
  }
  return out;
}

template <Format format>
static CodeSize encode(const double* v, int64_t dim, double scale, int offset, uint8_t* out,
                       int64_t stride) {
  typedef int16_t HalfWords __attribute__((vector_size(KNEAR_WIDTH)));
  typedef uint8_t HalfBytes __attribute__((vector_size(KNEAR_WIDTH / 2)));
  constexpr int per_step = format == format_int8 ? 4 : format == format_int16 ? 2 : 1;
  // At least one whole step at a time: two registers of the narrowest level make one int8 step.
  constexpr int lanes = double_lanes < 4 ? 4 : double_lanes;
  constexpr double round = 0x1.8p52;  // adding and taking it off rounds to an integer
  const double inverse = 1 / scale;
  Doubles error{}, squares{};
  HalfInts sum{};
  for (int64_t i = 0; i < dim; i += lanes) {
    alignas(64) double last[lanes] = {};
    const double* x = v + i;
    int valid = lanes;
    if (i + lanes > dim) {  // the last few, padded with zeros
      valid = static_cast<int>(dim - i);
      for (int j = 0; j < valid; ++j) last[j] = x[j];
      x = last;
    }
    alignas(64) uint8_t steps[lanes / per_step * step_bytes];
    for (int r = 0; r < lanes; r += double_lanes) {
      const Doubles y = load_as<Doubles>(x + r);
      Doubles c;
      if constexpr (format == format_fp32) {
        const HalfFloats f = __builtin_convertvector(y * inverse, HalfFloats);
        store(steps + r * 4, f);
        c = __builtin_convertvector(f, Doubles);
      } else {
        c = (y * inverse + round) - round;
        const HalfInts code = __builtin_convertvector(c, HalfInts);
        if constexpr (format == format_int8) sum += code;
        if constexpr (format == format_int8)
          store(steps + r, __builtin_convertvector(code + offset, HalfBytes));
        else
          store(steps + r * 2, __builtin_convertvector(code, HalfWords));
      }
      const Doubles e = y - c * scale;
      error += e * e, squares += c * c;
    }
    for (int j = 0; j < valid; j += per_step, out += stride)
      __builtin_memcpy(out, steps + j / per_step * step_bytes, step_bytes);
  }
  int64_t total = 0;
  for (int j = 0; j < double_lanes; ++j) total += sum[j];
  return {sum_of_lanes(error), sum_of_lanes(squares), total};
}

// ---- rows one by one ----------------------------------------------------------------------------

// The sums of the lanes of four registers.
typedef int32_t Quad __attribute__((vector_size(16)));
static inline Quad quarter_sums(Ints x) {
  Quad sum = load_as<Quad>(reinterpret_cast<const int32_t*>(&x));
  for (int j = 4; j < KNEAR_WIDTH; j += 4)
    sum += load_as<Quad>(reinterpret_cast<const int32_t*>(&x) + j);
  return sum;
}
static inline Quad sums_of_lanes(Ints a, Ints b, Ints c, Ints d) {
  const Quad p = quarter_sums(a), q = quarter_sums(b), r = quarter_sums(c), s = quarter_sums(d);
  const Quad pq =
      __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
  const Quad rs =
      __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
  return __builtin_shufflevector(pq, rs, 0, 1, 4, 5) + __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
}

static void row_products(const uint8_t* rows, int64_t stride, const uint32_t* which, int64_t count,
                         const int8_t* query, int64_t dim, int32_t* out) {
  constexpr int64_t bytes = KNEAR_WIDTH * 4, ahead = 8;
  Ints lack{};
  if constexpr (signed_rows) lack[0] = lack_of(query, dim);
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint8_t *r0 = rows + which[i] * stride, *r1 = rows + which[i + 1] * stride,
                  *r2 = rows + which[i + 2] * stride, *r3 = rows + which[i + 3] * stride;
    for (int64_t j = i + ahead; j < i + ahead + 4 && j < count; ++j) {
      const uint8_t* next = rows + which[j] * stride;
      for (int64_t c = 0; c < stride && c < 512; c += 64) __builtin_prefetch(next + c);
    }
    Ints s0 = lack, s1 = lack, s2 = lack, s3 = lack;
    for (int64_t c = 0; c < dim; c += bytes) {
      const Ints x = load_ints(query + c);
      s0 = dot_int8(s0, load_int8_rows(r0 + c), x), s1 = dot_int8(s1, load_int8_rows(r1 + c), x);
      s2 = dot_int8(s2, load_int8_rows(r2 + c), x), s3 = dot_int8(s3, load_int8_rows(r3 + c), x);
    }
    store(out + i, sums_of_lanes(s0, s1, s2, s3));
  }
  for (; i < count; ++i) {
    const uint8_t* row = rows + which[i] * stride;
    Ints sum = lack;
    for (int64_t c = 0; c < dim; c += bytes)
      sum = dot_int8(sum, load_int8_rows(row + c), load_ints(query + c));
    out[i] = sum_of_lanes(sum);
  }
}

}  // namespace

const ScanKernels& KNEAR_TABLE() {
  static constexpr ScanKernels table = {
      {{tile<format_int8, Mode::certified, 1>, tile<format_int8, Mode::certified, 4>,
        tile<format_int8, Mode::certified, 12, Products>},
       {tile<format_int16, Mode::certified, 1>, tile<format_int16, Mode::certified, 4>,
        tile<format_int16, Mode::certified, 12>},
       {tile<format_fp32, Mode::certified, 1>, tile<format_fp32, Mode::certified, 4>,
        tile<format_fp32, Mode::certified, 12>}},
      {tile<format_int8, Mode::integer, 1>, tile<format_int8, Mode::integer, 4>,
       tile<format_int8, Mode::integer, 12, Products>},
      {tile<format_int8, Mode::collect, 1>, tile<format_int8, Mode::collect, 4>,
       tile<format_int8, Mode::collect, 12, Products>},
      tile<format_int8, Mode::self_join, 12, Products>,
      {score<1>, score<4>, score<12>},
      upper_ends,
      largest_value,
      places_at_least,
      load_floats_centred,
      measure,
      {encode<format_int8>, encode<format_int16>, encode<format_fp32>},
      row_products};
  return table;
}

}  // namespace knear::detail
