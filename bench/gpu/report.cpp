#include "bench/gpu/report.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/version.hpp"

namespace knear::bench {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (static_cast<unsigned char>(c) < 32)
      out += ' ';
    else
      out += c;
  }
  return out + '"';
}

// JSON has no NaN.
std::string number(double x) { return std::isfinite(x) ? fmt::format("{:.9g}", x) : "null"; }

std::string list(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (std::size_t i = 0; i < texts.size(); ++i) out += (i ? ", " : "") + quoted(texts[i]);
  return out + "]";
}

std::string line_of(const Entry& e) {
  return fmt::format("{:<22} {:<34} {:>10.1f} {:<8} {:>10.3f} {:>6.1f}%  {}", e.name, e.what,
                     e.value, e.unit, e.seconds * 1e3, e.spread * 100,
                     e.of_peak ? fmt::format("{:.0f} % of {}", *e.of_peak * 100, e.peak) : e.peak);
}

}  // namespace

void Report::fail(std::string what) {
  fmt::print(stderr, "FAILED {}\n", what);
  failures.push_back(std::move(what));
  save();
}

void Report::add(Entry entry) {
  fmt::print(stderr, "{}\n", line_of(entry));
  entries.push_back(std::move(entry));
  save();
}

void Report::save() const {
  if (!json.empty()) write_json(json);
}

void Report::print_table(std::FILE* out) const {
  fmt::print(
      out, "\nknear {} on {}\n", KNEAR_VERSION,
      device ? fmt::format("{} (sm_{}{}, {} multiprocessors, {:.0f} GiB, {:.0f} MB of L2)",
                           device->name, device->major, device->minor, device->multiprocessors,
                           double(device->memory_bytes) / (1 << 30), double(device->l2_bytes) / 1e6)
             : std::string("no GPU"));
  fmt::print(out, "{} tests, {} failed\n", tests, failures.size());
  if (!no_cublaslt.empty())
    fmt::print(out, "no cuBLASLt ({}): what is held against its products is unmeasured\n",
               no_cublaslt);
  for (const std::string& failure : failures) fmt::print(out, "  FAILED {}\n", failure);
  if (!entries.empty())
    fmt::print(out, "{:<22} {:<34} {:>10} {:<8} {:>10} {:>7}  {}\n", "bench", "what", "rate", "",
               "ms", "spread", "of ceiling");
  for (const Entry& e : entries) fmt::print(out, "{}\n", line_of(e));
  for (const std::string& note : notes) fmt::print(out, "{}\n", note);
  for (const std::string& s : skipped) fmt::print(out, "skipped {}\n", s);
}

void Report::print_targets(std::FILE* out) const {
  if (targets.empty()) return;
  fmt::print(out, "\n{:<44} {:<40} {:<10} {}\n", "targets", "at least or at most", "verdict",
             "measured");
  for (const Target& t : targets)
    fmt::print(out, "{:<44} {:<40} {:<10} {}\n", t.work, t.target, t.verdict, t.measured);
}

void Report::write_json(const std::string& path) const {
  std::string out = fmt::format("{{\n  \"version\": {},\n", quoted(KNEAR_VERSION));
  if (device)
    out += fmt::format(
        "  \"device\": {{\"name\": {}, \"compute_capability\": \"{}.{}\", \"multiprocessors\": {}, "
        "\"memory_bytes\": {}, \"l2_bytes\": {}}},\n",
        quoted(device->name), device->major, device->minor, device->multiprocessors,
        device->memory_bytes, device->l2_bytes);
  else
    out += "  \"device\": null,\n";
  out += fmt::format(
      "  \"no_cublaslt\": {},\n  \"tests\": {},\n  \"failures\": {},\n  \"skipped\": {},\n  "
      "\"notes\": {},\n  \"targets\": "
      "[",
      no_cublaslt.empty() ? "null" : quoted(no_cublaslt), tests, list(failures), list(skipped),
      list(notes));
  for (std::size_t i = 0; i < targets.size(); ++i)
    out +=
        fmt::format("{}\n    {{\"work\": {}, \"target\": {}, \"measured\": {}, \"verdict\": {}}}",
                    i ? "," : "", quoted(targets[i].work), quoted(targets[i].target),
                    quoted(targets[i].measured), quoted(targets[i].verdict));
  out += "\n  ],\n  \"benches\": [";
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    out += fmt::format(
        "{}\n    {{\"name\": {}, \"what\": {}, \"value\": {}, \"unit\": {}, \"seconds\": {}, "
        "\"spread\": {}, \"of_peak\": {}, \"peak\": {}}}",
        i ? "," : "", quoted(e.name), quoted(e.what), number(e.value), quoted(e.unit),
        number(e.seconds), number(e.spread), e.of_peak ? number(*e.of_peak) : "null",
        quoted(e.peak));
  }
  out += "\n  ]\n}\n";
  const std::string part = path + ".part";
  std::FILE* file = std::fopen(part.c_str(), "w");
  const bool written = file && std::fwrite(out.data(), 1, out.size(), file) == out.size();
  const bool closed = file && std::fclose(file) == 0;
  if (!written || !closed || std::rename(part.c_str(), path.c_str()) != 0)
    throw IoError("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace knear::bench
