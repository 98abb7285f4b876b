// tests/index/coded_index_test.cpp -- indexes of codes against a plain model: what each row was
// coded to, its key by the formula of code_scan.hpp with tables made one entry at a time, through
// random histories of changes, at every instruction set.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index_impl.hpp"
#include "knear/index/ivf_flat.hpp"
#include "knear/index/ivf_pq.hpp"

namespace knear {
namespace {

using detail::CodeShape;
using detail::IndexShape;
using detail::RefineShape;
using detail::RowCoder;

// An index whose coder a test can look at.
class OpenIndex : public Index {
 public:
  explicit OpenIndex(const IndexShape& shape) : Index(IndexOfShape(shape)) {}
  explicit OpenIndex(Index index) : Index(std::move(index)) {}
  std::shared_ptr<const detail::State> state() const { return impl().state(); }
};

Matrix<float> clustered(std::int64_t rows, std::int64_t dim, std::uint64_t seed, float offset = 0) {
  Random random(7), around(seed);
  Matrix<float> centres(12, dim), out(rows, dim);
  for (std::int64_t i = 0; i < 12 * dim; ++i)
    centres.data()[i] = static_cast<float>(random.uniform() - 0.5) + offset;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* centre = centres.row(static_cast<std::int64_t>(around.below(12)));
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] = centre[j] + static_cast<float>(0.6 * (around.uniform() - 0.5));
  }
  return out;
}

class Isas {
 public:
  ~Isas() { unsetenv("KNEAR_ISA"); }
  static void use(Isa isa) { setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1); }
};

struct Case {
  std::string name;
  IndexShape shape;
  float offset = 0;  // of all vectors from the origin
};

// What a map from ids to vectors answers.
class Model {
 public:
  Model(const IndexShape& shape, const RowCoder& coder, const RowCoder* refiner,
        Matrix<float> centroids)
      : shape_(shape), coder_(coder), refiner_(refiner), centroids_(std::move(centroids)) {}

  struct Row {
    std::vector<float> vector;
    std::uint32_t list = 0;
    std::vector<std::uint8_t> code;
    std::vector<float> decoded;  // without the centroid
  };
  std::map<Id, Row> rows;

  void put(Id id, const float* vector) {
    Row row{{vector, vector + shape_.dim}, 0, {}, {}};
    const MatrixView<float> one(row.vector.data(), 1, shape_.dim);
    const Metric by = shape_.metric == Metric::cosine ? Metric::cosine : Metric::l2;
    if (shape_.lists > 0)
      row.list =
          static_cast<std::uint32_t>(reference_knn(one, centroids_.view(), 1, by).ids.row(0)[0]);
    const auto coded = coder_.encode(one, {&row.list, 1}, 1, {});
    row.code.assign(coded.codes.row(0), coded.codes.row(0) + coded.codes.cols());
    for (std::int64_t m = 0; m < coder_.quantizer().sub_quantizers(); ++m) {
      const auto at = static_cast<std::size_t>(coder_.quantizer().bits() == 8 ? m : m / 2);
      const int centroid =
          coder_.quantizer().bits() == 8 ? row.code[at] : row.code[at] >> (m % 2 * 4) & 15;
      const MatrixView<float> part = coder_.quantizer().centroids(m);
      row.decoded.insert(row.decoded.end(), part.row(centroid), part.row(centroid) + part.cols());
    }
    // What refines it.
    if (refiner_) {
      const auto fine = refiner_->encode(one, {}, 1, {});
      refiner_->decode(fine.codes.row(0), 1, 0, row.vector.data());
    } else if (shape_.refine && shape_.refine->rounded) {
      for (float& x : row.vector)
        x = static_cast<float>(*shape_.refine->rounded == ElementType::f16 ? to_double(to_f16(x))
                                                                           : to_double(to_bf16(x)));
    }
    rows[id] = std::move(row);
  }

  bool residual() const { return shape_.lists > 0 && shape_.codes->residual; }

  // The key of a row by its code.
  float key(const float* query, const Row& row) const {
    const std::int64_t dim = shape_.dim, parts = coder_.quantizer().sub_quantizers();
    std::vector<double> q(query, query + dim), c(static_cast<std::size_t>(dim), 0), m = c;
    if (shape_.metric == Metric::cosine) {
      // As rows are given length 1.
      double largest = 0, squares = 0;
      for (const double x : q) largest = std::max(largest, std::abs(x));
      if (largest > 0) {
        for (double& x : q) x /= largest, squares += x * x;
        for (double& x : q) x = static_cast<float>(x / std::sqrt(squares));
      }
    }
    if (residual()) {
      for (std::int64_t j = 0; j < dim; ++j)
        c[static_cast<std::size_t>(j)] = centroids_.row(row.list)[j];
      for (std::int64_t l = 0; l < shape_.lists; ++l)
        for (std::int64_t j = 0; j < dim; ++j)
          m[static_cast<std::size_t>(j)] += double{centroids_.row(l)[j]};
      for (double& x : m) x /= static_cast<double>(shape_.lists);
    }
    const bool l2 = shape_.metric == Metric::l2;
    float term = 0, scalar = 0, sum = 0;
    double terms = 0, scalars = 0;
    for (std::size_t j = 0; j < q.size(); ++j) {
      const double r = row.decoded[j];
      if (shape_.metric == Metric::cosine)
        scalars += (r + c[j]) * (r + c[j]);
      else
        scalars += r * r + 2 * (c[j] - m[j]) * r;
    }
    if (residual()) {
      const MatrixView<float> centroid = centroids_.view().rows(row.list, row.list + 1);
      const MatrixView<double> asked(q.data(), 1, dim);
      terms = reference_knn(asked, centroid, 1, l2 ? Metric::l2 : Metric::ip).distances.row(0)[0];
      if (!l2) terms = -terms;
    }
    term = static_cast<float>(terms);
    if (shape_.metric == Metric::cosine)
      scalar = static_cast<float>(std::sqrt(scalars));
    else if (l2 && residual())
      scalar = static_cast<float>(scalars);
    const std::int64_t width = dim / parts;
    for (std::int64_t p = 0; p < parts; ++p) {
      double one = 0;
      for (auto j = static_cast<std::size_t>(p * width);
           j < static_cast<std::size_t>((p + 1) * width); ++j) {
        const double r = row.decoded[j];
        if (l2 && !residual())
          one += (q[j] - r) * (q[j] - r);
        else
          one += (l2 ? -2 * (q[j] - m[j]) : -q[j]) * r;
      }
      sum += static_cast<float>(one);
    }
    if (shape_.metric == Metric::cosine) return scalar > 0 ? 1 + (term + sum) / scalar : 1;
    return l2 ? std::max(0.0f, (term + scalar) + sum) : term + sum;
  }

