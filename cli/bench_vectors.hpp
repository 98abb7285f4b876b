// cli/bench_vectors.hpp -- what benches search: vectors of files, or synthetic ones.
//
//   add_vector_options(*command, arguments->vectors);
//   check(bench.vectors);                          // before anything is read
//   const BenchVectors vectors(bench.vectors, 1000);
//   ... vectors.base() ... vectors.queries() ...
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "knear/core/matrix.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {

// Vectors around 64 centres, all drawn from the seed: real sets are clustered too, and uniform
// noise, where all rows are about equally far, would be the hardest case for a threshold. The type
// is u8 or f32; another stream gives other vectors around the same centres.
AnyMatrix clustered(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                    std::uint64_t stream);

struct VectorOptions {
  std::string base, queries, metric = "l2", set = "u8";
  std::int64_t rows = 100000, dim = 128, seed = 1;
  bool base_alone = false;  // there are no queries, or they are rows of the base

  bool made() const { return base.empty(); }
};

void add_vector_options(CLI::App& command, VectorOptions& options);
// Throws for values that no search could have.
void check(const VectorOptions& options);

class BenchVectors {
 public:
  // Opens the files, or makes the base and this many queries.
  BenchVectors(const VectorOptions& options, std::int64_t queries_made);

  AnyMatrixView base() const { return base_file_ ? base_file_->view() : base_made_.view(); }
  AnyMatrixView queries() const {
    return queries_file_ ? queries_file_->view() : queries_made_.view();
  }

 private:
  std::optional<io::VectorFile> base_file_, queries_file_;
  AnyMatrix base_made_, queries_made_;
};

}  // namespace knear::cli
