// knear/index/ivf_pq.hpp -- vectors that are kept as codes of a few bytes, in inverted lists or
// not: IVFADC of Johnson et al., sections 2 and 5.
//
//   IvfPqIndex index(96, 1024, 32);                // 1024 lists, codes of 32 bytes
//   index.train(sample);
//   index.add(base);
//   Neighbors near = index.search(queries, 10, {.method = {.probes = 16}});
//
// A code says what is left of a vector beside the centroid of its list (`residual`), or the whole
// vector. Distances are those of the query to what codes stand for, summed in float32 from tables
// of the query, so approximate; the answer is the nearest codes of the lists that are probed, the
// same on every machine, for any batch and after any history. With `refined` the vectors are kept
// too, and some times as many codes as neighbours are wanted (refine_factor) are measured by
// these, in float64.
//
// For cosine, rows and queries are given length 1, and the distance is 1 - cos to what the code
// stands for. reconstruct() gives that too, or with `refined` the vectors as they were added.
//
// Memory of a row: its code, 8 bytes for the id, 4 for a scalar (not for ip, nor for l2 without
// residuals), and 4 more from the first call that looks an id up; with `refined` the vector. Beside
// these, once: 1,024 bytes and a vector for each of the 1,000 that training keeps apart to know
// recall by, which below a million rows is more than some codes are; none with
// TrainOptions::hold_out = false.
#pragma once
#include <cstdint>
#include <string>

#include "knear/index/index.hpp"

namespace knear {

struct CodeOptions {
  int bits = 8;          // of each sub-quantiser or column, 8 or 4
  bool residual = true;  // codes of what is left beside the centroid; without lists there is none
  bool refined = false;  // the vectors are kept too
};

class IvfPqIndex : public Index {
 public:
  // Throws InvalidArgument unless 1 <= dim <= 65536, 1 <= lists <= 2^24, bits are 8 or 4 and
  // sub_quantizers divides dim.
  IvfPqIndex(std::int64_t dim, std::int64_t lists, std::int64_t sub_quantizers,
             Metric metric = Metric::l2, const CodeOptions& options = {});
};

// Every code is compared.
class PqIndex : public Index {
 public:
  // Throws as IvfPqIndex does.
  PqIndex(std::int64_t dim, std::int64_t sub_quantizers, Metric metric = Metric::l2,
          const CodeOptions& options = {});
};

// Each column by itself: 256 or 16 levels between the least and the largest value that training
// saw (quantize/scalar_quantizer.hpp).
class IvfSqIndex : public Index {
 public:
  // Throws as IvfPqIndex does.
  IvfSqIndex(std::int64_t dim, std::int64_t lists, Metric metric = Metric::l2,
             const CodeOptions& options = {});
};
class SqIndex : public Index {
 public:
  // The same.
  explicit SqIndex(std::int64_t dim, Metric metric = Metric::l2, const CodeOptions& options = {});
};

}  // namespace knear