  // Keys and ids of the nearest, by codes or refined.
  template <class Allowed>
  std::vector<std::pair<double, Id>> search(const float* query, std::int64_t k, std::int64_t probes,
                                            std::int64_t factor, Allowed allowed) const {
    std::vector<char> probed(static_cast<std::size_t>(std::max<std::int64_t>(1, shape_.lists)), 1);
    if (shape_.lists > 0) {
      std::fill(probed.begin(), probed.end(), 0);
      for (const Id list : coarse_order_(query, probes)) probed[static_cast<std::size_t>(list)] = 1;
    }
    std::vector<std::pair<double, Id>> found;
    for (const auto& [id, row] : rows)
      if (probed[row.list] && allowed(id)) found.emplace_back(key(query, row), id);
    std::sort(found.begin(), found.end());
    if (factor > 0) {
      found.resize(std::min(found.size(), static_cast<std::size_t>(k * factor)));
      for (auto& [key, id] : found)
        key = order_key(shape_.metric, reference_distance(shape_.metric, query,
                                                          rows.at(id).vector.data(), shape_.dim));
      std::sort(found.begin(), found.end());
    }
    found.resize(std::min(found.size(), static_cast<std::size_t>(k)));
    return found;
  }

  // The lists that a query probes: asked of the coarse quantiser, which has tests of its own.
  std::function<std::vector<Id>(const float*, std::int64_t)> coarse_order_;

 private:
  IndexShape shape_;
  const RowCoder& coder_;
  const RowCoder* refiner_;
  Matrix<float> centroids_;
};

class CodedIndexes : public testing::TestWithParam<Case> {};

