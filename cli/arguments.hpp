// cli/arguments.hpp -- numbers on the command line, read the same way by every command.
//
//   add_whole(*command, "-k", options.k, "neighbours wanted")->required();
//   add_size(*command, "--memory", options.memory, "memory for the search");
//
// A word where a number is expected is a CLI::ConversionError, exit status 2. A number that no call
// accepts (-k 0, or one beyond 64 bits) is an InvalidArgument, exit status 1.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace knear::cli {

// Throws the CLI::ParseError (exit status 2) with this message.
[[noreturn]] void unparsable(const std::string& message);

// A whole number in decimal ("010" is ten, not eight).
std::int64_t parse_whole(const std::string& option, const std::string& word);
// A number, decimal point and exponent allowed; "nan" and "inf" are not numbers.
double parse_number(const std::string& option, const std::string& word);
// Bytes: a number, which may have a fraction, and optionally one of k, M, G, T (powers of 1024).
std::int64_t parse_size(const std::string& option, const std::string& word);

CLI::Option* add_whole(CLI::App& app, const std::string& name, std::int64_t& target,
                       const std::string& help);
// Stays nothing where the option is not given.
CLI::Option* add_whole(CLI::App& app, const std::string& name, std::optional<std::int64_t>& target,
                       const std::string& help);
CLI::Option* add_number(CLI::App& app, const std::string& name, double& target,
                        const std::string& help);
CLI::Option* add_size(CLI::App& app, const std::string& name, std::int64_t& target,
                      const std::string& help);

// Throws InvalidArgument for a number that is not 1 or more.
void check_positive(const char* option, std::int64_t value);

// The number of threads that --threads asks for: all that the process may use for 0. Throws
// InvalidArgument if it is negative or above 4096.
int checked_threads(std::int64_t value);

// What --shards or --replicas asks for. Throws InvalidArgument unless it is between 1 and 4096.
int checked_parts(std::string_view option, std::int64_t value);

}  // namespace knear::cli
