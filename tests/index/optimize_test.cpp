// Index::optimize -- the prefix that it makes changes no answer, whatever happens to the index
// afterwards; files keep it; and a file with wrong numbers in it is refused or harmless.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/knn.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using io::expect_error;
using test::make;
using test::same;

constexpr std::int64_t dim = 256;

// Vectors whose first coordinates matter most, so that a prefix pays, or all alike with slope 0.
// Their mean is not 0.
AnyMatrix falling(ElementType type, std::int64_t rows, std::uint64_t seed, double slope = 1) {
  Random random(seed);
  const bool whole = type == ElementType::u8 || type == ElementType::i8;
  return make(type, rows, dim, [&](std::int64_t, std::int64_t j) {
    const double x =
        (random.uniform() + random.uniform() - 1) * std::pow(1 + static_cast<double>(j), -slope);
    return whole ? 60 + 60 * x : x + 0.01 * static_cast<double>(j % 3);
  });
}

AnyMatrix rows_of(const AnyMatrix& from, const std::vector<std::int64_t>& which) {
  AnyMatrix out(from.type(), std::ssize(which), from.cols());
  const std::size_t bytes = static_cast<std::size_t>(from.cols() * size_of(from.type()));
  for (std::size_t i = 0; i < which.size(); ++i)
    std::memcpy(out.row(static_cast<std::int64_t>(i)), from.view().row(which[i]), bytes);
  return out;
}

// What the index must answer: the answer among `rows`, of which row i has ids[i], that measuring
// every pair gives, which exact_test and knn_test hold to the reference.
Neighbors expected(AnyMatrixView queries, const AnyMatrix& rows, const std::vector<Id>& ids,
                   std::int64_t k, Metric metric) {
  Neighbors out = knn(queries, rows, k, {.metric = metric, .first_pass = FirstPass::direct});
  for (std::int64_t i = 0; i < out.ids.rows() * out.ids.cols(); ++i)
    if (Id& id = out.ids.data()[i]; id != no_id) id = ids[static_cast<std::size_t>(id)];
  return out;
}

std::vector<Id> first_ids(std::int64_t n) {
  std::vector<Id> out;
  for (Id id = 0; id < n; ++id) out.push_back(id);
  return out;
}

struct Kind {
  ElementType type;
  Metric metric;
};
constexpr Kind kinds[] = {{ElementType::f32, Metric::l2},     {ElementType::f32, Metric::ip},
                          {ElementType::f32, Metric::cosine}, {ElementType::u8, Metric::l2},
                          {ElementType::u8, Metric::ip},      {ElementType::u8, Metric::cosine},
                          {ElementType::i8, Metric::l2},      {ElementType::f16, Metric::ip}};

class Optimize : public io::FileTest {};

TEST_F(Optimize, TheFirstSearchGoesByThePrefixAndAnswersTheSame) {
  for (const auto& [type, metric] : kinds) {
    SCOPED_TRACE(std::string(name_of(type)) + ' ' + std::string(name_of(metric)));
    constexpr std::int64_t rows = 12000;
    const AnyMatrix base = falling(type, rows, 1), queries = falling(type, 120, 2);
    const auto expect_answers = [&](const Index& index) {
      // One query and many; few neighbours and many; with a memory limit.
      for (const std::int64_t k : {1, 10, 150}) {
        const Neighbors all = expected(queries, base, first_ids(rows), k, metric);
        const Neighbors one = expected(queries.view().rows(0, 1), base, first_ids(rows), k, metric);
        for (const std::int64_t count : {1, 120})
          for (const std::int64_t memory : {0, 64 << 20}) {
            KnnReport report;
            const Neighbors got = index.search(queries.view().rows(0, count), k,
                                               {.threads = 2, .memory = memory}, &report);
            ASSERT_TRUE(same(got, count == 1 ? one : all));
            EXPECT_TRUE(memory == 0 || report.memory_bytes <= memory);
            // For many neighbours, and for many queries of ip or of bytes, none may be faster.
            if (k > 10 || (count > 1 && (type != ElementType::f32 || metric == Metric::ip)))
              continue;
            EXPECT_EQ(report.scan.first_pass, "prefix") << count << " queries, k " << k;
            EXPECT_GT(report.scan.prefix_columns, 0);
            EXPECT_EQ(report.prepare_seconds, 0);
          }
      }
    };
    Index index = make_index("Flat", dim, metric);
    index.add(base);
    KnnReport report;
    index.search(queries.view().rows(0, 1), 10, {}, &report);
    EXPECT_NE(report.scan.first_pass, "prefix");
    const std::int64_t before = index.memory_bytes();
    EXPECT_EQ(index.optimize(), rows);
    EXPECT_GT(index.memory_bytes(), before + rows * dim);
    expect_answers(index);
    const std::int64_t after = index.memory_bytes();
    EXPECT_EQ(index.optimize(), rows);  // it is there already
    EXPECT_EQ(index.memory_bytes(), after);
    index.save(path("a.knear"));
    for (int round = 0; round < 2; ++round) {
      const Index loaded = Index::load(path("a.knear"));
      expect_answers(loaded);
      loaded.save(path("a.knear"));  // from a file over itself
    }
  }
}

