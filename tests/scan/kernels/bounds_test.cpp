// The formulas of bounds.hpp in all their forms -- the vectors of every instruction set, plain
// code, the functions of a GPU's kernels -- let the same pairs through, and never fewer than the
// bound allows when it is computed without rounding. Every promise of exact answers stands on this.
#include "knear/scan/kernels/bounds.hpp"

#include <gtest/gtest.h>

#include <optional>

#include "knear/scan/device/scan_kernels.hpp"
#include "knear/scan/packing/per_row_codes.hpp"
#include "tests/scan/scan_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

constexpr Format formats[] = {format_int8, format_int16, format_fp32};
constexpr const char* format_names[] = {"int8", "int16", "fp32"};

// Pairs of the slots of a base and the queries of a group, as [slots][queries].
template <class T>
using Pairs = std::vector<T>;

// ---- the forms ----------------------------------------------------------------------------------

// The products of codes as the kernels accumulate them (int8: correction included).
Pairs<std::int64_t> code_products(const PackedBase& packed, const PackedQueries& queries,
                                  std::int64_t group) {
  const int size = queries.size_of(group);
  Pairs<std::int64_t> out;
  for (std::int64_t slot = 0; slot < packed.panels() * panel_rows; ++slot)
    for (int q = 0; q < queries.heads[static_cast<std::size_t>(group)].count; ++q) {
      std::int64_t sum = 0;
      for (std::int64_t step = 0; step < packed.steps; ++step) {
        const std::uint8_t* y = packed.codes.data() +
                                (slot / panel_rows * packed.steps + step) * panel_step_bytes +
                                slot % panel_rows * step_bytes;
        const std::uint8_t* x = queries.group_codes(group) + (step * size + q) * step_bytes;
        if (packed.format == format_int16) {
          std::int16_t a[2], b[2];
          std::memcpy(a, y, 4), std::memcpy(b, x, 4);
          sum += a[0] * b[0] + a[1] * b[1];
        } else {
          for (int j = 0; j < 4; ++j) sum += y[j] * static_cast<std::int8_t>(x[j]);
        }
      }
      out.push_back(sum);
    }
  return out;
}

// What a tile kernel lets through, with its scores.
Pairs<std::optional<std::int32_t>> passed_by_kernel(const PackedBase& packed,
                                                    const PackedQueries& queries,
                                                    std::int64_t group, Isa isa) {
  int size = 0;
  while (group_sizes[size] != queries.size_of(group)) ++size;
  const ScanKernels& kernels = scan_kernels(isa);
  const TileKernel kernel =
      packed.is_integer ? kernels.integer[size] : kernels.certified[packed.format][size];
  const GroupHead& head = queries.heads[static_cast<std::size_t>(group)];
  const auto pairs = static_cast<std::size_t>(packed.panels() * panel_rows * head.count);
  std::vector<Hit> hits(pairs + max_group * panel_rows);
  TileArgs args{};
  args.codes = packed.codes.data(), args.heads = packed.heads.data();
  args.row_bias = packed.row_bias.data(), args.ids = packed.ids.data();
  args.row_squares = packed.row_squares.data(), args.row_sums = packed.row_sums.data();
  args.sum_shift_mask = queries.sum_shift_mask, args.steps = packed.steps;
  args.query_codes = queries.group_codes(group), args.group = &head;
  args.panel_end = packed.panels(), args.hits = hits.data();
  args.hit_limit = static_cast<int>(pairs) + 1;
  kernel(&args);
  EXPECT_EQ(args.panel, args.panel_end);
  Pairs<std::optional<std::int32_t>> out(pairs);
  for (int i = 0; i < args.hit_count; ++i)
    out[hits[i].slot * static_cast<std::size_t>(head.count) + hits[i].query] = hits[i].score;
  return out;
}

// The slots that a kernel for a second stage lists: that of searches, or of self-joins, which has a
// reach for each row from panel `first` on.
Pairs<char> collected(const PackedBase& packed, const PackedQueries& queries, std::int64_t group,
                      Isa isa, const float* reach = nullptr, std::int64_t first = 0) {
  int size = 0;
  while (group_sizes[size] != queries.size_of(group)) ++size;
  const GroupHead& head = queries.heads[static_cast<std::size_t>(group)];
  const std::int64_t slots = packed.panels() * panel_rows;
  std::vector<std::uint32_t> lists(static_cast<std::size_t>(max_group * (slots + panel_rows)));
  TileArgs args{};
  args.codes = packed.codes.data(), args.heads = packed.heads.data();
  args.row_bias = packed.row_bias.data(), args.ids = packed.ids.data(), args.steps = packed.steps;
  args.query_codes = queries.group_codes(group), args.group = &head;
  args.panel = first, args.panel_end = packed.panels();
  args.row_reach = reach, args.reach_panel = first;
  args.hit_limit = 1, args.list_limit = static_cast<int>(slots) + 1;
  for (int q = 0; q < max_group; ++q) args.lists[q] = lists.data() + q * (slots + panel_rows);
  const ScanKernels& kernels = scan_kernels(isa);
  (reach ? kernels.self_join : kernels.collect[size])(&args);
  Pairs<char> out(static_cast<std::size_t>(slots * head.count));
  for (int q = 0; q < head.count; ++q)
    for (int i = 0; i < args.list_count[q]; ++i)
      out[args.lists[q][i] * static_cast<std::size_t>(head.count) + static_cast<std::size_t>(q)] =
          1;
  return out;
}

