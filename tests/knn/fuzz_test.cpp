// Random data made to be awkward, searched in every way, against the reference.
//
//   fuzz_test                                     the same few hundred searches every time
//   KNEAR_FUZZ_SECONDS=600 KNEAR_FUZZ_SEED=7 fuzz_test     as many as fit, from this seed on
//   KNEAR_FUZZ_CASES=20 KNEAR_FUZZ_SEED=7 fuzz_test        so many cases, however long they take
//   KNEAR_FUZZ_WORK=500000 fuzz_test              of at most so many products, for an emulator
//
// Each case is a seed: kind of data, types, shapes around the edges of panels, groups and tiles,
// metric, k, filter, and for each level and first pass threads, memory and one call or a prepared
// base. A failure names the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t usual_cases = 60;
#else
constexpr std::int64_t usual_cases = 300;
#endif

constexpr FirstPass passes[] = {FirstPass::automatic, FirstPass::int8,   FirstPass::int16,
                                FirstPass::fp32,      FirstPass::direct, FirstPass::prefix};

// The most products of a query's and a row's numbers, of all queries and rows of a search.
std::int64_t most_work() {
  const char* asked = std::getenv("KNEAR_FUZZ_WORK");
  return asked ? std::max<std::int64_t>(10000, std::strtoll(asked, nullptr, 10)) : 60000000;
}

class Case {
 public:
  explicit Case(std::uint64_t seed) : random_(seed) {
    const ElementType types[] = {ElementType::f32, ElementType::f16, ElementType::bf16,
                                 ElementType::u8,  ElementType::i8,  ElementType::f64};
    kind_ = random_.below(10);
    const ElementType type = types[random_.below(3) ? random_.below(2) * 3 : random_.below(6)];
    const std::int64_t dims[] = {1, 2, 3, 4, 5, 16, 31, 64, 97, 300, 1100};
    dim_ = dims[random_.below(11)];
    const std::int64_t border[] = {32, 64, 256, 1024, 4096, 8192};
    rows_ = random_.below(2) ? 1 + below(700) : border[random_.below(6)] + below(5) - 2;
    rows_ = std::min(rows_, std::max<std::int64_t>(300, 2000000 / dim_));
    const std::int64_t counts[] = {1, 2, 5, 12, 13, 60, 130};
    queries_count_ = counts[random_.below(7)];
    metric = static_cast<Metric>(random_.below(3));
    const std::int64_t ks[] = {1, 2, 4, 5, 10, 16, 17, 32, 33, 100, rows_, rows_ + 3};
    k = ks[random_.below(12)];
    while (rows_ * queries_count_ * dim_ > most_work() && queries_count_ > 1) queries_count_ /= 2;
    rows_ = std::clamp<std::int64_t>(most_work() / dim_, 1, rows_);
    amount_ = std::pow(10.0, 6 * random_.uniform() - 5);
    for (double& c : centres_) c = gaussian();
    base = filled(type, rows_, false);
    queries = filled(random_.below(2) ? type : types[random_.below(6)], queries_count_, true);
    if (random_.below(3) == 0) {  // copies of rows
      for (std::uint64_t i = random_.below(1 + rows_ / 3); i > 0; --i)
        std::memcpy(base.row(below(rows_)), base.view().row(below(rows_)),
                    static_cast<std::size_t>(dim_ * size_of(type)));
    }
    if (random_.below(3) == 0) {
      const double share = random_.uniform();
      for (Id row = 0; row < rows_; ++row)
        if (random_.uniform() < share) allowed.push_back(row);
      filter = RowFilter::of_ids(allowed, rows_);
    } else {
      for (Id row = 0; row < rows_; ++row) allowed.push_back(row);
    }
  }

  std::string text() const {
    return fmt::format("kind {} {} {} x {}, {} {} queries, {} k {} allowed {}", kind_,
                       name_of(base.type()), rows_, dim_, queries_count_, name_of(queries.type()),
                       name_of(metric), k, allowed.size());
  }