TEST_F(Optimize, WhatIsFilteredRemovedAddedAndReplacedIsAnsweredRight) {
  for (const auto& [type, metric] : kinds) {
    SCOPED_TRACE(std::string(name_of(type)) + ' ' + std::string(name_of(metric)));
    AnyMatrix rows = falling(type, 12000, 3);
    const AnyMatrix more = falling(type, 500, 4), queries = falling(type, 120, 5);
    std::vector<Id> ids = first_ids(12000);
    Index index = make_index("Flat", dim, metric);
    index.add(rows);
    ASSERT_EQ(index.optimize(), 12000);
    Random random(6);
    const auto filtered = [&](double share) {
      std::vector<std::int64_t> which;
      std::vector<Id> allowed;
      for (std::size_t i = 0; i < ids.size(); ++i)
        if (random.uniform() < share) which.push_back(std::int64_t(i)), allowed.push_back(ids[i]);
      const Neighbors got = index.search(queries, 9, {.filter = IdFilter::of_ids(allowed)});
      return same(got, expected(queries, rows_of(rows, which), allowed, 9, metric));
    };
    const auto all = [&](std::int64_t k) {
      return same(index.search(queries, k), expected(queries, rows, ids, k, metric));
    };
    EXPECT_TRUE(filtered(0.01) && filtered(0.5) && filtered(0.98));
    // Gone: among them the nearest of each query.
    std::vector<Id> gone;
    const Neighbors near = index.search(queries, 3);
    for (std::int64_t i = 0; i < 360; ++i) gone.push_back(near.ids.data()[i]);
    for (Id id = 7; id < 12000; id += 11) gone.push_back(id);
    std::sort(gone.begin(), gone.end());
    gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
    index.remove(gone);
    std::vector<std::int64_t> left;
    std::erase_if(ids, [&](Id id) { return std::binary_search(gone.begin(), gone.end(), id); });
    for (const Id id : ids) left.push_back(id);
    rows = rows_of(rows, left);
    EXPECT_TRUE(all(1) && all(10) && filtered(0.5));
    // More, some of them queries, some with the place of others.
    index.add(more);
    index.add(queries);
    AnyMatrix now(type, rows.rows() + 620, dim);
    const auto row_bytes = static_cast<std::size_t>(dim * size_of(type));
    std::memcpy(now.row(0), rows.view().data(), std::size_t(rows.rows()) * row_bytes);
    std::memcpy(now.row(rows.rows()), more.view().data(), 500 * row_bytes);
    std::memcpy(now.row(rows.rows() + 500), queries.view().data(), 120 * row_bytes);
    rows = std::move(now);
    for (Id id = 12000; id < 12620; ++id) ids.push_back(id);
    KnnReport report;
    index.search(queries.view().rows(0, 1), 10, {}, &report);
    EXPECT_GT(report.scan.prefix_columns, 0);
    EXPECT_TRUE(all(1) && all(10) && filtered(0.5));
    index.save(path("a.knear"));
    index = Index::load(path("a.knear"));
    EXPECT_TRUE(all(10) && filtered(0.5));
    index.optimize();
    EXPECT_TRUE(all(10) && filtered(0.5));
    index.compact();
    EXPECT_TRUE(all(10));
  }
}