// The certified test as plain code.
Pairs<char> passed_by_formulas(const PackedBase& packed, const PackedQueries& queries,
                               std::int64_t group, const Pairs<std::int64_t>& products) {
  const GroupHead& head = queries.heads[static_cast<std::size_t>(group)];
  Pairs<char> out;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const std::size_t slot = i / static_cast<std::size_t>(head.count);
    const std::size_t q = i % static_cast<std::size_t>(head.count);
    const PanelHead& panel = packed.heads[slot / panel_rows];
    const double unit = unit_of(panel, head.scale);
    double limit = limit_of(panel, unit, head.threshold[q], head.norm[q], head.error[q]);
    limit = limit >= lowest_limit ? std::min(limit, highest_limit) : lowest_limit;  // NaN too
    const float term = packed.row_bias[slot] * term_factor(panel, unit);
    const std::int64_t row = static_cast<std::int64_t>(term > lowest_term ? term : lowest_term);
    out.push_back(products[i] - head.correction[q] + row >=
                  static_cast<std::int64_t>(limit) - limit_margin);
  }
  return out;
}

// The test of a self-join as plain code: a pair passes by its query's own limit, or by the highest
// one less the reach of its row.
Pairs<char> joined_by_formulas(const PackedBase& packed, const PackedQueries& queries,
                               const Pairs<std::int64_t>& products, const float* reach,
                               std::int64_t first) {
  const GroupHead& head = queries.heads[0];
  Pairs<char> out(products.size());
  const auto count = static_cast<std::size_t>(head.count);
  for (std::size_t i = static_cast<std::size_t>(first * panel_rows) * count; i < out.size(); ++i) {
    const std::size_t slot = i / count, q = i % count;
    const PanelHead& panel = packed.heads[slot / panel_rows];
    const double unit = unit_of(panel, head.scale);
    const auto limit = [&](double threshold) {
      return limit_of(panel, unit, threshold, head.norm[q], head.error[q]);
    };
    // NaN counts as too low; where the top is too low for 32 bits everything passes.
    const double own_limit = limit(head.threshold[q]), top_limit = limit(head.top[q]);
    const double own = own_limit >= lowest_limit && top_limit >= -code_dot_bound
                           ? std::min(own_limit, highest_limit)
                           : lowest_limit;
    const double top =
        top_limit >= -code_dot_bound ? std::min(top_limit, code_dot_bound - 64) : -code_dot_bound;
    const float product = packed.row_bias[slot] * term_factor(panel, unit);
    const float term = product > lowest_term ? product : lowest_term;
    // Rounded up whatever the signs; where no float holds the unit everything passes, and down to
    // lowest_top nothing.
    const float whole =
        reach[slot - static_cast<std::size_t>(first * panel_rows)] * static_cast<float>(unit);
    const float reached = whole < -0x1p31f ? -0x1p31f : whole;
    const float lift = unit < 1e38 ? 1.0f : std::numeric_limits<float>::infinity();
    const float sum = term + reached + ((std::fabs(reached) - term) * 0x1p-21f + lift);
    const float below = sum < 0x1p30f - 64 ? sum : 0x1p30f - 64;
    const float with_reach = below > lowest_top ? below : lowest_top;
    const auto lead = [](float row, double least) {
      return static_cast<std::int64_t>(row) - (static_cast<std::int64_t>(least) - limit_margin);
    };
    const std::int64_t left =
        std::max(lead(term, own), lead(with_reach, top)) + products[i] - head.correction[q];
    EXPECT_EQ(left, static_cast<std::int32_t>(left));
    out[i] = left >= 0;
  }
  return out;
}

// A query of a group as a GPU's kernels see it.
DeviceQuery device_query(const GroupHead& head, std::size_t q, double squares) {
  return {head.norm[q], head.error[q], squares, 0, head.correction[q]};
}

