// tests/index/index_in_parts_test.cpp -- every form of index as one, in shards and with replicas,
// by the same calls: answers, ids, errors and files are those of the one index.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/factory/deprecated.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t dim = 8;

// How all rows of an index are compared, whatever its form.
SearchOptions all_of(const Index& index) {
  SearchOptions options;
  if (index.has_graph())
    options.method.kind = Method::exact;
  else if (index.lists() > 0)
    options.method.probes = index.lists();
  if (index.description().find(",R") != std::string::npos)
    options.method.codes.refine_factor = 1000;
  return options;
}

std::vector<Id> every(std::int64_t step, const std::vector<Id>& ids) {
  std::vector<Id> out;
  for (std::size_t i = 0; i < ids.size(); i += static_cast<std::size_t>(step))
    out.push_back(ids[i]);
  return out;
}

// A history of all kinds of changes.
void live(Index& index) {
  index.reserve(900);
  index.add(clustered(500, dim, 2).view());
  std::vector<Id> own(200);
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = 2000 - static_cast<Id>(3 * i);
  index.add(clustered(200, dim, 3).view(), own);
  index.remove(every(7, index.ids()));
  const std::vector<Id> replaced = every(5, index.ids());
  index.replace(replaced, clustered(std::ssize(replaced), dim, 4).view());
  index.add(clustered(90, dim, 5).view());
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_same_range(const RangeNeighbors& a, const RangeNeighbors& b) {
  EXPECT_EQ(a.begin, b.begin);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.distances, b.distances);
}

void expect_same_rows(const Index& one, const Index& all, std::span<const Id> ids) {
  const AnyMatrix wanted = one.reconstruct(ids), got = all.reconstruct(ids);
  ASSERT_EQ(got.type(), wanted.type());
  ASSERT_EQ(got.view().bytes(), wanted.view().bytes());
  EXPECT_EQ(std::memcmp(got.view().data(), wanted.view().data(),
                        static_cast<std::size_t>(wanted.view().bytes())),
            0);
}

// What an index says of itself and answers.
void expect_alike(const Index& one, const Index& all) {
  EXPECT_EQ(all.description(), one.description());
  EXPECT_EQ(all.dim(), one.dim());
  EXPECT_EQ(all.metric(), one.metric());
  EXPECT_EQ(all.size(), one.size());
  EXPECT_EQ(all.element_type(), one.element_type());
  EXPECT_EQ(all.next_id(), one.next_id());
  EXPECT_EQ(all.keeps_vectors(), one.keeps_vectors());
  EXPECT_EQ(all.has_codes(), one.has_codes());
  EXPECT_EQ(all.has_graph(), one.has_graph());
  EXPECT_EQ(all.is_trained(), one.is_trained());
  EXPECT_EQ(all.lists(), one.lists());
  EXPECT_EQ(all.list_sizes(), one.list_sizes());
  const std::vector<Id> ids = one.ids();
  EXPECT_EQ(all.ids(), ids);
  for (const Id id : {Id{0}, Id{1}, Id{5000}}) EXPECT_EQ(all.contains(id), one.contains(id));
  if (one.lists() > 0) {
    EXPECT_EQ(all.lists_of(ids), one.lists_of(ids));
    const Matrix<float> wanted = one.centroids(), got = all.centroids();
    EXPECT_TRUE(std::equal(wanted.data(), wanted.data() + wanted.rows() * dim, got.data()));
  }
  expect_same_rows(one, all, every(11, ids));
  std::int64_t rows = 0;
  for (const std::int64_t of_shard : all.shard_sizes()) rows += of_shard;
  EXPECT_EQ(rows, one.size());
  EXPECT_EQ(std::ssize(all.shard_names()), all.shards());
  EXPECT_TRUE(all.missing_shards().empty());

  const Matrix<float> queries = clustered(20, dim, 9);
  SearchOptions options = all_of(one);
  for (const int threads : {1, 2}) {
    options.threads = threads, options.filter = {};
    KnnReport wanted, got;
    expect_equal(all.search(queries.view(), 10, options, &got),
                 one.search(queries.view(), 10, options, &wanted));
    EXPECT_EQ(got.rows, wanted.rows);
    EXPECT_EQ(got.dim, wanted.dim);
    EXPECT_EQ(got.version, all.version());
    EXPECT_EQ(got.short_queries, wanted.short_queries);
    const float radius = one.search(queries.view(), 3, options).distances.row(0)[2];
    SearchOptions within = options;
    within.method.codes = {};
    if (one.has_graph()) within.method = {};
    expect_same_range(all.range_search(queries.view(), radius, within),
                      one.range_search(queries.view(), radius, within));
    options.filter = IdFilter::of_ids(every(3, ids));
    expect_equal(all.search(queries.view(), 10, options), one.search(queries.view(), 10, options));
  }
}