// Zeros, rows of very different lengths, copies, products of either sign, ties.
TEST_F(Optimize, HardRowsOfIpAreAnsweredRight) {
  AnyMatrix base = falling(ElementType::f32, 10000, 7), queries = falling(ElementType::f32, 40, 8);
  const auto scale = [](AnyMatrix& m, std::int64_t row, float by) {
    for (std::int64_t j = 0; j < dim; ++j) static_cast<float*>(m.row(row))[j] *= by;
  };
  for (std::int64_t r = 0; r < 10000; ++r) {
    if (r % 5 == 0) scale(base, r, -1);
    if (r % 97 == 0) scale(base, r, 8);
    if (r % 101 == 0) scale(base, r, 0);
    if (r % 7 == 0) std::memcpy(base.row(r), base.view().row(r / 2), dim * 4);
  }
  for (std::int64_t q = 0; q < 40; ++q) {
    scale(queries, q, q % 3 ? std::pow(10.0f, float(q % 20 - 10)) : -1.0f);
    if (q % 9 == 0) std::memcpy(queries.row(q), base.view().row(100 * q), dim * 4);
  }
  scale(queries, 13, 0);
  Index index = make_index("Flat", dim, Metric::ip);
  index.add(base);
  ASSERT_EQ(index.optimize(), 10000);
  const std::vector<Id> ids = first_ids(10000);
  for (const std::int64_t k : {1, 2, 30, 150})
    EXPECT_TRUE(same(index.search(queries, k), expected(queries, base, ids, k, Metric::ip))) << k;
  // Queries against which every product is negative.
  AnyMatrix positive = falling(ElementType::f32, 10000, 9);
  for (std::int64_t i = 0; i < 10000 * dim; ++i) {
    float& x = static_cast<float*>(positive.row(0))[i];
    x = std::fabs(x) + 0.001f;
  }
  AnyMatrix negative = rows_of(positive, {1, 2, 3, 400, 5000});
  for (std::int64_t q = 0; q < 5; ++q) scale(negative, q, -1);
  Index one_sided = make_index("Flat", dim, Metric::ip);
  one_sided.add(positive);
  one_sided.optimize();
  KnnReport report;
  const SearchOptions by_prefix{.first_pass = FirstPass::prefix};
  const Neighbors got = one_sided.search(negative, 10, by_prefix, &report);
  EXPECT_EQ(report.scan.first_pass, "prefix");
  EXPECT_LT(got.distances.row(0)[0], 0);
  EXPECT_TRUE(same(got, expected(negative, positive, ids, 10, Metric::ip)));
}

TEST_F(Optimize, MakesNoneWhereNonePays) {
  const auto optimized = [&](const AnyMatrix& base) {
    Index index = make_index("Flat", base.cols());
    index.add(base);
    const std::int64_t before = index.memory_bytes(), rows = index.optimize();
    index.save(path("a.knear"));
    const auto archive = io::Archive::open(path("a.knear"));
    EXPECT_EQ(archive->has("0/prefix/fields"), rows > 0);
    EXPECT_TRUE(rows > 0 || index.memory_bytes() - before < 1 << 24);  // of the study alone
    return rows;
  };
  // Where products of bytes are slow, a prefix may pay even for columns that are all alike.
  if (has_byte_products(active_isa())) {
    EXPECT_EQ(optimized(falling(ElementType::f32, 20000, 1, 0)), 0);
  }
  EXPECT_EQ(optimized(falling(ElementType::f32, 1000, 1)), 0);
  EXPECT_EQ(optimized(make(ElementType::f32, 9000, 8, [](auto i, auto j) { return i * j; })), 0);
  EXPECT_EQ(make_index("Flat", dim).optimize(), 0);
  EXPECT_EQ(optimized(falling(ElementType::f32, 20000, 1)), 20000);
}

TEST_F(Optimize, CanBeCancelledAndChangesNothingThen) {
  Index index = make_index("Flat", dim);
  index.add(falling(ElementType::f32, 10000, 1));
  const auto stop = [](std::string_view stage, double) { return stage != "map rows"; };
  EXPECT_THROW(index.optimize({.progress = stop}), Cancelled);
  KnnReport report;
  index.search(falling(ElementType::f32, 1, 2), 5, {}, &report);
  EXPECT_NE(report.scan.first_pass, "prefix");
  EXPECT_EQ(index.optimize(), 10000);
}

// Rewrites a file, each section as `change` makes it; false leaves one out.
template <class F>
void rewrite(const std::string& from, const std::string& to, F change) {
  const auto archive = io::Archive::open(from);
  io::ArchiveWriter writer("Flat");
  for (const io::Section& section : archive->sections()) {
    std::vector<std::byte> bytes(section.data, section.data + section.bytes);
    if (!change(std::string(section.name), bytes)) continue;
    writer.set_optional(section.optional);
    writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
  }
  writer.write(to, {});
}

