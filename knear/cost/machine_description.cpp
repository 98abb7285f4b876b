#include "knear/cost/machine_description.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <string>

#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/cost/clock_limit.hpp"

namespace knear {
namespace {

using Json = nlohmann::ordered_json;

constexpr double least_rate = 1e6, most_rate = 1e18;

struct Rate {
  const char* name;
  double MachinePeaks::*value;
  bool needed;
};
constexpr Rate rates[] = {{"fp32_flops", &MachinePeaks::fp32_flops, true},
                          {"bf16_flops", &MachinePeaks::bf16_flops, false},
                          {"int16_ops", &MachinePeaks::int16_ops, false},
                          {"int8_ops", &MachinePeaks::int8_ops, true},
                          {"memory_bytes_per_second", &MachinePeaks::memory_bytes_per_second, true},
                          {"cop_per_second", &MachinePeaks::cop_per_second, true},
                          {"cycles_per_second", &MachinePeaks::cycles_per_second, false}};

constexpr const char* other_fields[] = {"name",
                                        "isa",
                                        "threads",
                                        "caches",
                                        "memory_bytes",
                                        "new_memory_bytes_per_second",
                                        "first_use_bytes_per_second",
                                        "network_bytes_per_second",
                                        "network_latency_seconds",
                                        "price_per_hour"};

// Lists and objects within each other. What copies or prints values of JSON calls itself for each
// level, of which a file may have a million.
constexpr int most_levels = 4;

bool nests_deeper(std::string_view text, int most) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (quoted && letter == '\\') ++i;
    if (letter == '"') quoted = !quoted;
    if (quoted) continue;
    if ((letter == '[' || letter == '{') && ++depth > most) return true;
    if (letter == ']' || letter == '}') --depth;
  }
  return false;
}

// Whether there are bytes that a terminal may take for more than text: control characters, of one
// byte or, from U+0080 to U+009F, of two.
bool has_controls(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto letter = static_cast<unsigned char>(text[i]);
    if (letter < ' ' || letter == 127) return true;
    if (letter == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0)
      return true;
  }
  return false;
}

// A value as a message shows it: one line, and not a long one.
std::string shown(const Json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 40) + "..." : text;
}

class Fields {
 public:
  Fields(const Json& object, std::string_view where) : object_(object), where_(where) {}

  // Nothing where there is none, or null.
  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  const Json& at(const char* name, const char* what) const {
    const Json* found = find(name);
    if (!found) throw CorruptFile("{}: {} is missing: {}", where_, name, what);
    return *found;
  }

  double number(const Json& value, std::string_view name, double least, double most) const {
    const double number =
        value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= least && number <= most))
      throw CorruptFile("{}: {} must be a number from {} to {}, but is {}", where_, name, least,
                        most, shown(value));
    return number;
  }

  std::optional<double> optional_number(const char* name, double least, double most) const {
    const Json* found = find(name);
    if (!found) return std::nullopt;
    return number(*found, name, least, most);
  }

 private:
  const Json& object_;
  std::string_view where_;
};

