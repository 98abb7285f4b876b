#include "cli/serve/requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

using serve::Refusal;

constexpr std::int64_t most_timeout_ms = std::int64_t{24} * 3600 * 1000;  // a day

// A value in a message, cut short.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, 40));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 127) c = '?';
  return text.size() > 40 ? out + "..." : out;
}

// Type of the value of a key.
enum class Kind { number, whole, flag, ids, rows, text };
struct Key {
  std::string_view name;
  Kind kind;
};
constexpr Key search_keys[] = {{"queries", Kind::rows},  {"k", Kind::whole},
                               {"recall", Kind::number}, {"probes", Kind::whole},
                               {"filter", Kind::ids},    {"timeout_ms", Kind::whole},
                               {"certify", Kind::flag},  {"traffic", Kind::text}};
constexpr Key vector_keys[] = {{"vectors", Kind::rows}, {"ids", Kind::ids}};
constexpr Key id_keys[] = {{"ids", Kind::ids}};
constexpr Key reload_keys[] = {{"discard_changes", Kind::flag}};

// The values of the keys that were there.
struct Values {
  std::optional<double> number = {};  // of the one key that has one
  std::vector<std::pair<std::string_view, std::int64_t>> whole = {};
  std::optional<bool> flag = {};
  std::string text = {};
  std::optional<std::vector<Id>> ids = {};
  std::vector<float> floats = {};
  std::vector<double> doubles = {};
  std::int64_t rows = -1;  // -1: no such key

  std::optional<std::int64_t> find(std::string_view name) const {
    for (const auto& [key, value] : whole)
      if (key == name) return value;
    return {};
  }
};

// Called by the parser for each token; false would end it without a reason, so it throws.
class BodyReader {
 public:
  using Json = nlohmann::ordered_json;
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  BodyReader(std::span<const Key> keys, const RowShape& shape, const RequestLimits& limits)
      : keys_(keys), shape_(shape), limits_(limits), seen_(keys.size()) {}

  Values take() { return std::move(out_); }

