// The grammar of factory strings: parts between commas, each a name and a number.
#include "knear/factory/factory.hpp"

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/flat.hpp"
#include "knear/index/ivf_flat.hpp"

namespace knear {
namespace {

struct Part {
  std::string_view text;
  std::size_t place;  // of its first character, from 1
};

// Splits at commas outside of brackets.
std::vector<Part> parts_of(std::string_view factory) {
  std::vector<Part> out;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= factory.size(); ++i) {
    const char c = i < factory.size() ? factory[i] : ',';
    depth += (c == '(') - (c == ')');
    if (c != ',' || (depth > 0 && i < factory.size())) continue;
    out.push_back({factory.substr(begin, i - begin), begin + 1});
    begin = i + 1;
  }
  return out;
}

[[noreturn]] void refuse(std::string_view factory, const Part& part, std::string_view why) {
  throw InvalidArgument("factory '{}' has '{}' at place {}, {}", factory, part.text, part.place,
                        why);
}

// The number after a name that the part begins with.
std::optional<std::int64_t> number_after(std::string_view name, std::string_view text) {
  if (!text.starts_with(name)) return {};
  text.remove_prefix(name.size());
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') return {};
  return out;
}

Index made(std::string_view factory, std::int64_t dim, Metric metric) {
  const std::vector<Part> parts = parts_of(factory);
  const auto end_after = [&](std::size_t count) {
    if (parts.size() > count) refuse(factory, parts[count], "which may not follow there");
  };
  if (parts[0].text == "Flat") {
    end_after(1);
    return FlatIndex(dim, metric);
  }
  if (const auto lists = number_after("IVF", parts[0].text)) {
    if (parts.size() < 2)
      refuse(factory, parts[0], "after which the form of the vectors is missing, as in ',Flat'");
    if (parts[1].text != "Flat")
      refuse(factory, parts[1], "which is no form of vectors in inverted lists: only Flat is");
    end_after(2);
    if (*lists < 1 || *lists > (1 << 24))
      refuse(factory, parts[0], "but there can be 1 to 16777216 lists");
    return IvfFlatIndex(dim, *lists, metric);
  }
  refuse(factory, parts[0], "which is none of the indexes Flat and IVFn,Flat");
}

}  // namespace

Index make_index(std::string_view factory, std::int64_t dim, Metric metric) {
  return detail::public_call([&] { return made(factory, dim, metric); });
}

}  // namespace knear
