#include "knear/index/codecs/codec.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace knear::detail {

std::span<const Codec* const> all_codecs() {
  static const Codec* const all[] = {&product_codec(), &scalar_codec()};
  return all;
}

const Codec& codec_of(CodeKind kind) { return *all_codecs()[static_cast<std::size_t>(kind)]; }

std::string words_of_codecs() {
  std::string out;
  for (const Codec* codec : all_codecs())
    out.append(out.empty() ? "" : ", ").append(codec->words());
  return out;
}

std::optional<std::int64_t> number_after(std::string_view name, std::string_view word) {
  if (!word.starts_with(name)) return {};
  word.remove_prefix(name.size());
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out);
  if (error == std::errc::result_out_of_range) out = std::numeric_limits<std::int64_t>::max();
  if (error == std::errc::invalid_argument || end != word.data() + word.size() ||
      word.front() == '-')
    return {};
  return out;
}

void check_parts(std::int64_t parts, std::int64_t columns, const WrongWord& wrong) {
  if (parts < 1 || parts > 65536) wrong("but there can be 1 to 65536 parts");
  if (columns != 0 && columns % parts != 0)
    wrong(fmt::format("but {} parts do not divide {} columns", parts, columns));
}

std::string CodeShape::name() const { return codec_of(kind).name(*this); }

std::int64_t Codec::count_of_numbers(const CodeShape& shape, std::int64_t dim) const {
  std::int64_t sum = 0;
  for (const Numbers& some : numbers(shape, dim)) sum += some.count;
  return sum;
}

}  // namespace knear::detail