// The certified test of a GPU: sums of 32 bits are compared with a limit in float as they are. It
// lets a few more pairs through (tests/scan/device/limits_test.cpp).
Pairs<char> passed_by_device(const PackedBase& packed, const PackedQueries& queries,
                             std::int64_t group, const Pairs<std::int64_t>& products) {
  const GroupHead& head = queries.heads[static_cast<std::size_t>(group)];
  const float inverse = query_inverse(head.scale);
  Pairs<char> out;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const std::size_t slot = i / static_cast<std::size_t>(head.count);
    const std::size_t q = i % static_cast<std::size_t>(head.count);
    const PanelTest panel = panel_test(packed.heads[slot / panel_rows]);
    const std::int64_t sum =
        products[i] + certified_term(panel.scale, packed.row_bias[slot], inverse);
    EXPECT_EQ(sum, static_cast<std::int32_t>(sum));
    const QueryTest query = query_test(device_query(head, q, 0), head.scale, head.threshold[q]);
    out.push_back(sum >= certified_limit(panel, query, inverse));
  }
  return out;
}

// That all forms let the same pairs through, and a GPU those at least, which is returned; fp32 has
// the kernels alone, whose sums differ.
std::vector<Pairs<char>> forms_of(const PackedBase& packed, const PackedQueries& queries,
                                  std::int64_t group) {
  std::vector<Pairs<char>> out;
  if (packed.format != format_fp32) {
    const Pairs<std::int64_t> products = code_products(packed, queries, group);
    out.push_back(passed_by_formulas(packed, queries, group, products));
    if (packed.format == format_int8) {
      const Pairs<char> on_device = passed_by_device(packed, queries, group, products);
      for (std::size_t i = 0; i < products.size(); ++i)
        EXPECT_GE(on_device[i], out[0][i]) << "device";
    }
    for (const Isa isa : test::levels()) {
      const auto found = passed_by_kernel(packed, queries, group, isa);
      Pairs<char> passed;
      for (std::size_t i = 0; i < found.size(); ++i) {
        passed.push_back(found[i].has_value());
        if (found[i]) {
          EXPECT_EQ(*found[i], products[i]) << name_of(isa);
        }
      }
      EXPECT_EQ(passed, out[0]) << name_of(isa);
      if (packed.format == format_int8) {
        EXPECT_EQ(collected(packed, queries, group, isa), out[0]) << name_of(isa) << " collect";
      }
    }
    return out;
  }
  for (const Isa isa : test::levels()) {
    out.emplace_back();
    for (const auto& score : passed_by_kernel(packed, queries, group, isa))
      out.back().push_back(score.has_value());
  }
  return out;
}

// ---- without rounding ---------------------------------------------------------------------------

// A vector in coding space, in long double: 11 bits more than the arithmetic under test.
std::vector<long double> in_space(const CodingSpace& space, AnyMatrixView data, std::int64_t i) {
  std::vector<long double> out;
  long double squares = 0;
  for (std::int64_t j = 0; j < data.cols(); ++j) {
    out.push_back(static_cast<const float*>(data.row(i))[j]);
    squares += out.back() * out.back();
  }
  if (space.metric == Metric::cosine && squares > 0)
    for (long double& x : out) x /= std::sqrt(squares);
  for (std::size_t j = 0; j < space.mean.size(); ++j) out[j] -= space.mean[j];
  return out;
}
long double true_g(const CodingSpace& space, const std::vector<long double>& u,
                   const std::vector<long double>& v) {
  long double product = 0, squares = 0, with_mean = 0;
  for (std::size_t j = 0; j < u.size(); ++j) {
    product += u[j] * v[j], squares += v[j] * v[j];
    if (!space.mean.empty()) with_mean += space.mean[j] * v[j];
  }
  return product + (space.metric == Metric::l2 ? -squares / 2 : with_mean);
}
// The largest g that the codes of a pair and the heads allow, with no room for any rounding.
long double largest_g(const PackedBase& packed, std::size_t slot, const GroupHead& head,
                      std::size_t q, std::int64_t product) {
  const PanelHead& panel = packed.heads[slot / panel_rows];
  const long double scale = panel.scale;
  return scale * head.scale * static_cast<long double>(product - head.correction[q]) +
         scale * scale * packed.row_bias[slot] +
         (static_cast<long double>(panel.bias_max) - panel.slack) +
         static_cast<long double>(head.norm[q]) * panel.error +
         static_cast<long double>(head.error[q]) * panel.norm;
}
double rounded_down(long double x) {
  const double near = static_cast<double>(x);
  return near > x ? std::nextafter(near, -infinity) : near;
}

