// tests/index/index_changes_test.cpp -- every kind of index against a plain map from id to vector,
// through long random histories of adds, removals, replacements, merges, filters and files.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using Row = std::vector<double>;

// What an index is made of: nothing, or the centroids of inverted lists.
struct Kind {
  std::int64_t lists = 0;
  Matrix<float> centroids = {};

  Index make(std::int64_t dim, Metric metric) const {
    if (lists == 0) return make_index("Flat", dim, metric);
    return index_with_centroids(centroids.view(), metric);
  }
};

// The content of vectors: `whole` ones are stored as panels, others as a matrix.
enum class Content { real, whole, few_values, mixed };

class Model {
 public:
  Model(std::int64_t dim, Metric metric, const Kind& kind)
      : dim_(dim), metric_(metric), kind_(kind) {}

  std::map<Id, Row> rows;

  // The live rows that `allowed` lets through, as a matrix in the order of their ids.
  template <class Allowed>
  std::pair<Matrix<double>, std::vector<Id>> matrix(Allowed allowed) const {
    std::vector<Id> ids;
    for (const auto& [id, row] : rows)
      if (allowed(id)) ids.push_back(id);
    Matrix<double> out(std::ssize(ids), dim_);
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::copy_n(rows.at(ids[i]).data(), dim_, out.row(static_cast<std::int64_t>(i)));
    return {std::move(out), ids};
  }

  // Of the rows in the lists that each query probes.
  template <class Allowed>
  Neighbors search(MatrixView<double> queries, std::int64_t k, std::int64_t probes,
                   Allowed allowed) const {
    Neighbors out{Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      const MatrixView<double> query = queries.rows(q, q + 1);
      const auto [base, ids] = matrix([probed = probed_by(query, probes), &allowed](Id id) {
        return probed(id) && allowed(id);
      });
      const Neighbors near = reference_knn(query, base.view(), k, metric_);
      std::copy_n(near.distances.row(0), k, out.distances.row(q));
      for (std::int64_t j = 0; j < k; ++j) {
        const Id row = near.ids.row(0)[j];
        out.ids.row(q)[j] = row == no_id ? no_id : ids[static_cast<std::size_t>(row)];
      }
    }
    return out;
  }

  // Whether a query [1 x dim] probes the list of a row.
  auto probed_by(MatrixView<double> query, std::int64_t probes) const {
    std::vector<char> lists(static_cast<std::size_t>(kind_.lists));
    if (kind_.lists > 0) {
      const Neighbors near = reference_knn(query, kind_.centroids.view(), probes, metric_);
      for (std::int64_t p = 0; p < probes; ++p)
        lists[static_cast<std::size_t>(near.ids.row(0)[p])] = 1;
    }
    return [this, lists = std::move(lists)](Id id) {
      return lists.empty() || lists[static_cast<std::size_t>(list_of(id))];
    };
  }
  // The nearest centroid in l2, or by the cosine.
  Id list_of(Id id) const {
    const Row& row = rows.at(id);
    const auto found = lists_.find(id);
    if (found != lists_.end() && found->second.first == row) return found->second.second;
    const MatrixView<double> query(row.data(), 1, dim_);
    const Id list = reference_knn(query, kind_.centroids.view(), 1,
                                  metric_ == Metric::cosine ? Metric::cosine : Metric::l2)
                        .ids.row(0)[0];
    lists_[id] = {row, list};
    return list;
  }

 private:
  std::int64_t dim_;
  Metric metric_;
  const Kind& kind_;
  mutable std::map<Id, std::pair<Row, Id>> lists_;  // those that were asked for
};

