#include "cli/files.hpp"

#include <filesystem>

#include "knear/io/atomic_file.hpp"
#include "knear/io/hdf5.hpp"

namespace knear::cli {
namespace {

bool same_file(const std::string& a, const std::string& b) {
  std::error_code absent;
  return a == b || std::filesystem::equivalent(a, b, absent);
}

}  // namespace

io::VectorFile open_vectors(const std::string& path, const std::string& type,
                            const std::string& dataset) {
  io::OpenOptions options{.dataset = dataset};
  if (!type.empty()) options.type = parse_element_type(type);
  return io::VectorFile::open(path, options);
}

Metric metric_of_file(const std::string& path) {
  const auto hdf5 = io::hdf5_path(path);
  if (!hdf5) return Metric::l2;
  const std::string distance = io::inspect_hdf5(hdf5->file).distance;
  if (distance.empty() || distance == "euclidean") return Metric::l2;
  if (distance == "angular") return Metric::cosine;
  throw InvalidArgument(
      "{} is for the distance '{}', which is none of l2, ip, cosine: --metric says "
      "which to take",
      hdf5->file, distance);
}

void check_output(const std::string& option, const std::string& path,
                  std::initializer_list<std::string_view> endings,
                  std::initializer_list<std::string> inputs) {
  if (path.empty()) return;
  bool fits = false;
  std::string expected;
  for (std::string_view ending : endings) {
    fits |= path.ends_with(ending);
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", ending);
  }
  if (!fits) throw InvalidArgument("{} must end in {}, but is '{}'", option, expected, path);
  for (const std::string& input : inputs)
    if (!input.empty() && same_file(path, input))
      throw InvalidArgument("{} would overwrite the input {}", option, input);
  io::AtomicFile probe(path);
}

}  // namespace knear::cli