TEST_F(Optimize, FilesWithoutAPrefixOpenAndOthersMayBeReadWithoutIt) {
  const AnyMatrix base = falling(ElementType::f32, 10000, 1),
                  queries = falling(ElementType::f32, 20, 2);
  Index index = make_index("Flat", dim);
  index.add(base);
  index.save(path("old.knear"));
  ASSERT_EQ(index.optimize(), 10000);
  index.save(path("new.knear"));
  // A program that does not know the prefix finds the file as it was, and sections that it may
  // leave out.
  const auto old_file = io::Archive::open(path("old.knear")),
             new_file = io::Archive::open(path("new.knear"));
  int optional = 0;
  for (const io::Section& section : new_file->sections()) {
    const bool of_prefix = section.name.find("/prefix/") != std::string_view::npos;
    EXPECT_EQ(section.optional, of_prefix) << section.name;
    EXPECT_EQ(old_file->has(section.name), !of_prefix) << section.name;
    optional += of_prefix;
  }
  EXPECT_EQ(optional + std::ssize(old_file->sections()), std::ssize(new_file->sections()));
  rewrite(path("new.knear"), path("without.knear"), [](const std::string& name, auto&) {
    return name.find("/prefix/") == std::string::npos;
  });
  EXPECT_EQ(read("without.knear"), read("old.knear"));
  const Neighbors want = expected(queries, base, first_ids(10000), 10, Metric::l2);
  for (const char* name : {"old.knear", "new.knear"})
    EXPECT_TRUE(same(Index::load(path(name)).search(queries, 10), want)) << name;
}

