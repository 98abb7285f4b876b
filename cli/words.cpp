#include "cli/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "cli/arguments.hpp"

namespace knear::cli {
namespace {

// Lower case, without leading dashes.
std::string plain_name(const std::string& word) {
  std::string plain = word.substr(std::min(word.size(), word.find_first_not_of('-')));
  for (char& letter : plain)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return plain;
}

// Letters to change, remove, add or swap with the next, each once, to make b of a ("optimal string
// alignment").
std::size_t changed_letters(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + !same});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  return cost[a.size()][b.size()];
}

bool is_near(const std::string& a, const std::string& b, std::size_t changes) {
  const std::size_t shorter = std::min(a.size(), b.size()), longer = std::max(a.size(), b.size());
  constexpr std::size_t same_beginning = 4;
  const std::size_t compared = std::min(shorter, same_beginning);
  return changes <= std::max<std::size_t>(1, longer / 3) ||
         (compared > 1 && a.compare(0, compared, b, 0, compared) == 0);
}

std::string without_value(const std::string& word) { return word.substr(0, word.find('=')); }

// All names of the options, "-k" and "--base".
std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// Negative numbers are no options unless an option has that digit as its name.
bool looks_like_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word != "--" &&
         !std::isdigit(static_cast<unsigned char>(word[1]));
}

// A walk over the words as CLI11 takes them.
class Words {
 public:
  Words(const CLI::App& app, const std::string& program, const std::vector<std::string>& words)
      : command_(&app), name_(program), program_size_(program.size()), words_(words) {}

  std::vector<std::string> checked() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (!options_ended_ && word == "--") {
        options_ended_ = true;
        checked_.push_back(word);
      } else if (!options_ended_ && looks_like_option(word)) {
        take_option(word);
      } else {
        take_argument(word);
      }
    }
    if (!fault_.empty() && !help_) unparsable(fault_);
    return checked_;
  }

 private:
  void take_option(const std::string& word) {
    const bool has_value = word.find('=') != std::string::npos;
    const bool is_long = word.starts_with("--");
    std::string name = is_long ? without_value(word) : word.substr(0, 2);
    const CLI::Option* option = command_->get_option_no_throw(name);
    // One letter after two dashes.
    const bool doubled = option == nullptr && is_long && name.size() == 3;
    if (doubled) option = command_->get_option_no_throw(name.erase(0, 1));
    if (option == nullptr) return refuse_option(word);
    if (option == command_->get_help_ptr() || option == command_->get_help_all_ptr() ||
        option == command_->get_version_ptr())
      help_ = true;
    if (option->get_items_expected_max() == 0) {
      checked_.push_back(word);
      return;
    }
    std::string value;
    if (has_value && (is_long || word[2] == '='))
      value = word.substr(word.find('=') + 1);
    else if (!is_long)
      value = word.substr(2);
    checked_.push_back(name);
    if (has_value || !value.empty())
      checked_.push_back(value);
    else if (at_ < words_.size())
      checked_.push_back(words_[at_++]);
    else if (fault_.empty())
      fault_ = fmt::format("{} needs a value, but is the last word", name);
    if (option->get_items_expected_max() <= 1) return;
    while (at_ < words_.size() && !looks_like_option(words_[at_]) && words_[at_] != "--")
      checked_.push_back(words_[at_++]);
  }

  void take_argument(const std::string& word) {
    const auto is_it = [&](const CLI::App* command) { return command->get_name() == word; };
    const std::vector<const CLI::App*> commands = command_->get_subcommands(is_it);
    checked_.push_back(word);
    if (!options_ended_ && !commands.empty()) {
      command_ = commands.front();
      name_ += " " + word;
      arguments_ = 0;
      return;
    }
    if (!command_->get_subcommands({}).empty()) return refuse_command(word);
    int most = 0;
    for (const CLI::Option* option : command_->get_options())
      if (option->get_positional()) most += option->get_items_expected_max();
    if (++arguments_ > most) refuse_argument(word);
  }

  void refuse_option(const std::string& word) {
    const std::string given = without_value(word);
    std::string near = nearest_name(given, option_names(*command_));
    // A single letter stands for the only option that begins with it.
    if (const std::string letter = plain_name(given); near.empty() && letter.size() == 1)
      near = only_option_with(letter);
    refuse(fmt::format("no option '{}'", given), near);
    // What follows may be its value or not: nothing more is to be said of it.
    checked_.push_back(word);
    while (at_ < words_.size() && !looks_like_option(words_[at_]))
      checked_.push_back(words_[at_++]);
  }

  std::string only_option_with(const std::string& letter) const {
    std::string only;
    for (const std::string& name : option_names(*command_)) {
      if (!plain_name(name).starts_with(letter)) continue;
      if (!only.empty()) return "";
      only = name;
    }
    return only;
  }

  void refuse_command(const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* command : command_->get_subcommands({}))
      names.push_back(command->get_name());
    for (const std::string& name : option_names(*command_)) names.push_back(name);
    // "bench recal", without the program.
    const std::string before = name_.substr(program_size_);
    const std::string whole = before.empty() ? word : before.substr(1) + " " + word;
    refuse(fmt::format("unknown command '{}'", whole), nearest_name(word, names));
    unparsable(fault_);  // there is no --help of it either
  }

  void refuse_argument(const std::string& word) {
    std::string names;
    for (const CLI::Option* option : command_->get_options())
      if (option->get_positional()) names += " " + option->get_name(true);
    const std::string taken = names.empty() ? " takes options only" : " takes" + names;
    refuse(fmt::format("unexpected argument '{}': '{}'{}", word, name_, taken),
           nearest_name(word, option_names(*command_)));
  }

  void refuse(const std::string& what, const std::string& near) {
    if (!fault_.empty()) return;
    fault_ = near.empty() ? fmt::format("{}; '{} --help' lists them", what, name_)
                          : fmt::format("{}; did you mean '{}'?", what, near);
  }

  const CLI::App* command_;  // the command that the words so far name
  std::string name_;         // as it is typed, the program first
  const std::size_t program_size_;
  const std::vector<std::string>& words_;
  std::vector<std::string> checked_ = {};
  std::size_t at_ = 0;  // the next word
  int arguments_ = 0;   // of command_
  bool options_ended_ = false, help_ = false;
  std::string fault_ = {};  // the first one
};

}  // namespace

std::string nearest_name(const std::string& word, const std::vector<std::string>& names) {
  const std::string given = plain_name(word);
  std::string nearest;
  std::size_t fewest = 0;
  for (const std::string& name : names) {
    const std::string plain = plain_name(name);
    const std::size_t changes = changed_letters(given, plain);
    // A name of one letter is near to every other one.
    if (given.empty() || (plain.size() == 1 && changes > 0)) continue;
    if (!is_near(given, plain, changes) || (!nearest.empty() && changes >= fewest)) continue;
    nearest = name, fewest = changes;
  }
  return nearest;
}

std::vector<std::string> checked_words(const CLI::App& app, const std::string& program,
                                       const std::vector<std::string>& words) {
  if (words.empty()) unparsable(fmt::format("no command given; '{} --help' lists them", program));
  return Words(app, program, words).checked();
}

}  // namespace knear::cli