TEST_P(CodedIndexes, HistoriesEqualAPlainModelAtEveryInstructionSet) {
  const auto& [name, shape, offset] = GetParam();
  const Isas restore;
  const std::int64_t dim = shape.dim;
  Random random(11);
  OpenIndex index(shape);
  index.train(clustered(1200, dim, 1, offset).view(), {.iterations = 4});
  const std::shared_ptr<const detail::State> trained = index.state();
  Model model(shape, *trained->coder, trained->refiner.get(), index.centroids());
  model.coarse_order_ = [&](const float* query, std::int64_t probes) {
    const Neighbors near = trained->coarse->probe(MatrixView<float>(query, 1, dim), probes, 1);
    return std::vector<Id>(near.ids.row(0), near.ids.row(0) + probes);
  };
  Id next = 0;
  const auto held = [&](std::size_t count) {
    std::vector<Id> all, out;
    for (const auto& [id, row] : model.rows) all.push_back(id);
    for (; count > 0 && !all.empty(); --count) {
      const std::size_t i = random.below(all.size());
      out.push_back(all[i]);
      all[i] = all.back(), all.pop_back();
    }
    return out;
  };
  const auto add = [&](std::int64_t n, bool own) {
    Matrix<float> x = clustered(n, dim, random.next(), offset);
    // Equal rows, whose ids alone tell them apart; and a zero row.
    for (std::int64_t i = 1; i < n; i += 3) std::copy_n(x.row(0), dim, x.row(i));
    if (n > 5) std::fill_n(x.row(4), dim, 0.0f);
    std::vector<Id> ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back(own ? next + 5 * (n - i) : next + i);
    if (own)
      index.add(x.view(), ids);
    else
      index.add(x.view());
    for (std::int64_t i = 0; i < n; ++i) {
      model.put(ids[static_cast<std::size_t>(i)], x.row(i));
      next = std::max(next, ids[static_cast<std::size_t>(i)] + 1);
    }
  };
  const auto check = [&](Isa isa) {
    Isas::use(isa);
    const auto n = std::ssize(model.rows);
    Matrix<float> queries = clustered(9, dim, random.next(), offset);
    std::fill_n(queries.row(3), dim, 0.0f);
    if (!model.rows.empty())
      std::copy_n(model.rows.begin()->second.vector.data(), dim, queries.row(5));
    const std::int64_t k = std::vector<std::int64_t>{1, 10, 80, n + 2}[random.below(4)];
    SearchOptions options{.threads = 1 + static_cast<int>(random.below(3))};
    if (random.below(3) == 0) options.memory = 64 << 20;
    std::int64_t probes = 0, factor = shape.refine ? 4 : 0;
    if (shape.lists > 0)
      options.method.probes = probes =
          1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(shape.lists)));
    if (shape.refine && random.below(2) == 0) options.method.refine_factor = factor = 2;
    std::vector<Id> listed;
    const bool filtered = random.below(3) == 0;
    if (filtered) {
      listed =
          held(random.below(static_cast<std::uint64_t>(random.below(2) == 0 ? n : n / 30) + 1));
      options.filter = IdFilter::of_ids(listed);
      std::sort(listed.begin(), listed.end());
    }
    const auto allowed = [&](Id id) {
      return !filtered || std::binary_search(listed.begin(), listed.end(), id);
    };
    // One query, whose rows threads share, or all.
    const std::int64_t first = random.below(2) == 0 ? 5 : 0,
                       count = first == 5 ? 1 : queries.rows();
    KnnReport report;
    const Neighbors got =
        index.search(queries.view().rows(first, first + count), k, options, &report);
    EXPECT_EQ(report.rows, n);
    EXPECT_EQ(report.recall_argument, "none");
    EXPECT_EQ(report.certified_queries, 0);
    const auto distance = [&](double key) {
      return static_cast<float>(shape.metric == Metric::ip ? -key : key);
    };
    for (std::int64_t q = 0; q < count; ++q) {
      const auto want = model.search(queries.row(first + q), k, probes, factor, allowed);
      for (std::int64_t j = 0; j < k; ++j) {
        const bool there = j < std::ssize(want);
        const auto at = static_cast<std::size_t>(j);
        ASSERT_EQ(got.ids.row(q)[j], there ? want[at].second : no_id)
            << name_of(isa) << " query " << q << " place " << j << " of " << k << " probes "
            << probes << " distance " << got.distances.row(q)[j] << " "
            << (there ? want[at].first : 0);
        if (there) {
          ASSERT_EQ(got.distances.row(q)[j], distance(want[at].first)) << name_of(isa);
        }
      }
      // Within the distance of some row; where codes are refined, all that are probed are measured.
      if (want.empty()) continue;
      const auto all =
          model.search(queries.row(first + q), n, probes, shape.refine ? 1 : 0, allowed);
      const double radius = distance(all[std::min<std::size_t>(all.size() - 1, 6)].first);
      const RangeNeighbors near =
          index.range_search(queries.view().rows(first + q, first + q + 1), radius, options);
      std::vector<Id> expected;
      for (const auto& [key, id] : all)
        if (key <= order_key(shape.metric, radius)) expected.push_back(id);
      EXPECT_EQ(near.ids, expected);
    }
    for (const Id id : held(3)) {
      const AnyMatrix found = index.reconstruct(std::vector<Id>{id});
      AnyMatrix row(ElementType::f32, 1, dim);
      ASSERT_EQ(detail::copy_exactly(found, ElementType::f32, row.row(0)), -1);
      const Model::Row& known = model.rows.at(id);
      for (std::int64_t j = 0; j < dim; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const float want = shape.refine ? known.vector[at]
                           : model.residual()
                               ? known.decoded[at] + index.centroids().row(known.list)[j]
                               : known.decoded[at];
        ASSERT_EQ(static_cast<const float*>(row.row(0))[j], want);
      }
    }
  };
  add(shape.lists == 0 ? 2600 : shape.lists == 4 ? 6000 : 900, false);
  for (const Isa isa : available_isas())
    for (int times = 0; times < (shape.lists == 4 ? 30 : 4); ++times) check(isa);
  for (int step = 0; step < 120 && !testing::Test::HasFatalFailure(); ++step) {
    const auto op = random.below(9);
    if (op < 3 || model.rows.empty()) {
      add(1 + static_cast<std::int64_t>(random.below(op == 0 ? 300 : 12)), random.below(2) == 0);
    } else if (op == 3) {
      const auto ids = held(random.below(4) == 0 ? model.rows.size() * 3 / 4 : 20);
      index.remove(ids);
      for (const Id id : ids) model.rows.erase(id);
    } else if (op == 4) {
      const auto ids = held(15);
      const Matrix<float> x = clustered(std::ssize(ids), dim, random.next(), offset);
      index.replace(ids, x.view());
      for (std::size_t i = 0; i < ids.size(); ++i)
        model.put(ids[i], x.row(static_cast<std::int64_t>(i)));
    } else if (op == 5) {
      index.compact();
    } else if (op == 6) {
      std::string file = std::filesystem::temp_directory_path() / "knear-codes-XXXXXX";
      close(mkstemp(file.data()));
      index.save(file);
      OpenIndex other(Index::load(file));
      EXPECT_EQ(other.description(), index.description());
      if (random.below(2) == 0) {
        index = std::move(other);
      } else {  // a copy that is merged, under higher ids
        const std::int64_t before = index.size();
        index.merge(other, MergeIds::shifted);
        std::map<Id, Model::Row> more;
        for (const auto& [id, row] : model.rows) more[id + next] = row;
        model.rows.merge(more);
        next = index.next_id();
        EXPECT_EQ(index.size(), 2 * before);
        const auto ids = held(model.rows.size() / 2);
        index.remove(ids);
        for (const Id id : ids) model.rows.erase(id);
      }
      unlink(file.c_str());
    } else {
      const auto isas = available_isas();
      check(isas[random.below(isas.size())]);
    }
    ASSERT_EQ(index.size(), std::ssize(model.rows));
  }
  std::vector<Id> ids;
  for (const auto& [id, row] : model.rows) ids.push_back(id);
  EXPECT_EQ(index.ids(), ids);
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const std::string of(name_of(metric));
    const auto shape = [&](std::int64_t lists, CodeShape codes,
                           std::optional<RefineShape> refine = {}) {
      return IndexShape{
          .dim = 12, .metric = metric, .lists = lists, .codes = codes, .refine = refine};
    };
    out.push_back({of + "_ivf_pq", shape(16, {4, 8, true})});
    out.push_back({of + "_ivf_pq_refined", shape(16, {4, 8, true}, RefineShape{})});
    out.push_back({of + "_ivf_pq_whole", shape(16, {3, 8, false})});
    out.push_back({of + "_ivf_pq4", shape(7, {3, 4, true})});
    out.push_back({of + "_pq", shape(0, {6, 8, false})});
    out.push_back({of + "_pq4_refined", shape(0, {12, 4, false}, RefineShape{})});
    out.push_back({of + "_refined_by_sq8",
                   shape(16, {3, 8, true}, RefineShape{.codes = CodeShape{0, 8, false}})});
    out.push_back({of + "_refined_by_halves",
                   shape(9, {2, 4, true}, RefineShape{.rounded = ElementType::f16})});
    out.push_back({of + "_ivf_sq8", shape(5, {0, 8, true})});
    out.push_back({of + "_sq4", shape(0, {0, 4, false})});
    out.push_back({of + "_many_lists", shape(400, {2, 8, true})});
    out.push_back({of + "_long_lists", shape(4, {4, 4, true})});
    out.push_back({of + "_far_away", shape(16, {4, 8, true}), 300.0f});
  }
  return out;
}
// The neighbours that an index keeps to measure recall by stay those of its vectors.
TEST(Known, NeighboursFollowEveryChange) {
  Random random(3);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    OpenIndex index(make_index("IVF8,PQ4", 8, metric));
    const Matrix<float> base = clustered(1500, 8, 1);
    index.train(base.view());
    std::map<Id, std::vector<float>> rows;
    const auto check = [&] {
      const auto known = index.state()->known;
      ASSERT_EQ(known->queries().rows(), 1000);
      for (std::int64_t q = 0; q < 1000; q += 37) {
        const auto& list = known->lists()[static_cast<std::size_t>(q)];
        std::vector<std::pair<double, Id>> want;
        for (const auto& [id, row] : rows)
          want.emplace_back(
              order_key(metric, reference_distance(
                                    metric, static_cast<const float*>(known->queries().row(q)),
                                    row.data(), 8)),
              id);
        std::sort(want.begin(), want.end());
        ASSERT_LE(list.rows.size(), want.size());
        if (list.all) {
          ASSERT_EQ(list.rows.size(), want.size());
        }
        want.resize(list.rows.size());
        ASSERT_EQ(list.rows, want);
      }
    };
    const auto add = [&](const Matrix<float>& x, Id first) {
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < x.rows(); ++i) {
        ids.push_back(first + 2 * i);
        rows[ids.back()].assign(x.row(i), x.row(i) + 8);
      }
      index.add(x.view(), ids);
    };
    add(clustered(40, 8, 5), 100000);
    check();
    EXPECT_TRUE(index.state()->known->lists()[0].all);
    add(base, 0);
    check();
    EXPECT_EQ(index.state()->known->lists()[0].rows.size(), 128u);
    std::vector<Id> gone;
    for (const auto& [id, row] : rows)
      if (random.below(3) == 0) gone.push_back(id);
    index.remove(gone);
    for (const Id id : gone) rows.erase(id);
    check();
    add(clustered(300, 8, 6), 200000);
    check();
    std::string file = std::filesystem::temp_directory_path() / "knear-codes-XXXXXX";
    close(mkstemp(file.data()));
    index.save(file);
    index = OpenIndex(Index::load(file));
    unlink(file.c_str());
    check();
    EXPECT_GE(index.state()->known->truth(10).queries.size(), 900u);
    EXPECT_TRUE(index.state()->known->truth(129).queries.empty());
  }
}