class History {
 public:
  History(std::uint64_t seed, std::int64_t dim, Metric metric, Content content, ElementType type,
          std::int64_t lists)
      : random_(seed),
        dim_(dim),
        content_(content),
        type_(type),
        kind_(kind_of(lists)),
        model_(dim, metric, kind_),
        index_(kind_.make(dim, metric)) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const auto op = random_.below(15);
      if (op < 5 || model_.rows.empty())
        add();
      else if (op < 7)
        remove();
      else if (op < 9)
        replace();
      else if (op == 9)
        merge();
      else if (op == 10)
        index_.compact();
      else if (op == 11)
        refused();
      else if (op == 14)
        reload();
      else
        check();
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(index_.size(), std::ssize(model_.rows));
    }
    check();
    std::vector<Id> ids;
    for (const auto& [id, row] : model_.rows) ids.push_back(id);
    EXPECT_EQ(index_.ids(), ids);
  }

 private:
  Kind kind_of(std::int64_t lists) {
    Kind out{lists, Matrix<float>(lists, dim_)};
    for (std::int64_t i = 0; i < lists * dim_; ++i) out.centroids.data()[i] = value();
    return out;
  }
  float value() {
    const bool whole = content_ == Content::whole || content_ == Content::few_values ||
                       (content_ == Content::mixed && whole_now_);
    if (content_ == Content::few_values) return static_cast<float>(random_.below(3));
    if (type_ == ElementType::i8) return static_cast<float>(random_.below(256)) - 128;
    if (whole) return static_cast<float>(random_.below(256));
    return static_cast<float>(random_.uniform() - 0.3);
  }
  AnyMatrix vectors(std::int64_t n) {
    whole_now_ = random_.below(2) == 0;
    AnyMatrix out(type_, n, dim_);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < dim_; ++j) {
        const float x = value();
        switch (type_) {
          case ElementType::f16:
            static_cast<f16*>(out.row(i))[j] = to_f16(x);
            break;
          case ElementType::bf16:
            static_cast<bf16*>(out.row(i))[j] = to_bf16(x);
            break;
          case ElementType::u8:
            static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(x);
            break;
          case ElementType::i8:
            static_cast<std::int8_t*>(out.row(i))[j] = static_cast<std::int8_t>(x);
            break;
          case ElementType::f32:
            static_cast<float*>(out.row(i))[j] = x;
            break;
          case ElementType::f64:
            static_cast<double*>(out.row(i))[j] = x == std::trunc(x) ? x : x + 0x1p-40;
        }
      }
    return out;
  }
  Row row_of(const AnyMatrix& from, std::int64_t i) {
    return visit(from.view(), [&](auto view) {
      Row out;
      for (std::int64_t j = 0; j < dim_; ++j) out.push_back(to_double(view.row(i)[j]));
      return out;
    });
  }
  std::int64_t some() {
    const auto kind = random_.below(10);
    if (kind < 5) return 1 + static_cast<std::int64_t>(random_.below(8));
    if (kind < 9) return 1 + static_cast<std::int64_t>(random_.below(200));
    return 250 + static_cast<std::int64_t>(random_.below(700));
  }
  std::vector<Id> some_held(std::int64_t n) { return drawn_ids(model_.rows, n, random_); }

  void add() {
    const std::int64_t n = some();
    const AnyMatrix x = vectors(n);
    std::vector<Id> ids;
    if (random_.below(3) == 0) {  // own ids, in any order, below and above what is there
      std::map<Id, int> seen;
      const auto range = static_cast<std::uint64_t>(4 * (n + std::ssize(model_.rows)) + 10);
      const Id far = random_.below(8) == 0 ? Id{1} << 40 : 0;
      while (std::ssize(ids) < n) {
        const Id id = far + static_cast<Id>(random_.below(range));
        if (!model_.rows.contains(id) && !seen[id]++) ids.push_back(id);
      }
      index_.add(x, ids, {.threads = 2});
    } else {
      for (std::int64_t i = 0; i < n; ++i) ids.push_back(next_ + i);
      EXPECT_EQ(index_.next_id(), next_);
      index_.add(x);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      model_.rows[ids[static_cast<std::size_t>(i)]] = row_of(x, i);
      next_ = std::max(next_, ids[static_cast<std::size_t>(i)] + 1);
    }
  }
  void remove() {
    // Now and then removes most of it, so that segments are rewritten.
    const auto ids = some_held(random_.below(6) == 0 ? std::ssize(model_.rows) * 3 / 4 : some());
    index_.remove(ids);
    for (const Id id : ids) model_.rows.erase(id);
    EXPECT_EQ(index_.next_id(), next_);  // no id comes again by itself
  }
  void replace() {
    const auto ids = some_held(some());
    const AnyMatrix x = vectors(std::ssize(ids));
    index_.replace(ids, x);
    for (std::size_t i = 0; i < ids.size(); ++i)
      model_.rows[ids[i]] = row_of(x, static_cast<std::int64_t>(i));
  }
  void merge() {
    // Now and then with other lists.
    const Kind kind = random_.below(3) == 0 ? kind_of(kind_.lists) : Kind{};
    Index other = (kind.lists > 0 ? kind : kind_).make(dim_, index_.metric());
    const std::int64_t n = some();
    const AnyMatrix x = vectors(n);
    const bool keep = random_.below(2) == 0;
    std::vector<Id> ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back((keep ? next_ : 0) + 3 * i + 1);
    other.add(x, ids);
    if (n > 2) other.remove(std::vector<Id>{ids[1]});
    index_.merge(other, keep ? MergeIds::keep : MergeIds::shifted);
    for (std::int64_t i = 0; i < n; ++i)
      if (n <= 2 || i != 1)
        model_.rows[ids[static_cast<std::size_t>(i)] + (keep ? 0 : next_)] = row_of(x, i);
    next_ = keep ? ids.back() + 1 : next_ + ids.back() + 1;
    if (n > 2) return;
  }
  void refused() {  // and then as it was
    const std::int64_t before = index_.version();
    const Id held = model_.rows.begin()->first;
    const AnyMatrix one = vectors(1), two = vectors(2);
    EXPECT_THROW(index_.add(one, std::vector<Id>{held}), InvalidArgument);
    EXPECT_THROW(index_.add(two, std::vector<Id>{next_, next_}), InvalidArgument);
    EXPECT_THROW(index_.add(two, std::vector<Id>{next_}), ShapeMismatch);
    EXPECT_THROW(index_.add(one, std::vector<Id>{-3}), InvalidArgument);
    EXPECT_THROW(index_.remove(std::vector<Id>{held, next_}), InvalidArgument);
    EXPECT_THROW(index_.remove(std::vector<Id>{held, held}), InvalidArgument);
    EXPECT_THROW(index_.replace(std::vector<Id>{held, next_}, two), InvalidArgument);
    EXPECT_THROW(index_.reconstruct(std::vector<Id>{held, next_}), InvalidArgument);
    EXPECT_THROW(index_.search(one, 1,
                               {.filter = IdFilter::of_ids(std::vector<Id>{next_}),
                                .method = {.probes = std::min<std::int64_t>(1, kind_.lists)}}),
                 InvalidArgument);
    if (kind_.lists > 0) {
      EXPECT_THROW(index_.search(one, 1), InvalidArgument);
      EXPECT_THROW(index_.search(one, 1, {.method = {.probes = kind_.lists + 1}}), InvalidArgument);
      EXPECT_THROW(index_.search(one, 1, {.method = {.recall = 1, .probes = 1}}), InvalidArgument);
      EXPECT_THROW(index_.train(two), InvalidArgument);
      EXPECT_THROW(index_.merge(make_index("Flat", dim_, index_.metric())), InvalidArgument);
    } else {
      EXPECT_THROW(index_.search(one, 1, {.method = {.probes = 1}}), InvalidArgument);
    }
    EXPECT_THROW(index_.merge(index_), InvalidArgument);
    EXPECT_EQ(index_.version(), before);
  }

  // The history continues with the saved index, on top of the mapped file.
  void reload() {
    std::string name = std::filesystem::temp_directory_path() / "knear-history-XXXXXX";
    close(mkstemp(name.data()));
    index_.save(name);
    index_ = Index::load(name);
    unlink(name.c_str());
  }

  void check() {
    const auto n = std::ssize(model_.rows);
    const std::int64_t k = std::vector<std::int64_t>{1, 5, 40, n + 3}[random_.below(4)];
    AnyMatrix typed = vectors(5);
    Matrix<double> queries(5, dim_);
    for (std::int64_t i = 0; i < 5; ++i) std::copy_n(row_of(typed, i).data(), dim_, queries.row(i));
    if (random_.below(4) == 0) std::fill_n(queries.row(2), dim_, 0.0);
    if (random_.below(3) == 0) queries.row(4)[0] += 0.25;  // not whole
    SearchOptions options{.threads = 1 + static_cast<int>(random_.below(2))};
    if (random_.below(4) == 0) options.memory = 64 << 20;
    constexpr FirstPass passes[] = {FirstPass::automatic, FirstPass::automatic, FirstPass::int8,
                                    FirstPass::int16,     FirstPass::fp32,      FirstPass::direct};
    options.first_pass = passes[random_.below(std::size(passes))];
    std::int64_t probes = kind_.lists;
    if (kind_.lists > 0) {
      options.first_pass = FirstPass::automatic;
      if (random_.below(4) == 0) {
        options.method.recall = 1;
      } else {
        probes =
            1 + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(kind_.lists)));
        options.method.probes = probes;
      }
    }
    std::vector<Id> listed;
    std::vector<std::uint8_t> bits;
    std::int64_t bit_rows = 0;
    const auto kind = random_.below(3);
    if (kind == 1) {
      listed =
          some_held(static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(n) + 1)));
      options.filter = IdFilter::of_ids(listed);
      std::sort(listed.begin(), listed.end());
    } else if (kind == 2) {
      bit_rows = static_cast<std::int64_t>(
          random_.below(static_cast<std::uint64_t>(std::min<Id>(next_, 100000)) + 1));
      bits.resize(static_cast<std::size_t>((bit_rows + 7) / 8));
      for (auto& byte : bits) byte = static_cast<std::uint8_t>(random_.below(256));
      options.filter = IdFilter::of_bits(bits, bit_rows);
    }
    const auto allowed = [&](Id id) {
      if (kind == 1) return std::binary_search(listed.begin(), listed.end(), id);
      if (kind == 2) return id < bit_rows && (bits[static_cast<std::size_t>(id / 8)] >> id % 8 & 1);
      return true;
    };
    KnnReport report;
    const Neighbors got = index_.search(queries.view(), k, options, &report);
    const Neighbors want = model_.search(queries.view(), k, probes, allowed);
    EXPECT_EQ(report.rows, n);
    EXPECT_EQ(report.version, index_.version());
    for (std::int64_t i = 0; i < 5 * k; ++i) {
      ASSERT_EQ(got.ids.data()[i], want.ids.data()[i])
          << "place " << i << " of " << k << ", probes " << options.method.probes << ", distances "
          << got.distances.data()[i] << " and " << want.distances.data()[i];
      ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]) << "place " << i;
    }
    // A radius that is the distance of some neighbour, ties included.
    const double radius = want.distances.row(1)[std::min<std::int64_t>(k - 1, 4)];
    if (std::isfinite(radius)) {
      const RangeNeighbors near = index_.range_search(queries.view(), radius, options);
      for (std::int64_t q = 0; q < 5; ++q) {
        const MatrixView<double> query = queries.view().rows(q, q + 1);
        const auto [base, ids] = model_.matrix([probed = model_.probed_by(query, probes), &allowed](
                                                   Id id) { return probed(id) && allowed(id); });
        const Neighbors all = reference_knn(
            query, base.view(), std::max<std::int64_t>(1, base.rows()), index_.metric());
        const auto begin = near.begin[static_cast<std::size_t>(q)];
        const auto count = near.begin[static_cast<std::size_t>(q) + 1] - begin;
        for (std::int64_t j = 0; j < count; ++j)
          ASSERT_EQ(near.ids[static_cast<std::size_t>(begin + j)],
                    ids[static_cast<std::size_t>(all.ids.row(0)[j])]);
        if (count < base.rows()) {
          const double next = reference_distance(index_.metric(), queries.row(q),
                                                 base.row(all.ids.row(0)[count]), dim_);
          EXPECT_TRUE(index_.metric() == Metric::ip ? next < radius : next > radius);
        }
      }
    }
    const auto ids = some_held(3);
    const AnyMatrix rows = index_.reconstruct(ids);
    EXPECT_EQ(rows.type(), index_.element_type());
    for (std::size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(row_of(rows, static_cast<std::int64_t>(i)), model_.rows.at(ids[i]));
    EXPECT_FALSE(index_.contains(next_));
  }

  Random random_;
  std::int64_t dim_;
  Content content_;
  ElementType type_;
  bool whole_now_ = false;
  Id next_ = 0;
  Kind kind_;
  Model model_;
  Index index_;
};

