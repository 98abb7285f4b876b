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
#include "knear/knn/options.hpp"
#include "knear/knn/report.hpp"
#include "knear/knn/check_device.hpp"
#include "knear/knn/streamed_search.hpp"
#include "knear/select/select_k.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/index.hpp"
#include "knear/index/options.hpp"
#include "knear/index/usual_lists.hpp"
#include "knear/factory/index_needs.hpp"
#include "knear/factory/choose_index.hpp"
#include "knear/factory/factory.hpp"
#include "knear/factory/deprecated.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/id_filter.hpp"
#include "knear/core/row_filter.hpp"
#include "knear/cluster/k_means.hpp"
#include "knear/core/peers.hpp"
#include "knear/transform/transform.hpp"
#include "knear/quantize/product_quantizer.hpp"
#include "knear/quantize/opq.hpp"
#include "knear/quantize/scalar_quantizer.hpp"
// Graphs of the neighbours of all rows, and paths in them.
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/neighbor_graph.hpp"
#include "knear/graph/nn_descent.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/graph/paths.hpp"
#include "knear/graph/bridges.hpp"
#include "knear/graph/statistics.hpp"
#include "knear/graph/layout.hpp"
// Vectors and answers in files.
#include "knear/io/vectors.hpp"
#include "knear/io/open_options.hpp"
#include "knear/io/convert.hpp"
#include "knear/io/statistics.hpp"
// Progress, instruction sets; what this machine can do and what a search will cost.
#include "knear/core/mean_interval.hpp"
#include "knear/core/progress.hpp"
#include "knear/core/this_thread.hpp"
#include "knear/core/cpu.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/cost/graph_plan.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/cost/plan.hpp"
#include "knear/cost/device_plan.hpp"
#include "knear/knn/device_peaks.hpp"
#include "knear/cost/shard_plan.hpp"
#include "knear/cost/machine_description.hpp"
#include "knear/cost/scale_plan.hpp"
#include "knear/cost/merge_tree.hpp"