// As many neighbours as are kept, though each vector is a row and no neighbour of its own; with the
// vectors at hand any number.
TEST(Known, NeighboursAreEnough) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Index index = make_index("IVF8,PQ8", 8, metric);
    const Matrix<float> base = clustered(3000, 8, 1);
    index.train(base.view());
    index.add(base.view());
    EXPECT_GT(index.tune(100).back().promised_recall, 0.3);
    EXPECT_THROW(index.tune(300), InvalidArgument);
    EXPECT_GT(index.tune(300, {}, base.view(), {}).back().promised_recall, 0.3);
    EXPECT_GT(index.tune(300, base.view().rows(0, 500), base.view(), {}).back().promised_recall,
              0.3);
    // What came later is known too.
    index.add(clustered(200, 8, 2).view());
    EXPECT_GT(index.tune(250).back().promised_recall, 0.3);
  }
}

// What was seen of other rows is found out again, whatever their number.
TEST(RecallOfCodes, IsForgottenOnceManyRowsAreOthers) {
  for (const char* name : {"IVF8,PQ4", "IVF8,Flat", "PQ4"}) {
    SCOPED_TRACE(name);
    OpenIndex index(make_index(name, 8));
    const Matrix<float> base = clustered(2000, 8, 1);
    index.train(base.view());
    index.add(base.view());
    const auto replace = [&](Id begin, Id end) {
      std::vector<Id> ids(static_cast<std::size_t>(end - begin));
      std::iota(ids.begin(), ids.end(), begin);
      index.replace(ids, base.view().rows(begin, end));
    };
    const auto known = [&] { return index.state()->recall->all().size(); };
    index.tune(10);
    replace(0, 200);
    EXPECT_EQ(known(), 1u);
    std::string path = std::filesystem::temp_directory_path() / "knear-changed-XXXXXX";
    close(mkstemp(path.data()));
    index.save(path);
    index = OpenIndex(Index::load(path));
    unlink(path.c_str());
    EXPECT_EQ(known(), 1u);
    replace(200, 300);
    EXPECT_EQ(known(), 0u) << "300 taken out and 300 added are more than a quarter of 2,000";
    index.tune(10);
    replace(300, 400);
    EXPECT_EQ(known(), 1u);
  }
}

