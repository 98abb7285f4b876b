// tests/index/audit_test.cpp -- indexes that audit themselves: what becomes of the recall of
// queries that are unlike the rows, which queries are audited and when, and what stays as it is
// without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/index/recall/audit_log.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using detail::AuditCosts;
using detail::AuditLog;
using detail::RecallCurve;

constexpr std::int64_t dim = 16, k = 10;

// Rows around many centres; `shift` moves them away from where others are.
Matrix<float> rows_of(std::int64_t count, std::uint64_t seed, double shift = 0) {
  Random centre_random(3), random(seed);
  Matrix<float> centres(200, dim), out(count, dim);
  for (std::int64_t i = 0; i < centres.rows() * dim; ++i)
    centres.data()[i] = static_cast<float>(centre_random.uniform() - 0.5);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* centre = centres.row(static_cast<std::int64_t>(random.below(200)));
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] = static_cast<float>(centre[j] + 0.6 * (random.uniform() - 0.5) + shift);
  }
  return out;
}

double recall_of(const Neighbors& found, const Neighbors& truth, std::int64_t first = 0) {
  std::int64_t right = 0;
  for (std::int64_t q = 0; q < found.ids.rows(); ++q) {
    const Id* const row = truth.ids.row(first + q);
    const std::set<Id> ids(row, row + k);
    for (std::int64_t j = 0; j < k; ++j) right += ids.contains(found.ids.row(q)[j]);
  }
  return static_cast<double>(right) / static_cast<double>(found.ids.rows() * k);
}

SearchOptions asking(double recall, const std::string& traffic = "") {
  return {.threads = 2, .method = {.recall = recall, .traffic = traffic}};
}

Index index_of(const std::string& factory, MatrixView<float> base, int shards = 1) {
  Index index = make_index(factory, dim, Metric::l2);
  if (shards > 1) index = index.divided({.shards = shards});
  if (!index.is_trained()) index.train(base);
  index.add(base);
  return index;
}

// Searches for queries in batches of `size`, and says what became of each batch.
struct Served {
  std::vector<double> recalls, promises;
  KnnReport last;

  double mean() const {
    double sum = 0;
    for (const double recall : recalls) sum += recall;
    return sum / static_cast<double>(recalls.size());
  }
};
Served serve(const Index& index, MatrixView<float> queries, std::int64_t size, double recall,
             const Neighbors& truth, const std::string& traffic = "") {
  Served out;
  for (std::int64_t q = 0; q < queries.rows(); q += size) {
    const auto some = queries.rows(q, std::min(queries.rows(), q + size));
    const Neighbors found = index.search(some, k, asking(recall, traffic), &out.last);
    out.recalls.push_back(recall_of(found, truth, q));
    out.promises.push_back(out.last.promise.promised_recall);
  }
  return out;
}

class Audits : public testing::TestWithParam<std::string> {
 protected:
  const std::string factory = GetParam();
  const Matrix<float> base = rows_of(12000, 1), queries = rows_of(3600, 2, 0.25);