// Of inverted lists there may be so few that they are packed, or so many that they are not.
class IndexChanges : public testing::TestWithParam<std::tuple<Metric, std::int64_t>> {};

TEST_P(IndexChanges, RandomHistoriesEqualAMap) {
  const auto [metric, lists] = GetParam();
  std::uint64_t seed = 0;
  for (Content content : {Content::real, Content::whole, Content::few_values, Content::mixed})
    for (ElementType type : {ElementType::f32, ElementType::u8, ElementType::i8, ElementType::f16,
                             ElementType::bf16, ElementType::f64}) {
      if (size_of(type) == 1 && (content == Content::real || content == Content::mixed)) continue;
      for (std::int64_t dim : {1, 7, 33}) {
        SCOPED_TRACE(testing::Message() << "content " << static_cast<int>(content) << " type "
                                        << name_of(type) << " dim " << dim << " seed " << ++seed);
        History(seed, dim, metric, content, type, lists).run(test::small() ? 30 : 60);
        if (HasFatalFailure()) return;
      }
    }
}

// Longer histories for KNEAR_FUZZ_SECONDS, or KNEAR_FUZZ_CASES of them, from KNEAR_FUZZ_SEED on.
TEST(IndexHistories, AsLongAsAsked) {
  const char *seconds = std::getenv("KNEAR_FUZZ_SECONDS"), *first = std::getenv("KNEAR_FUZZ_SEED");
  const char* asked = std::getenv("KNEAR_FUZZ_CASES");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 1);
  std::uint64_t seed = first ? std::strtoull(first, nullptr, 10) : 1000, histories = 0;
  const auto more = [&] {
    return asked ? histories < std::strtoull(asked, nullptr, 10)
                 : std::chrono::steady_clock::now() < end;
  };
  for (; more() && !HasFatalFailure(); ++seed, ++histories) {
    Random random(seed);
    const Content content = static_cast<Content>(random.below(4));
    // Those of floats first.
    constexpr ElementType types[] = {ElementType::f32, ElementType::f16, ElementType::bf16,
                                     ElementType::f64, ElementType::u8,  ElementType::i8};
    const bool fractions = content == Content::real || content == Content::mixed;
    const ElementType type = types[random.below(fractions ? 4 : std::size(types))];
    SCOPED_TRACE(testing::Message() << "KNEAR_FUZZ_SEED=" << seed);
    History(seed, 1 + static_cast<std::int64_t>(random.below(40)),
            static_cast<Metric>(random.below(3)), content, type,
            std::vector<std::int64_t>{0, 3, 30, 300}[random.below(4)])
        .run(150);
  }
  RecordProperty("histories", std::to_string(histories));
  std::printf("%llu histories\n", static_cast<unsigned long long>(histories));
}

