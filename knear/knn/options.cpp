#include "knear/knn/options.hpp"

#include <algorithm>
#include <charconv>
#include <span>

#include "knear/core/error.hpp"

namespace knear {
namespace {

template <class T>
struct Named {
  T value;
  std::string_view name;
};
constexpr Named<FirstPass> first_passes[] = {
    {FirstPass::automatic, "auto"}, {FirstPass::integer, "integer"}, {FirstPass::int8, "int8"},
    {FirstPass::int16, "int16"},    {FirstPass::fp32, "fp32"},       {FirstPass::direct, "direct"},
    {FirstPass::prefix, "prefix"}};
constexpr Named<Method> methods[] = {{Method::automatic, "auto"},
                                     {Method::exact, "exact"},
                                     {Method::threshold_heap, "threshold-heap"},
                                     {Method::partial_reduce, "partial-reduce"}};

template <class T>
std::string_view name_in(std::span<const Named<T>> all, T value) {
  for (const Named<T>& one : all)
    if (one.value == value) return one.name;
  return "?";
}

template <class T>
T value_in(std::span<const Named<T>> all, std::string_view argument, std::string_view name) {
  std::string names;
  for (const Named<T>& one : all) {
    if (one.name == name) return one.value;
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  throw InvalidArgument("{} must be one of {}, but is '{}'", argument, names, name);
}

}  // namespace

std::string_view name_of(FirstPass pass) { return name_in<FirstPass>(first_passes, pass); }
FirstPass parse_first_pass(std::string_view name) {
  return value_in<FirstPass>(first_passes, "first_pass", name);
}
std::string_view name_of(Method method) { return name_in<Method>(methods, method); }
Method parse_method(std::string_view name) { return value_in<Method>(methods, "method", name); }

TuningOverrides parse_tuning(std::string_view text) {
  TuningOverrides out;
  const auto refuse = [](std::string_view item) {
    throw InvalidArgument(
        "choices are group=1|4|12, parts=N, columns=N (a multiple of 8 up to 128), clusters=N, "
        "tile=N (KiB), guess=on|off and refine=on|off, with commas between them, but there is '{}'",
        item);
  };
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equal = item.find('=');
    if (equal == std::string_view::npos) refuse(item);
    const std::string_view name = item.substr(0, equal), value = item.substr(equal + 1);
    if (name == "guess" || name == "refine") {
      if (value != "on" && value != "off") refuse(item);
      if (name == "guess")
        out.guess = value == "on";
      else
        out.refine = value == "on";
      continue;
    }
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size()) refuse(item);
    if (name == "group" && (number == 1 || number == 4 || number == 12))
      out.group = static_cast<int>(number);
    else if (name == "parts" && number >= 1 && number <= 4096)
      out.parts = static_cast<int>(number);
    else if (name == "columns" && number >= 8 && number <= 128 && number % 8 == 0)
      out.columns = number;
    else if (name == "clusters" && number >= 1 && number <= 1 << 20)
      out.clusters = number;
    else if (name == "tile" && number >= 1 && number <= detail::most_tile)
      out.tile = number;
    else
      refuse(item);
  }
  return out;
}

}  // namespace knear
