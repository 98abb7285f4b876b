// tests/cost/machine_description_test.cpp -- descriptions of machines: what is written is read
// again, and every field that is missing or absurd is refused by its name.
#include "knear/cost/machine_description.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "knear/core/error.hpp"

namespace knear {
namespace {

MachineDescription machine() {
  MachineDescription out;
  out.name = "two \"sockets\"";
  out.peaks.isa = Isa::avx512_vnni, out.peaks.threads = 64;
  out.peaks.fp32_flops = 7e12, out.peaks.int8_ops = 28e12, out.peaks.cop_per_second = 3e12;
  out.peaks.bf16_flops = std::numeric_limits<double>::quiet_NaN(), out.peaks.int16_ops = 14e12;
  out.peaks.memory_bytes_per_second = 400e9, out.peaks.cycles_per_second = 200e9;
  out.peaks.caches[0] = {3 << 20, 20e12};
  out.first_use_bytes_per_second = 6e9;
  out.memory_bytes = 1e12, out.price_per_hour = 3.5, out.new_memory_bytes_per_second = 2e9;
  return out;
}

// The message of the refusal.
std::string refusal(const std::string& text) {
  try {
    parse_machine(text, "m.json");
  } catch (const CorruptFile& error) {
    return error.what();
  }
  return "taken";
}

// The text of machine() with one piece of it replaced.
std::string with(const std::string& before, const std::string& after) {
  std::string text = text_of_machine(machine());
  const std::size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << before;
  return text.replace(at, before.size(), after);
}

TEST(MachineDescription, IsReadAsItWasWritten) {
  const std::string text = text_of_machine(machine());
  const MachineDescription read = parse_machine(text, "m.json");
  EXPECT_EQ(read.name, machine().name);
  EXPECT_EQ(read.peaks.isa, Isa::avx512_vnni);
  EXPECT_EQ(read.peaks.threads, 64);
  EXPECT_EQ(read.peaks.int8_ops, 28e12);
  EXPECT_EQ(read.peaks.cycles_per_second, 200e9);
  EXPECT_TRUE(std::isnan(read.peaks.bf16_flops));
  EXPECT_EQ(read.peaks.caches[0].bytes, 3 << 20);
  EXPECT_EQ(read.peaks.caches[1].bytes, 0);
  EXPECT_EQ(read.memory_bytes, 1e12);
  EXPECT_EQ(read.new_memory_bytes_per_second, 2e9);
  EXPECT_EQ(read.first_use_bytes_per_second, 6e9);
  EXPECT_FALSE(read.network_bytes_per_second);
  EXPECT_EQ(read.price_per_hour, 3.5);
  EXPECT_EQ(text_of_machine(read), text);
}

TEST(MachineDescription, NamesTheFieldThatIsWrong) {
  for (const auto& [before, after, says] :
       {std::tuple("\"int8_ops\": 28000000000000.0", "\"int8_ops\": null", "int8_ops is missing"),
        std::tuple("\"int8_ops\": 28000000000000.0", "\"int8_ops\": -1", "int8_ops must be"),
        std::tuple("\"int8_ops\": 28000000000000.0", "\"int8_ops\": \"fast\"", "but is \"fast\""),
        std::tuple("\"int8_ops\": 28000000000000.0", "\"int8_ops\": 1e300", "int8_ops must be"),
        std::tuple("\"int8_ops\"", "\"int8_opps\"", "no field \"int8_opps\""),
        std::tuple("\"threads\": 64", "\"threads\": 0", "threads must be"),
        std::tuple("\"threads\": 64", "\"threads\": 2.5", "whole number, but is 2.5"),
        std::tuple("\"threads\": 64", "\"threads\": 1e99", "threads must be"),
        std::tuple("\"threads\": 64", "\"threads\": 20", "cycles_per_second must be at most 8e9"),
        std::tuple("\"avx512_vnni\"", "\"abacus\"", "isa must be one of scalar"),
        std::tuple("\"avx512_vnni\"", "7", "isa must be one of scalar"),
        std::tuple("\"memory_bytes\": 1000000000000.0", "\"memory_bytes\": 5", "memory_bytes must"),
        std::tuple("\"memory_bytes\": 1000000000000.0", "\"memory_bytes\": null", "is missing"),
        std::tuple("\"price_per_hour\": 3.5", "\"price_per_hour\": -3.5", "price_per_hour must be"),
        std::tuple("\"network_latency_seconds\": null", "\"network_latency_seconds\": 61",
                   "from 0 to 60"),
        std::tuple("\"bytes\": 3145728", "\"bytes\": []", "caches[0].bytes must"),
        std::tuple("\"bytes\": 3145728", "\"byte\": 3", "caches[0] has no field"),
        std::tuple("\"two \\\"sockets\\\"\"", "\"a\\nb\"", "name must be one line"),
        std::tuple("\"two \\\"sockets\\\"\"", "\"\xc2\x9b[31m\"", "name must be one line"),
        std::tuple("\"two \\\"sockets\\\"\"", "\"\"", "name must be one line"),
        std::tuple("\"price_per_hour\": 3.5", "\"threads\": 4", "\"threads\" is there twice"),
        std::tuple("\"two \\\"sockets\\\"\"", "{}", "name must be a text")}) {
    const std::string message = refusal(with(before, after));
    EXPECT_NE(message.find(says), std::string::npos) << after << ": " << message;
    EXPECT_EQ(message.rfind("m.json: ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(MachineDescription, SurvivesWhatIsNoDescription) {
  for (const char* text :
       {"", "{", "[1, 2]", "null", "17", "\"this\"", "{\"name\": 1e999}", "\xff"})
    EXPECT_NE(refusal(text), "taken") << text;
  // A million levels, which nothing may go down by calling itself.
  const std::string deep = std::string(500000, '[') + std::string(500000, ']');
  EXPECT_NE(refusal(deep), "taken");
  EXPECT_NE(refusal(with("\"threads\": 64", "\"threads\": " + deep)), "taken");
  EXPECT_NE(refusal(with("\"threads\": 64", "\"" + std::string(100000, 'x') + "\": 1")), "taken");
  // Any byte gone or another one: refused or read, and never anything else.
  const std::string text = text_of_machine(machine());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string cut = text;
    cut.erase(i, 1);
    refusal(cut);
    cut = text, cut[i] = char(cut[i] ^ 0x55);
    refusal(cut);
  }
}

}  // namespace
}  // namespace knear
