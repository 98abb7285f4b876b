#include "cli/bench_vectors.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cli/arguments.hpp"
#include "cli/files.hpp"
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"

namespace knear::cli {

AnyMatrix clustered(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                    std::uint64_t stream) {
  constexpr std::int64_t clusters = 64;
  Random centre_random(seed), random(seed ^ (0x9e3779b97f4a7c15u * (stream + 1)));
  const auto normal = [](Random& from) {
    const double radius = std::sqrt(-2 * std::log(1 - from.uniform()));
    return radius * std::cos(2 * std::numbers::pi * from.uniform());
  };
  Matrix<float> centres(clusters, dim);
  for (std::int64_t i = 0; i < clusters * dim; ++i)
    centres.data()[i] = static_cast<float>(normal(centre_random));
  AnyMatrix out(type, rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* centre = centres.row(static_cast<std::int64_t>(random.below(clusters)));
    for (std::int64_t j = 0; j < dim; ++j) {
      const double value = centre[j] + 0.7 * normal(random);
      if (type == ElementType::u8)
        static_cast<std::uint8_t*>(out.row(i))[j] =
            static_cast<std::uint8_t>(std::clamp(std::lround(128 + 32 * value), 0l, 255l));
      else
        static_cast<float*>(out.row(i))[j] = static_cast<float>(value);
    }
  }
  return out;
}

void add_vector_options(CLI::App& command, VectorOptions& options) {
  command.add_option("--base", options.base, "vectors to search in")->type_name("FILE");
  command.add_option("--queries", options.queries, "vectors to search for")->type_name("FILE");
  command.add_option("--metric", options.metric, "l2 (default), ip or cosine")->type_name("M");
  command.add_option("--set", options.set, "without files: made vectors, u8 (default) or f32")
      ->type_name("T");
  add_whole(command, "--rows", options.rows, "of the made base (default 100000)");
  add_whole(command, "--dim", options.dim, "of the made vectors (default 128)");
  add_whole(command, "--seed", options.seed, "of the made vectors (default 1)");
}

void check(const VectorOptions& options) {
  check_positive("--rows", options.rows);
  check_positive("--dim", options.dim);
  if (options.set != "u8" && options.set != "f32")
    throw InvalidArgument("--set must be u8 or f32, but is '{}'", options.set);
  if (options.base_alone && !options.queries.empty())
    throw InvalidArgument("--queries is {}, but only rows of the base are used", options.queries);
  if (options.base.empty() != options.queries.empty() && !options.base_alone)
    unparsable("--base and --queries go together");
}

BenchVectors::BenchVectors(const VectorOptions& options, std::int64_t queries_made) {
  if (!options.made()) {
    base_file_ = open_vectors(options.base, "", base_dataset);
    if (options.base_alone) return;
    queries_file_ = open_vectors(options.queries, "", queries_dataset);
    return;
  }
  const ElementType type = parse_element_type(options.set);
  const auto seed = static_cast<std::uint64_t>(options.seed);
  base_made_ = clustered(type, options.rows, options.dim, seed, 0);
  queries_made_ = clustered(type, queries_made, options.dim, seed, 1);
}

}  // namespace knear::cli