// Vectors of a size, with a row and a query of zeros, one of denormals, and one much larger.
AnyMatrix hostile_vectors(std::int64_t rows, std::int64_t dim, double size, double offset,
                          std::uint64_t seed) {
  AnyMatrix out(ElementType::f32, rows, dim);
  Random random(seed);
  for (std::int64_t i = 0; i < rows; ++i) {
    double of_row = size;
    if (i == 1) of_row = 0;
    if (i == 2) of_row = 1e-44;
    if (i == 3) of_row = std::min(1e38, 1e4 * size);
    for (std::int64_t j = 0; j < dim; ++j)
      static_cast<float*>(out.row(i))[j] = static_cast<float>(
          of_row * (random.uniform() + random.uniform() - 1 + (i == 1 || i == 2 ? 0 : offset)));
  }
  return out;
}

struct Sizes {
  double base, queries, offset;
};
constexpr Sizes all_sizes[] = {{1, 1, 0},         {1, 1, 3},          {1000, 1, 0},
                               {1e6, 1, 0.1},     {1e-4, 1, 0},       {1e-30, 1e-30, 0},
                               {1e30, 1e30, 0.5}, {1e-38, 1e37, 0},   {1e37, 1e-38, 0},
                               {1e-44, 1e-44, 0}, {3e37, 3e37, 0.01}, {1e-44, 1, 0}};

// A base and queries, packed in a format, the last group as small as its queries allow.
struct Packed {
  Packed(const ScanCase& c, Format format)
      : base(PackedBase::certified(c.base.view(), {}, format,
                                   CodingSpace::choose(c.base.view(), c.metric, active_isa()), 1,
                                   {}, 0, false)),
        queries(pack_queries(base, c.queries.view(), all_of(c.queries.rows()).data(),
                             c.queries.rows(), max_group, c.query_range, nullptr, true)),
        scores(base, c.job(1), queries) {}

  PackedBase base;
  PackedQueries queries;
  CertifiedScores scores;
};

template <class F>
void each_packed(F f) {
  for (const Metric metric : metrics)
    for (const Sizes& sizes : all_sizes)
      for (const std::int64_t dim : {5, 70}) {
        if (dim == 5 && test::small()) continue;
        const ScanCase c(hostile_vectors(90, dim, sizes.base, sizes.offset, 1),
                         hostile_vectors(15, dim, sizes.queries, sizes.offset, 2), metric);
        for (const Format format : formats) {
          SCOPED_TRACE(std::string(name_of(metric)) + ' ' + format_names[format] + ", base " +
                       std::to_string(sizes.base) + " queries " + std::to_string(sizes.queries) +
                       " dim " + std::to_string(dim));
          Packed packed(c, format);
          ASSERT_NO_FATAL_FAILURE(f(c, packed));
        }
      }
}

// ---- tests --------------------------------------------------------------------------------------

TEST(Bounds, FormsAgreeOnAnyNumbers) {
  constexpr double numbers[] = {
      0,     1,     -1,       0x1p-1074, 1e-300, -1e-30, 1e-75,  1e-10, -1e10, 3e20, 1e75, -1e75,
      1e150, 1e300, infinity, -infinity, 0.3,    1234.5, -77.25, 2e4,   -3e6,  1e9,  -6e9, 1e5};
  Random random(1);
  const auto any = [&] { return numbers[random.below(std::size(numbers))]; };
  for (const Format format : {format_int8, format_int16})
    for (const int size : group_sizes)
      for (int round = 0; round < 60; ++round) {
        const ScanCase c(vectors(Codes::int8, 100, 30, 3), vectors(Codes::int8, size, 30, 4),
                         Metric::l2);
        PackedBase base = Packed(c, format).base;
        PackedQueries queries =
            pack_queries(base, c.queries.view(), all_of(size).data(), size, size, c.query_range);
        for (PanelHead& head : base.heads) {
          head = {std::fabs(any()), any(), std::fabs(any()), std::fabs(any()), 0};
          if (random.below(2)) head.scale = 0.25 + random.uniform();
        }
        for (float& bias : base.row_bias)
          bias = -static_cast<float>(std::min(1e30, std::fabs(any())));
        base.row_bias[5] = -std::numeric_limits<float>::infinity();
        GroupHead& head = queries.heads[0];
        if (random.below(2)) head.scale = std::fabs(any());
        for (int q = 0; q < head_lanes; ++q)
          head.threshold[q] = any(), head.norm[q] = std::fabs(any()),
          head.error[q] = random.below(2) ? 0.01 : std::fabs(any());
        forms_of(base, queries, 0);
        ASSERT_FALSE(HasFailure()) << format_names[format] << " group " << size << ' ' << round;
      }
}

