// What compiling is measured by: a source of nothing but the standard library, whose compilation
// takes the same work from a compiler whatever becomes of knear. tests/compile_time/compile_time.py
// counts in multiples of it. Changing this file changes the unit: the kept number must then be
// measured anew.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace {

using Value = std::variant<int, double, std::string, std::vector<std::string>>;

template <int N>
struct Counter {
  std::map<std::string, std::vector<double>> values;
  std::unordered_map<std::string, std::function<double(double)>> functions;

  double sum() const {
    double out = N;
    for (const auto& [name, list] : values) {
      std::vector<double> sorted = list;
      std::stable_sort(sorted.begin(), sorted.end(), [](double a, double b) { return a > b + N; });
      const auto function = functions.find(name);
      for (const double x : sorted) out += function == functions.end() ? x : function->second(x);
    }
    return out;
  }
};

std::string text(const Value& value) {
  std::ostringstream out;
  std::visit(
      [&](const auto& x) {
        if constexpr (std::is_same_v<std::decay_t<decltype(x)>, std::vector<std::string>>)
          for (const auto& part : x) out << part << ' ';
        else
          out << x;
      },
      value);
  return out.str();
}

template <int N>
double count(const std::string& line) {
  static const std::regex words("([a-z]+)=([0-9.]+)");
  Counter<N> counter;
  for (std::sregex_iterator at(line.begin(), line.end(), words), end; at != end; ++at)
    counter.values[(*at)[1]].push_back(std::stod((*at)[2]));
  counter.functions["square"] = [](double x) { return x * x + N; };
  if constexpr (N > 0)
    return counter.sum() + count<N - 1>(line);
  else
    return counter.sum();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Value> values;
  for (int i = 0; i < argc; ++i) values.push_back(count<3>(argv[i]));
  std::sort(values.begin(), values.end());
  for (const Value& value : values)
    if (text(value).empty()) return 1;
  return 0;
}
