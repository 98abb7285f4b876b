// tests/index/learned_index_test.cpp -- indexes that learn what becomes of vectors, lists, codes
// and transforms, against a plain model (index_model.hpp): through random histories of changes, at
// every instruction set.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "tests/index/index_model.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using detail::CodeKind;
using detail::CodeShape;
using detail::IndexShape;
using detail::RefineShape;

class Isas {
 public:
  ~Isas() { unsetenv("KNEAR_ISA"); }
  static void use(Isa isa) { setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1); }
};

struct Case {
  std::string name;
  IndexShape shape;
  float offset = 0;  // of all vectors from the origin
  ElementType type = ElementType::f32;
  int steps = 120;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// A random history of an index and of its model.
class History {
 public:
  explicit History(const Case& of)
      : steps_(test::small() ? 12 : of.steps),
        offset_(of.offset),
        type_(of.type),
        shape_(of.shape),
        index_(trained(of.shape)),
        model_(index_) {}

  void run() {
    // So many that lists are packed; of four lists so many that a list takes several blocks.
    add(shape_.lists == 0 ? 1500 : shape_.lists == 4 ? 6000 : 900, false);
    for (const Isa isa : test::levels())
      for (int times = 0; times < (test::small() ? 2 : shape_.lists == 4 ? 12 : 4); ++times)
        check(isa);
    for (int step = 0; step < steps_ && !testing::Test::HasFatalFailure(); ++step) {
      const auto op = random_.below(9);
      if (op < 3 || model_.rows.empty()) {
        add(1 + static_cast<std::int64_t>(random_.below(op == 0 ? 300 : 12)),
            random_.below(2) == 0);
      } else if (op == 3) {
        remove(held(random_.below(4) == 0 ? model_.rows.size() * 3 / 4 : 20));
      } else if (op == 4) {
        const auto ids = held(15);
        const AnyMatrix x = vectors(std::ssize(ids));
        index_.replace(ids, x);
        for (std::size_t i = 0; i < ids.size(); ++i)
          model_.put(ids[i], x, static_cast<std::int64_t>(i));
      } else if (op == 5) {
        if (random_.below(2) == 0)
          index_.compact();
        else
          index_.optimize();
      } else if (op == 6) {
        reload_or_merge();
      } else {
        const auto isas = test::levels();
        check(isas[random_.below(isas.size())]);
      }
      ASSERT_EQ(index_.size(), std::ssize(model_.rows));
    }
    std::vector<Id> ids;
    for (const auto& [id, row] : model_.rows) ids.push_back(id);
    EXPECT_EQ(index_.ids(), ids);
  }

 private:
  AnyMatrix vectors(std::int64_t n) {
    const Matrix<float> from = clustered(n, shape_.dim, random_.next(), {.offset = offset_});
    return typed(from);
  }
  AnyMatrix typed(const Matrix<float>& from) const {
    AnyMatrix out(type_, from.rows(), from.cols());
    for (std::int64_t i = 0; i < from.rows(); ++i)
      for (std::int64_t j = 0; j < from.cols(); ++j) {
        const float x = from.row(i)[j];
        void* const row = out.row(i);
        switch (type_) {
          case ElementType::f16:
            static_cast<f16*>(row)[j] = to_f16(x);
            break;
          case ElementType::bf16:
            static_cast<bf16*>(row)[j] = to_bf16(x);
            break;
          case ElementType::u8:  // coordinates are within 0.8
            static_cast<std::uint8_t*>(row)[j] = static_cast<std::uint8_t>(128 + 150 * x);
            break;
          case ElementType::i8:
            static_cast<std::int8_t*>(row)[j] = static_cast<std::int8_t>(150 * x);
            break;
          case ElementType::f32:
            static_cast<float*>(row)[j] = x;
            break;
          case ElementType::f64:  // no float32
            static_cast<double*>(row)[j] = x + 0x1p-40;
        }
      }
    return out;
  }
  OpenIndex trained(const IndexShape& shape) const {
    OpenIndex out(shape);
    // Few: each of them that an index of codes keeps to know recall by is compared with all rows to
    // come, which `Known` below looks at.
    const std::int64_t rows = std::max<std::int64_t>(300, shape.lists);
    out.train(typed(clustered(rows, shape.dim, 1, {.offset = offset_})),
              {.iterations = shape.lists > 0 ? 4 : TrainOptions().iterations});
    return out;
  }
  std::vector<Id> held(std::size_t count) {
    return drawn_ids(model_.rows, static_cast<std::int64_t>(count), random_);
  }