  // Of a key that may be left out it says as much.
  bool null() { return (depth_ == 1 && key_ && key_->kind != Kind::rows) || other("null"); }
  bool boolean(bool value) {
    if (depth_ != 1 || !key_ || key_->kind != Kind::flag) return other(value ? "true" : "false");
    out_.flag = value;
    return true;
  }
  bool number_integer(number_integer_t value) { return whole(value); }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()) && key_ &&
        key_->kind != Kind::rows && key_->kind != Kind::number)
      throw Refusal(400, "{} must fit 63 bits, but holds {}", name(), value);
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return number(static_cast<double>(value));
    return whole(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& text) {
    if (depth_ > 0 && key_ && (key_->kind == Kind::whole || key_->kind == Kind::ids))
      throw Refusal(400, "{} must be {}, but holds {}", name(),
                    key_->kind == Kind::whole ? "a whole number" : "an array of whole numbers",
                    shown(text));
    return number(value);
  }
  bool string(string_t& value) {
    if (depth_ != 1 || !key_ || key_->kind != Kind::text) return other("\"" + shown(value) + "\"");
    out_.text = std::move(value);
    return true;
  }
  bool binary(binary_t&) { return other("bytes"); }
  bool start_object(std::size_t) {
    if (depth_ > 0) return other("an object");
    ++depth_;
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool key(string_t& word) {
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (keys_[i].name == word) {
        if (seen_[i]) throw Refusal(400, "the key '{}' is there twice", word);
        seen_[i] = true;
        key_ = &keys_[i];
        return true;
      }
    std::string known;
    for (const Key& each : keys_) known += (known.empty() ? "" : ", ") + std::string(each.name);
    throw Refusal(400, "the key '{}' is not known; there {}", shown(word),
                  known.empty() ? "are none" : "are " + known);
  }
  bool start_array(std::size_t) {
    if (depth_ == 0 || !key_) return other("an array");
    const bool rows = key_->kind == Kind::rows;
    if ((!rows && key_->kind != Kind::ids) || depth_ >= (rows ? 3 : 2)) return other("an array");
    ++depth_;
    if (!rows) {
      out_.ids.emplace();
    } else if (depth_ == 2) {
      out_.rows = 0;
    } else {
      column_ = 0;
      if (out_.rows >= limits_.rows)
        throw Refusal(413, "{} has more than {} rows", name(), limits_.rows);
    }
    return true;
  }
  bool end_array() {
    if (key_->kind == Kind::rows && depth_ == 3) {
      if (column_ != shape_.dim)
        throw Refusal(400, "{} has {} numbers in row {}, but the index has {} columns", name(),
                      column_, out_.rows, shape_.dim);
      ++out_.rows;
    }
    --depth_;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception& error) {
    // The parser has no other way to tell of a number such as 1e999.
    if (error.id == 406) throw Refusal(400, "a number near byte {} of the body is too large", at);
    throw Refusal(400, "the body is no JSON, from byte {} on", at);
  }

 private:
  std::string_view name() const { return key_ ? key_->name : "the body"; }
  [[noreturn]] bool other(std::string_view value) const {
    if (depth_ == 0 || !key_) throw Refusal(400, "the body must be a JSON object");
    static constexpr std::string_view wanted[] = {"a number",
                                                  "a whole number",
                                                  "true or false",
                                                  "an array of whole numbers",
                                                  "an array of arrays of numbers",
                                                  "text"};
    throw Refusal(400, "{} must be {}, but holds {}", name(),
                  wanted[static_cast<std::size_t>(key_->kind)], value);
  }
  bool whole(std::int64_t value) {
    if (depth_ == 0 || !key_) return other("a number");
    if (key_->kind == Kind::whole && depth_ == 1) {
      out_.whole.emplace_back(key_->name, value);
      return true;
    }
    if (key_->kind == Kind::ids && depth_ == 2) {
      out_.ids->push_back(value);
      return true;
    }
    return number(static_cast<double>(value));
  }
  bool number(double value) {
    if (depth_ == 0 || !key_) return other("a number");
    if (key_->kind == Kind::number && depth_ == 1) {
      out_.number = value;
      return true;
    }
    if (key_->kind != Kind::rows || depth_ != 3) return other(fmt::format("{}", value));
    if (column_ >= shape_.dim)
      throw Refusal(400, "{} has more than {} numbers in row {}", name(), shape_.dim, out_.rows);
    ++column_;
    if (shape_.type == ElementType::f64) {
      out_.doubles.push_back(value);
      return true;
    }
    const float rounded = static_cast<float>(value);
    if (!std::isfinite(rounded))
      throw Refusal(400, "{} holds {} in row {}, which is beyond float32", name(), value,
                    out_.rows);
    out_.floats.push_back(rounded);
    return true;
  }

  const std::span<const Key> keys_;
  const RowShape shape_;
  const RequestLimits limits_;
  std::vector<bool> seen_;
  Values out_;
  const Key* key_ = nullptr;
  int depth_ = 0;
  std::int64_t column_ = 0;
};

Values read_json(std::string_view body, std::span<const Key> keys, const RowShape& shape,
                 const RequestLimits& limits) {
  BodyReader reader(keys, shape, limits);
  nlohmann::ordered_json::sax_parse(body.begin(), body.end(), &reader);
  return reader.take();
}

AnyMatrix rows_of(const Values& values, const RowShape& shape, std::string_view name) {
  if (values.rows < 0) throw Refusal(400, "the key '{}' is missing", name);
  AnyMatrix out(shape.type == ElementType::f64 ? ElementType::f64 : ElementType::f32, values.rows,
                shape.dim);
  if (values.rows == 0) return out;
  if (out.type() == ElementType::f64)
    std::memcpy(out.row(0), values.doubles.data(), values.doubles.size() * sizeof(double));
  else
    std::memcpy(out.row(0), values.floats.data(), values.floats.size() * sizeof(float));
  return out;
}