  // The answer of the reference among the allowed rows.
  Neighbors expected() const {
    AnyMatrix part(base.type(), static_cast<std::int64_t>(allowed.size()), dim_);
    for (std::size_t i = 0; i < allowed.size(); ++i)
      std::memcpy(part.row(static_cast<std::int64_t>(i)), base.view().row(allowed[i]),
                  static_cast<std::size_t>(dim_ * size_of(base.type())));
    Neighbors out = reference_knn(queries, part, k, metric);
    for (std::int64_t i = 0; i < out.ids.rows() * k; ++i)
      if (out.ids.data()[i] != no_id) out.ids.data()[i] = allowed[out.ids.data()[i]];
    return out;
  }

  // All keys of a query to the allowed rows, in order.
  std::vector<std::pair<double, Id>> keys(std::int64_t q) const {
    std::vector<std::pair<double, Id>> out;
    for (const Id row : allowed)
      out.emplace_back(visit(queries.view(),
                             [&](auto x) {
                               return visit(base.view(), [&](auto y) {
                                 return order_key(metric, reference_distance(metric, x.row(q),
                                                                             y.row(row), dim_));
                               });
                             }),
                       row);
    std::sort(out.begin(), out.end());
    return out;
  }

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(n)));
  }

  AnyMatrix base, queries;
  Metric metric;
  std::int64_t k;
  std::vector<Id> allowed;
  RowFilter filter;

 private:
  double gaussian() {
    return std::sqrt(-2 * std::log(1 - random_.uniform())) *
           std::cos(6.283185307179586 * random_.uniform());
  }

  // One coordinate of row r. `size` is drawn once per row.
  double value(std::int64_t r, std::int64_t c, double size, bool is_query) {
    const double centre = centres_[c % 64], other = centres_[(c + 7) % 64];
    switch (kind_) {
      case 0:  // few whole numbers: ties
        return double(random_.below(1 + random_.below(5)));
      case 1:  // sparse zeros and ones
        return random_.uniform() < 2.0 / double(dim_) ? 1 : 0;
      case 2:  // whole numbers at the ends of the range, either sign
        return random_.below(2) ? 127 : -128;
      case 3:  // near-duplicates of two vectors
        return (r % 2 ? centre : other) * (1 + amount_ * gaussian());
      case 4:  // norms over many powers of ten, beyond the products of floats
        return gaussian() * std::pow(10.0, 36 * size - 16);
      case 5:  // denormals
        return double(below(41) - 20) * 1e-44;
      case 6:  // an offset that swallows the differences
        return 1e6 + amount_ * gaussian();
      case 7:  // sorted by the distance from the queries, up or down
        return is_query ? centre : centre + other * double(k % 2 ? r : rows_ - r) * amount_;
      case 8:  // an outlier here and there
        return gaussian() * (size > 0.99 ? 1e10 : 1);
      default:
        return gaussian();
    }
  }

  AnyMatrix filled(ElementType type, std::int64_t rows, bool is_query) {
    AnyMatrix out(type, rows, dim_);
    for (std::int64_t r = 0; r < rows; ++r) {
      const double size = random_.uniform();
      const bool zero = random_.below(200) == 0;
      for (std::int64_t c = 0; c < dim_; ++c)
        set(out, r * dim_ + c, zero ? 0 : value(r, c, size, is_query));
    }
    return out;
  }

  static void set(AnyMatrix& m, std::int64_t i, double x) {
    void* p = m.row(0);
    switch (m.type()) {
      case ElementType::f32:
        static_cast<float*>(p)[i] = static_cast<float>(std::clamp(x, -3e38, 3e38));
        break;
      case ElementType::f16:
        static_cast<f16*>(p)[i] = to_f16(static_cast<float>(std::clamp(x, -6e4, 6e4)));
        break;
      case ElementType::bf16:
        static_cast<bf16*>(p)[i] = to_bf16(static_cast<float>(std::clamp(x, -3e38, 3e38)));
        break;
      case ElementType::u8:
        static_cast<std::uint8_t*>(p)[i] =
            static_cast<std::uint8_t>(std::lround(std::clamp(std::fabs(x), 0.0, 255.0)));
        break;
      case ElementType::i8:
        static_cast<std::int8_t*>(p)[i] =
            static_cast<std::int8_t>(std::lround(std::clamp(x, -128.0, 127.0)));
        break;
      case ElementType::f64:
        static_cast<double*>(p)[i] = std::clamp(x, -3e38, 3e38);
        break;
    }
  }

  Random random_;
  std::uint64_t kind_;
  std::int64_t dim_, rows_, queries_count_;
  double amount_, centres_[64];
};