class IndexInParts : public testing::TestWithParam<const char*> {
 protected:
  IndexInParts() { fs::create_directory(folder_); }
  ~IndexInParts() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string bytes_of(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static Index trained() {
    Index index = make_index(GetParam(), dim);
    index.train(clustered(600, dim, 1).view());
    return index;
  }

 private:
  const fs::path folder_ = fs::temp_directory_path() / ("knear-parts-" + std::to_string(getpid()));
};

constexpr ShardingOptions ways[] = {{.shards = 1}, {.shards = 3}, {.replicas = 2}};

TEST_P(IndexInParts, IsTheOneIndex) {
  const Index like = trained();
  Index one = like.as_one();
  live(one);
  one.compact();
  // Of another training the codes would be others: what is merged is of the same.
  Index more = like.as_one();
  more.add(clustered(150, dim, 6).view());
  for (const ShardingOptions& way : ways) {
    SCOPED_TRACE(way.shards * 10 + way.replicas);
    Index all = like.divided(way);
    EXPECT_EQ(all.shards(), way.shards);
    EXPECT_EQ(all.replicas(), way.replicas);
    live(all);
    all.compact();
    EXPECT_EQ(all.version(), one.version());
    expect_alike(one, all);
    expect_alike(one, all.as_one());
    EXPECT_EQ(all.as_one().shards(), 1);

    all.optimize();
    all.save(path("all.knear"));
    EXPECT_TRUE(is_sharded_file(path("all.knear")));
    Index loaded = Index::load(path("all.knear"));
    EXPECT_EQ(loaded.shards(), way.shards);
    EXPECT_EQ(loaded.replicas(), way.replicas);
    expect_alike(one, loaded);

    // Merges of one and of shards, into one and into shards.
    Index merged = one.as_one(), from_shards = one.as_one(), into_shards = all.as_one();
    merged.merge(more, MergeIds::shifted);
    Index more_shards = like.divided(way);
    more_shards.add(clustered(150, dim, 6).view());
    from_shards.merge(more_shards, MergeIds::shifted);
    into_shards.merge(more, MergeIds::shifted);
    loaded.merge(more_shards, MergeIds::shifted);
    all.merge(more, MergeIds::shifted);
    for (const Index* each : {&from_shards, &into_shards, &loaded, &all})
      expect_alike(merged, *each);
    // What was merged stays as it was.
    expect_alike(more, more_shards);
  }
}

TEST_P(IndexInParts, FilesOfFaissAreThoseOfTheOneIndex) {
  const Index like = trained();
  Index one = like.as_one(), all = like.divided({.shards = 3});
  const Matrix<float> rows = clustered(90, dim, 2);
  one.add(rows.view());
  // In the order in which shards have them, as ids count on from shard to shard.
  all.add(rows.view());
  const std::string refused = message([&] { write_faiss(one, path("one.faiss")); });
  EXPECT_EQ(message([&] { write_faiss(all, path("all.faiss")); }), refused);
  if (refused == "no error") {
    EXPECT_EQ(bytes_of("all.faiss"), bytes_of("one.faiss"));
  }
}

TEST_P(IndexInParts, RefusesWhatTheOneIndexDoes) {
  const Index untrained = make_index(GetParam(), dim), like = trained();
  const Matrix<float> rows = clustered(30, dim, 2), wide = clustered(30, dim + 1, 2);
  Matrix<float> bad = clustered(30, dim, 2);
  bad.row(17)[3] = std::numeric_limits<float>::quiet_NaN();
  const auto messages = [&](const ShardingOptions& way, bool divided) {
    Index index = divided ? like.divided(way) : like.as_one();
    Index raw = divided ? untrained.divided(way) : untrained.as_one();
    index.add(rows.view());
    std::vector<Id> same(30, 1000), own(30), below(30, -1), far(30, last_given_id + 1);
    std::iota(own.begin(), own.end(), Id{29});
    SearchOptions filtered = all_of(index);
    filtered.filter = IdFilter::of_ids(std::vector<Id>{4, 99});
    const Index other = make_index("SQ4", dim);
    return std::vector<std::string>{
        message([&] { raw.add(rows.view()); }),
        message([&] { raw.search(rows.view(), 3, all_of(raw)); }),
        message([&] { raw.range_search(rows.view(), 3, all_of(raw)); }),
        message([&] { index.train(rows.view()); }),
        message([&] { index.train(wide.view()); }),
        message([&] { index.add(wide.view()); }),
        message([&] { index.add(bad.view()); }),
        message([&] {
          index.add(rows.view(), std::vector<Id>{1, 2});
        }),
        message([&] { index.add(rows.view(), same); }),
        message([&] { index.add(rows.view(), own); }),
        message([&] { index.add(rows.view(), below); }),
        message([&] { index.add(rows.view(), far); }),
        message([&] {
          index.remove(std::vector<Id>{3, 31});
        }),
        message([&] {
          index.remove(std::vector<Id>{3, 3});
        }),
        message([&] {
          index.replace(std::vector<Id>{3, 31}, rows.view().rows(0, 2));
        }),
        message([&] { index.replace(own, bad.view()); }),
        message([&] { index.reserve(-1); }),
        message([&] {
          index.reconstruct(std::vector<Id>{3, 31});
        }),
        message([&] {
          index.lists_of(std::vector<Id>{3, 31});
        }),
        message([&] { index.merge(index); }),
        message([&] { index.merge(other); }),
        message([&] { index.search(wide.view(), 3, all_of(index)); }),
        message([&] { index.search(rows.view(), 0, all_of(index)); }),
        message([&] { index.search(bad.view(), 3, all_of(index)); }),
        message([&] { index.search(rows.view(), 3, filtered); }),
        message([&] { index.range_search(rows.view(), std::nan(""), all_of(index)); })};
  };
  const std::vector<std::string> wanted = messages({}, false);
  for (const ShardingOptions& way : ways) {
    SCOPED_TRACE(way.shards * 10 + way.replicas);
    EXPECT_EQ(messages(way, true), wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, IndexInParts,
                         testing::Values("Flat", "SQfp16", "PCA6,Flat", "IVF8,Flat", "IVF8,SQbf16",
                                         "SQ8", "PQ4x4", "IVF8,PQ4x4", "IVF8,SQ8,RFlat",
                                         "OPQ4,IVF8,PQ4x4,Refine(SQ8)", "Graph8"));

TEST(IndexInParts, CallsForOneIndexSayHowToMakeOne) {
  Index all = make_index("Flat", dim).divided({.shards = 3, .replicas = 2});
  EXPECT_EQ(message([&] { all.body().one(); }),
            "index Flat is in 3 shards with 2 replicas, but this call is for one index: as_one() "
            "makes one");
  EXPECT_EQ(all.as_one().body().one().shape.description(), "Flat");
}

// Names of before, each in one line.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TEST(DeprecatedNames, MakeTheSameIndexes) {
  EXPECT_EQ(FlatIndex(dim, Metric::ip).metric(), Metric::ip);
  EXPECT_EQ(IvfFlatIndex(dim, 12).description(), "IVF12,Flat");
  EXPECT_EQ(GraphFlatIndex(dim, 16).description(), "Graph16");
  EXPECT_EQ(ShardedIndex(FlatIndex(dim), {.shards = 3}).shards(), 3);
  EXPECT_EQ(ReplicatedIndex(FlatIndex(dim), 2).replicas(), 2);
  const ShardedLoadOptions options{.replicas = 2};
  EXPECT_EQ(options.replicas, 2);
}
#pragma GCC diagnostic pop

}  // namespace
}  // namespace knear