// A threshold that is exactly what some pair can reach lets that pair through, in every form.
TEST(Bounds, NoFormDropsAPairThatTheExactBoundAllows) {
  std::int64_t passed = 0, dropped = 0;
  each_packed([&](const ScanCase& c, Packed& packed) {
    const CodingSpace& space = packed.base.space;
    ASSERT_EQ(packed.queries.last_group_size, 4);
    Random random(5);
    for (std::int64_t group = 0; group < packed.queries.groups; ++group) {
      GroupHead& head = packed.queries.heads[static_cast<std::size_t>(group)];
      const auto count = static_cast<std::size_t>(head.count);
      const std::int64_t first = group * max_group;
      Pairs<long double> largest;
      if (packed.base.format == format_fp32) {  // whose E holds the rounding of sums too
        for (const std::uint32_t row : packed.base.ids)
          for (std::size_t q = 0; q < count; ++q)
            largest.push_back(
                row == PackedBase::no_row
                    ? -std::numeric_limits<long double>::infinity()
                    : true_g(space, in_space(space, c.queries.view(), first + std::int64_t(q)),
                             in_space(space, c.base.view(), row)));
      } else {
        const Pairs<std::int64_t> products = code_products(packed.base, packed.queries, group);
        for (std::size_t i = 0; i < products.size(); ++i)
          largest.push_back(largest_g(packed.base, i / count, head, i % count, products[i]));
      }
      for (int round = 0; round < 8; ++round) {
        double threshold[max_group];
        for (std::size_t q = 0; q < count; ++q) {
          const std::size_t row = random.below(90);
          threshold[q] = round == 0 ? -infinity : rounded_down(largest[row * count + q]);
          packed.scores.publish_threshold(first + std::int64_t(q), threshold[q]);
        }
        packed.scores.publish_group(head);
        for (const Pairs<char>& form : forms_of(packed.base, packed.queries, group))
          for (std::size_t i = 0; i < form.size(); ++i) {
            if (largest[i] >= threshold[i % count]) {
              ASSERT_TRUE(form[i])
                  << "slot " << i / count << " query " << i % count << " round " << round;
            }
            ++(form[i] ? passed : dropped);
          }
      }
    }
  });
  EXPECT_GT(passed, 1000);
  EXPECT_GT(dropped, 1000);
}

// A threshold is the top less a reach, as a self-join sets it, whatever numbers they are. Rows of
// 30,000 columns, all 1 or -1, have the largest products that codes can have.
TEST(Bounds, SelfJoinFormsAgreeOnAnyNumbers) {
  constexpr double numbers[] = {0,   0x1p-1074, 1e-300, 1e-30, 1e-10, 0.3,  1,     77.25,   1e5,
                                5e8, 6e8,       1.1e9,  3e9,   3e20,  1e75, 1e300, infinity};
  Random random(1);
  std::int64_t by_own = 0, by_reach = 0, dropped = 0;
  for (const std::int64_t dim : {30, 30000}) {
    const auto rows = [&](std::int64_t count, std::uint64_t seed) {
      AnyMatrix out = vectors(Codes::int8, count, dim, seed);
      for (std::int64_t i = 0; i < count && dim > 30; ++i)
        std::fill_n(static_cast<float*>(out.row(i)), dim, i % 2 ? 1.0f : -1.0f);
      return out;
    };
    const ScanCase c(rows(90, 3), rows(12, 4), Metric::l2);
    Packed packed(c, format_int8);
    PackedBase& base = packed.base;
    GroupHead& head = packed.queries.heads[0];
    const std::vector<PanelHead> panels(base.heads.data(), base.heads.data() + base.panels());
    const std::vector<float> biases(base.row_bias.data(), base.row_bias.data() + base.ids.size());
    const GroupHead usual = head;
    const Pairs<std::int64_t> products = code_products(base, packed.queries, 0);
    for (int round = 0; round < (dim > 30 ? 40 : 400); ++round) {
      // Numbers that leave it open which pairs pass; in every other round some are any numbers.
      const auto one_of = [&](double number) {
        return round % 2 && random.below(3) == 0 ? numbers[random.below(std::size(numbers))]
                                                 : number;
      };
      for (std::size_t i = 0; i < panels.size(); ++i)
        base.heads[i] = {one_of(panels[i].scale), one_of(panels[i].bias_max),
                         one_of(panels[i].error), one_of(panels[i].norm), panels[i].slack};
      for (std::size_t i = 0; i < biases.size(); ++i)
        base.row_bias[i] = -static_cast<float>(std::min(1e38, one_of(-biases[i])));
      base.row_bias[45] = -std::numeric_limits<float>::infinity();
      head.scale = one_of(usual.scale);
      const double far = std::pow(10, random.below(6));
      std::vector<float> reach(base.ids.size());
      for (float& x : reach)
        x = static_cast<float>(std::min(one_of(far + 8 * random.uniform()), 1e38));
      for (int q = 0; q < head_lanes; ++q) {
        head.norm[q] = one_of(usual.norm[q]), head.error[q] = one_of(usual.error[q]);
        head.top[q] = one_of(far + 2 * random.uniform()) * (random.below(9) ? 1 : -1);
        head.threshold[q] = head.top[q] - static_cast<double>(reach[random.below(reach.size())]);
      }
      // In other rounds the limit of some pair is within a few code units of its product.
      for (std::size_t slot = 0; slot < reach.size() && round % 2 == 0; slot += 2) {
        const std::size_t q = random.below(12);
        const double largest =
            static_cast<double>(largest_g(base, slot, head, q, products[slot * 12 + q]));
        const double code_unit = head.scale * base.heads[slot / panel_rows].scale;
        const double least = head.top[q] - largest - 6 * random.uniform() * code_unit;
        reach[slot] = static_cast<float>(std::clamp(least, -1e38, 1e38));
      }
      reach[random.below(reach.size())] = std::numeric_limits<float>::infinity();
      // Of products a reach may be negative, and is the lowest of rows that want no neighbours.
      if (round % 3 == 0) reach[random.below(reach.size())] *= -1;
      if (round % 3 == 0) reach[random.below(reach.size())] = std::numeric_limits<float>::lowest();
      const auto first = static_cast<std::int64_t>(random.below(3));
      const auto expected = joined_by_formulas(base, packed.queries, products, reach.data(), first);
      for (const Isa isa : test::levels())
        ASSERT_EQ(collected(base, packed.queries, 0, isa, reach.data(), first), expected)
            << name_of(isa) << " dim " << dim << " round " << round;
      const auto own = passed_by_formulas(base, packed.queries, 0, products);
      for (std::size_t i = products.size() * 2 / 3; i < products.size(); ++i)
        ++(!expected[i] ? dropped : own[i] ? by_own : by_reach);
    }
  }
  EXPECT_GT(by_own, 1000);
  EXPECT_GT(by_reach, 1000);
  EXPECT_GT(dropped, 1000);
}