  void add(std::int64_t n, bool own) {
    AnyMatrix x = vectors(n);
    const auto row_bytes = static_cast<std::size_t>(x.cols() * size_of(type_));
    // Equal rows, whose ids alone tell them apart; and a zero row.
    for (std::int64_t i = 1; i < n; i += 3) std::memcpy(x.row(i), x.row(0), row_bytes);
    if (n > 5) std::memset(x.row(4), 0, row_bytes);
    std::vector<Id> ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back(own ? next_ + 5 * (n - i) : next_ + i);
    if (own)
      index_.add(x, ids);
    else
      index_.add(x);
    for (std::int64_t i = 0; i < n; ++i) {
      model_.put(ids[static_cast<std::size_t>(i)], x, i);
      next_ = std::max(next_, ids[static_cast<std::size_t>(i)] + 1);
    }
  }
  void remove(const std::vector<Id>& ids) {
    index_.remove(ids);
    for (const Id id : ids) model_.rows.erase(id);
  }
  // The history continues with the saved index, or with its rows twice.
  void reload_or_merge() {
    std::string file = std::filesystem::temp_directory_path() / "knear-history-XXXXXX";
    close(mkstemp(file.data()));
    index_.save(file);
    OpenIndex other(Index::load(file));
    EXPECT_EQ(other.description(), index_.description());
    if (random_.below(2) == 0) {
      index_ = std::move(other);
    } else {  // a copy that is merged, under higher ids
      const std::int64_t before = index_.size();
      index_.merge(other, MergeIds::shifted);
      std::map<Id, std::shared_ptr<const IndexModel::Row>> more;
      for (const auto& [id, row] : model_.rows) more[id + next_] = row;
      model_.rows.merge(more);
      next_ = index_.next_id();
      EXPECT_EQ(index_.size(), 2 * before);
      remove(held(model_.rows.size() / 2));
    }
    unlink(file.c_str());
  }

