#include "cli/help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace knear::cli {
namespace {

constexpr std::size_t line_columns = 100, description_column = 30;

bool is_rare(const CLI::Option& option) { return option.get_group() == rarely_needed; }

// CLI11 writes behind an option's name whether it is required and which others it needs or
// excludes. Here a description says the first, and errors name the others.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(bool all) : all_(all) {}

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    if (group == rarely_needed && !all_) return "";
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_size() == 0 ? "" : option->get_type_name();
    return (type.empty() || type == "TEXT" ? "" : " " + type) +
           (option->get_items_expected_max() > 1 ? " ..." : "");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return option->get_description() + (option->get_required() ? " (required)" : "");
  }

 private:
  bool all_;
};

// Breaks a line at blanks; further lines begin with `indent` blanks.
std::string broken(std::string_view line, std::size_t indent) {
  if (line.size() <= line_columns) return std::string(line);
  std::size_t end = line.rfind(' ', line_columns);
  if (end == std::string_view::npos || end <= indent) end = line.find(' ', line_columns);
  if (end == std::string_view::npos) return std::string(line);
  const std::string rest = std::string(indent, ' ') + std::string(line.substr(end + 1));
  return std::string(line.substr(0, end)) + '\n' + broken(rest, indent);
}

// Breaks the lines of descriptions and paragraphs. Examples stay as they are, to be copied.
std::string broken_lines(const std::string& help) {
  std::string out;
  bool listing = false, before_is_empty = false;
  for (std::size_t begin = 0; begin < help.size();) {
    const std::size_t end = std::min(help.find('\n', begin), help.size());
    const std::string line = help.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() && before_is_empty) continue;
    before_is_empty = line.empty();
    if (line.empty())
      listing = false;
    else if (line[0] != ' ')
      listing = line.back() == ':' && !line.starts_with("Example");
    const bool example = !listing && line.starts_with(' ');
    out += (example ? line : broken(line, listing ? description_column : 0)) + '\n';
  }
  return out;
}

const CLI::App& parsed_command(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  return commands.empty() ? app : parsed_command(*commands.front());
}

std::string typed_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : typed_name(*parent) + " ") + command.get_name();
}

std::size_t count_rare(const CLI::App& command) {
  return command.get_options([](const CLI::Option* o) { return is_rare(*o); }).size();
}

}  // namespace

void group_options(CLI::App& command, const char* group, std::initializer_list<const char*> names) {
  for (const char* name : names) command.get_option(name)->group(group);
}

void add_help_all(CLI::App& app) {
  app.get_help_ptr()->description("print the options and an example");
  CLI::Option* all = app.set_help_all_flag("--help-all", "print all options and an example");
  if (count_rare(app) == 0) all->group("");
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    add_help_all(*command);
}

std::string help_text(const CLI::App& app, bool all) {
  const CLI::App& command = parsed_command(app);
  const std::string name = typed_name(command);
  std::string help =
      broken_lines(HelpFormatter(all).make_help(&command, name, CLI::AppFormatMode::Normal));
  if (const std::size_t rare = count_rare(command); rare > 0 && !all)
    help += fmt::format("\n'{} --help-all' also shows {} rarely needed options.\n", name, rare);
  return help;
}

}  // namespace knear::cli
