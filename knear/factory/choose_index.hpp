// knear/factory/choose_index.hpp -- which index to make, where a factory string would otherwise
// have to be found by trying.
//
//   const IndexChoice choice = choose_index(1'000'000, 96, {.memory = 200 << 20, .recall = 0.9});
//   Index index = make_index(choice.factory, 96);  // "IVF2048,PQ48x4,Refine(SQ8)"
//   std::cerr << choice.reason;
//   const IndexChoice measured = choose_index(1'000'000, 256, {.batch = 1, .sample = x.view()});
//
// Without a sample it is a guess from rows, columns, type and metric. With one, the forms that fit
// the memory are built on a part of the sample, which counts the rows that a query scores for the
// recall. The counts are extrapolated to all rows, and the model of costs (knear/cost) makes
// seconds of them. Counts do not depend on what else the machine does, so that the same sample
// gives the same choice on the same kind of machine. `bench/auto` measures how far from the fastest
// of eight the choice is. What vectors in no lists take depends on the machine: without AVX-512
// VNNI they may be kept in float32 once more.
#pragma once
#include <cstdint>

#include "knear/factory/index_needs.hpp"
#include "knear/index/options.hpp"

namespace knear {

// Which index to make of `rows` vectors of `dim` columns. Of a sample a fortieth of `rows`
// is measured, from 2,000 to 60,000. Vectors in two lists (IVFn_SOAR) are measured where
// lists of vectors in one are long, and codes where the memory has no room for vectors. The choice
// stays a guess where the sample has fewer rows, and where no form that was measured reaches the
// recall within the memory, as for codes below half a byte a column. The same needs give the same
// choice for any number of threads.
//
// Throws InvalidArgument unless rows >= 1, 1 <= dim <= 65536, memory >= 0, 0 < recall <= 1 and
// batch >= 1; where nothing fits the memory, with what would be enough; and for a NaN or infinity
// in what is measured. Throws ShapeMismatch for a sample of another number of columns; Cancelled.
IndexChoice choose_index(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs = {},
                         const ChangeOptions& options = {});

}  // namespace knear