bool same(const Neighbors& a, const Neighbors& b) {
  const auto bytes = [](const auto& m) {
    return static_cast<std::size_t>(m.rows() * m.cols()) * sizeof(*m.data());
  };
  return a.ids.rows() == b.ids.rows() && a.ids.cols() == b.ids.cols() &&
         (bytes(a.ids) == 0 ||
          (std::memcmp(a.ids.data(), b.ids.data(), bytes(a.ids)) == 0 &&
           std::memcmp(a.distances.data(), b.distances.data(), bytes(a.distances)) == 0));
}

// Compares the rows within the radius with the sorted keys of each query.
void check_range(const RangeNeighbors& got,
                 const std::vector<std::vector<std::pair<double, Id>>>& keys, Metric metric,
                 double radius) {
  ASSERT_EQ(got.begin.size(), keys.size() + 1);
  const double limit = metric == Metric::ip ? -radius : radius;
  for (std::size_t q = 0; q < keys.size(); ++q) {
    std::size_t count = 0;
    while (count < keys[q].size() && keys[q][count].first <= limit) ++count;
    const auto begin = static_cast<std::size_t>(got.begin[q]);
    ASSERT_EQ(static_cast<std::size_t>(got.begin[q + 1]) - begin, count) << "query " << q;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(got.ids[begin + i], keys[q][i].second) << "query " << q << " place " << i;
      ASSERT_EQ(got.distances[begin + i],
                static_cast<float>(distance_of_key(metric, keys[q][i].first)));
    }
  }
}