  Neighbors truth(MatrixView<float> of) const {
    Index flat = make_index("Flat", dim, Metric::l2);
    flat.add(base.view());
    return flat.search(of, k);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, Audits,
                         testing::Values("IVF64,Flat", "Graph16", "IVF64,PQ8,RFlat", "SQ8,RFlat"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

TEST_P(Audits, QueriesUnlikeTheRowsOneAtATimeReachWhatWasAsked) {
  constexpr std::int64_t learned = 2000;
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  const Neighbors all = truth(queries);
  // One at a time, nothing is promised of them by themselves.
  const Served before = serve(index, queries.view().rows(0, 200), 1, 0.9, all);
  EXPECT_EQ(before.last.promise.recall_argument, "none");
  EXPECT_EQ(before.last.promise.audited_queries, 0);
  EXPECT_NE(before.last.note.find("200 queries were served and none audited"), std::string::npos)
      << before.last.note;
  serve(index, queries.view().rows(200, learned), 16, 0.9, all);
  const Neighbors rest_truth = truth(queries.view().rows(learned, queries.rows()));
  const auto rest = queries.view().rows(learned, queries.rows());
  for (const std::int64_t size : {1, 16, 400}) {
    const Served after = serve(index, rest, size, 0.9, rest_truth);
    EXPECT_EQ(after.last.promise.recall_argument, "calibrated") << size << " " << after.last.note;
    EXPECT_GE(after.last.promise.audited_queries, 500) << size;
    EXPECT_GE(after.last.promise.expected_recall, 0.9);
    EXPECT_GE(after.mean(), 0.9) << size;
    for (std::size_t b = 0; b < after.recalls.size(); ++b)
      EXPECT_GE(after.recalls[b], after.promises[b]) << "batch " << b << " of " << size;
    if (size == 400) {
      EXPECT_GT(after.promises[0], 0.8);
    }
  }
  const std::vector<AuditReport> reports = index.audits();
  ASSERT_EQ(reports.size(), 1);
  EXPECT_EQ(reports[0].traffic, "");
  EXPECT_EQ(reports[0].k, k);
  EXPECT_EQ(reports[0].served_queries, learned + 3 * rest.rows());
  EXPECT_EQ(reports[0].recall, 0.9);
  EXPECT_GE(reports[0].measured_recall, 0.9);
  EXPECT_LT(reports[0].low, reports[0].measured_recall);
  EXPECT_GE(reports[0].high, reports[0].measured_recall);
}

TEST_P(Audits, TheSameCallsHaveTheSameAnswers) {
  const auto run = [&](int threads) {
    Index index = index_of(factory, base);
    index.set_audit(0.5);
    std::vector<Neighbors> out;
    for (std::int64_t q = 0; q < 1500; q += 25) {
      SearchOptions options = asking(0.8);
      options.threads = threads;
      KnnReport report;
      out.push_back(index.search(queries.view().rows(q, q + 25), k, options, &report));
    }
    return out;
  };
  const auto once = run(1), again = run(2);
  for (std::size_t b = 0; b < once.size(); ++b) expect_equal(once[b], again[b]);
}

TEST_P(Audits, WithoutThemAllStaysAsItWas) {
  Index plain = index_of(factory, base), index = index_of(factory, base);
  index.set_audit(0);
  EXPECT_EQ(index.audit(), 0);
  const auto expect_same = [&](const std::string& when) {
    for (std::int64_t q = 0; q < 320; q += 16) {
      KnnReport a, b;
      const auto some = queries.view().rows(q, q + 16);
      expect_equal(plain.search(some, k, asking(0.9), &a), index.search(some, k, asking(0.9), &b));
      EXPECT_EQ(a.note, b.note) << when;
      EXPECT_EQ(a.promise.promised_recall, b.promise.promised_recall);
      EXPECT_EQ(b.promise.audited_queries, 0);
    }
  };
  expect_same("never on");
  EXPECT_TRUE(index.audits().empty());
  // On for a while, off, and forgotten.
  index.set_audit(0.02);
  EXPECT_EQ(index.audit(), 0.02);
  for (std::int64_t q = 0; q < 600; q += 50)
    index.search(queries.view().rows(q, q + 50), k, asking(0.9));
  EXPECT_GT(index.audits().at(0).audited_queries, 0);
  index.set_audit(0);
  index.tune(k), plain.tune(k);
  EXPECT_TRUE(index.audits().empty());
  expect_same("off again");
}

// With audit = 0 the curves that there are stay in use, whatever is searched for.
TEST_P(Audits, AreFrozen) {
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  for (std::int64_t q = 0; q < 600; q += 50)
    index.search(queries.view().rows(q, q + 50), k, asking(0.9));
  index.set_audit(0);
  const auto some = queries.view().rows(600, 640);
  KnnReport report;
  const Neighbors before = index.search(some, k, asking(0.9), &report);
  const std::int64_t audited = report.promise.audited_queries;
  EXPECT_GE(audited, 256) << report.note;
  for (std::int64_t q = 1000; q < 3400; q += 200)
    index.search(queries.view().rows(q, q + 200), k, asking(0.9));
  expect_equal(index.search(some, k, asking(0.9), &report), before);
  EXPECT_EQ(report.promise.audited_queries, audited);
  EXPECT_EQ(index.audits().at(0).served_queries, 600);
  EXPECT_THROW(index.search(some, k, asking(0.9, "other")), InvalidArgument);
}

// Whatever a query is joined with in a small batch, like the traffic or not.
TEST_P(Audits, AQueryHasTheSameAnswerInAnySmallBatch) {
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  for (std::int64_t q = 0; q < 320; q += 32)
    index.search(queries.view().rows(q, q + 32), k, asking(0.8));
  index.set_audit(0);
  Matrix<float> mixed(80, dim);
  const Matrix<float> others = rows_of(40, 5, -1.5);
  for (std::int64_t i = 0; i < 40; ++i) {
    std::copy_n(queries.row(400 + i), dim, mixed.row(2 * i));
    std::copy_n(others.row(i), dim, mixed.row(2 * i + 1));
  }
  KnnReport report;
  const Neighbors together = index.search(mixed.view(), k, asking(0.8), &report);
  EXPECT_EQ(report.promise.recall_argument, "none") << report.note;
  for (std::int64_t q = 0; q < 80; ++q) {
    const Neighbors alone = index.search(mixed.view().rows(q, q + 1), k, asking(0.8));
    for (std::int64_t i = 0; i < k; ++i)
      ASSERT_EQ(alone.ids.row(0)[i], together.ids.row(q)[i]) << "query " << q;
  }
}

TEST_P(Audits, TellTrafficsApart) {
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  const Matrix<float> like_rows = rows_of(800, 5);
  for (std::int64_t q = 0; q < 800; q += 16) {
    index.search(queries.view().rows(q, q + 16), k, asking(0.9, "far"));
    index.search(like_rows.view().rows(q, q + 16), k, asking(0.9, "near"));
  }
  index.search(queries.view().rows(0, 16), 5, asking(0.9, "far"));
  const auto reports = index.audits();
  ASSERT_EQ(reports.size(), 3);
  EXPECT_EQ(reports[0].traffic, "far");
  EXPECT_EQ(reports[1].traffic, "near");
  EXPECT_EQ(reports[2].k, 5);
  EXPECT_EQ(reports[0].audited_queries, reports[1].audited_queries);
  EXPECT_EQ(reports[2].audited_queries, 0);
  KnnReport far, near;
  index.search(queries.view().rows(900, 1000), k, asking(0.9, "far"), &far);
  index.search(like_rows.view().rows(0, 100), k, asking(0.9, "near"), &near);
  EXPECT_GE(far.promise.audited_queries, 256) << far.note;
  EXPECT_GE(near.promise.audited_queries, 256) << near.note;
  // Queries of another kind are no queries of this traffic.
  index.search(queries.view().rows(900, 1000), k, asking(0.9, "near"), &near);
  EXPECT_EQ(near.promise.recall_argument, "none") << near.note;
  EXPECT_NE(near.note.find("unlike the"), std::string::npos) << near.note;
}

TEST_P(Audits, AreDoneAgainOnceTheRowsAreOthers) {
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  for (std::int64_t q = 0; q < 320; q += 16)
    index.search(queries.view().rows(q, q + 16), k, asking(0.9));
  EXPECT_GE(index.audits().at(0).audited_queries, 256);
  const std::int64_t served = index.audits().at(0).served_queries;
  index.add(rows_of(12000, 9, 0.25).view());
  KnnReport report;
  index.search(queries.view().rows(0, 16), k, asking(0.9), &report);
  EXPECT_NE(report.note.find("audited queries first"), std::string::npos) << report.note;
  EXPECT_EQ(index.audits().at(0).served_queries, served + 16);
  EXPECT_GE(report.promise.audited_queries, 256) << report.note;
}

TEST_P(Audits, OfShards) {
  Index index = index_of(factory, base, 3);
  index.set_audit(0.02);
  EXPECT_EQ(index.audit(), 0.02);
  const Neighbors all = truth(queries);
  serve(index, queries.view().rows(0, 1200), 16, 0.9, all);
  const auto rest = queries.view().rows(1200, 1600);
  const Neighbors rest_truth = truth(rest);
  const Served after = serve(index, rest, 16, 0.9, rest_truth);
  EXPECT_GE(after.last.promise.audited_queries, 256) << after.last.note;
  EXPECT_GE(after.mean(), 0.9);
  // Adding rows keeps what is known.
  index.add(rows_of(100, 9).view());
  KnnReport report;
  index.search(rest.rows(0, 16), k, asking(0.9), &report);
  EXPECT_GE(report.promise.audited_queries, 256) << report.note;
  index.tune(k);
  for (const AuditReport& one : index.audits()) EXPECT_NE(one.k, k);
  // A copy goes on by itself.
  Index copy = index.divided({.shards = 1});
  EXPECT_EQ(copy.audit(), 0.02);
  copy.set_audit(0);
  EXPECT_EQ(index.audit(), 0.02);
}

TEST_P(Audits, FromManyThreads) {
  Index index = index_of(factory, base);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t q = 0; q < 800; q += 16) {
        KnnReport report;
        const auto some = queries.view().rows(800 * t + q, 800 * t + q + 16);
        index.search(some, k, {.threads = 1, .method = {.recall = 0.8}}, &report);
        if (t == 0) index.set_audit(q % 32 == 0 ? 0.1 : 0.02);
        if (t == 1 && q == 400) index.add(rows_of(200, 8).view());
        if (t == 2) index.audits();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(index.audits().at(0).audited_queries, 256);
}

// A server that may not stop for an audit goes on by what there is, and learns that one is due.
TEST_P(Audits, WaitForACallerThatMayMakeThem) {
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  const auto search = [&](std::int64_t first) {
    KnnReport report;
    index.search(queries.view().rows(first, first + 16), k, asking(0.8), &report);
    return report.promise.audited_queries;
  };
  search(0);
  {
    const StopCheck check([] {}, Preparing::refused);
    for (std::int64_t q = 0; q < 240; q += 16) EXPECT_EQ(search(q), 0);
    EXPECT_TRUE(check.has_refused());
    EXPECT_EQ(search(240), 0);
  }
  EXPECT_GE(search(400), 256);
}

TEST_P(Audits, OfOtherTypesAndFilters) {
  Index index = index_of(factory, base);
  index.set_audit(0.02);
  KnnReport report;
  Matrix<double> doubles(320, dim);
  std::copy_n(queries.data(), 320 * dim, doubles.data());
  for (std::int64_t q = 0; q < 320; q += 32)
    index.search(doubles.view().rows(q, q + 32), k, asking(0.9), &report);
  EXPECT_GE(report.promise.audited_queries, 256) << report.note;
  std::vector<Id> ids;
  for (Id id = 0; id < 6000; ++id) ids.push_back(id);
  SearchOptions filtered = asking(0.9);
  filtered.filter = IdFilter::of_ids(ids);
  const std::int64_t served = index.audits().at(0).served_queries;
  index.search(queries.view().rows(0, 16), k, filtered, &report);
  EXPECT_EQ(report.promise.audited_queries, 0);
  EXPECT_EQ(index.audits().at(0).served_queries, served);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(AuditArguments, AreCheckedInOneLine) {
  const Matrix<float> base = rows_of(2000, 1);
  Index index = index_of("IVF16,Flat", base), flat = index_of("Flat", base),
        codes = index_of("IVF16,PQ8", base), turned = index_of("PCA8,IVF16,Flat", base);
  const auto set = [](Index& to, double share) { return error_of([&] { to.set_audit(share); }); };
  EXPECT_EQ(set(index, -0.1), "audit must be between 0 and 1, but is -0.1");
  EXPECT_EQ(set(index, 1.5), "audit must be between 0 and 1, but is 1.5");
  EXPECT_EQ(set(index, std::nan("")), "audit must be between 0 and 1, but is nan");
  EXPECT_EQ(set(flat, 0), "no error");
  EXPECT_EQ(set(flat, 0.02).find("audit is 0.02, but index Flat compares all rows"), 0);
  EXPECT_EQ(set(codes, 0.02).find("audit is 0.02, but index IVF16,PQ8 lacks the vectors"), 0);
  EXPECT_EQ(set(turned, 0.02).find("audit is 0.02, but index PCA8,IVF16,Flat lacks"), 0);
  const auto search = [&](SearchMethod method) {
    return error_of([&] { index.search(base.view().rows(0, 2), k, {.method = method}); });
  };
  EXPECT_EQ(search({.recall = 0.9, .traffic = "x"}).find("traffic is 'x', but audit is 0"), 0);
  index.set_audit(0.02);
  const std::string only = "traffic is 'x', but goes only with a recall below 1";
  EXPECT_EQ(search({.probes = 4, .traffic = "x"}), only);
  EXPECT_EQ(search({.recall = 1, .traffic = "x"}), only);
  EXPECT_EQ(search({.kind = Method::exact, .traffic = "x"}), only);
  EXPECT_EQ(error_of([&] {
              index.range_search(base.view().rows(0, 2), 0.1,
                                 {.method = {.recall = 1, .traffic = "x"}});
            }),
            "traffic is 'x', but a range search has no recall to audit");
  const auto name = [](std::string text) { return error_of([&] { TrafficName{text}; }); };
  EXPECT_EQ(name(std::string(64, 'x')), "no error");
  EXPECT_EQ(name("Größe ≤ 3 🙂"), "no error");
  EXPECT_EQ(name(std::string(65, 'x')), "traffic must have at most 64 bytes, but has 65");
  const std::string text = "traffic must be printable text in UTF-8, but byte ";
  EXPECT_EQ(name("a\nb"), text + "1 is 0x0a");
  EXPECT_EQ(name(std::string(1, '\0')), text + "0 is 0x00");
  EXPECT_EQ(name("ab\xff"), text + "2 is 0xff");
  EXPECT_EQ(name("\xc0\xaf"), text + "0 is 0xc0");          // an overlong slash
  EXPECT_EQ(name("\xed\xa0\x80"), text + "0 is 0xed");      // half of a pair
  EXPECT_EQ(name("x\xe2\x82"), text + "1 is 0xe2");         // cut off
  EXPECT_EQ(name("\xf4\x90\x80\x80"), text + "0 is 0xf4");  // beyond Unicode
  EXPECT_EQ(name("\xc2\x85"), text + "0 is 0xc2");          // a line break
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(search({.recall = 0.9, .traffic = std::to_string(i)}), "no error");
  EXPECT_EQ(search({.recall = 0.9, .traffic = "x"}),
            "traffic is 'x', but an index tells 16 of them apart at most");
  // Searches without a name are not shut out by names.
  EXPECT_EQ(search({.recall = 0.9}), "no error");
}

// The graphs of an index that was emptied and copied are counted from the beginning.
TEST(AuditsOfACopy, BeginAgainWithoutRows) {
  const Matrix<float> base = clustered(9000, 16, 1, {}), far = clustered(300, 16, 2, {.offset = 3});
  Index index = make_index("Graph8", 16);
  index.set_audit(0.1);
  const auto audited = [&](Index& of) {
    KnnReport report;
    for (std::int64_t q = 0; q < 300; q += 20)
      of.search(far.view().rows(q, q + 20), k, {.method = {.recall = 0.9}}, &report);
    return report.promise.audited_queries;
  };
  index.add(base.view().rows(0, 3000));
  EXPECT_EQ(audited(index), 260);
  index.add(base.view().rows(3000, 9000));  // so many that the graph is made anew
  EXPECT_EQ(audited(index), 320);
  index.remove(index.ids());
  Index copy = index.as_one();
  EXPECT_EQ(copy.audit(), 0.1);
  copy.add(base.view());
  EXPECT_EQ(audited(copy), 260);
}

// Audits of a made-up search: how many, of how many queries, and of which.
class Log : public testing::Test {
 protected:
  AuditLog log{0.1};
  std::vector<std::int64_t> samples;
  double newest = 0;  // the mean of the queries of the latest sample

  AuditLog::Audited serve(std::int64_t first, std::int64_t count, AuditCosts costs = {1, 1, 0},
                          const AuditLog::Search& search = {"", k, 0.9}) {
    Matrix<float> queries(count, 1);
    for (std::int64_t q = 0; q < count; ++q) queries.row(q)[0] = static_cast<float>(first + q);
    return log.serve(search, queries.view(), costs, [&](AnyMatrixView sample) {
      samples.push_back(sample.rows());
      newest = 0;
      for (std::int64_t q = 0; q < sample.rows(); ++q)
        newest += sample.as<float>().row(q)[0] / static_cast<double>(sample.rows());
      return RecallCurve{k, {{.rule = {}, .promised = 0.9, .expected = 0.95}}, {}};
    });
  }
};

TEST_F(Log, AuditsMoreAndMoreQueries) {
  for (std::int64_t q = 0; q < 3000; ++q) serve(q, 1);
  EXPECT_EQ(samples, (std::vector<std::int64_t>{256, 1000, 2000}));
}

TEST_F(Log, DrawsFromALargeBatch) {
  serve(0, 100000);
  EXPECT_EQ(samples, std::vector<std::int64_t>{2000});
  EXPECT_NEAR(newest, 50000, 6 * 100000 / std::sqrt(12.0 * 2000));
}

TEST_F(Log, SpendsAShareOfTheTimeOnLaterAudits) {
  const AuditCosts costs{1, 10, 0};
  serve(0, 2000, costs);
  std::int64_t q = 2000;
  // 2,000 queries that cost 10 each take a tenth of the time of 200,000 that cost 1.
  for (; q < 1000000; q += 100) serve(q, 100, costs);
  EXPECT_NEAR(static_cast<double>(samples.size()), 1 + 5, 1);
  for (const std::int64_t size : samples) EXPECT_EQ(size, 2000);
  // All of them are of the queries since the audit before.
  EXPECT_GT(newest, 600000);
}

TEST_F(Log, FollowsAFewNumbersOfNeighbours) {
  const Matrix<float> query(1, 1);
  for (std::int64_t some = 1; some <= 20; ++some)
    log.serve({"", some, 0.9}, query.view(), {}, [](AnyMatrixView) { return RecallCurve{}; });
  const auto reports = log.reports();
  ASSERT_EQ(reports.size(), AuditLog::most_ks);
  EXPECT_EQ(reports.front().k, 1);
  EXPECT_EQ(reports.back().k, 4);
}

TEST_F(Log, RowsThatChangedAreAuditedAgainAndOldStatesAreNotFollowed) {
  const auto at = [&](std::int64_t epoch, std::int64_t count) {
    return serve(0, count, {1, 1, 0}, {.traffic = "", .k = k, .recall = 0.9, .epoch = epoch});
  };
  EXPECT_TRUE(at(0, 256).curve);
  EXPECT_FALSE(log.find({.traffic = "", .k = k, .epoch = 1}).curve) << "of other rows";
  const AuditLog::Audited next = at(1, 1);
  EXPECT_TRUE(next.curve);
  EXPECT_EQ(samples, (std::vector<std::int64_t>{256, 257}));
  const AuditLog::Audited old = at(0, 5000);
  EXPECT_FALSE(old.curve || old.followed);
  EXPECT_EQ(log.find({.traffic = "", .k = k, .epoch = 1}).served, 257);
  // An audit of a state that is old when the audit is done is dropped.
  Matrix<float> queries(2000, 1);
  const AuditLog::Search one{.traffic = "x", .k = k, .recall = 0.9, .epoch = 4};
  const auto found = log.serve(one, queries.view(), {1, 1, 0}, [&](AnyMatrixView) {
    at(5, 1);
    const AuditLog::Search newer{.traffic = "x", .k = k, .recall = 0.9, .epoch = 5};
    log.serve(newer, queries.view().rows(0, 1), {1, 1, 0},
              [](AnyMatrixView) { return RecallCurve{}; });
    return RecallCurve{k, {{.rule = {}, .promised = 0.9, .expected = 0.95}}, {}};
  });
  EXPECT_FALSE(found.curve);
  EXPECT_FALSE(log.find({.traffic = "x", .k = k, .epoch = 5}).curve);
}

TEST_F(Log, AnotherKTakesThePlaceOfOneThatIsNotAskedForAnyMore) {
  const auto ask = [&](std::int64_t of, std::int64_t count) {
    return serve(0, count, {1, 1, 0}, {.traffic = "", .k = of, .recall = 0.9}).followed;
  };
  for (int round = 0; round < 300; ++round)
    for (const std::int64_t of : {1, 2, 3, 4, 5}) EXPECT_EQ(ask(of, 1), of < 5) << of;
  EXPECT_EQ(samples, (std::vector<std::int64_t>{256, 256, 256, 256}));
  // k = 2 is the longest idle one once the others have been asked for.
  for (const std::int64_t of : {1, 3, 4}) EXPECT_TRUE(ask(of, 700));
  EXPECT_TRUE(ask(5, 1));
  EXPECT_FALSE(log.find({.traffic = "", .k = 2}).followed);
  for (const std::int64_t of : {1, 3, 4}) EXPECT_TRUE(log.find({.traffic = "", .k = of}).followed);
}

TEST_F(Log, MemoryGrowsWithTheSample) {
  serve(0, 1);
  EXPECT_EQ(log.bytes(), 256 * 4);
  serve(0, 600);
  EXPECT_EQ(log.bytes(), 1024 * 4);
  serve(0, 5000);
  EXPECT_EQ(log.bytes(), 2000 * 4);
}

TEST_F(Log, IsNotAuditedWhereTheSearchMayNot) {
  serve(0, 5000, {1, 1, 0}, {.traffic = "", .k = k, .recall = 0.9, .may_audit = false});
  EXPECT_TRUE(samples.empty());
  serve(0, 1);
  EXPECT_EQ(samples, std::vector<std::int64_t>{2000});
}

}  // namespace
}  // namespace knear
