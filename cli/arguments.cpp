#include "cli/arguments.hpp"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::cli {
namespace {

[[noreturn]] void no_number(const std::string& option, const std::string& word,
                            const char* wanted) {
  unparsable(fmt::format("{} needs {}, but got '{}'", option, wanted, word));
}

// Digits with at most one point and one exponent. Written out because strtod and from_chars also
// take "nan", "inf" and hexadecimal.
bool looks_like_number(const std::string& word) {
  std::size_t i = word[0] == '-' || word[0] == '+' ? 1 : 0, digits = 0;
  const auto skip_digits = [&] {
    const std::size_t from = i;
    while (i < word.size() && word[i] >= '0' && word[i] <= '9') ++i;
    return i - from;
  };
  digits = skip_digits();
  if (i < word.size() && word[i] == '.') ++i, digits += skip_digits();
  if (digits == 0) return false;
  if (i < word.size() && (word[i] == 'e' || word[i] == 'E')) {
    ++i;
    if (i < word.size() && (word[i] == '-' || word[i] == '+')) ++i;
    if (skip_digits() == 0) return false;
  }
  return i == word.size();
}

}  // namespace

void unparsable(const std::string& message) {
  throw CLI::ParseError(detail::printable(message), CLI::ExitCodes::ConversionError);
}

std::int64_t parse_whole(const std::string& option, const std::string& word) {
  const char* begin = word.data() + (word[0] == '+');
  const char* end = word.data() + word.size();
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc::invalid_argument || stop != end)
    no_number(option, word, "a whole number");
  if (error == std::errc::result_out_of_range)
    throw InvalidArgument("{} must fit 64 bits, but is {}", option, word);
  return value;
}

double parse_number(const std::string& option, const std::string& word) {
  if (!looks_like_number(word)) no_number(option, word, "a number");
  const double value = std::strtod(word.c_str(), nullptr);
  if (!std::isfinite(value)) throw InvalidArgument("{} is too large: {}", option, word);
  return value;
}

std::int64_t parse_size(const std::string& option, const std::string& word) {
  const auto wanted = "a size such as 512M or 1.5G (k, M, G, T)";
  std::string digits = word;
  double unit = 1;
  switch (digits.empty() ? '\0' : digits.back()) {
    case 'k':
    case 'K':
      unit = 0x1p10;
      break;
    case 'm':
    case 'M':
      unit = 0x1p20;
      break;
    case 'g':
    case 'G':
      unit = 0x1p30;
      break;
    case 't':
    case 'T':
      unit = 0x1p40;
      break;
  }
  if (unit != 1) digits.pop_back();
  if (!looks_like_number(digits)) no_number(option, word, wanted);
  const double bytes = std::strtod(digits.c_str(), nullptr) * unit;
  if (!(bytes >= 1 && bytes < 0x1p62))
    throw InvalidArgument("{} must be between 1 byte and 2^62, but is {}", option, word);
  return static_cast<std::int64_t>(bytes);
}

namespace {
// CLI11's own conversion reads "010" as eight and calls a number beyond 64 bits no number at all.
template <class Target>
CLI::Option* add_whole_to(CLI::App& app, const std::string& name, Target& target,
                          const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [name, &target](const std::string& word) { target = parse_whole(name, word); },
          help)
      ->type_name("N");
}
}  // namespace

CLI::Option* add_whole(CLI::App& app, const std::string& name, std::int64_t& target,
                       const std::string& help) {
  return add_whole_to(app, name, target, help);
}

CLI::Option* add_whole(CLI::App& app, const std::string& name, std::optional<std::int64_t>& target,
                       const std::string& help) {
  return add_whole_to(app, name, target, help);
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& target,
                        const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [name, &target](const std::string& word) { target = parse_number(name, word); },
          help)
      ->type_name("X");
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::int64_t& target,
                      const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [name, &target](const std::string& word) { target = parse_size(name, word); }, help)
      ->type_name("SIZE");
}

void check_positive(const char* option, std::int64_t value) {
  if (value < 1) throw InvalidArgument("{} must be at least 1, but is {}", option, value);
}

int checked_threads(std::int64_t value) {
  if (value < 0 || value > 4096)
    throw InvalidArgument("--threads must be between 0 (all) and 4096, but is {}", value);
  return resolve_threads(static_cast<int>(value));
}

int checked_parts(std::string_view option, std::int64_t value) {
  if (value < 1 || value > 4096)
    throw InvalidArgument("{} must be between 1 and 4096, but is {}", option, value);
  return static_cast<int>(value);
}

}  // namespace knear::cli