  void check(Isa isa) {
    Isas::use(isa);
    const auto n = std::ssize(model_.rows);
    Matrix<float> plain = clustered(9, shape_.dim, random_.next(), {.offset = offset_});
    std::fill_n(plain.row(3), shape_.dim, 0.0f);
    AnyMatrix queries = typed(plain);
    if (type_ != ElementType::f32 && random_.below(2) == 0) {  // of another type than the rows
      AnyMatrix floats(ElementType::f32, 9, shape_.dim);
      for (std::int64_t q = 0; q < 9; ++q) {
        const std::vector<double> from = doubles_of(queries.view().rows(q, q + 1));
        for (std::size_t j = 0; j < from.size(); ++j)
          static_cast<float*>(floats.row(q))[j] = static_cast<float>(from[j]) + 0.25f;
      }
      queries = std::move(floats);
    }
    // The vector of a row, if it is known.
    if (const auto& first = model_.rows.begin()->second; shape_.refine || shape_.transforms.empty())
      if (const AnyMatrixView row = shape_.refine ? first->refining : first->kept;
          row.type() == queries.type() && row.cols() == shape_.dim)
        detail::copy_exactly(row, row.type(), queries.row(5));
    const std::int64_t k = std::vector<std::int64_t>{1, 10, 80, n + 2}[random_.below(4)];
    SearchOptions options{.threads = 1 + static_cast<int>(random_.below(3))};
    if (random_.below(3) == 0) options.memory = 64 << 20;
    IndexModel::How how{.probes = 0, .factor = shape_.refine ? 4 : 0};
    if (shape_.lists > 0) {
      how.probes =
          1 + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(shape_.lists)));
      if (!shape_.codes && random_.below(4) == 0)
        options.method.recall = 1, how.probes = shape_.lists;
      else
        options.method.probes = how.probes;
    } else if (!shape_.codes) {
      constexpr FirstPass passes[] = {FirstPass::automatic, FirstPass::int8, FirstPass::fp32,
                                      FirstPass::direct};
      options.first_pass = passes[random_.below(std::size(passes))];
    }
    if (shape_.refine && random_.below(2) == 0) options.method.codes.refine_factor = how.factor = 2;
    std::vector<Id> listed;
    const bool filtered = random_.below(3) == 0;
    if (filtered) {
      const std::uint64_t most = static_cast<std::uint64_t>(random_.below(2) == 0 ? n : n / 30);
      listed = held(random_.below(most + 1));
      options.filter = IdFilter::of_ids(listed);
      std::sort(listed.begin(), listed.end());
      // Or as bits, some of them for ids that are gone.
      if (random_.below(2) == 0) {
        std::vector<std::uint8_t> bits(static_cast<std::size_t>((next_ + 7) / 8));
        const auto set = [&](Id id) { bits[static_cast<std::size_t>(id / 8)] |= 1 << id % 8; };
        for (const Id id : listed) set(id);
        for (Id id = 0; id < next_; id += 7)
          if (!model_.rows.contains(id)) set(id);
        options.filter = IdFilter::of_bits(bits, next_);
      }
    }
    const auto allowed = [&](Id id) {
      return !filtered || std::binary_search(listed.begin(), listed.end(), id);
    };
    // One query, whose rows threads share, or all.
    const std::int64_t first = random_.below(2) == 0 ? 5 : 0,
                       count = first == 5 ? 1 : queries.rows();
    KnnReport report;
    const Neighbors got =
        index_.search(queries.view().rows(first, first + count), k, options, &report);
    EXPECT_EQ(report.rows, n);
    // What is not reported may be found in another way.
    expect_equal(index_.search(queries.view().rows(first, first + count), k, options), got);
    if (shape_.codes || shape_.alters_vectors()) {
      EXPECT_EQ(report.promise.recall_argument, "none");
      EXPECT_EQ(report.promise.promised_recall, 0);
      EXPECT_EQ(report.promise.certified_queries, 0);
    }
    const auto distance = [&](double key) {
      return static_cast<float>(shape_.metric == Metric::ip ? -key : key);
    };
    for (std::int64_t q = 0; q < count; ++q) {
      const std::int64_t sorted = shape_.refine ? k : n;  // a radius may reach all
      const auto want = model_.search(queries, first + q, sorted, how, allowed);
      for (std::int64_t j = 0; j < k; ++j) {
        const bool there = j < std::ssize(want);
        const auto at = static_cast<std::size_t>(j);
        ASSERT_EQ(got.ids.row(q)[j], there ? want[at].second : no_id)
            << name_of(isa) << " query " << q << " place " << j << " of " << k << " probes "
            << how.probes << " distance " << got.distances.row(q)[j] << " "
            << (there ? want[at].first : 0);
        if (there) {
          ASSERT_EQ(got.distances.row(q)[j], distance(want[at].first)) << name_of(isa);
        }
      }
      // Within the distance of some row; where codes are refined, all that are probed are measured.
      if (want.empty()) continue;
      const auto all = shape_.refine ? model_.search(queries, first + q, n,
                                                     {.probes = how.probes, .factor = 1}, allowed)
                                     : want;
      const double radius = distance(all[std::min<std::size_t>(all.size() - 1, 6)].first);
      SearchOptions within = options;
      within.method.codes.refine_factor = 0;
      const RangeNeighbors near =
          index_.range_search(queries.view().rows(first + q, first + q + 1), radius, within);
      std::vector<Id> expected;
      for (const auto& [key, id] : all)
        if (key <= order_key(shape_.metric, radius)) expected.push_back(id);
      EXPECT_EQ(near.ids, expected);
    }
    const std::vector<Id> some = held(3);
    const AnyMatrix found = index_.reconstruct(some);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      EXPECT_EQ(doubles_of(found.view().rows(row, row + 1)),
                model_.reconstructed(*model_.rows.at(some[i])));
    }
  }

  Random random_{11};
  const int steps_;
  const float offset_;
  const ElementType type_;
  const IndexShape shape_;
  OpenIndex index_;
  IndexModel model_;
  Id next_ = 0;
};

class LearnedIndexes : public testing::TestWithParam<Case> {};

