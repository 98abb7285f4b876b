// The grammar of factory strings: parts between commas, each a name and a number.
#include "knear/factory/factory.hpp"

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/index_impl.hpp"

namespace knear {
namespace {

constexpr std::int64_t any_dim = 0;

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

// Parts of a string, taken from the front.
class Grammar {
 public:
  Grammar(std::string_view factory, std::int64_t dim, Metric metric)
      : factory_(factory), parts_(parts_of(factory)) {
    shape_.dim = dim, shape_.metric = metric;
  }

  detail::IndexShape shape() {
    // Ids are always the caller's if they like.
    if (is("IDMap") || is("IDMap2")) ++at_;
    if (const auto lists = at_ < parts_.size() ? number_after("IVF", part().text) : std::nullopt) {
      if (*lists < 1 || *lists > detail::most_lists)
        refuse(factory_, part(), "but there can be 1 to 16777216 lists");
      shape_.lists = *lists;
      if (++at_ == parts_.size())
        refuse(factory_, parts_[at_ - 1],
               "after which the form of the vectors is missing, as in ',Flat'");
    }
    take_form();
    if (is("RFlat")) {
      if (!shape_.codes) refuse(factory_, part(), "but Flat keeps the vectors anyway");
      shape_.refined = true, ++at_;
    }
    if (is("IDMap") || is("IDMap2")) ++at_;
    if (at_ < parts_.size()) refuse(factory_, part(), "which may not follow there");
    return shape_;
  }

 private:
  const Part& part() const { return parts_[at_]; }
  bool is(std::string_view text) const { return at_ < parts_.size() && part().text == text; }

  // Flat, PQmxb, SQb.
  void take_form() {
    const bool lists = shape_.lists > 0;
    if (at_ == parts_.size()) refuse(factory_, parts_[at_ - 1], "after which an index is missing");
    const std::string_view text = part().text;
    if (text != "Flat") {
      if (text.starts_with("PQ")) {
        shape_.codes = product();
      } else if (text == "SQ8" || text == "SQ4") {
        shape_.codes = detail::CodeShape{0, text == "SQ8" ? 8 : 4, lists};
      } else {
        refuse(factory_, part(),
               lists ? "which is no form of vectors in inverted lists: Flat, PQm, PQmx4, SQ8 and "
                       "SQ4 are"
                     : "which is none of the indexes Flat, PQm, PQmx4, SQ8, SQ4 and IVFn,...");
      }
    }
    ++at_;
  }

  detail::CodeShape product() const {
    std::string_view text = part().text;
    detail::CodeShape out{0, 8, shape_.lists > 0};
    // Codes of 4 bits are always scanned fast.
    for (const std::string_view end : {"x4fs", "x4", "x8"})
      if (text.ends_with(end)) {
        out.bits = end == "x8" ? 8 : 4;
        text.remove_suffix(end.size());
        break;
      }
    const auto parts = number_after("PQ", text);
    if (!parts) refuse(factory_, part(), "which is no product quantizer: PQm, PQmx4, PQmx8 are");
    if (*parts < 1 || (shape_.dim != any_dim && shape_.dim % *parts != 0))
      refuse(factory_, part(),
             fmt::format("but {} parts do not divide {} columns", *parts, shape_.dim));
    out.sub_quantizers = *parts;
    return out;
  }

  const std::string_view factory_;
  const std::vector<Part> parts_;
  std::size_t at_ = 0;
  detail::IndexShape shape_;
};

}  // namespace

bool learns(std::string_view factory) {
  return detail::public_call(
      [&] { return Grammar(factory, any_dim, Metric::l2).shape().learns(); });
}

Index make_index(std::string_view factory, std::int64_t dim, Metric metric) {
  return detail::public_call([&]() -> Index {
    detail::check_index_dim(dim);
    return IndexOfShape(Grammar(factory, dim, metric).shape());
  });
}

}  // namespace knear