// Tops and reaches of which some pair can reach exactly what they leave of g.
TEST(Bounds, SelfJoinDropsNoPairThatTheExactBoundAllows) {
  std::int64_t kept = 0, dropped = 0;
  each_packed([&](const ScanCase&, Packed& packed) {
    if (packed.base.format != format_int8) return;
    Random random(5);
    GroupHead& head = packed.queries.heads[0];
    const auto count = static_cast<std::size_t>(head.count);
    const Pairs<std::int64_t> products = code_products(packed.base, packed.queries, 0);
    Pairs<long double> largest;
    for (std::size_t i = 0; i < products.size(); ++i)
      largest.push_back(largest_g(packed.base, i / count, head, i % count, products[i]));
    for (int round = 0; round < 8; ++round) {
      for (std::size_t q = 0; q < head_lanes; ++q) {
        const std::size_t lane = std::min(q, count - 1);
        long double top = -infinity;
        for (std::size_t i = lane; i < largest.size(); i += count) top = std::max(top, largest[i]);
        if (round % 2) top *= 1 + 1e-3 * random.uniform();
        head.top[q] = q < count ? rounded_down(top) : head.top[lane];
        const long double own = largest[random.below(90) * count + lane];
        head.threshold[q] =
            q < count ? std::min(head.top[q], rounded_down(own)) : head.threshold[lane];
      }
      std::vector<float> reach;
      for (std::size_t slot = 0; slot < packed.base.ids.size(); ++slot) {
        const std::size_t q = random.below(count);
        const long double least = head.top[q] - largest[slot * count + q];
        reach.push_back(static_cast<float>(std::min<long double>(std::max(least, 0.0L), 1e38L)));
        if (random.below(4) == 0) reach.back() = 0;
      }
      for (const Isa isa : test::levels()) {
        const auto found = collected(packed.base, packed.queries, 0, isa, reach.data());
        for (std::size_t i = 0; i < found.size(); ++i) {
          const long double by_reach =
              static_cast<long double>(head.top[i % count]) - reach[i / count];
          if (largest[i] >= std::min<long double>(head.threshold[i % count], by_reach)) {
            ASSERT_TRUE(found[i]) << name_of(isa) << " slot " << i / count << " query " << i % count
                                  << " round " << round;
          }
          ++(found[i] ? kept : dropped);
        }
      }
    }
  });
  EXPECT_GT(kept, 1000);
  EXPECT_GT(dropped, 1000);
}