INSTANTIATE_TEST_SUITE_P(Kinds, IndexChanges,
                         testing::Combine(testing::Values(Metric::l2, Metric::ip, Metric::cosine),
                                          testing::Values<std::int64_t>(0, 1, 7, 200)),
                         [](const auto& p) {
                           const std::int64_t lists = std::get<1>(p.param);
                           const std::string kind = lists ? "IVF" + std::to_string(lists) : "Flat";
                           return kind + "_" + std::string(name_of(std::get<0>(p.param)));
                         });

// A bound that is useless on these data leads to measuring every row, which once ignored removals.
TEST(FlatRemoved, StayAwayWhereNoBoundHelps) {
  Random random(1);
  Matrix<float> x(6000, 24), queries(40, 24);
  for (std::int64_t i = 0; i < 6000 * 24; ++i)
    x.data()[i] = static_cast<float>(1e-3 * random.uniform() + (i / 24 % 4 < 2 ? 100.0 : -100.0));
  for (std::int64_t i = 0; i < 40 * 24; ++i) queries.data()[i] = x.data()[i];
  Index index = make_index("Flat", 24);
  index.add(x.view());
  std::vector<Id> removed;
  for (Id id = 0; id < 2000; ++id) removed.push_back(id);
  index.remove(removed);
  KnnReport report;
  const Neighbors near = index.search(queries.view(), 10, {}, &report);
  EXPECT_EQ(report.scan.first_pass, "direct");
  for (std::int64_t i = 0; i < 400; ++i) EXPECT_GE(near.ids.data()[i], 2000);
  const RangeNeighbors all = index.range_search(queries.view(), 1, {});
  for (const Id id : all.ids) ASSERT_GE(id, 2000);
}

