// cli/completion.cpp -- `knear completion`: a script by which a shell completes command lines.
//
// The scripts are generated from the commands and options themselves, so that they never differ.
// Words that are neither are completed as names of files.
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "knear/core/error.hpp"

namespace knear::cli {
namespace {

// Values of options that have few.
constexpr std::array<std::pair<const char*, const char*>, 4> few_values = {
    {{"--metric", "l2 ip cosine l1 hamming"},
     {"--type", "f64 f32 f16 bf16 u8 i8"},
     {"--device", "cpu cuda auto"},
     {"--method", "auto exact threshold-heap partial-reduce"}}};

struct Command {
  std::string path;  // "bench recall"; empty for the program
  const CLI::App* app;
};

void add_commands(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  commands.push_back({path, &app});
  for (const CLI::App* command : app.get_subcommands({}))
    add_commands(*command, path.empty() ? command->get_name() : path + " " + command->get_name(),
                 commands);
}

// Names of the options of a command with their dashes, without those that no help shows.
std::vector<std::pair<std::string, const CLI::Option*>> named_options(const CLI::App& app) {
  std::vector<std::pair<std::string, const CLI::Option*>> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_snames()) names.emplace_back("-" + name, option);
    for (const std::string& name : option->get_lnames()) names.emplace_back("--" + name, option);
  }
  return names;
}

// The commands below this one, or its options if it has none, separated by blanks.
std::string words_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* command : app.get_subcommands({})) words += command->get_name() + " ";
  for (const auto& [name, option] : named_options(app)) words += name + " ";
  words.pop_back();
  return words;
}

// Lines of a `case` by the command that the words so far name, for bash and zsh.
std::string cases_of_commands(const std::vector<Command>& commands) {
  std::string paths;
  for (const Command& command : commands) {
    if (command.path.empty()) continue;
    const bool top = command.path.find(' ') == std::string::npos;
    paths += fmt::format("{}\"{}{}\"", paths.empty() ? "" : "|", top ? " " : "", command.path);
  }
  return fmt::format("      {}) command=\"${{command:+$command }}$word\" ;;\n", paths);
}

std::string bash_script(const std::vector<Command>& commands) {
  std::string out =
      "# Completion of knear for bash: source this file, or save it in\n"
      "# /etc/bash_completion.d/knear.\n"
      "_knear() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command= words= word\n"
      "  COMPREPLY=()\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case \"$command $word\" in\n" +
      cases_of_commands(commands) +
      "    esac\n"
      "  done\n"
      "  case $previous in\n";
  for (const auto& [option, values] : few_values)
    out += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n",
                       option, values);
  out += "  esac\n  case $command in\n";
  for (const Command& command : commands)
    out += fmt::format("    '{}') words='{}' ;;\n", command.path, words_of(*command.app));
  out +=
      "  esac\n"
      "  case \"$command:$current\" in\n"
      "    :*|bench:*|*:-*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;\n"
      "  esac\n"
      "}\n"
      "complete -o default -F _knear knear\n";
  return out;
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string out =
      "#compdef knear\n"
      "# Completion of knear for zsh: save this file as _knear in a folder of $fpath, or source "
      "it\n"
      "# after compinit.\n"
      "_knear() {\n"
      "  local command= word\n"
      "  for word in \"${(@)words[2,CURRENT-1]}\"; do\n"
      "    case \"$command $word\" in\n" +
      cases_of_commands(commands) +
      "    esac\n"
      "  done\n"
      "  case ${words[CURRENT-1]} in\n";
  for (const auto& [option, values] : few_values)
    out += fmt::format("    {}) compadd -- {}; return ;;\n", option, values);
  out +=
      "  esac\n"
      "  case \"$command:${words[CURRENT]}\" in\n"
      "    :*|bench:*|*:-*) ;;\n"
      "    *) _files; return ;;\n"
      "  esac\n"
      "  case $command in\n";
  for (const Command& command : commands)
    out += fmt::format("    '{}') compadd -- {} ;;\n", command.path, words_of(*command.app));
  out +=
      "  esac\n"
      "}\n"
      "if [[ $funcstack[1] == _knear ]]; then _knear \"$@\"; else compdef _knear knear; fi\n";
  return out;
}

// In single quotes of fish, where a backslash keeps its neighbour.
std::string quoted_for_fish(const std::string& text) {
  std::string out = "'";
  for (char letter : text) {
    if (letter == '\'' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + "'";
}

// A condition of fish: the words so far name this command.
std::string seen_by_fish(const Command& command) {
  if (command.path.empty()) return "__fish_use_subcommand";
  const std::size_t blank = command.path.find(' ');
  if (blank == std::string::npos)
    return fmt::format(
        "__fish_seen_subcommand_from {}{}", command.path,
        command.path == "bench" ? "" : "; and not __fish_seen_subcommand_from bench");
  return fmt::format("__fish_seen_subcommand_from {}; and __fish_seen_subcommand_from {}",
                     command.path.substr(0, blank), command.path.substr(blank + 1));
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string out =
      "# Completion of knear for fish: save this file as\n"
      "# ~/.config/fish/completions/knear.fish.\n";
  for (const Command& command : commands) {
    const std::string seen = quoted_for_fish(seen_by_fish(command));
    for (const CLI::App* below : command.app->get_subcommands({}))
      out += fmt::format("complete -c knear -f -n {} -a {} -d {}\n", seen, below->get_name(),
                         quoted_for_fish(below->get_description()));
    for (const auto& [name, option] : named_options(*command.app)) {
      const bool is_long = name.starts_with("--");
      std::string values;
      for (const auto& [with_values, list] : few_values)
        if (name == with_values) values = fmt::format(" -f -a {}", quoted_for_fish(list));
      out += fmt::format("complete -c knear -n {} {} {}{}{} -d {}\n", seen, is_long ? "-l" : "-s",
                         name.substr(is_long ? 2 : 1),
                         option->get_items_expected_max() == 0 ? "" : " -r", values,
                         quoted_for_fish(option->get_description()));
    }
  }
  return out;
}

void print_script(const CLI::App& program, const std::string& shell) {
  std::vector<Command> commands;
  add_commands(program, "", commands);
  if (shell == "bash") return print_text(bash_script(commands));
  if (shell == "zsh") return print_text(zsh_script(commands));
  if (shell == "fish") return print_text(fish_script(commands));
  throw InvalidArgument("SHELL must be bash, zsh or fish, but is '{}'", shell);
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required();
  command->footer(
      "Example:\n"
      "  source <(knear completion bash)\n"
      "  knear completion zsh > ~/.zsh/_knear\n"
      "  knear completion fish > ~/.config/fish/completions/knear.fish");
  command->callback([&app, shell] { print_script(app, *shell); });
}

}  // namespace knear::cli