// Returns how many searches it made.
std::int64_t run(std::uint64_t seed) {
  Case c(seed);
  SCOPED_TRACE(fmt::format("KNEAR_FUZZ_SEED={}: {}", seed, c.text()));
  const Neighbors expected = c.expected();
  std::int64_t searches = 0;
  // A radius at which some row lies exactly.
  std::vector<std::vector<std::pair<double, Id>>> keys;
  for (std::int64_t q = 0; q < c.queries.rows(); ++q) keys.push_back(c.keys(q));
  const auto& some = keys[static_cast<std::size_t>(c.below(c.queries.rows()))];
  const double radius =
      some.empty()
          ? 1
          : distance_of_key(c.metric, some[static_cast<std::size_t>(c.below(
                                               std::min<std::int64_t>(std::ssize(some), 60)))]
                                          .first);
  for (Isa isa : test::levels()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    const ExactSearcher searcher(c.base, KnnOptions{.metric = c.metric}), *kept = &searcher;
    for (FirstPass pass : passes) {
      if (pass == FirstPass::prefix && (c.metric == Metric::ip || c.queries.cols() < 8)) continue;
      KnnOptions options{.metric = c.metric, .first_pass = pass, .filter = c.filter};
      options.threads = 1 + static_cast<int>(c.below(3));
      if (c.below(4) == 0) options.memory = (1 + c.below(40)) << 20;
      const std::int64_t budget = options.memory;
      if (budget == 0 && pass == FirstPass::int8 && c.below(2)) options.tuning.refine = true;
      if (pass == FirstPass::prefix && c.below(4) == 0) options.tuning.refine = false;
      const bool refined = options.tuning.refine.value_or(false);
      const bool once = c.below(2) == 0;
      KnnReport report;
      Neighbors got;
      try {
        if (once) {
          got = knn(c.queries, c.base, c.k, options, &report);
        } else {
          got = kept->search(c.queries, c.k, options, &report);
        }
      } catch (const MemoryBudgetError&) {
        EXPECT_GT(options.memory, 0);
        continue;
      }
      ++searches;
      options.memory = 0, options.tuning = {};
      if (pass == FirstPass::prefix) options.first_pass = FirstPass::automatic;
      check_range(once ? range_search(c.queries, c.base, radius, options)
                       : kept->range_search(c.queries, radius, options),
                  keys, c.metric, radius);
      EXPECT_FALSE(testing::Test::HasFailure())
          << "range " << radius << ' ' << name_of(isa) << ' ' << name_of(pass);
      EXPECT_TRUE(same(got, expected))
          << name_of(isa) << ' ' << name_of(pass) << ", threads " << options.threads << ", memory "
          << budget << (refined ? ", refined" : "") << (once ? ", once" : ", prepared") << ", did "
          << report.scan.first_pass;
      if (budget > 0 && once) {
        EXPECT_LE(report.memory_bytes, budget);
      }
    }
    for (Method method : {Method::threshold_heap, Method::partial_reduce}) {
      KnnOptions options{.metric = c.metric,
                         .threads = 1 + static_cast<int>(c.below(3)),
                         .first_pass = passes[c.below(method == Method::partial_reduce ? 4 : 5)],
                         .filter = c.filter,
                         .method = {.kind = method}};
      if (c.below(3) == 0 && method == Method::threshold_heap) {
        options.method.threshold_heap.samples = c.k + c.below(2 * c.k + 100);
        options.method.threshold_heap.query_batch = 1 + c.below(70);
      }
      KnnReport report;
      const bool once = c.below(2) == 0;
      const Neighbors got = once ? knn(c.queries, c.base, c.k, options, &report)
                                 : kept->search(c.queries, c.k, options, &report);
      ++searches;
      EXPECT_EQ(report.method, name_of(method));
      EXPECT_TRUE(same(got, expected))
          << name_of(method) << ' ' << name_of(isa) << ' ' << name_of(options.first_pass)
          << ", threads " << options.threads << ", samples "
          << options.method.threshold_heap.samples << ", batch "
          << options.method.threshold_heap.query_batch << (once ? ", once" : ", prepared")
          << ", did " << report.scan.first_pass;
    }
    const std::int64_t rows = c.base.rows();
    if (c.metric != Metric::ip && c.queries.cols() >= 8 && rows < 1100 && c.k <= rows &&
        rows * rows <= 40 * most_work() / c.base.cols()) {
      const KnnOptions options{.metric = c.metric,
                               .threads = 1 + static_cast<int>(c.below(3)),
                               .first_pass = FirstPass::prefix};
      const Neighbors near = kept->search(c.base, c.k + 1, {.metric = c.metric});
      const Neighbors joined = self_join(c.base, c.k, options);
      ++searches;
      for (Id row = 0; row < c.base.rows(); ++row) {
        std::vector<std::pair<float, Id>> other, got;
        for (std::int64_t j = 0; j <= c.k; ++j)
          if (near.ids.row(row)[j] != row && std::ssize(other) < c.k)
            other.emplace_back(near.distances.row(row)[j], near.ids.row(row)[j]);
        for (std::int64_t j = 0; j < c.k; ++j)
          got.emplace_back(joined.distances.row(row)[j], joined.ids.row(row)[j]);
        EXPECT_EQ(got, other) << "joined, row " << row << ' ' << name_of(isa);
      }
    }
    unsetenv("KNEAR_ISA");
  }
  return searches;
}

TEST(Fuzz, EverySearchIsTheReference) {
  const char* seconds = std::getenv("KNEAR_FUZZ_SECONDS");
  const char* from = std::getenv("KNEAR_FUZZ_SEED");
  const char* asked = std::getenv("KNEAR_FUZZ_CASES");
  const std::int64_t count = asked ? std::atoll(asked) : from ? 1 : usual_cases;
  const double limit = seconds ? std::atof(seconds) : 0;
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t seed = from ? std::strtoull(from, nullptr, 10) : 1;
  std::int64_t cases = 0, searches = 0;
  const auto more = [&] {
    if (HasFailure()) return false;
    if (!seconds) return cases < count;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < limit;
  };
  for (; more(); ++seed, ++cases) searches += run(seed);
  RecordProperty("searches", std::to_string(searches));
  if (seconds || asked) fmt::print("{} cases, {} searches; next seed {}\n", cases, searches, seed);
  EXPECT_GT(searches, 0);
}

}  // namespace
}  // namespace knear