// Heads of the binary form.
struct SearchHead {
  char magic[4];
  std::uint32_t version;
  std::uint64_t rows, dim, k;
  double recall;
  std::uint64_t probes, timeout_ms;
  std::uint64_t flags;  // 1: certify; 2: a filter; 4: a name of the traffic, before the ids
  std::uint64_t filter;
};
struct VectorHead {
  char magic[4];
  std::uint32_t version;
  std::uint64_t rows, dim;
  std::uint64_t flags;  // 1: ids
};
struct AnswerHead {
  char magic[4];
  std::uint32_t version;
  std::uint64_t rows, k;
};
struct IdsHead {
  char magic[4];
  std::uint32_t version;
  std::uint64_t rows;
};
static_assert(sizeof(SearchHead) == 72 && sizeof(VectorHead) == 32 && sizeof(AnswerHead) == 24 &&
              sizeof(IdsHead) == 16);

// The parts of a binary body, one after the other.
class BinaryReader {
 public:
  explicit BinaryReader(std::string_view body) : body_(body) {}

  template <class Head>
  Head head(const char (&magic)[5]) {
    Head out;
    if (body_.size() < sizeof out)
      throw Refusal(400, "the body has {} bytes, but its head takes {}", body_.size(), sizeof out);
    take(&out, sizeof out);
    if (std::memcmp(out.magic, magic, 4) != 0)
      throw Refusal(400, "the body does not begin with {}", magic);
    if (out.version != 1) throw Refusal(400, "version must be 1, but is {}", out.version);
    return out;
  }
  // Refuses a body that is not as long as its head says. Of items of 1, 4 or 8 bytes.
  void check_rest(std::uint64_t ids, std::uint64_t rows, std::uint64_t dim) const {
    const std::uint64_t left = body_.size() - at_;
    // Each factor is far below 2^32 once these hold, so nothing overflows.
    if (ids > left / sizeof(Id) || dim == 0 || rows > left / (dim * sizeof(float)) ||
        ids * sizeof(Id) + rows * dim * sizeof(float) != left)
      throw Refusal(400,
                    "the body has {} bytes after its head, which are not {} ids and {} rows of {}",
                    left, ids, rows, dim);
  }
  // A name of 64 bytes, filled up with zeros.
  std::string name() {
    std::string out(64, '\0');
    if (body_.size() - at_ < out.size())
      throw Refusal(400, "the body has {} bytes after its head, but the name of a traffic takes {}",
                    body_.size() - at_, out.size());
    take(out.data(), out.size());
    out.resize(std::min(out.size(), out.find('\0')));
    return out;
  }
  std::vector<Id> ids(std::uint64_t count) {
    std::vector<Id> out(count);
    take(out.data(), count * sizeof(Id));
    return out;
  }
  AnyMatrix rows(std::uint64_t count, std::uint64_t dim, std::string_view name) {
    AnyMatrix out(ElementType::f32, static_cast<std::int64_t>(count),
                  static_cast<std::int64_t>(dim));
    if (count == 0) return out;
    take(out.row(0), count * dim * sizeof(float));
    const auto* const values = static_cast<const float*>(out.row(0));
    const auto* const bad =
        std::find_if_not(values, values + count * dim, [](float x) { return std::isfinite(x); });
    if (bad != values + count * dim)
      throw Refusal(400, "{} holds a NaN or infinity in row {}", name,
                    static_cast<std::uint64_t>(bad - values) / dim);
    return out;
  }

 private:
  void take(void* out, std::size_t bytes) {
    if (bytes > 0) std::memcpy(out, body_.data() + at_, bytes);
    at_ += bytes;
  }
  std::string_view body_;
  std::size_t at_ = 0;
};

void check_dim(std::uint64_t dim, const RowShape& shape) {
  if (dim != static_cast<std::uint64_t>(shape.dim))
    throw Refusal(400, "dim is {}, but the index has {} columns", dim, shape.dim);
}

void check_rows(std::uint64_t rows, const RequestLimits& limits) {
  if (rows > static_cast<std::uint64_t>(limits.rows))
    throw Refusal(413, "rows must be at most {}, but is {}", limits.rows, rows);
}