// What `exact` means where rows are in lists or codes.
TEST(RecallOfCodes, ExactIsAllThereIs) {
  const Matrix<float> base = clustered(2000, 8, 1), queries = clustered(20, 8, 2);
  const auto made = [&](const char* name) {
    Index index = make_index(name, 8);
    index.train(base.view());
    index.add(base.view());
    return index;
  };
  const MethodOptions exact{.kind = Method::exact};
  KnnReport report;
  const Index lists = made("IVF8,Flat"), codes = made("IVF8,PQ4"), plain = made("PQ4");
  const Neighbors truth = knn(queries.view(), base.view(), 5);
  const Neighbors got = lists.search(queries.view(), 5, {.method = exact}, &report);
  for (std::int64_t q = 0; q < 20; ++q)
    for (std::int64_t j = 0; j < 5; ++j) EXPECT_EQ(got.ids.row(q)[j], truth.ids.row(q)[j]);
  EXPECT_EQ(report.recall_argument, "exact");
  EXPECT_EQ(report.certified_queries, 20);
  for (const Index* index : {&codes, &plain}) {
    std::vector<Id> ids(2000);
    std::iota(ids.begin(), ids.end(), 0);
    const AnyMatrix decoded = index->reconstruct(ids);
    const Neighbors by_codes = index->search(queries.view(), 5, {.method = exact}, &report);
    EXPECT_EQ(report.recall_argument, "none");
    EXPECT_EQ(report.note, "exact with respect to the vectors that codes stand for");
    const Neighbors want = knn(queries.view(), decoded, 5);
    for (std::int64_t q = 0; q < 20; ++q)
      EXPECT_NEAR(by_codes.distances.row(q)[4], want.distances.row(q)[4], 1e-4);
  }
  const auto refused = [&](const Index& index, MethodOptions method) {
    method.kind = Method::exact;
    try {
      index.search(queries.view(), 5, {.method = method});
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refused(lists, {.recall = 0.9}), "method is exact, but recall is 0.9");
  EXPECT_EQ(refused(codes, {.probes = 3}), "method is exact, but probes is 3");
  EXPECT_EQ(refused(plain, {.recall = 0.5}), "method is exact, but recall is 0.5");
  EXPECT_EQ(refused(lists, {.recall = 1.0}), "no error");
  EXPECT_NE(refused(codes, {.recall = 1.0}).find("is the highest that is promised"),
            std::string::npos);
  EXPECT_NE(refused(made("IVF8,PQ4,RFlat"), {}).find("refines only what its codes find"),
            std::string::npos);
}

double recall_of(const Neighbors& got, const Neighbors& truth, std::int64_t k) {
  double sum = 0;
  for (std::int64_t q = 0; q < got.ids.rows(); ++q)
    for (std::int64_t j = 0; j < k; ++j)
      sum += std::count(got.ids.row(q), got.ids.row(q) + k, truth.ids.row(q)[j]) > 0;
  return sum / static_cast<double>(got.ids.rows() * k);
}

// Rows that come sorted: the first of them are easy to tell apart by their codes.
TEST(RecallOfCodes, IsThatOfAllRowsNotOfTheFirst) {
  Random random(5);
  Matrix<float> base(8000, 16), queries(1000, 16);
  const auto fill = [&](Matrix<float>& out) {
    for (std::int64_t i = 0; i < out.rows(); ++i)
      for (std::int64_t j = 0; j < 16; ++j) {
        const double x = random.uniform();
        out.row(i)[j] =
            static_cast<float>(2 * i >= out.rows() ? (j == 0 ? 100 * x : 0) : 5 * x - 50);
      }
  };
  fill(base), fill(queries);
  Index index = make_index("PQ4", 16);
  index.train(base.view());
  index.add(base.view());
  const Neighbors truth = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  const double highest = index.tune(10).back().promised_recall;
  const Neighbors got = index.search(queries.view(), 10, {.method = {.recall = highest}});
  EXPECT_GE(recall_of(got, truth, 10), highest);
}

// Queries that are not like the rows, and rows that the index has lost sight of.
TEST(RecallOfCodes, IsTunedByTheVectorsThatSomeoneKept) {
  const Matrix<float> base = clustered(9000, 24, 1);
  Matrix<float> far = clustered(2400, 24, 3);
  for (std::int64_t i = 0; i < 2400 * 24; ++i) far.data()[i] += i % 3 == 0 ? 0.2f : 0.0f;
  for (const char* name : {"IVF32,PQ8x4,RFlat", "PQ12", "PCA20,IVF32,PQ10,Refine(SQ8)"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 24);
    index.train(base.view());
    index.add(base.view());
    // Half of the rows go, of which it knew most neighbours.
    std::vector<Id> odd, even;
    for (Id id = 0; id < 9000; ++id) (id % 2 == 0 ? even : odd).push_back(id);
    index.remove(odd);
    const MatrixView<float> asked = far.view().rows(0, 1000), others = far.view().rows(1000, 2400);
    const std::vector<OperatingPoint> points = index.tune(10, asked, base.view(), {});
    ASSERT_FALSE(points.empty());
    const Neighbors truth = knn(others, base.view(), 10, {.filter = RowFilter::of_ids(even, 9000)});
    for (const double share : {0.7, 1.0}) {
      const double recall = share * points.back().promised_recall;
      KnnReport report;
      const Neighbors got = index.search(others, 10, {.method = {.recall = recall}}, &report);
      EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
      EXPECT_GE(recall_of(got, truth, 10), recall - 0.01) << recall;
    }
    // What is kept in a file, and by what it follows from then on.
    std::string path = std::filesystem::temp_directory_path() / "knear-tuned-XXXXXX";
    close(mkstemp(path.data()));
    index.save(path);
    Index loaded = Index::load(path);
    EXPECT_EQ(loaded.tune(10).back().promised_recall, points.back().promised_recall);
    std::filesystem::remove(path);
    // Under other ids, of rows in another order, by rows of the base.
    Index renamed = make_index(name, 24);
    renamed.train(base.view());
    std::vector<Id> ids(9000);
    for (std::size_t i = 0; i < 9000; ++i) ids[i] = 100000 - 7 * static_cast<Id>(i);
    renamed.add(base.view(), ids);
    Index nothing = make_index(name, 24);
    nothing.train(base.view());
    nothing.merge(renamed);
    const bool has_vectors = std::string(name).ends_with("RFlat");  // which tell what is nearest
    if (!has_vectors) {
      EXPECT_THROW(nothing.tune(10), InvalidArgument);
    }
    const auto own = nothing.tune(10, {}, base.view(), ids);
    KnnReport report;
    const double recall = own.back().promised_recall;
    nothing.search(clustered(500, 24, 9).view(), 10, {.method = {.recall = recall}}, &report);
    EXPECT_EQ(report.recall_argument, "calibrated") << report.note;

    const auto refused = [&](auto call) {
      try {
        call();
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string("no error");
    };
    EXPECT_EQ(refused([&] { nothing.tune(10, {}, base.view(), {}); }).substr(0, 9), "base has ");
    EXPECT_EQ(refused([&] { nothing.tune(10, {}, base.view().rows(0, 5), ids); }),
              "ids are 9000, base is 5 rows");
    if (!has_vectors) {
      EXPECT_NE(refused([&] { nothing.tune(10, asked); }).find("without base"), std::string::npos);
    }
    ids[3] = ids[4];
    EXPECT_NE(refused([&] { nothing.tune(10, {}, base.view(), ids); }), "no error");
  }
  IvfFlatIndex vectors(24, 8);
  vectors.train(base.view());
  vectors.add(base.view());
  EXPECT_THROW(vectors.tune(10, {}, base.view(), {}), InvalidArgument);
}

TEST(RecallOfCodes, IsMetOrRefusedWithTheHighest) {
  const Matrix<float> base = clustered(12000, 24, 1), queries = clustered(1500, 24, 2);
  const Neighbors truth = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  for (const char* name :
       {"IVF32,PQ12", "IVF32,PQ8x4,RFlat", "PQ12", "SQ8", "PCA20,IVF32,PQ10,Refine(SQ8)"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 24);
    index.train(base.view());
    index.add(base.view());
    const std::vector<OperatingPoint> points = index.tune(10);
    ASSERT_FALSE(points.empty());
    const double highest = points.back().promised_recall;
    for (const double share : {0.6, 0.9, 1.0}) {
      KnnReport report;
      const double asked = highest * share;
      const Neighbors got =
          index.search(queries.view(), 10, {.method = {.recall = asked}}, &report);
      EXPECT_GE(recall_of(got, truth, 10), asked) << asked;
      EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.promised_recall, asked);
      EXPECT_GE(report.expected_recall, asked);
      // One by one it is the same answer.
      const Neighbors one =
          index.search(queries.view().rows(7, 8), 10, {.method = {.recall = asked}});
      for (std::int64_t j = 0; j < 10; ++j) EXPECT_EQ(one.ids.row(0)[j], got.ids.row(7)[j]);
    }
    if (highest < 0.999) {
      try {
        index.search(queries.view(), 10, {.method = {.recall = 0.9999}});
        ADD_FAILURE();
      } catch (const InvalidArgument& e) {
        EXPECT_NE(std::string(e.what()).find("is the highest that is promised"), std::string::npos)
            << e.what();
      }
    }
    // Of a filter and of queries from elsewhere nothing is promised, and that is said.
    KnnReport report;
    index.search(
        queries.view().rows(0, 900), 10,
        {.filter = IdFilter::of_ids(std::vector<Id>{1, 2, 3}), .method = {.recall = highest / 2}},
        &report);
    EXPECT_EQ(report.recall_argument, "none");
    EXPECT_NE(report.note.find("filter"), std::string::npos);
    Matrix<float> far = clustered(200, 24, 3);
    for (std::int64_t i = 0; i < 200 * 24; ++i) far.data()[i] += 3;
    index.search(far.view(), 10, {.method = {.recall = highest / 2}}, &report);
    EXPECT_EQ(report.recall_argument, "none");
    EXPECT_NE(report.note.find("unlike"), std::string::npos);
    // What was merged is not known, unless there are vectors.
    Index other = make_index(name, 24);
    other.train(base.view());
    other.add(base.view().rows(0, 6000));
    index.merge(other, MergeIds::shifted);
    if (std::string(name).ends_with("RFlat")) {
      const Neighbors got = index.search(queries.view(), 10, {.method = {.recall = 0.9}}, &report);
      EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
    } else {
      EXPECT_THROW(index.search(queries.view(), 10, {.method = {.recall = 0.1}}), InvalidArgument);
    }
  }
}

// Vectors beside codes tell what is nearest to any query.
TEST(RecallOfCodes, IsCalibratedByTheBatchWhereVectorsAreKept) {
  const Matrix<float> base = clustered(9000, 24, 1), queries = clustered(1500, 24, 2);
  Matrix<float> far = clustered(1500, 24, 3);
  for (std::int64_t i = 0; i < 1500 * 24; ++i) far.data()[i] += i % 3 == 0 ? 0.3f : 0.0f;
  std::vector<Id> third;
  for (Id id = 0; id < 9000; id += 3) third.push_back(id);
  for (const char* name : {"IVF32,PQ8x4,RFlat", "PQ8x4,RFlat", "PCA20,IVF32,PQ10,RFlat"})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      if (metric != Metric::l2 && std::string(name) != "IVF32,PQ8x4,RFlat") continue;
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(metric)));
      Index index = make_index(name, 24, metric);
      index.train(base.view());
      index.add(base.view());
      index.remove(std::vector<Id>{5, 50, 500});
      std::vector<Id> left;
      for (Id id = 0; id < 9000; ++id)
        if (id != 5 && id != 50 && id != 500) left.push_back(id);
      const Neighbors truth = knn(far.view(), base.view(), 10,
                                  {.metric = metric, .filter = RowFilter::of_ids(left, 9000)});
      const double asked = 0.9;
      KnnReport report;
      Neighbors got = index.search(far.view(), 10, {.method = {.recall = asked}}, &report);
      EXPECT_GE(recall_of(got, truth, 10), asked);
      EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.promised_recall, asked);
      EXPECT_NE(report.note.find("calibrated on 500 queries of this batch; tune()"),
                std::string::npos)
          << report.note;
      // Fewer are told what it takes.
      const MatrixView<float> few = far.view().rows(0, 300);
      index.search(few, 10, {.method = {.recall = asked}}, &report);
      EXPECT_EQ(report.recall_argument, "none");
      EXPECT_EQ(report.promised_recall, 0);
      EXPECT_NE(report.note.find("a batch of 1000 queries is calibrated by itself"),
                std::string::npos)
          << report.note;
      // So is a batch with a filter, by the rows that it leaves.
      std::vector<Id> allowed = third;
      std::erase_if(allowed,
                    [&](Id id) { return !std::binary_search(left.begin(), left.end(), id); });
      const auto filter = IdFilter::of_ids(allowed);
      got = index.search(queries.view(), 10, {.filter = filter, .method = {.recall = asked}},
                         &report);
      EXPECT_GE(recall_of(got,
                          knn(queries.view(), base.view(), 10,
                              {.metric = metric, .filter = RowFilter::of_ids(allowed, 9000)}),
                          10),
                asked);
      EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
      EXPECT_NE(report.note.find("filter"), std::string::npos) << report.note;
      // A filter of fewer rows than are wanted.
      got = index.search(
          queries.view(), 10,
          {.filter = IdFilter::of_ids(std::vector<Id>{1, 2}), .method = {.recall = 0.5}}, &report);
      EXPECT_EQ(got.ids.row(0)[2], no_id);
      // Tuned by such queries, few of them are promised it too.
      const auto points = index.tune(10, few);
      ASSERT_GE(points.back().promised_recall, asked);
      got = index.search(far.view().rows(300, 1500), 10, {.method = {.recall = asked}}, &report);
      EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.note, "");
      double found = 0;
      for (std::int64_t q = 0; q < 1200; ++q)
        for (std::int64_t j = 0; j < 10; ++j)
          found += std::count(got.ids.row(q), got.ids.row(q) + 10, truth.ids.row(q + 300)[j]) > 0;
      EXPECT_GE(found / 12000, asked - 0.005);
    }
}