Isa isa_named(const Fields& fields, std::string_view where) {
  const Json& value = fields.at("isa", "the level of instructions that the rates were timed with");
  const std::string* word = value.get_ptr<const std::string*>();
  std::string names;
  for (const Isa isa : all_isas) {
    if (word && *word == name_of(isa)) return isa;
    names += (names.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  throw CorruptFile("{}: isa must be one of {}, but is {}", where, names, shown(value));
}

void read_caches(const Fields& fields, std::string_view where, MachinePeaks& peaks) {
  const Json* caches = fields.find("caches");
  if (!caches) return;
  if (!caches->is_array() || caches->size() > std::size(peaks.caches))
    throw CorruptFile("{}: caches must be a list of at most {}, but is {}", where,
                      std::size(peaks.caches), shown(*caches));
  for (std::size_t level = 0; level < caches->size(); ++level) {
    const Json& one = (*caches)[level];
    const std::string name = fmt::format("caches[{}]", level);
    if (!one.is_object())
      throw CorruptFile("{}: {} must be an object, but is {}", where, name, shown(one));
    const Fields cache(one, where);
    for (const auto& [key, value] : one.items())
      if (key != "bytes" && key != "bytes_per_second" && key != "level")
        throw CorruptFile("{}: {} has no field {}", where, name, shown(Json(key)));
    peaks.caches[level] = {
        std::int64_t(cache.number(cache.at("bytes", "of one cache"), name + ".bytes", 1, 1e12)),
        cache.number(cache.at("bytes_per_second", "of one cache"), name + ".bytes_per_second",
                     least_rate, most_rate)};
  }
}

}  // namespace

MachineDescription parse_machine(std::string_view text, std::string_view where) {
  if (nests_deeper(text, most_levels))
    throw CorruptFile("{}: lists and objects are more than {} deep in each other", where,
                      most_levels);
  // A field that is there twice would be the last of them.
  std::set<std::string> seen;
  const auto once = [&](int depth, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::key && depth == 1 &&
        !seen.insert(value.get<std::string>()).second)
      throw CorruptFile("{}: {} is there twice", where, shown(value));
    return true;
  };
  const Json object = Json::parse(text, once, false);
  if (object.is_discarded())
    throw CorruptFile("{}: this is not JSON, or has a number beyond those of float64", where);
  if (!object.is_object())
    throw CorruptFile("{}: a machine is a JSON object, but this is {}", where, shown(object));
  for (const auto& [key, value] : object.items()) {
    const auto is_it = [&name = key](const char* field) { return name == field; };
    const bool rate = std::any_of(std::begin(rates), std::end(rates),
                                  [&](const Rate& each) { return is_it(each.name); });
    if (!rate && std::none_of(std::begin(other_fields), std::end(other_fields), is_it))
      throw CorruptFile("{}: a machine has no field {}", where, shown(Json(key)));
  }

  const Fields fields(object, where);
  MachineDescription out;
  const Json& name = fields.at("name", "what the machine is called");
  if (!name.is_string() || name.get_ref<const std::string&>().size() > 200)
    throw CorruptFile("{}: name must be a text of at most 200 bytes, but is {}", where,
                      shown(name));
  out.name = name.get<std::string>();
  if (out.name.empty() || has_controls(out.name))
    throw CorruptFile("{}: name must be one line of text, and not empty, but is {}", where,
                      shown(name));
  out.peaks.isa = isa_named(fields, where);
  const Json& threads = fields.at("threads", "that the rates are sums of");
  if (!threads.is_number_integer())
    throw CorruptFile("{}: threads must be a whole number, but is {}", where, shown(threads));
  out.peaks.threads = int(fields.number(threads, "threads", 1, 65536));
  for (const Rate& rate : rates) {
    const Json* value = rate.needed ? &fields.at(rate.name, "knear roofline --out measures it")
                                    : fields.find(rate.name);
    out.peaks.*rate.value = value ? fields.number(*value, rate.name, least_rate, most_rate)
                                  : std::numeric_limits<double>::quiet_NaN();
  }
  if (const double most = out.peaks.threads * detail::highest_clock;
      out.peaks.cycles_per_second > most)
    throw CorruptFile(
        "{}: cycles_per_second must be at most 8e9 for each of threads = {}, but is {}; knear "
        "roofline --out measures it",
        where, out.peaks.threads, out.peaks.cycles_per_second);
  read_caches(fields, where, out.peaks);
  out.memory_bytes = fields.number(fields.at("memory_bytes", "of the whole machine"),
                                   "memory_bytes", 0x1p20, 0x1p50);
  out.new_memory_bytes_per_second =
      fields.optional_number("new_memory_bytes_per_second", least_rate, most_rate);
  out.first_use_bytes_per_second =
      fields.optional_number("first_use_bytes_per_second", least_rate, most_rate);
  out.network_bytes_per_second =
      fields.optional_number("network_bytes_per_second", least_rate, most_rate);
  out.network_latency_seconds = fields.optional_number("network_latency_seconds", 0, 60);
  out.price_per_hour = fields.optional_number("price_per_hour", 0, 1e9);
  return out;
}

std::string text_of_machine(const MachineDescription& machine) {
  const auto or_null = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
  };
  Json out;
  out["name"] = machine.name;
  out["isa"] = name_of(machine.peaks.isa);
  out["threads"] = machine.peaks.threads;
  for (const Rate& rate : rates) {
    const double value = machine.peaks.*rate.value;
    out[rate.name] = value > 0 ? or_null(value) : Json(nullptr);  // NaN or 0: not known
  }
  Json& caches = out["caches"] = Json::array();
  for (const CachePeak& cache : machine.peaks.caches)
    if (cache.bytes > 0)
      caches.push_back({{"bytes", cache.bytes}, {"bytes_per_second", cache.bytes_per_second}});
  out["memory_bytes"] = or_null(machine.memory_bytes);
  out["new_memory_bytes_per_second"] = or_null(machine.new_memory_bytes_per_second);
  out["first_use_bytes_per_second"] = or_null(machine.first_use_bytes_per_second);
  out["network_bytes_per_second"] = or_null(machine.network_bytes_per_second);
  out["network_latency_seconds"] = or_null(machine.network_latency_seconds);
  out["price_per_hour"] = or_null(machine.price_per_hour);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace knear