void check_flags(std::uint64_t flags, std::uint64_t known) {
  if (flags & ~known) throw Refusal(400, "flags is {}, of which only {} are known", flags, known);
}

std::int64_t as_signed(std::uint64_t value, std::string_view name) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Refusal(400, "{} must fit 63 bits, but is {}", name, value);
  return static_cast<std::int64_t>(value);
}

void check_search(const SearchBody& body, const RequestLimits& limits) {
  if (body.k < 1 || body.k > limits.k)
    throw Refusal(400, "k must be between 1 and {}, but is {}", limits.k, body.k);
  if (body.recall && !(*body.recall > 0 && *body.recall <= 1))
    throw Refusal(400, "recall must be in (0, 1], but is {}", *body.recall);
  try {
    const TrafficName checked(body.traffic);
  } catch (const InvalidArgument& e) {
    throw Refusal(400, "{}", e.what());
  }
  if (body.timeout_ms > most_timeout_ms)
    throw Refusal(400, "timeout_ms must be at most {}, but is {}", most_timeout_ms,
                  body.timeout_ms);
  if (body.filter)
    for (std::size_t i = 0; i < body.filter->size(); ++i)
      if ((*body.filter)[i] < 0)
        throw Refusal(400, "filter must hold no negative id, but the one at place {} is {}", i,
                      (*body.filter)[i]);
}

// A key that, where it is there, is at least 1.
std::int64_t at_least_one(const Values& values, std::string_view name) {
  const auto value = values.find(name);
  if (value && *value < 1) throw Refusal(400, "{} must be at least 1, but is {}", name, *value);
  return value.value_or(0);
}

template <class Head>
void put(std::string& out, const Head& head) {
  out.append(reinterpret_cast<const char*>(&head), sizeof head);
}

}  // namespace

SearchBody parse_search(std::string_view body, BodyForm form, const RowShape& shape,
                        const RequestLimits& limits) {
  SearchBody out;
  if (form == BodyForm::binary) {
    BinaryReader in(body);
    const auto head = in.head<SearchHead>("KNSQ");
    check_dim(head.dim, shape);
    check_rows(head.rows, limits);
    check_flags(head.flags, 7);
    if (head.flags & 4) out.traffic = in.name();
    if (!(head.flags & 2) && head.filter != 0)
      throw Refusal(400, "filter has {} ids, but flags say that there is none", head.filter);
    in.check_rest(head.filter, head.rows, head.dim);
    out.k = as_signed(head.k, "k");
    if (head.recall != 0) out.recall = head.recall;
    out.probes = as_signed(head.probes, "probes");
    out.timeout_ms = as_signed(head.timeout_ms, "timeout_ms");
    out.certify = head.flags & 1;
    std::vector<Id> ids = in.ids(head.filter);
    if (head.flags & 2) out.filter = std::move(ids);
    out.queries = in.rows(head.rows, head.dim, "queries");
  } else {
    Values values = read_json(body, search_keys, shape, limits);
    out.queries = rows_of(values, shape, "queries");
    out.k = values.find("k").value_or(10);
    out.recall = values.number;
    out.probes = at_least_one(values, "probes");
    out.timeout_ms = at_least_one(values, "timeout_ms");
    out.certify = values.flag.value_or(false);
    out.traffic = std::move(values.text);
    out.filter = std::move(values.ids);
  }
  check_search(out, limits);
  return out;
}

ChangeBody parse_vectors(std::string_view body, BodyForm form, const RowShape& shape,
                         const RequestLimits& limits, bool ids_needed) {
  ChangeBody out;
  if (form == BodyForm::binary) {
    BinaryReader in(body);
    const auto head = in.head<VectorHead>("KNVQ");
    check_dim(head.dim, shape);
    check_rows(head.rows, limits);
    check_flags(head.flags, 1);
    in.check_rest(head.flags & 1 ? head.rows : 0, head.rows, head.dim);
    if (head.flags & 1) out.ids = in.ids(head.rows);
    out.vectors = in.rows(head.rows, head.dim, "vectors");
  } else {
    Values values = read_json(body, vector_keys, shape, limits);
    out.vectors = rows_of(values, shape, "vectors");
    out.ids = std::move(values.ids);
  }
  if (ids_needed && !out.ids) throw Refusal(400, "the key 'ids' is missing");
  if (out.ids && std::ssize(*out.ids) != out.vectors.rows())
    throw Refusal(400, "ids has {} numbers, but vectors has {} rows", out.ids->size(),
                  out.vectors.rows());
  return out;
}