// What is not known to be reached among all rows may be among those that a filter leaves.
TEST(RecallOfCodes, IsRefusedByTheRowsThatAreSearched) {
  const Matrix<float> base = clustered(6000, 24, 1), queries = clustered(1000, 24, 2);
  Index index = make_index("IVF32,PQ1x4,RFlat", 24);
  index.train(base.view());
  index.add(base.view());
  const double highest = index.tune(10).back().promised_recall;
  ASSERT_LT(highest, 0.96);
  const MethodOptions method{.recall = 0.98};
  EXPECT_THROW(index.search(queries.view(), 10, {.method = method}), InvalidArgument);
  const auto filter = IdFilter::of_ids(std::vector<Id>{1, 2, 77, 1000});
  KnnReport report;
  const Neighbors got =
      index.search(queries.view(), 4, {.filter = filter, .method = method}, &report);
  EXPECT_EQ(report.recall_argument, "calibrated") << report.note;
  EXPECT_GE(report.expected_recall, 0.98);
  double found = 0;
  for (std::int64_t i = 0; i < 4000; ++i) found += got.ids.data()[i] != no_id;
  EXPECT_GE(found / 4000, 0.97);
  EXPECT_THROW(index.search(queries.view().rows(0, 10), 4, {.filter = filter, .method = method}),
               InvalidArgument);
}

