// Bodies of requests: what is read, and one line for what is not.
#include "cli/serve/requests.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "knear/core/json.hpp"
#include "knear/serve/metrics.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

using serve::Refusal;

constexpr RowShape shape{.dim = 2};
constexpr RequestLimits limits{.k = 100, .rows = 5};

template <class F>
std::string refused(int status, F f) {
  try {
    f();
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status(), status) << refusal.what();
    EXPECT_EQ(std::string(refusal.what()).find('\n'), std::string::npos);
    return refusal.what();
  }
  ADD_FAILURE() << "it was taken";
  return "";
}

SearchBody search(std::string_view body, RowShape of = shape) {
  return parse_search(body, BodyForm::json, of, limits);
}

TEST(Requests, SearchesInJson) {
  const SearchBody body = search(
      R"({"queries": [[1, 2.5], [-3e1, 0]], "k": 7, "recall": 0.5, "probes": 3, "filter": [9, 1],
          "timeout_ms": 20, "certify": true, "traffic": "questions"})");
  ASSERT_EQ(body.queries.rows(), 2);
  EXPECT_EQ(static_cast<const float*>(body.queries.view().row(1))[0], -30);
  EXPECT_EQ(body.k, 7);
  EXPECT_EQ(body.recall, 0.5);
  EXPECT_EQ(body.probes, 3);
  EXPECT_EQ(body.filter, (std::vector<Id>{9, 1}));
  EXPECT_EQ(body.timeout_ms, 20);
  EXPECT_TRUE(body.certify);
  EXPECT_EQ(body.traffic, "questions");
  const SearchBody least = search(R"({"queries": [], "recall": null, "filter": null})");
  EXPECT_EQ(least.queries.rows(), 0);
  EXPECT_EQ(least.queries.cols(), 2);
  EXPECT_EQ(least.k, 10);
  EXPECT_FALSE(least.recall || least.filter);
  EXPECT_EQ(search(R"({"queries": [[1, 2]], "recall": 1})").recall, 1.0);
  EXPECT_EQ(search(R"({"queries": [[1, 2]], "filter": []})").filter, std::vector<Id>{});
  // As the index has them.
  const RowShape wide{.dim = 1, .type = ElementType::f64};
  const SearchBody exact = search(R"({"queries": [[0.1]]})", wide);
  EXPECT_EQ(*static_cast<const double*>(exact.queries.view().row(0)), 0.1);
}