TEST(Bounds, IntervalsHoldTheTrueValueAndTheReferences) {
  each_packed([&](const ScanCase& c, Packed& packed) {
    const PackedBase& base = packed.base;
    const CodingSpace& space = base.space;
    const std::int64_t dim = c.base.cols();
    std::vector<std::uint32_t> rows(static_cast<std::size_t>(c.base.rows()));
    std::iota(rows.begin(), rows.end(), 0u);
    const PerRowCodes per_row = per_row_codes(c.base.view(), rows, space, false, {}, 1, {});
    const double query_slack = space.metric == Metric::l2 ? 2 * space.slack : 0;
    DeviceBaseView device{};
    device.heads = base.heads.data(), device.row_bias = base.row_bias.data();
    device.query_slack = query_slack;
    std::vector<double> scratch(static_cast<std::size_t>(dim));
    AlignedArray<std::int8_t> codes(static_cast<std::size_t>(2 * plane_bytes(dim)));
    for (std::int64_t q = 0; q < c.queries.rows(); ++q) {
      const std::int64_t group = q / max_group, lane = q % max_group;
      const GroupHead& head = packed.queries.heads[static_cast<std::size_t>(group)];
      const auto u = in_space(space, c.queries.view(), q);
      const KeyScale scale = packed.scores.scale(q);
      std::vector<double> keys(rows.size());
      for (const auto& [key, row] : c.order[static_cast<std::size_t>(q)])
        keys[static_cast<std::size_t>(row)] = key;
      const auto check = [&](const ScoreInterval& x, std::uint32_t row, const char* form) {
        const long double g = true_g(space, u, in_space(space, c.base.view(), row));
        ASSERT_LE(x.lower, g) << form << " query " << q << " row " << row;
        ASSERT_GE(x.upper, g) << form << " query " << q << " row " << row;
        ASSERT_LE(scale.key_at_least(x.upper), keys[row])
            << form << " query " << q << " row " << row;
        ASSERT_GE(scale.key_at_most(x.lower), keys[row])
            << form << " query " << q << " row " << row;
        // A row is never ruled out by its own key.
        ASSERT_GE(x.upper, scale.threshold_for(keys[row])) << form << " query " << q;
      };
      for (std::size_t i = 0; i < static_cast<std::size_t>(head.count); ++i)
        packed.scores.publish_threshold(group * max_group + std::int64_t(i), -infinity);
      packed.scores.publish_group(packed.queries.heads[static_cast<std::size_t>(group)]);
      for (const Isa isa : test::levels()) {
        if (base.format != format_fp32 && isa != Isa::scalar) continue;  // the same products
        const auto found = passed_by_kernel(base, packed.queries, group, isa);
        for (std::uint32_t slot = 0; slot < base.ids.size(); ++slot) {
          if (base.ids[slot] == PackedBase::no_row) continue;
          const auto score =
              found[slot * static_cast<std::size_t>(head.count) + static_cast<std::size_t>(lane)];
          ASSERT_TRUE(score);  // nothing is dropped without a threshold
          const ScoreInterval x =
              packed.scores.interval(q, head, {*score, slot, static_cast<std::uint32_t>(lane)});
          ASSERT_NO_FATAL_FAILURE(check(x, base.ids[slot], "panel"));
          if (base.format != format_int8) continue;
          const GInterval on_device =
              interval_of(device,
                          device_query(head, static_cast<std::size_t>(lane),
                                       packed.queries.squares[static_cast<std::size_t>(q)]),
                          head.scale, Entry{slot, *score});
          ASSERT_EQ(on_device.upper, x.upper);
          ASSERT_EQ(on_device.lower, x.lower);
        }
      }
      if (base.format != format_int8) continue;
      const CodedQuery coded =
          code_query(per_row, c.queries.view(), q, {}, scratch.data(), codes.data());
      std::vector<std::int32_t> products(rows.size()), fine(rows.size());
      const auto multiply = [&](std::int64_t plane, std::vector<std::int32_t>& to) {
        scan_kernels(Isa::scalar)
            .row_products(per_row.codes.data(), per_row.stride, rows.data(), std::ssize(rows),
                          codes.data() + plane * plane_bytes(dim), dim, to.data());
      };
      multiply(0, products), multiply(1, fine);
      for (const std::uint32_t row : rows) {
        const ScoreInterval one = interval_of(per_row, row, row, products[row], coded);
        const ScoreInterval two = interval_of(per_row, row, row, products[row], fine[row], coded);
        // Heads are floats. Of a row that is longer than any float they say nothing: the interval
        // of a query of zeros is no number then.
        if (std::isinf(per_row.heads[row].norm) && std::isnan(one.upper)) continue;
        ASSERT_NO_FATAL_FAILURE(check(one, row, "row, one plane"));
        ASSERT_NO_FATAL_FAILURE(check(two, row, "row, two planes"));
      }
    }
  });
}