Matrix<float> counted(std::int64_t rows, std::int64_t cols) {
  Matrix<float> out(rows, cols);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    out.data()[i] = static_cast<float>(i * 7919 % 1000) / 999;
  return out;
}

TEST(FlatMemory, IsWhatTheHeaderStates) {
  const std::int64_t n = 40000, d = 96;
  Index floats = make_index("Flat", d);
  floats.add(counted(n, d).view());
  EXPECT_LE(floats.memory_bytes(), n * (4 * d + d + 16) * 103 / 100);
  // Whole numbers of any type: their bytes, 5 % and 16 bytes a row.
  Index whole = make_index("Flat", d);
  Matrix<float> x(n, d);
  for (std::int64_t i = 0; i < n * d; ++i) x.data()[i] = static_cast<float>(i * 7919 % 256);
  whole.add(x.view());
  EXPECT_LE(whole.memory_bytes(), n * (d * 105 / 100 + 16));
  EXPECT_EQ(whole.element_type(), ElementType::f32);
  // Many small adds take little more.
  Index slowly = make_index("Flat", d);
  for (std::int64_t begin = 0; begin < n; begin += 100)
    slowly.add(x.view().rows(begin, begin + 100));
  EXPECT_LE(slowly.memory_bytes(), n * (d * 107 / 100 + 17) + 1024 * 4 * d);  // and the chunk
  // The memory of removed rows is freed.
  std::vector<Id> most;
  for (Id id = 0; id < n; ++id)
    if (id % 10 != 3) most.push_back(id);
  whole.remove(most), floats.remove(most);
  EXPECT_LE(whole.memory_bytes(), n / 10 * (d * 110 / 100 + 24));
  EXPECT_LE(floats.memory_bytes(), n / 10 * (5 * d + 24) * 110 / 100);
}