TEST_F(Optimize, EveryAlteredByteOfAPrefixIsNoticedBeforeItIsUsed) {
  const AnyMatrix base = falling(ElementType::f32, 8500, 1),
                  queries = falling(ElementType::f32, 12, 2);
  Index index = make_index("Flat", dim, Metric::ip);
  index.add(base);
  ASSERT_EQ(index.optimize(), 8500);
  index.save(path("a.knear"));
  const std::string whole = read("a.knear");
  const auto archive = io::Archive::open(path("a.knear"));
  const Neighbors want = expected(queries, base, first_ids(8500), 10, Metric::ip);
  const auto* begin = reinterpret_cast<const std::byte*>(archive->sections()[0].data);
  const std::size_t first = whole.size();
  std::vector<std::pair<std::string, std::size_t>> places;  // of each section of the prefix
  Random random(5);
  for (const io::Section& section : archive->sections())
    if (section.optional)
      for (int i = 0; i < 6; ++i)
        places.emplace_back(
            std::string(section.name),
            static_cast<std::size_t>(section.data - begin) + random.below(section.bytes));
  // Where the first section lies in the file.
  std::size_t offset = 0;
  for (; offset < first; offset += 64)
    if (std::memcmp(whole.data() + offset, begin, archive->sections()[0].bytes) == 0) break;
  int when_used = 0;
  for (const auto& [name, at] : places) {
    std::string bytes = whole;
    bytes[offset + at] = static_cast<char>(bytes[offset + at] ^ (1 << random.below(8)));
    write("b.knear", bytes);
    const std::string section = "section '" + name + "'";
    EXPECT_THROW(io::Archive::open(path("b.knear"))->verify({}), CorruptFile) << name;
    try {
      const Index loaded = Index::load(path("b.knear"));
      ASSERT_TRUE(name.find("codes") != std::string::npos) << name;  // others are checked at once
      const Neighbors near = loaded.search(queries, 10);
      EXPECT_TRUE(same(near, want)) << name;
      EXPECT_THROW(loaded.save(path("c.knear")), CorruptFile);  // not even what nobody used
    } catch (const CorruptFile& error) {
      ++when_used;
      EXPECT_NE(std::string(error.what()).find(section), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(when_used, 60);
}

// A file whose checksums are right but whose numbers are not: nothing may crash, and what cannot
// be is refused by the name of its section.
TEST_F(Optimize, WrongNumbersWithRightChecksumsAreHarmless) {
  for (const auto& [type, metric] :
       {Kind{ElementType::f32, Metric::ip}, Kind{ElementType::f32, Metric::l2},
        Kind{ElementType::u8, Metric::l2}}) {
    AnyMatrix base = falling(type, 8500, 1), queries = falling(type, 12, 2);
    const auto row_bytes = static_cast<std::size_t>(dim * size_of(type));
    for (std::int64_t r = 0; r < 8500; r += 3)  // some rows are copies
      std::memcpy(base.row(r), base.view().row(r / 2), row_bytes);
    Index index = make_index("Flat", dim, metric);
    index.add(base);
    ASSERT_EQ(index.optimize(), 8500);
    index.save(path("a.knear"));
    std::vector<std::string> names;
    const auto archive = io::Archive::open(path("a.knear"));
    for (const io::Section& section : archive->sections())
      if (section.optional) names.emplace_back(section.name);
    Random random(6);
    int refused = 0, searched = 0;
    for (int round = 0; round < 160; ++round) {
      const std::string chosen = names[static_cast<std::size_t>(round) % names.size()];
      const auto kind = random.below(5);
      rewrite(path("a.knear"), path("b.knear"), [&](const std::string& name, auto& bytes) {
        if (name != chosen) return true;
        if (kind == 0 && bytes.size() >= 8) {  // one field or element
          const double bounds[] = {-1, 0, 1e300, 1e-300, std::nan("")};
          const std::int64_t whole[] = {0,
                                        -1,
                                        1,
                                        255,
                                        1 << 20,
                                        std::int64_t{1} << 40,
                                        std::numeric_limits<std::int64_t>::max()};
          const std::size_t at = random.below(bytes.size() / 8) * 8;
          if (random.below(2))
            std::memcpy(bytes.data() + at, &bounds[random.below(5)], 8);
          else
            std::memcpy(bytes.data() + at, &whole[random.below(7)], 8);
        } else if (kind == 1) {
          bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
        } else if (kind == 2) {
          for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
        } else if (kind == 3) {
          bytes.resize(random.below(bytes.size()));
        } else {
          return false;
        }
        return true;
      });
      try {
        Index loaded = Index::load(path("b.knear"));
        loaded.search(queries, 20);
        loaded.search(queries, 20, {.first_pass = FirstPass::prefix});
        ++searched;
      } catch (const CorruptFile& error) {
        ++refused;
        EXPECT_NE(std::string(error.what()).find("section '0/prefix/"), std::string::npos)
            << error.what();
      }
    }
    EXPECT_GT(refused, 80);
    EXPECT_GT(searched, 10);
  }
}

TEST_F(Optimize, WhatNoPrefixCanBeIsRefused) {
  Index index = make_index("Flat", dim, Metric::ip);
  index.add(falling(ElementType::f32, 8500, 1));
  ASSERT_EQ(index.optimize(), 8500);
  index.save(path("a.knear"));
  const auto refused = [&](const std::string& section, std::size_t at, auto value) {
    rewrite(path("a.knear"), path("b.knear"), [&](const std::string& name, auto& bytes) {
      if (name == section) std::memcpy(bytes.data() + at, &value, sizeof value);
      return true;
    });
    return expect_error<CorruptFile>([&] { Index::load(path("b.knear")); },
                                     "section '" + section + "' is wrong");
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const std::string p = "0/prefix/";
  refused(p + "fields", 0, std::int64_t{12});    // no multiple of 8
  refused(p + "fields", 0, std::int64_t{264});   // more columns than there are
  refused(p + "fields", 8, std::int64_t{0});     // no clusters
  refused(p + "fields", 8, std::int64_t{9000});  // more than rows
  refused(p + "fields", 16, std::int64_t{1});    // whole numbers, which the segment has not
  for (const std::size_t bound : {24, 32, 40, 48, 56}) {
    refused(p + "fields", bound, nan), refused(p + "fields", bound, infinity);
    refused(p + "fields", bound, -1.0);
  }
  for (const char* name : {"mean", "matrix", "rest"}) refused(p + name, 8, nan);
  refused(p + "centroids", 4, std::numeric_limits<float>::infinity());
  refused(p + "clusters", 0, std::uint32_t{1});
  refused(p + "clusters", 4, std::uint32_t{8501});
  refused(p + "panels/rows", 0, std::uint32_t{8500});        // beyond the last
  refused(p + "panels/rows", 0, std::uint32_t{0xffffffff});  // none
  const auto archive = io::Archive::open(path("a.knear"));
  std::uint32_t second;
  std::memcpy(&second, archive->read(p + "panels/rows").data + 4, 4);
  refused(p + "panels/rows", 0, second);  // twice
  refused(p + "panels/heads", 0, 0.0);    // a code unit of nothing
  refused(p + "row_heads", 0, -1.0f);
  refused(p + "row_heads", 4, std::numeric_limits<float>::quiet_NaN());
  refused(p + "outlook", 0, std::int64_t{0});
  refused(p + "outlook", 8, std::int64_t{3});  // no format
  refused(p + "outlook", 24, nan);
}

}  // namespace
}  // namespace knear
