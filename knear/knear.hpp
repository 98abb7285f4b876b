// knear/knear.hpp -- every public header, in the order in which to read them.
//
//   #include <knear/knear.hpp>             // and link to knear::knear
//
// Start with knn/knn.hpp and core/matrix.hpp: with these two most programs are served.
#pragma once
// The order is for readers:
// clang-format off

#include "knear/core/version.hpp"
// The vocabulary: vectors as rows of a matrix, the answer of a search, what is thrown.
#include "knear/core/matrix.hpp"
#include "knear/core/element_type.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/error.hpp"
// The search, the definition that every exact answer keeps, and an index around it.
#include "knear/knn/knn.hpp"
#include "knear/knn/streamed_search.hpp"
#include "knear/select/select_k.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/flat.hpp"
#include "knear/index/id_filter.hpp"
// Vectors and answers in files.
#include "knear/io/vectors.hpp"
#include "knear/io/convert.hpp"
#include "knear/io/statistics.hpp"
// Threads, progress, instruction sets; what this machine can do and what a search will cost.
#include "knear/core/threads.hpp"
#include "knear/core/progress.hpp"
#include "knear/core/cpu.hpp"
#include "knear/cost/kept_peaks.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/cost/plan.hpp"
#include "knear/cost/roofline.hpp"
// The parts that the above are made of.
#include "knear/distance/exact.hpp"
#include "knear/select/bitonic_partial_sort.hpp"
#include "knear/select/extreme.hpp"
#include "knear/select/min_max_heap.hpp"
#include "knear/select/nth_value.hpp"
#include "knear/select/radix_sort.hpp"
#include "knear/select/sort_pairs.hpp"
#include "knear/select/threshold_heap.hpp"
#include "knear/select/top_k.hpp"
#include "knear/select/bins.hpp"
#include "knear/select/permutation.hpp"
#include "knear/select/partial_reduce.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/core/random.hpp"
#include "knear/core/row_filter.hpp"