std::vector<Id> parse_ids(std::string_view body, const RequestLimits& limits) {
  Values values = read_json(body, id_keys, {}, limits);
  if (!values.ids) throw Refusal(400, "the key 'ids' is missing");
  return std::move(*values.ids);
}

bool parse_reload(std::string_view body) {
  if (body.empty()) return false;
  return read_json(body, reload_keys, {}, {}).flag.value_or(false);
}

void parse_nothing(std::string_view body) {
  if (!body.empty()) read_json(body, {}, {}, {});
}

std::string write_answer(const Neighbors& near, const std::vector<bool>& certified,
                         std::int64_t begin, std::int64_t end, BodyForm form) {
  const std::int64_t k = near.ids.cols();
  std::string out;
  if (form == BodyForm::binary) {
    out.reserve(static_cast<std::size_t>(answer_bytes(end - begin, k, form)));
    put(out, AnswerHead{{'K', 'N', 'S', 'A'},
                        1,
                        static_cast<std::uint64_t>(end - begin),
                        static_cast<std::uint64_t>(k)});
    const auto rows = static_cast<std::size_t>((end - begin) * k);
    if (rows > 0) {
      out.append(reinterpret_cast<const char*>(near.ids.row(begin)), rows * sizeof(Id));
      out.append(reinterpret_cast<const char*>(near.distances.row(begin)), rows * sizeof(float));
    }
    for (std::int64_t q = begin; q < end; ++q)
      out.push_back(certified[static_cast<std::size_t>(q)] ? 1 : 0);
    return out;
  }
  auto to = std::back_inserter(out);
  const auto rows = [&](auto&& element) {
    for (std::int64_t q = begin; q < end; ++q) {
      out += q == begin ? "[" : ",[";
      for (std::int64_t j = 0; j < k; ++j) {
        if (j > 0) out += ',';
        element(q, j);
      }
      out += ']';
    }
  };
  out += "{\"distances\":[";
  rows([&](std::int64_t q, std::int64_t j) {
    // As a double, which reads back as this very float32 in either precision.
    // JSON has no infinity, which a distance beyond float32 is.
    if (near.ids.row(q)[j] == no_id || !std::isfinite(near.distances.row(q)[j]))
      out += "null";
    else
      fmt::format_to(to, FMT_STRING("{}"), static_cast<double>(near.distances.row(q)[j]));
  });
  out += "],\"ids\":[";
  rows([&](std::int64_t q, std::int64_t j) {
    fmt::format_to(to, FMT_STRING("{}"), near.ids.row(q)[j]);
  });
  out += "],\"certified\":[";
  for (std::int64_t q = begin; q < end; ++q) {
    if (q > begin) out += ',';
    out += certified[static_cast<std::size_t>(q)] ? "true" : "false";
  }
  return out + "]}\n";
}

std::string write_ids(const std::vector<Id>& ids, BodyForm form) {
  std::string out;
  if (form == BodyForm::binary) {
    put(out, IdsHead{{'K', 'N', 'I', 'A'}, 1, ids.size()});
    out.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id));
    return out;
  }
  return fmt::format("{{\"ids\":[{}]}}\n", fmt::join(ids, ","));
}

std::int64_t answer_bytes(std::int64_t queries, std::int64_t k, BodyForm form) {
  // A neighbour takes 12 bytes in memory; in JSON up to 24 for the distance and 20 for the id.
  const std::int64_t place = 12 + (form == BodyForm::binary ? 12 : 46);
  return 64 + queries * (16 + k * place);
}

std::string json_text(std::string_view text) {
  return nlohmann::ordered_json(text).dump(-1, ' ', false,
                                           nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace knear::cli
