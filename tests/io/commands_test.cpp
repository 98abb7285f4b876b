// The commands info, convert and eval, run inside the test as the program runs them.
#include <CLI/CLI.hpp>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/recall.hpp"
#include "knear/core/json.hpp"
#include "knear/distance/reference.hpp"
#include "knear/io/vectors.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::cli {
namespace {

class Commands : public io::FileTest {
 protected:
  // The standard output of the command; exceptions pass.
  std::string run(std::vector<std::string> words) {
    CLI::App app;
    add_info(app);
    add_convert(app);
    add_eval(app);
    std::reverse(words.begin(), words.end());
    testing::internal::CaptureStdout();
    try {
      app.parse(words);
      finish_output();
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    return testing::internal::GetCapturedStdout();
  }
  nlohmann::json run_json(std::vector<std::string> words) {
    words.push_back("--json");
    return nlohmann::json::parse(run(words));
  }
  template <class E>
  void refuse(const std::vector<std::string>& words, const std::string& part) {
    io::expect_error<E>([&] { run(words); }, part);
  }
  std::string write_ids(const std::string& name, const std::vector<std::vector<Id>>& rows) {
    Matrix<Id> ids(std::int64_t(rows.size()), std::int64_t(rows[0].size()));
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy(rows[i].begin(), rows[i].end(), ids.row(std::int64_t(i)));
    io::write_ids(path(name), ids);
    return path(name);
  }
  // [rows x 1]: each vector is one number, so that distances are easy to see.
  std::string write_line(const std::string& name, const std::vector<float>& values) {
    io::write_vectors(path(name), MatrixView<float>(values.data(), std::int64_t(values.size()), 1));
    return path(name);
  }
};

TEST_F(Commands, InfoDescribesEachFile) {
  const std::string a = write_line("a.fvecs", {3, -4, 0.5f}), b = write_ids("b.ivecs", {{1, 2}});
  const nlohmann::json json = run_json({"info", a, b});
  ASSERT_EQ(json["files"].size(), 2u);
  const nlohmann::json& first = json["files"][0];
  EXPECT_EQ(first["path"], a);
  EXPECT_EQ(first["format"], "fvecs");
  EXPECT_EQ(first["type"], "f32");
  EXPECT_EQ(first["rows"], 3);
  EXPECT_EQ(first["dim"], 1);
  EXPECT_EQ(first["file_bytes"], 24);
  EXPECT_EQ(first["memory_bytes"], 12);
  EXPECT_EQ(first["whole_numbers"], false);
  EXPECT_EQ(first["least"], -4);
  EXPECT_EQ(first["greatest_norm"], 4);
  EXPECT_EQ(first["first_bad_row"], -1);
  EXPECT_EQ(json["files"][1]["type"], "i32");
  EXPECT_EQ(json["files"][1]["whole_numbers"], true);

  const std::string text = run({"info", a, b});
  for (const std::string part : {"3 x 1 f32", "-4 to 3", "1 x 2 i32", "whole numbers, 1 to 2"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(Commands, InfoReportsNanWithItsRow) {
  const std::string a = write_line("a.fvecs", {1, NAN, INFINITY});
  const nlohmann::json file = run_json({"info", a})["files"][0];
  EXPECT_EQ(file["nan_count"], 1);
  EXPECT_EQ(file["infinity_count"], 1);
  EXPECT_EQ(file["first_bad_row"], 1);
  const std::string text = run({"info", a});
  EXPECT_NE(text.find("1 NaN, 1 infinite, the first in row 1"), std::string::npos) << text;
}

TEST_F(Commands, InfoOfNoRowsAndOfNothingFinite) {
  io::write_vectors(path("none.npy"), AnyMatrix(ElementType::f32, 0, 3));
  EXPECT_EQ(run({"info", path("none.npy")}).find("norms"), std::string::npos);
  EXPECT_EQ(run({"info", write_line("inf.fvecs", {INFINITY})}).find("norms"), std::string::npos);
  EXPECT_NE(run({"info", write_line("zero.fvecs", {0})}).find("norms     0 to 0"),
            std::string::npos);
}

TEST_F(Commands, ConvertTakesRows) {
  const std::string a = write_line("a.fvecs", {0, 1, 2, 3, 4});
  const auto rows = [&](const std::string& range) {
    run({"convert", a, path("b.bvecs"), "--rows", range});
    const auto file = io::VectorFile::open(path("b.bvecs"));
    std::vector<int> values;
    for (std::int64_t i = 0; i < file.view().rows(); ++i)
      values.push_back(file.view().as<std::uint8_t>().row(i)[0]);
    return values;
  };
  EXPECT_EQ(rows("1:3"), (std::vector<int>{1, 2}));
  EXPECT_EQ(rows("3:"), (std::vector<int>{3, 4}));
  EXPECT_EQ(rows(":2"), (std::vector<int>{0, 1}));
  for (const char* words : {"3", ":", "", "a:b", "1:2:3", "1:x"})
    EXPECT_THROW(rows(words), CLI::ParseError) << words;
  for (const char* range : {"3:3", "4:2", "0:6", "5:"})
    EXPECT_THROW(rows(range), InvalidArgument) << range;
}

TEST_F(Commands, ConvertSaysWhatItWroteAndRefusesUnknownTypes) {
  const std::string a = write_line("a.fvecs", {0, 1, 2});
  EXPECT_EQ(run({"convert", a, path("b.npy"), "--type", "f16"}), path("b.npy") + ": 3 x 1 f16\n");
  refuse<InvalidArgument>({"convert", a, path("c.npy"), "--type", "f80"}, "is 'f80'");
  EXPECT_EQ(run({"convert", a, path("d.npy"), "--type", "f64"}), path("d.npy") + ": 3 x 1 f64\n");
  refuse<InvalidArgument>({"convert", a, path("c.npy"), "--type", ""}, "is ''");
  EXPECT_THROW(run({"convert", a}), CLI::ParseError);
}

TEST_F(Commands, EvalCountsByIdAlone) {
  // Query 0 finds both, query 1 one of two, twice; query 2 finds its first only in the third place.
  const std::string found = write_ids("f.ivecs", {{1, 2, 9}, {3, 3, 9}, {8, 9, 5}});
  const std::string truth = write_ids("t.ivecs", {{2, 1}, {3, 4}, {5, 6}});
  const nlohmann::json json = run_json({"eval", found, truth});
  EXPECT_EQ(json["queries"], 3);
  EXPECT_EQ(json["k"], 2);
  EXPECT_DOUBLE_EQ(json["recall_ids"], (1 + 0.5 + 0) / 3);
  EXPECT_FALSE(json.contains("recall"));
  EXPECT_DOUBLE_EQ(json["R@1"]["recall_ids"], 1.0 / 3);
  EXPECT_FALSE(json.contains("R@10"));  // three columns say nothing about ten
  EXPECT_LE(json["recall_ids_interval"][0], json["recall_ids"]);
  EXPECT_GE(json["recall_ids_interval"][1], json["recall_ids"]);
  EXPECT_DOUBLE_EQ(run_json({"eval", found, truth, "-k", "1"})["recall_ids"], 1.0 / 3);
}

TEST_F(Commands, EvalRAtTenAndAHundred) {
  std::vector<std::vector<Id>> found(2), truth = {{7}, {8}};
  for (Id i = 0; i < 100; ++i) {
    found[0].push_back(i == 9 ? 7 : 1000 + i);   // in the tenth place
    found[1].push_back(i == 99 ? 8 : 1000 + i);  // in the hundredth
  }
  const nlohmann::json json =
      run_json({"eval", write_ids("f.npy", found), write_ids("t.npy", truth)});
  EXPECT_EQ(json["R@1"]["recall_ids"], 0.0);
  EXPECT_EQ(json["R@10"]["recall_ids"], 0.5);
  EXPECT_EQ(json["R@100"]["recall_ids"], 1.0);
  EXPECT_EQ(json["recall_ids"], 0.0);  // k = 1
}

TEST_F(Commands, EvalByDistanceForgivesTiesAndNothingElse) {
  const std::string base = write_line("b.fvecs", {1, -1, 2, 2.0000002f, 50});
  const std::string queries = write_line("q.fvecs", {0, 0});
  // Row 1 is as near as row 0; row 3 is one rounding farther than row 2.
  const std::string found = write_ids("f.ivecs", {{1, 2}, {0, 3}});
  const std::string truth = write_ids("t.ivecs", {{0, 1}, {0, 2}});
  const nlohmann::json first =
      run_json({"eval", found, truth, "-k", "1", "--base", base, "--queries", queries});
  EXPECT_EQ(first["metric"], "l2");
  EXPECT_EQ(first["recall"], 1.0);
  EXPECT_EQ(first["recall_ids"], 0.5);
  EXPECT_EQ(first["R@1"]["recall"], 1.0);
  EXPECT_EQ(first["R@1"]["recall_ids"], 0.5);
  const nlohmann::json both =
      run_json({"eval", found, truth, "--base", base, "--queries", queries});
  EXPECT_EQ(both["recall"], 0.5);
  EXPECT_EQ(both["recall_ids"], 0.5);
}

TEST_F(Commands, EvalOfTheTruthItselfIsPerfectForEveryMetric) {
  const std::string base = write_line("b.fvecs", {1, -1, 2, 3, 50, -7});
  const std::string queries = write_line("q.fvecs", {0.5f, 2, -3});
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Neighbors near =
        reference_knn(io::VectorFile::open(queries).view(), io::VectorFile::open(base).view(), 8,
                      metric);  // more than there are: padded
    io::write_ids(path("near.ivecs"), near.ids);
    const nlohmann::json json =
        run_json({"eval", path("near.ivecs"), path("near.ivecs"), "--base", base, "--queries",
                  queries, "--metric", std::string(name_of(metric))});
    EXPECT_EQ(json["metric"], name_of(metric));
    for (const char* figure : {"recall", "recall_ids"}) {
      EXPECT_EQ(json[figure], 1.0);
      EXPECT_EQ(json["R@1"][figure], 1.0);
    }
    // Three perfect queries prove little.
    EXPECT_LT(json["recall_interval"][0], 0.6);
  }
}

// The same figures from eval's own count of ids and from measure_recall().
TEST_F(Commands, EvalAgreesWithMeasureRecall) {
  const std::string base = write_line("b.fvecs", {0, 1, 2, 3, 4, 5, 6, 7});
  const std::string queries = write_line("q.fvecs", {0, 0, 0, 0});
  const std::string found = write_ids("f.npy", {{0, 1, 7}, {2, 2, -1}, {-1, -1, -1}, {3, 0, 0}});
  const std::string truth = write_ids("t.npy", {{0, 1, 2}, {2, 1, -1}, {-1, -1, -1}, {0, 1, 2}});
  const nlohmann::json json =
      run_json({"eval", found, truth, "--base", base, "--queries", queries});
  const RecallFigures figures =
      measure_recall(io::VectorFile::open(queries).view(), io::VectorFile::open(base).view(),
                     Metric::l2, io::read_ids(found), io::read_ids(truth), 3, 1);
  EXPECT_DOUBLE_EQ(json["recall_ids"], figures.by_id);
  EXPECT_DOUBLE_EQ(json["recall_ids"], (2.0 / 3 + 0.5 + 1 + 1.0 / 3) / 4);
  EXPECT_DOUBLE_EQ(json["recall_ids_interval"][0], figures.id_interval.low);
  EXPECT_DOUBLE_EQ(json["recall"], figures.by_distance.value());
}

TEST_F(Commands, EvalRefusesWhatDoesNotFit) {
  const std::string found = write_ids("f.ivecs", {{0, 1}, {1, 0}});
  const std::string truth = write_ids("t.ivecs", {{0, 1}, {1, 0}});
  const std::string base = write_line("b.fvecs", {0, 1}), queries = base;
  refuse<ShapeMismatch>({"eval", found, write_ids("u.ivecs", {{0, 1}})}, "has 2 rows");
  refuse<InvalidArgument>({"eval", found, truth, "-k", "3"}, "-k is 3, but");
  refuse<InvalidArgument>({"eval", found, truth, "-k", "0"}, "-k must be at least 1, but is 0");
  EXPECT_THROW(run({"eval", found, truth, "-k", "x"}), CLI::ParseError);
  refuse<InvalidArgument>({"eval", found, write_ids("n.ivecs", {{0, -2}, {0, 1}})},
                          "row 0, column 1 is -2");
  refuse<InvalidArgument>({"eval", found, truth, "--base", base}, "--base was given alone");
  refuse<InvalidArgument>({"eval", found, truth, "--queries", base}, "--queries was given alone");
  refuse<InvalidArgument>({"eval", found, truth, "--metric", "ip"}, "--metric ip measures nothing");
  refuse<InvalidArgument>({"eval", found, truth, "--metric", ""}, "--metric  measures nothing");
  refuse<IoError>({"eval", found, truth, "--base", "", "--queries", ""}, "cannot open ''");
  const auto with = [&](const std::string& ids, const std::string& b, const std::string& q) {
    return std::vector<std::string>{"eval", ids, truth, "--base", b, "--queries", q};
  };
  refuse<InvalidArgument>(with(write_ids("big.ivecs", {{0, 2}, {0, 1}}), base, queries),
                          "column 1 is 2, but the base has 2 rows");
  refuse<ShapeMismatch>(with(found, base, write_line("q.fvecs", {0, 1, 2})),
                        "--queries have 3 rows");
  io::write_vectors(path("wide.fvecs"), AnyMatrix(ElementType::f32, 2, 2));
  refuse<ShapeMismatch>(with(found, base, path("wide.fvecs")), "2 columns, --base has 1");
  refuse<InvalidArgument>(with(found, write_line("nan.fvecs", {0, NAN}), queries),
                          "--base: row 1, column 0 is nan");
  refuse<InvalidArgument>(with(found, base, path("nan.fvecs")),
                          "--queries: row 1, column 0 is nan");
  auto words = with(found, base, queries);
  words.insert(words.end(), {"--metric", "l3"});
  refuse<InvalidArgument>(words, "metric must be one of");
}

TEST_F(Commands, EvalPrintsATableAndHowItsIntervalsAreMade) {
  const std::string ids = write_ids("f.ivecs", {{0, 1}, {1, 0}});
  const std::string base = write_line("b.fvecs", {0, 1});
  const std::string text = run({"eval", ids, ids, "--base", base, "--queries", base});
  for (const std::string part :
       {"2 queries", "by distance", "by id", "recall@2", "R@1", "1.000000 [", "95 % intervals"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace knear::cli