// By the system's count, not ours: chunks of storage are freed too.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
std::int64_t resident_bytes() {
  long pages = 0, ignored = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &ignored, &pages) != 2) pages = 0;
  std::fclose(file);
  return pages * 4096;
}

TEST(FlatMemory, RemovedRowsGoBackToTheSystem) {
  const std::int64_t bytes = 60000 * 256 * 4;
  const Matrix<float> rows = counted(60000, 256);
  for (const bool reserved : {false, true}) {
    Index index = make_index("Flat", 256);
    const std::int64_t before = resident_bytes();
    if (reserved) index.reserve(60000);
    for (std::int64_t begin = 0; begin < 60000; begin += 20000)
      index.add(rows.view().rows(begin, begin + 20000));
    EXPECT_GT(resident_bytes() - before, bytes / 2);  // some may have been ours already
    std::vector<Id> most;
    for (Id id = 0; id < 60000; ++id)
      if (id % 60 != 7) most.push_back(id);
    index.remove(most);
    EXPECT_LT(resident_bytes() - before, bytes / 4) << "reserved: " << reserved;
    EXPECT_EQ(index.reconstruct(std::vector<Id>{67}).view().as<float>().row(0)[3], rows.row(67)[3]);
  }
}

// One small segment in a chunk must not keep the chunk alive for good.
TEST(FlatMemory, AChunkGoesWhenLittleOfItIsLeft) {
  const Matrix<float> rows = counted(60000, 256);
  Index index = make_index("Flat", 256);
  const std::int64_t before = resident_bytes();
  index.reserve(60000);
  index.add(rows.view().rows(0, 100));
  index.search(rows.view().rows(0, 1), 1);
  index.add(rows.view().rows(100, 60000));
  std::vector<Id> later;
  for (Id id = 100; id < 60000; ++id) later.push_back(id);
  index.remove(later);
  index.compact();
  EXPECT_EQ(index.size(), 100);
  EXPECT_LT(resident_bytes() - before, 60000 * 256 * 4 / 4);
  EXPECT_LT(index.memory_bytes(), 100 * 256 * 4 * 8);
}
#endif

