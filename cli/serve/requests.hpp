// cli/serve/requests.hpp -- what bodies of requests ask for, in JSON and in the binary form, and
// answers in both. No sockets and no index here.
//
//   SearchRequest request = parse_search(body, BodyForm::json, shape, limits);
//   std::string answer = write_answer(near, certified, BodyForm::json);
//
// A parser throws a Refusal (400, or 413 for too many rows) with one line that names the key and
// the value. Nothing is ignored: a key that is not known, or is there twice, is an error; null
// stands for a key that is left out. JSON is
// read without recursion and straight into rows, so a body takes a small multiple of its own size.
// The numbers of JSON are rounded to float32, or are float64 where the index is.
//
// The binary form is little-endian: docs/server.md and GET /openapi.json describe it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::cli {

enum class BodyForm { json, binary };

struct RequestLimits {
  std::int64_t k = 10000, rows = 10000;  // of one request
};

// What rows have to be like: of the index.
struct RowShape {
  std::int64_t dim = 0;
  ElementType type = ElementType::f32;  // as which JSON is read: f32 or f64
};

struct SearchBody {
  AnyMatrix queries = {};  // [q x dim]
  std::int64_t k = 10;
  std::optional<double> recall = {};
  std::int64_t probes = 0, timeout_ms = 0;  // 0: not said
  bool certify = false;
  std::optional<std::vector<Id>> filter = {};
  std::string traffic = {};
};

struct ChangeBody {
  std::optional<std::vector<Id>> ids = {};
  AnyMatrix vectors = {};
};

SearchBody parse_search(std::string_view body, BodyForm form, const RowShape& shape,
                        const RequestLimits& limits);
// {"vectors", "ids"?}; of replace ids are needed.
ChangeBody parse_vectors(std::string_view body, BodyForm form, const RowShape& shape,
                         const RequestLimits& limits, bool ids_needed);
// {"ids"}.
std::vector<Id> parse_ids(std::string_view body, const RequestLimits& limits);
// {"discard_changes"?}; an empty body is {}.
bool parse_reload(std::string_view body);
// {} or nothing.
void parse_nothing(std::string_view body);

// Rows begin, ..., end - 1 of what was found. JSON: {"distances", "ids", "certified"}, a place
// without a neighbour has the distance null and the id -1; one that is no finite number is null
// too.
std::string write_answer(const Neighbors& near, const std::vector<bool>& certified,
                         std::int64_t begin, std::int64_t end, BodyForm form);
// {"ids": [...]}.
std::string write_ids(const std::vector<Id>& ids, BodyForm form);

// Upper limit of the memory of an answer while it is written.
std::int64_t answer_bytes(std::int64_t queries, std::int64_t k, BodyForm form);

// Text as it stands between quotes in JSON; what is no UTF-8 is replaced.
std::string json_text(std::string_view text);

}  // namespace knear::cli