TEST(Requests, SearchesThatAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no JSON"},
      {"{", "no JSON"},
      {"[]", "must be a JSON object"},
      {"3", "must be a JSON object"},
      {"null", "must be a JSON object"},
      {"{}", "'queries' is missing"},
      {R"({"queries": [[1, 2]]} x)", "no JSON"},
      {R"({"queries": null})", "queries must be an array of arrays"},
      {R"({"queries": 3})", "queries must be an array of arrays"},
      {R"({"queries": [1, 2]})", "queries must be an array of arrays of numbers, but holds 1"},
      {R"({"queries": [[1, 2, 3]]})", "more than 2 numbers in row 0"},
      {R"({"queries": [[1, 2], [1]]})", "has 1 numbers in row 1, but the index has 2"},
      {R"({"queries": [[1, "a"]]})", "but holds \"a\""},
      {R"({"queries": [[1, null]]})", "but holds null"},
      {R"({"queries": [[1, [2]]]})", "but holds an array"},
      {R"({"queries": [[1, {}]]})", "but holds an object"},
      {R"({"queries": [[1, 1e39]]})", "beyond float32"},
      {R"({"queries": [[1, 1e999]]})", "too large"},
      {R"({"queries": [[1, NaN]]})", "no JSON"},
      {R"({"queries": [[1, 2]], "k": 0})", "k must be between 1 and 100, but is 0"},
      {R"({"queries": [[1, 2]], "k": 101})", "but is 101"},
      {R"({"queries": [[1, 2]], "k": 2.0})", "k must be a whole number, but holds 2.0"},
      {R"({"queries": [[1, 2]], "k": "2"})", "k must be a whole number"},
      {R"({"queries": [[1, 2]], "traffic": 2})", "traffic must be text, but holds 2"},
      {R"({"queries": [[1, 2]], "traffic": ["a"]})", "traffic must be text, but holds an array"},
      {R"({"queries": [["a", 2]]})", "queries must be an array of arrays of numbers"},
      {R"({"queries": [[1, 2]], "k": 99999999999999999999})", "k must be a whole number"},
      {R"({"queries": [[1, 2]], "k": 10000000000000000000})", "k must fit 63 bits"},
      {R"({"queries": [[1, 2]], "recall": 0})", "recall must be in (0, 1]"},
      {R"({"queries": [[1, 2]], "recall": 1.5})", "recall must be in (0, 1], but is 1.5"},
      {R"({"queries": [[1, 2]], "probes": 0})", "probes must be at least 1, but is 0"},
      {R"({"queries": [[1, 2]], "timeout_ms": -1})", "timeout_ms must be at least 1"},
      {R"({"queries": [[1, 2]], "timeout_ms": 86400001})", "timeout_ms must be at most 86400000"},
      {R"({"queries": [[1, 2]], "filter": [-1]})", "filter must hold no negative id"},
      {R"({"queries": [[1, 2]], "filter": [1.5]})", "filter must be an array of whole numbers"},
      {R"({"queries": [[1, 2]], "certify": 1})", "certify must be true or false"},
      {R"({"queries": [[1, 2]], "ef": 1})", "the key 'ef' is not known"},
      {R"({"queries": [[1, 2]], "k": 1, "k": 2})", "the key 'k' is there twice"},
  };
  for (const auto& [body, says] : cases)
    EXPECT_NE(refused(400, [&] { search(body); }).find(says), std::string::npos) << body;
  refused(413, [] { search(R"({"queries": [[1,2],[1,2],[1,2],[1,2],[1,2],[1,2]]})"); });
  // Deep, and cheap to refuse.
  refused(400, [] { search(std::string(1 << 20, '[')); });
  refused(400, [] { search("{\"queries\":" + std::string(1 << 20, '[')); });
  refused(400, [] { search("{\"" + std::string(1 << 20, 'x') + "\": 1}"); });
}

TEST(Requests, ChangesInJson) {
  const ChangeBody body =
      parse_vectors(R"({"vectors": [[1, 2]], "ids": [4]})", BodyForm::json, shape, limits, false);
  EXPECT_EQ(body.ids, std::vector<Id>{4});
  EXPECT_FALSE(parse_vectors(R"({"vectors": [[1, 2]]})", BodyForm::json, shape, limits, false).ids);
  refused(400,
          [] { parse_vectors(R"({"vectors": [[1, 2]]})", BodyForm::json, shape, limits, true); });
  refused(400, [] {
    parse_vectors(R"({"vectors": [[1, 2]], "ids": [1, 2]})", BodyForm::json, shape, limits, false);
  });
  refused(400, [] { parse_vectors(R"({"ids": [1]})", BodyForm::json, shape, limits, false); });
  EXPECT_EQ(parse_ids(R"({"ids": [3, 1]})", limits), (std::vector<Id>{3, 1}));
  refused(400, [] { parse_ids("{}", limits); });
  EXPECT_FALSE(parse_reload(""));
  EXPECT_TRUE(parse_reload(R"({"discard_changes": true})"));
  refused(400, [] { parse_reload(R"({"discard": true})"); });
  parse_nothing("{}");
  refused(400, [] { parse_nothing(R"({"a": 1})"); });
}

// The binary form of a search.
std::string binary(std::uint64_t rows, std::uint64_t dim, std::uint64_t k, double recall,
                   std::uint64_t flags, std::vector<Id> filter, std::vector<float> values,
                   const char* magic = "KNSQ", std::uint32_t version = 1) {
  std::string out(magic);
  const auto put = [&](const void* data, std::size_t bytes) {
    out.append(static_cast<const char*>(data), bytes);
  };
  put(&version, 4);
  const std::uint64_t probes = 2, timeout = 5, count = filter.size();
  put(&rows, 8), put(&dim, 8), put(&k, 8), put(&recall, 8), put(&probes, 8), put(&timeout, 8);
  put(&flags, 8), put(&count, 8);
  put(filter.data(), filter.size() * 8), put(values.data(), values.size() * 4);
  return out;
}