// Whole numbers: every form gives the reference's keys, passes whatever is at most the bound, and
// nothing that is beyond it by more than limits of whole numbers can tell.
TEST(Bounds, WholeNumbersAreExactInEveryForm) {
  for (const ElementType type : {ElementType::u8, ElementType::i8})
    for (const Metric metric : {Metric::l2, Metric::ip})
      for (const std::int64_t dim : {1, 3, 90, 700})
        for (const int extreme : {0, 1}) {
          const auto numbers = [&](std::int64_t rows, std::uint64_t seed) {
            Random random(seed);
            AnyMatrix out(type, rows, dim);
            for (std::int64_t i = 0; i < rows; ++i)
              for (std::int64_t j = 0; j < dim; ++j)  // 0, 127, 128, 255: whole rows of them
                static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(
                    extreme ? 127 * (i % 3) + i % 2 : random.below(i % 2 ? 256 : 3));
            return out;
          };
          const ScanCase c(numbers(80, 1), numbers(11, 2), metric);
          const PackedBase base = c.packed(Codes::integer, active_isa(), 0);
          PackedQueries queries =
              pack_queries(base, c.queries.view(), all_of(11).data(), 11, max_group, c.query_range);
          GroupHead& head = queries.heads[0];
          const bool shifted = queries.sum_shift_mask != 0;
          IntegerScores scores(base, c.job(1), queries);
          DeviceBaseView device{};
          device.row_squares = base.row_squares.data(), device.row_sums = base.row_sums.data();
          device.integer = true, device.l2 = metric == Metric::l2;
          const Pairs<std::int64_t> products = code_products(base, queries, 0);
          Pairs<double> keys;
          for (const std::uint32_t row : base.ids)
            for (std::size_t q = 0; q < 11; ++q) {
              const auto is_row = [&](const KeyedId& x) { return x.second == Id{row}; };
              const auto found = std::find_if(c.order[q].begin(), c.order[q].end(), is_row);
              keys.push_back(found == c.order[q].end() ? infinity : found->first);
            }
          Random random(3);
          for (int round = 0; round < 12; ++round) {
            double bounds[11];
            for (std::size_t q = 0; q < 11; ++q) {
              const std::size_t rank = random.below(80);
              bounds[q] = round == 0   ? infinity
                          : round == 1 ? -infinity
                                       : c.order[q][rank].first + 0.5 * double(round % 5 - 2);
              scores.publish(std::int64_t(q), bounds[q]);
            }
            scores.publish_group(head);
            const auto name = [&](std::size_t i) {
              return std::string(name_of(type)) + ' ' + std::string(name_of(metric)) + " dim " +
                     std::to_string(dim) + " round " + std::to_string(round) + " key " +
                     std::to_string(keys[i]) + " bound " + std::to_string(bounds[i % 11]);
            };
            const auto plain = passed_by_kernel(base, queries, 0, Isa::scalar);
            for (const Isa isa : test::levels())
              ASSERT_EQ(passed_by_kernel(base, queries, 0, isa), plain) << name_of(isa);
            for (std::size_t i = 0; i < keys.size(); ++i) {
              if (keys[i] == infinity) continue;  // no row
              const auto slot = static_cast<std::uint32_t>(i / 11),
                         q = static_cast<std::uint32_t>(i % 11);
              const DeviceQuery query =
                  device_query(head, q, queries.squares[static_cast<std::size_t>(q)]);
              const std::int64_t sum =
                  products[i] + integer_term(base.row_squares[slot], base.row_sums[slot],
                                             shifted ? 0xffffffffu : 0u);
              const bool by_device = sum >= integer_limit(query, bounds[q], device.l2);
              const double least = device.l2 ? -1 : -infinity;  // no key is below 0
              // l2 compares halves, and what is behind the point of a bound may be lost.
              const double slack = (device.l2 ? 1 : 0) + (std::floor(bounds[q]) != bounds[q]);
              for (const bool passes : {plain[i].has_value(), by_device}) {
                if (keys[i] <= bounds[q]) {
                  ASSERT_TRUE(passes) << name(i);
                } else if (keys[i] > std::max(bounds[q], least) + slack) {
                  ASSERT_FALSE(passes) << name(i);
                }
              }
              const auto score = static_cast<std::int32_t>(products[i]);
              ASSERT_EQ(scores.key(q, head, {score, slot, q}), keys[i]) << name(i);
              ASSERT_EQ(integer_key(device, query, shifted, Entry{slot, score}), keys[i])
                  << name(i);
              if (plain[i]) {
                ASSERT_EQ(*plain[i], products[i]);
              }
            }
          }
        }
}

}  // namespace
}  // namespace knear::detail