TEST_P(LearnedIndexes, HistoriesEqualAPlainModelAtEveryInstructionSet) {
  const Isas restore;
  History(GetParam()).run();
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
    out.push_back({of + "_ivf_pq", shape(16, {CodeKind::product, 4, 8, true})});
    out.push_back(
        {of + "_ivf_pq_refined", shape(16, {CodeKind::product, 4, 8, true}, RefineShape{})});
    out.push_back({of + "_ivf_pq_whole", shape(16, {CodeKind::product, 3, 8, false})});
    out.push_back({of + "_ivf_pq4", shape(7, {CodeKind::product, 3, 4, true})});
    out.push_back({of + "_pq", shape(0, {CodeKind::product, 6, 8, false})});
    out.push_back(
        {of + "_pq4_refined", shape(0, {CodeKind::product, 12, 4, false}, RefineShape{})});
    out.push_back(
        {of + "_refined_by_sq8", shape(16, {CodeKind::product, 3, 8, true},
                                       RefineShape{.codes = CodeShape{.residual = false}})});
    out.push_back({of + "_refined_by_halves", shape(9, {CodeKind::product, 2, 4, true},
                                                    RefineShape{.rounded = ElementType::f16})});
    out.push_back({of + "_ivf_sq8", shape(5, {CodeKind::scalar, 0, 8, true})});
    out.push_back({of + "_sq4", shape(0, {CodeKind::scalar, 0, 4, false})});
    out.push_back({of + "_many_lists", shape(400, {CodeKind::product, 2, 8, true})});
    out.push_back({of + "_long_lists", shape(4, {CodeKind::product, 4, 4, true})});
    out.push_back({of + "_far_away", shape(16, {CodeKind::product, 4, 8, true}), 300.0f});
    // By their names: halves, transforms, indexes over the centroids, and rows of other types.
    const auto named = [&](const std::string& factory, ElementType type = ElementType::f32) {
      std::string name = of + "_" + factory;
      if (type != ElementType::f32) name += "_of_" + std::string(name_of(type));
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      out.push_back({name, OpenIndex(make_index(factory, 12, metric)).shape(), 0, type, 80});
    };
    for (const char* factory : {"SQ8",
                                "IVF5,SQ4",
                                "IVF6,SQ8,Refine(SQfp16)",
                                "SQfp16",
                                "SQbf16",
                                "IVF7,SQfp16",
                                "IVF9,SQbf16",
                                "IVF7_SOAR,Flat",
                                "IVF2_SOAR,Flat",
                                "IVF290_SOAR,Flat",
                                "IVF64_SOAR(IVF8,Flat),SQfp16",
                                "PCA8,IVF9_SOAR,Flat",
                                "L2norm,Flat",
                                "L2norm,IVF8,Flat",
                                "PCAW6,Flat",
                                "PCA8,IVF8,Flat",
                                "PCA8,SQfp16",
                                "RR9,IVF7,SQbf16",
                                "OPQ4_8,IVF8,PQ4",
                                "OPQ4,IVF8,PQ4x4",
                                "RR16,PQ4x4",
                                "PCAR10,L2norm,SQ8",
                                "IVF64(IVF8,Flat),PQ4",
                                "IVF64(IVF8,Flat),Flat",
                                "PCA8,IVF60(SQfp16),SQ8,Refine(SQ8)",
                                "PCA8,IVF8,PQ4,Refine(SQ8)",
                                "OPQ4,PQ4x4,Refine(PQ6)",
                                "RR8,IVF5,SQ4,Refine(SQbf16)",
                                "L2norm,IVF6,PQ3,RFlat"})
      named(factory);
    for (const ElementType type :
         {ElementType::u8, ElementType::i8, ElementType::f16, ElementType::bf16, ElementType::f64})
      for (const char* factory : {"IVF8,PQ3,RFlat", "PCA8,PQ4x4,RFlat"}) named(factory, type);
    named("PCA8,IVF7,Flat", ElementType::u8);
    named("IVF7,SQfp16", ElementType::f64);
    for (const ElementType type : {ElementType::u8, ElementType::i8, ElementType::f64})
      named("IVF7_SOAR,Flat", type);
    named("PQ4,Refine(SQbf16)", ElementType::i8);
    named("IVF6,PQ4,Refine(SQ8)", ElementType::bf16);
  }
  if (!test::small()) return out;
  std::vector<Case> some;  // another fifth of each metric's
  for (std::size_t i = 0; i < out.size(); i += 5) some.push_back(out[i]);
  return some;
}
INSTANTIATE_TEST_SUITE_P(Shapes, LearnedIndexes, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

// An index of eight principal coordinates was said to be exact, and its searches for a recall to
// reach it, where a quarter of the nearest vectors was found.
TEST(AlteredVectors, NothingIsPromisedOrProvenOfThoseThatWereAdded) {
  const Matrix<float> base = clustered(20000, 24, 1);
  const AnyMatrixView queries = base.view().rows(0, 200);
  for (const char* name : {"PCA8,Flat", "PCA8,IVF16,Flat", "RR24,Flat", "PCAW24,IVF16,SQfp16",
                           "L2norm,IVF16,Flat", "SQbf16", "IVF16,SQfp16", "PCA8,Graph8"})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(metric)));
      Index index = make_index(name, 24, metric);
      index.train(base.view());
      index.add(base.view());
      const bool lists = index.lists() > 0;
      for (const double recall : {0.5, 1.0}) {
        KnnReport report;
        index.search(queries, 10, {.method = {.recall = recall}}, &report);
        EXPECT_EQ(report.promise.recall_argument, "none");
        EXPECT_EQ(report.promise.promised_recall, 0);
        EXPECT_EQ(report.promise.certified_queries, 0);
        EXPECT_TRUE(report.promise.uncertified.empty());
        EXPECT_NE(report.note.find("with respect to the vectors as index " + index.description() +
                                   " keeps them"),
                  std::string::npos)
            << report.note;
      }
      KnnReport report;
      index.range_search(
          queries, 1, {.method = {.recall = lists ? std::optional(1.0) : std::nullopt}}, &report);
      EXPECT_EQ(report.promise.promised_recall, 0);
      if (!lists) continue;
      // Nor is it said that more would be proven, where nothing is promised.
      if (metric == Metric::l2) {
        const Matrix<float> strangers = clustered(20, 24, 2, {.offset = 5});
        index.search(strangers.view(), 10, {.method = {.recall = 0.5}}, &report);
        EXPECT_NE(report.note.find("is not promised"), std::string::npos) << report.note;
        EXPECT_EQ(report.note.find("proves"), std::string::npos) << report.note;
      }
      try {
        index.search(queries, 10, {.method = {.probes = 16, .lists = {.certify = true}}});
        ADD_FAILURE() << "certify was taken";
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()),
                  "certify is on, but index " + index.description() +
                      " keeps no vectors as they were added, and nothing is proven of these");
      }
      // In shards too.
      Index shards = make_index(name, 24, metric).divided({.shards = 2});
      shards.train(base.view());
      shards.add(base.view());
      KnnReport of_shards;
      shards.search(queries, 10, {.method = {.recall = 1}}, &of_shards);
      EXPECT_EQ(of_shards.promise.recall_argument, "none");
      EXPECT_EQ(of_shards.promise.certified_queries, 0);
    }
}