SearchBody binary_search(const std::string& body) {
  return parse_search(body, BodyForm::binary, shape, limits);
}

TEST(Requests, SearchesInBinary) {
  const SearchBody body = binary_search(binary(2, 2, 7, 0.5, 3, {8, 9}, {1, 2, 3, 4}));
  EXPECT_EQ(static_cast<const float*>(body.queries.view().row(1))[1], 4);
  EXPECT_EQ(body.k, 7);
  EXPECT_EQ(body.recall, 0.5);
  EXPECT_EQ(body.probes, 2);
  EXPECT_EQ(body.timeout_ms, 5);
  EXPECT_TRUE(body.certify);
  EXPECT_EQ(body.filter, (std::vector<Id>{8, 9}));
  EXPECT_FALSE(binary_search(binary(1, 2, 7, 0, 0, {}, {1, 2})).recall.has_value());

  // The name of a traffic, of 64 bytes, lies between head and ids.
  std::string named = binary(1, 2, 7, 0.5, 6, {8}, {1, 2});
  const std::string name = "questions";
  named.insert(72, name + std::string(64 - name.size(), '\0'));
  EXPECT_EQ(binary_search(named).traffic, name);
  EXPECT_EQ(binary_search(named).filter, std::vector<Id>{8});
  refused(400, [&] { binary_search(named.substr(0, 100)); });

  const std::string whole = binary(2, 2, 7, 0.5, 3, {8, 9}, {1, 2, 3, 4});
  for (std::size_t size = 0; size < whole.size(); ++size)
    refused(400, [&] { binary_search(whole.substr(0, size)); });
  refused(400, [&] { binary_search(whole + "x"); });
  refused(400, [] { binary_search(binary(1, 3, 7, 0, 0, {}, {1, 2, 3})); });
  refused(400, [] { binary_search(binary(1, 2, 0, 0, 0, {}, {1, 2})); });
  refused(400, [] { binary_search(binary(1, 2, 1, 7, 0, {}, {1, 2})); });
  refused(400, [] { binary_search(binary(1, 2, 1, NAN, 0, {}, {1, 2})); });
  refused(400, [] { binary_search(binary(1, 2, 1, 0, 4, {}, {1, 2})); });
  refused(400, [] { binary_search(binary(1, 2, 1, 0, 0, {3}, {1, 2})); });
  refused(400, [] { binary_search(binary(1, 2, 1, 0, 0, {}, {1, NAN})); });
  refused(400, [] { binary_search(binary(1, 2, 1, 0, 0, {}, {1, 2}, "KNVQ")); });
  refused(400, [] { binary_search(binary(1, 2, 1, 0, 0, {}, {1, 2}, "KNSQ", 2)); });
  refused(413, [] { binary_search(binary(std::uint64_t{1} << 62, 2, 1, 0, 0, {}, {1, 2})); });
}

// Whatever the bytes: a body is read or refused with a line.
TEST(Requests, AlteredBodiesAreReadOrRefused) {
  const std::string json =
      R"({"queries": [[1, 2.5], [-3e1, 0]], "k": 7, "recall": 0.5, "filter": [9, 1]})";
  const std::string bytes = binary(2, 2, 7, 0.5, 3, {8, 9}, {1, 2, 3, 4});
  std::mt19937 random(1);
  int taken = 0;
  for (int i = 0; i < 20000; ++i)
    for (const BodyForm form : {BodyForm::json, BodyForm::binary}) {
      std::string body = form == BodyForm::json ? json : bytes;
      for (unsigned n = random() % 3 + 1; n > 0; --n) {
        const std::size_t at = random() % body.size();
        switch (random() % 4) {
          case 0:
            body[at] = static_cast<char>(random());
            break;
          case 1:
            body.erase(at, random() % 4);
            break;
          case 2:
            body.insert(at, body.substr(random() % body.size(), random() % 8));
            break;
          default:
            body[at] = "{}[]\",:-+.eE0123456789"[random() % 22];
        }
        if (body.empty()) body = "x";
      }
      try {
        parse_search(body, form, shape, limits);
        ++taken;
      } catch (const Refusal& refusal) {
        ASSERT_TRUE(refusal.status() == 400 || refusal.status() == 413) << body;
        ASSERT_EQ(std::string(refusal.what()).find('\n'), std::string::npos);
      }
    }
  EXPECT_GT(taken, 100);
}