TEST(RefusedSearches, OfCodesSayWhy) {
  const Matrix<float> base = clustered(600, 8, 1);
  const auto refusal = [&](const char* name, MethodOptions method) -> std::string {
    Index index = make_index(name, 8);
    index.train(base.view());
    index.add(base.view());
    try {
      index.search(base.view().rows(0, 2), 3, {.method = method});
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "found";
  };
  EXPECT_EQ(refusal("PQ4", {}), "found");
  EXPECT_EQ(refusal("PQ4", {.probes = 1}), "probes is 1, but there are no inverted lists");
  EXPECT_EQ(refusal("PQ4", {.widen = true}), "widen is on, but there are no inverted lists");
  EXPECT_EQ(refusal("IVF4,PQ4", {}),
            "neither probes nor recall is given, and a search of 4 inverted lists needs one of "
            "them");
  EXPECT_EQ(refusal("IVF4,PQ4", {.probes = 5}),
            "probes must be between 1 and the 4 lists, but is 5");
  EXPECT_EQ(refusal("IVF4,PQ4", {.recall = 0.5, .probes = 2}),
            "probes is 2 and recall is 0.5, but only one of them can be asked for");
  EXPECT_EQ(refusal("IVF4,PQ4", {.probes = 2, .certify = true}),
            "certify is on, but codes, as index IVF4,PQ4 has them, prove nothing");
  EXPECT_EQ(refusal("IVF4,PQ4", {.probes = 2, .refine_factor = 3}),
            "refine_factor is 3, but index IVF4,PQ4 keeps no vectors to refine by");
  EXPECT_EQ(refusal("PQ4,RFlat", {.refine_factor = -1}),
            "refine_factor must be between 1 and 1048576, but is -1");
  EXPECT_EQ(refusal("PQ4,RFlat", {.recall = 0.5, .refine_factor = 2}),
            "refine_factor is 2 and recall is 0.5, but only one can be asked for");
  EXPECT_EQ(refusal("PQ4,RFlat", {.recall = 1.5}), "recall must be in (0, 1], but is 1.5");
  EXPECT_EQ(refusal("PQ4", {.kind = Method::threshold_heap}),
            "method is threshold-heap, but a search of codes has only auto and exact");
  Index index = make_index("IVF4,PQ4", 8);
  EXPECT_THROW(index.add(base.view()), InvalidArgument);
  EXPECT_THROW(index.search(base.view(), 3, {.method = {.probes = 1}}), InvalidArgument);
  EXPECT_THROW(index.train(base.view().rows(0, 255)), InvalidArgument);
  Matrix<float> bad = clustered(600, 8, 1);
  bad.row(17)[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(index.train(bad.view()), InvalidArgument);
  EXPECT_FALSE(index.is_trained());
  EXPECT_THROW(IvfPqIndex(8, 4, 3), InvalidArgument);
  EXPECT_THROW(IvfPqIndex(8, 0, 4), InvalidArgument);
  EXPECT_THROW(IvfPqIndex(8, 4, 4, Metric::l2, {.bits = 6}), InvalidArgument);
  EXPECT_THROW(PqIndex(8, 9), InvalidArgument);
}

// What the first rows of a list say of the k-th is now and then wrong.
TEST(Codes, FewNeighboursAreTheFirstOfMany) {
  const Matrix<float> base = clustered(30000, 24, 1), queries = clustered(1500, 24, 2);
  for (const char* name : {"IVF24,PQ8x4", "IVF24,PQ6", "PQ8x4"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 24);
    index.train(base.view());
    index.add(base.view());
    SearchOptions options;
    if (index.lists() > 0) options.method.probes = 8;
    const Neighbors all = index.search(queries.view(), 2000, options);
    for (const std::int64_t k : {1, 3, 10, 40, 100}) {
      const Neighbors some = index.search(queries.view(), k, options);
      for (std::int64_t q = 0; q < queries.rows(); ++q)
        for (std::int64_t j = 0; j < k; ++j)
          ASSERT_EQ(some.ids.row(q)[j], all.ids.row(q)[j]) << "query " << q << " k " << k;
    }
  }
}

TEST(Codes, NumbersBeyondFloatsAreFoundOrRefused) {
  Matrix<float> base = clustered(600, 8, 1);
  std::fill_n(base.row(3), 8, 1e38f);
  Index far = make_index("SQ8", 8);
  far.train(base.view());
  far.add(base.view());
  // Squares overflow: every row is infinitely far, and is found all the same, by its id.
  const Neighbors near = far.search(base.view().rows(3, 4), 600);
  std::vector<Id> ids(near.ids.row(0), near.ids.row(0) + 600), all(600);
  EXPECT_TRUE(std::is_sorted(near.distances.row(0), near.distances.row(0) + 600));
  std::sort(ids.begin(), ids.end());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(ids, all);
  const Neighbors few = far.search(base.view().rows(0, 1), 5);
  EXPECT_NE(few.ids.row(0)[4], no_id);
  // A scalar that is no float would make a file that nobody reads.
  for (std::int64_t i = 0; i < 9; ++i)
    std::fill_n(base.row(100 + i), 8, static_cast<float>(i - 4) * 2e37f);
  Index lists = make_index("IVF2,SQ8", 8);
  lists.train(base.view());
  try {
    lists.add(base.view());
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("whose squared length is beyond float32"),
              std::string::npos)
        << e.what();
  }
  EXPECT_EQ(lists.size(), 0);
}

TEST(Codes, OfNoQueriesAreNoAnswers) {
  for (const char* name : {"PCA4,Flat", "PCA4,IVF4,PQ4", "PQ4", "IVF4,SQ8,RFlat"}) {
    Index index = make_index(name, 8);
    index.train(clustered(600, 8, 1).view());
    index.add(clustered(600, 8, 1).view());
    SearchOptions options;
    if (index.lists() > 0) options.method.probes = 2;
    const Neighbors none = index.search(Matrix<float>(0, 8).view(), 3, options);
    EXPECT_EQ(none.ids.rows(), 0) << name;
    EXPECT_EQ(index.range_search(Matrix<float>(0, 8).view(), 3, options).ids.size(), 0u) << name;
  }
}

TEST(Codes, AreFoundInMoreListsWhereTheFirstHaveTooFew) {
  const Matrix<float> base = clustered(900, 8, 1);
  Index index = make_index("IVF12,PQ4", 8);
  index.train(base.view());
  index.add(base.view());
  const IdFilter few = IdFilter::of_ids(std::vector<Id>{5, 100, 200, 300, 400, 500});
  KnnReport report;
  SearchOptions options{.filter = few, .method = {.probes = 1}};
  index.search(base.view().rows(0, 40), 6, options, &report);
  EXPECT_GT(report.short_queries, 0);
  options.method.widen = true;
  const Neighbors got = index.search(base.view().rows(0, 40), 6, options, &report);
  EXPECT_EQ(report.short_queries, 0);
  options.method = {.probes = 12};
  const Neighbors want = index.search(base.view().rows(0, 40), 6, options);
  for (std::int64_t i = 0; i < 40 * 6; ++i) EXPECT_EQ(got.ids.data()[i], want.ids.data()[i]);
}

// What an index does to vectors first is what its transform says.
class Transformed : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Transformed, IsTheIndexOfTransformedVectors) {
  const auto& [outer, inner] = GetParam();
  const Matrix<float> base = clustered(900, 16, 1), queries = clustered(30, 16, 2);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    SCOPED_TRACE(name_of(metric));
    OpenIndex index(make_index(outer, 16, metric));
    EXPECT_THROW(index.add(base.view()), InvalidArgument);
    index.train(base.view());
    index.add(base.view());
    const Transform transform = *index.state()->transform;
    const Matrix<float> y = transform.apply(base.view()), asked = transform.apply(queries.view());
    Index plain = make_index(inner, y.cols(), metric);
    plain.train(y.view());
    plain.add(y.view());
    SearchOptions options;
    if (plain.lists() > 0) options.method.probes = 3;
    const auto expect_same = [&](const Index& a) {
      const Neighbors got = a.search(queries.view(), 12, options),
                      want = plain.search(asked.view(), 12, options);
      for (std::int64_t i = 0; i < 30 * 12; ++i) {
        ASSERT_EQ(got.ids.data()[i], want.ids.data()[i]) << i;
        ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]) << i;
      }
    };
    expect_same(index);
    const double radius = plain.search(asked.view(), 12, options).distances.row(4)[5];
    EXPECT_EQ(index.range_search(queries.view(), radius, options).ids,
              plain.range_search(asked.view(), radius, options).ids);
    std::string file = std::filesystem::temp_directory_path() / "knear-codes-XXXXXX";
    close(mkstemp(file.data()));
    index.save(file);
    const Index loaded = Index::load(file);
    unlink(file.c_str());
    EXPECT_EQ(loaded.description(), index.description());
    EXPECT_EQ(loaded.dim(), 16);
    expect_same(loaded);
    // What comes back is the inverse of what is kept.
    const std::vector<Id> ids{3, 899, 0};
    const AnyMatrix kept = plain.reconstruct(ids);
    AnyMatrix back = index.reconstruct(ids);
    const Matrix<float> want = transform.inverse(kept);
    ASSERT_EQ(back.cols(), 16);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 16; ++j)
        ASSERT_EQ(static_cast<const float*>(back.row(i))[j], want.row(i)[j]);
    // Trained apart, it cannot be merged.
    OpenIndex other(make_index(outer, 16, metric));
    other.train(clustered(900, 16, 77).view(), {.seed = 5});
    other.add(base.view());
    if (outer != "L2norm,Flat") {
      EXPECT_THROW(index.merge(other, MergeIds::shifted), InvalidArgument);
    }
    EXPECT_EQ(index.size(), 900);
  }
}
INSTANTIATE_TEST_SUITE_P(Strings, Transformed,
                         testing::Values(std::pair("PCA8,Flat", "Flat"),
                                         std::pair("L2norm,Flat", "Flat"),
                                         std::pair("PCAW8,IVF16,Flat", "IVF16,Flat"),
                                         std::pair("OPQ4_8,IVF16,PQ4", "IVF16,PQ4"),
                                         std::pair("RR24,PQ6x4", "PQ6x4"),
                                         std::pair("PCAR12,L2norm,SQ8", "SQ8")));

