// knear/quantize/opq.hpp -- the rotation after which a product quantiser loses least.
//
//   const Transform turn = train_opq(rows, 16, {.dim_out = 64});
//   const auto pq = ProductQuantizer::train(turn.apply(rows).view(), 16, 8);
//
// Ge, He, Ke, Sun, "Optimized product quantization" (2013), section 4.2.
#pragma once
#include <cstdint>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/transform/transform.hpp"

namespace knear {

struct OpqOptions {
  int bits = 8;              // of each sub-quantiser, 4 or 8
  std::int64_t dim_out = 0;  // columns after the rotation; 0: as before
  int iterations = 50;       // at most
  std::uint64_t seed = 1;
  std::int64_t most_rows = 65536;  // uses a sample of so many rows; 0: all
  int threads = 0;                 // 0: as many as the process may use
  Progress progress = {};          // "train rotation"
};

// A rotation of rows [n x dim] of any element type to dim_out <= dim columns, n >= 2^bits;
// sub_quantizers must divide dim_out. It begins with principal components in balanced parts or with
// the columns as they are, whichever a quantiser loses less of, and then quantises the rotated rows
// and rotates the rows anew towards what they became, in turn.
// Throws InvalidArgument naming the argument, for a NaN or an infinity with its row; Cancelled. The
// same bits for the same arguments on every machine.
Transform train_opq(AnyMatrixView rows, std::int64_t sub_quantizers,
                    const OpqOptions& options = {});

}  // namespace knear