TEST(Requests, Answers) {
  Neighbors near{Matrix<Id>(2, 2), Matrix<float>(2, 2)};
  near.ids.row(0)[0] = 5, near.ids.row(0)[1] = no_id;
  near.distances.row(0)[0] = 0.1f;
  near.distances.row(0)[1] = std::numeric_limits<float>::infinity();
  near.ids.row(1)[0] = std::numeric_limits<Id>::max(), near.ids.row(1)[1] = 0;
  near.distances.row(1)[0] = std::numeric_limits<float>::denorm_min();
  near.distances.row(1)[1] = std::numeric_limits<float>::max();
  const std::string text = write_answer(near, {true, false}, 0, 2, BodyForm::json);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["distances"][0][0].get<double>(), static_cast<double>(0.1f));
  EXPECT_TRUE(json["distances"][0][1].is_null());
  EXPECT_EQ(json["distances"][1][0].get<float>(), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(json["distances"][1][1].get<float>(), std::numeric_limits<float>::max());
  EXPECT_EQ(json["ids"][1][0].get<Id>(), std::numeric_limits<Id>::max());
  EXPECT_EQ(json["ids"][0][1].get<Id>(), -1);
  EXPECT_EQ(json["certified"], nlohmann::json({true, false}));
  EXPECT_LE(std::ssize(text), answer_bytes(2, 2, BodyForm::json));
  EXPECT_EQ(nlohmann::json::parse(write_answer(near, {true, false}, 1, 1, BodyForm::json)).dump(),
            R"({"certified":[],"distances":[],"ids":[]})");
  const std::string bytes = write_answer(near, {true, false}, 1, 2, BodyForm::binary);
  ASSERT_EQ(bytes.size(), 24u + 2 * 12 + 1);
  Id first = 0;
  std::memcpy(&first, bytes.data() + 24, sizeof first);
  EXPECT_EQ(first, std::numeric_limits<Id>::max());
  EXPECT_EQ(bytes.back(), 0);
  EXPECT_EQ(write_ids({1, 2}, BodyForm::json), "{\"ids\":[1,2]}\n");
  EXPECT_EQ(write_ids({1, 2}, BodyForm::binary).size(), 32u);
  EXPECT_EQ(json_text("a\"\n\xff"), "\"a\\\"\\n\xEF\xBF\xBD\"");
}

TEST(Metrics, TheTextForm) {
  serve::Metrics metrics;
  metrics.count_request("search", 200, 0.003, 10, 20);
  metrics.count_request("search", 400, 0.3, 5, 6);
  metrics.count_batch(3, 7, 0.01);
  const std::string text = metrics.text(
      {{"knear_rows", "Rows.", "index=\"" + serve::Metrics::escaped("a\"b") + "\"", 4}});
  for (const char* line :
       {"knear_requests_total{action=\"search\",status=\"200\"} 1\n",
        "knear_request_seconds_bucket{action=\"search\",le=\"0.005\"} 1\n",
        "knear_request_seconds_bucket{action=\"search\",le=\"+Inf\"} 2\n",
        "knear_request_seconds_count{action=\"search\"} 2\n", "knear_queries_total 7\n",
        "knear_batch_queries_bucket{le=\"8\"} 1\n", "knear_batch_queries_bucket{le=\"4\"} 0\n",
        "# TYPE knear_rows gauge\nknear_rows{index=\"a\\\"b\"} 4\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

}  // namespace
}  // namespace knear::cli