TEST(FlatMemory, ReservingMoreThanThereIsIsAnError) {
  Index index = make_index("Flat", 3);
  for (const int power : {50, 58, 61, 62}) {
    try {
      index.reserve(std::int64_t{1} << power);
      ADD_FAILURE() << "2^" << power;
    } catch (const MemoryBudgetError& error) {
      EXPECT_NE(std::string(error.what()).find("rows"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(index.reserve(-1), InvalidArgument);
  index.add(counted(5, 3).view());
  EXPECT_EQ(index.size(), 5);
}

// Segments of whole numbers and of others need different packed rows, of which an index keeps some.
TEST(FlatMemory, ARefusalNamesWhatIsEnoughForEverySegment) {
  const Matrix<float> whole = counted(20000, 48), queries = counted(30, 48);
  Matrix<float> parts = counted(9000, 48);
  for (std::int64_t i = 0; i < 9000 * 48; ++i) parts.data()[i] += 0.25f;
  for (const Method method : {Method::automatic, Method::threshold_heap})
    for (const FirstPass pass : {FirstPass::automatic, FirstPass::fp32}) {
      if (method != Method::automatic && pass != FirstPass::automatic) continue;
      Index index = make_index("Flat", 48), other = make_index("Flat", 48);
      index.add(whole.view());
      other.add(parts.view());
      index.merge(other, MergeIds::shifted);
      const auto search = [&](std::int64_t memory) {
        index.search(queries.view(), 10,
                     {.memory = memory, .first_pass = pass, .method = {.kind = method}});
      };
      int refused = 0;
      for (std::int64_t memory = 100000;; memory += memory / 3) {
        try {
          search(memory);
          break;
        } catch (const MemoryBudgetError& e) {
          ++refused;
          const std::string text = e.what(), before = "at least ";
          const std::int64_t least = std::stoll(text.substr(text.find(before) + before.size()));
          ASSERT_GT(least, memory) << text;
          EXPECT_NO_THROW(search(least)) << text;
        }
      }
      EXPECT_GT(refused, 0);
    }
}

TEST(FlatMemory, ReservedRowsKeepTheirValuesThroughManyAdds) {
  Index index = make_index("Flat", 8);
  index.reserve(100000);
  const Matrix<float> x = counted(100000, 8);
  for (std::int64_t begin = 0; begin < 100000; begin += 1000)
    index.add(x.view().rows(begin, begin + 1000));
  const auto near = index.search(x.view().rows(500, 510), 1);
  for (std::int64_t q = 0; q < 10; ++q) EXPECT_LE(near.ids.row(q)[0], 500 + q);
  EXPECT_EQ(index.reconstruct(std::vector<Id>{99999}).view().as<float>().row(0)[7],
            x.row(99999)[7]);
}

TEST(FlatIds, ThoseThatAreGivenLeaveSomeForRowsWithout) {
  const Matrix<float> x = counted(3, 2);
  for (const Id wrong : {last_given_id + 1, std::numeric_limits<Id>::max()}) {
    Index index = make_index("Flat", 2);
    Index shards = index.divided({.shards = 2});
    const std::vector<Id> ids{5, wrong, 0};
    EXPECT_THROW(index.add(x.view(), ids), InvalidArgument);
    EXPECT_THROW(shards.add(x.view(), ids), InvalidArgument);
    EXPECT_EQ(index.size() + shards.size(), 0);
  }
  Index index = make_index("Flat", 2);
  Index shards = index.divided({.shards = 2});
  const std::vector<Id> ids{5, last_given_id, 0};
  index.add(x.view(), ids);
  index.add(x.view());
  shards.add(x.view(), ids);
  shards.add(x.view());
  EXPECT_EQ(index.next_id(), last_given_id + 4);
  EXPECT_EQ(shards.next_id(), last_given_id + 4);
}

// An index of before given ids had an end, and the replay of its log.
TEST(FlatIds, GoToTheEndOf64Bits) {
  const Id last = std::numeric_limits<Id>::max();
  Index index = make_index("Flat", 2);
  const Matrix<float> x = counted(3, 2);
  index.body().one().add_with_any_ids(x.view(), std::vector<Id>{last, 0, last - 1}, {});
  EXPECT_EQ(index.search(x.view().rows(0, 1), 1).ids.row(0)[0], last);
  EXPECT_THROW(index.add(x.view()), InvalidArgument);  // no id is left above
  EXPECT_EQ(index.size(), 3);
  Index other = make_index("Flat", 2);
  other.add(x.view());
  EXPECT_THROW(index.merge(other, MergeIds::shifted), InvalidArgument);
  EXPECT_THROW(index.merge(other), InvalidArgument);  // 0 is held by both
  index.remove(std::vector<Id>{0, last - 1, last});
  EXPECT_EQ(index.search(x.view(), 2).ids.row(2)[0], no_id);
}

TEST(FlatMerge, RefusesWhatDiffers) {
  Index index = make_index("Flat", 2), other = make_index("Flat", 3),
        cosine = make_index("Flat", 2, Metric::cosine), bytes = make_index("Flat", 2);
  index.add(counted(3, 2).view());
  EXPECT_THROW(index.merge(other), ShapeMismatch);
  EXPECT_THROW(index.merge(cosine), InvalidArgument);
  bytes.add(Matrix<std::uint8_t>(1, 2).view(), std::vector<Id>{9});
  EXPECT_THROW(index.merge(bytes), InvalidArgument);
  Index empty = make_index("Flat", 2);
  empty.merge(index);
  EXPECT_EQ(empty.size(), 3);
  for (MergeIds ids : {MergeIds::keep, MergeIds::shifted})
    EXPECT_THROW(empty.merge(empty, ids), InvalidArgument);
  EXPECT_EQ(empty.size(), 3);
}

}  // namespace
}  // namespace knear
