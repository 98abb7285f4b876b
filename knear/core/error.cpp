#include "knear/core/error.hpp"

namespace knear {
namespace detail {

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8
      out += fmt::format("\\u{:04x}", next), ++i;
    } else if (byte >= 0x20 && byte != 0x7f) {
      out += text[i];
    } else if (byte == '\n' || byte == '\t' || byte == '\r') {
      out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : "\\r";
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out;
}

Message compose(fmt::string_view format, const NamePlace* names, std::size_t count,
                fmt::format_args values) {
  Message out = {printable(fmt::vformat(format, values)), {}};
  // The text of a beginning of the format is the beginning of the whole text.
  const auto place_of = [&](std::size_t place) {
    return printable(fmt::vformat(fmt::string_view(format.data(), place), values)).size();
  };
  for (std::size_t i = 0; i < count; ++i) {
    const NamePlace name = {place_of(names[i].begin), place_of(names[i].end), names[i].plural};
    if (is_name(std::string_view(out.text).substr(name.begin, name.end - name.begin)))
      out.names.push_back(name);
  }
  return out;
}

}  // namespace detail

std::string_view Error::argument() const {
  if (names_.empty() || names_[0].begin != 0) return {};
  return std::string_view(what()).substr(0, names_[0].end);
}

std::string Error::with_options(
    const std::function<std::string(std::string_view name)>& option) const {
  constexpr std::string_view plural = " are ", singular = " is ";
  const std::string_view text = what();
  std::string out;
  std::size_t at = 0;
  for (const detail::NamePlace& place : names_) {
    const std::string found = option(text.substr(place.begin, place.end - place.begin));
    if (found.empty()) continue;
    out.append(text.substr(at, place.begin - at)).append(found);
    at = place.end;
    if (place.plural) out += singular, at += plural.size();
  }
  return out.append(text.substr(at));
}

}  // namespace knear