// A file whose rows are float32, transformed, but that says that they are bytes.
TEST(AlteredVectors, OfAFileThatSaysAnotherElementTypeTakeNoRows) {
  const std::string path = testing::TempDir() + "/altered_type_" + std::to_string(getpid());
  const Matrix<float> base = clustered(600, 12, 1, {});
  for (const char* const name : {"PCA8,Flat", "SQfp16", "PCA8,IVF8,Flat"})
    for (const bool filled : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << (filled ? " with rows" : " without rows"));
      Index index = make_index(name, 12, Metric::l2);
      if (!index.is_trained()) index.train(base.view());
      if (filled) index.add(base.view());
      index.save(path);
      const auto archive = io::Archive::open(path);
      io::ArchiveWriter writer(std::string(archive->kind()));
      for (const io::Section& section : archive->sections()) {
        std::vector<std::byte> bytes(section.data, section.data + section.bytes);
        const auto type = static_cast<std::uint64_t>(ElementType::u8);
        // After the number of columns and the metric.
        if (section.name == "index") std::memcpy(bytes.data() + 16, &type, sizeof type);
        writer.set_optional(section.name.starts_with("recall"));
        writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
      }
      writer.write(path + "b", {});
      EXPECT_THROW(Index::load(path + "b").add(base.view()), CorruptFile);
    }
  std::filesystem::remove(path);
  std::filesystem::remove(path + "b");
}

}  // namespace
}  // namespace knear