// Rows rounded to halves are searched exactly.
TEST(Halves, AreTheFlatIndexOfRoundedVectors) {
  const Matrix<float> base = clustered(800, 16, 1), queries = clustered(20, 16, 2);
  for (const auto& [name, type] :
       {std::pair("SQfp16", ElementType::f16), std::pair("SQbf16", ElementType::bf16)}) {
    Index index = make_index(name, 16);
    index.add(base.view());
    EXPECT_EQ(index.element_type(), type);
    Matrix<float> rounded(800, 16);
    for (std::int64_t i = 0; i < 800 * 16; ++i)
      rounded.data()[i] =
          static_cast<float>(type == ElementType::f16 ? to_double(to_f16(base.data()[i]))
                                                      : to_double(to_bf16(base.data()[i])));
    const Neighbors got = index.search(queries.view(), 7),
                    want = reference_knn(queries.view(), rounded.view(), 7, Metric::l2);
    for (std::int64_t i = 0; i < 20 * 7; ++i) {
      ASSERT_EQ(got.ids.data()[i], want.ids.data()[i]);
      ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]);
    }
    Matrix<float> far(2, 16);
    far.row(1)[3] = 1e6f;
    if (type == ElementType::f16) {
      EXPECT_THROW(index.add(far.view()), InvalidArgument);
    }
    EXPECT_EQ(index.size(), 800);
    Index lists = make_index(std::string("IVF8,") + name, 16);
    lists.train(base.view());
    lists.add(base.view());
    const Neighbors all = lists.search(queries.view(), 7, {.method = {.recall = 1}});
    for (std::int64_t i = 0; i < 20 * 7; ++i) ASSERT_EQ(all.ids.data()[i], want.ids.data()[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CodedIndexes, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace knear
