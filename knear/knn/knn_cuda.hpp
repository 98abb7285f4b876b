// knear/knn/knn_cuda.hpp -- searches of vectors that are in the memory of a GPU.
//
//   cuda::MatrixView base{rows, ElementType::f32, 1'000'000, 128};      // device pointers
//   cuda::knn(queries, base, 10, ids, distances, stream);               // [queries x 10] each
//   cuda::self_join(base, 10, ids, distances, stream);                  // [rows x 10] each
//
//   cuda::ExactSearcher searcher(base, {.metric = Metric::cosine}, stream);
//   searcher.search(queries, 10, ids, distances, {.metric = Metric::cosine});
//   RangeNeighbors near = searcher.range_search(queries, 0.3, {.metric = Metric::cosine});
//
// The answers of knear::knn, knear::self_join and knear::range_search (knn/knn.hpp), bit for bit.
// The base is not copied: codes of it are made on the device (a byte a coordinate, rounded up to 32
// bytes a row, and 16 more), and the few rows that they leave are measured where they are. Built
// with KNEAR_CUDA only.
#pragma once
#include <cstdint>
#include <memory>

#include "knear/knn/cuda_matrix.hpp"
#include "knear/knn/knn.hpp"

struct CUstream_st;  // what a cudaStream_t points to: no header of CUDA is needed here

namespace knear::cuda {

// The k nearest rows of base [n x d] for each of queries [q x d]: writes ids and distances [q x k],
// which are in device memory too, as knear::knn returns them (order, ties, padding). All on the
// device on which base is; queries and answers must be there.
//
// After the work that `stream` (of that device) has been given; done when it returns. Throws what
// knear::knn throws, and InvalidArgument for a pointer that is not of that device, for a method
// other than auto and exact, and for options.device other than "cpu" (unsaid), "cuda" or the
// device's own name, cuda:N; DeviceError if a call fails. options.memory bounds the device memory
// taken beside the arguments. Queries are used in place and answers stay there; but by way of the
// processor's memory go all of them with a memory limit, where the device has no memory for codes
// of all rows, or a filter allows fewer than one row in sixteen, and some whose lists were full
// (report.scan.repeated_queries) or that are zeros, by ip and cosine. Queries for whose lists the
// device has no memory are answered by the processor, for which it copies the rows
// (report.scan.fallback_queries).
void knn(const MatrixView& queries, const MatrixView& base, std::int64_t k, Id* ids,
         float* distances, CUstream_st* stream = nullptr, const KnnOptions& options = {},
         KnnReport* report = nullptr);

// The k nearest other rows of each row of base [n x d], as knear::self_join returns them: writes
// ids and distances [n x k]. A search for every row, so that each pair is scored twice; errors,
// order of work and memory are those of knn() above. The rows are the queries, where they are.
void self_join(const MatrixView& base, std::int64_t k, Id* ids, float* distances,
               CUstream_st* stream = nullptr, const KnnOptions& options = {},
               KnnReport* report = nullptr);

// All rows of base [n x d] within a radius of each of queries [q x d], as knear::range_search
// returns them, in the processor's memory: how many they are is known only when they are found.
// Everything else as knn() above; options.memory bounds what they take here too.
RangeNeighbors range_search(const MatrixView& queries, const MatrixView& base, double radius,
                            CUstream_st* stream = nullptr, const KnnOptions& options = {},
                            KnnReport* report = nullptr);

// A base prepared once for many searches: its codes stay on the device, but for searches with a
// memory limit, which make them each time. The base must stay unchanged, and the stream must stay,
// while this lives. One search at a time.
class ExactSearcher {
 public:
  ExactSearcher(const MatrixView& base, const KnnOptions& options, CUstream_st* stream = nullptr);
  ~ExactSearcher();
  ExactSearcher(ExactSearcher&&) noexcept;
  ExactSearcher& operator=(ExactSearcher&&) noexcept;

  // As knn() above; InvalidArgument unless options.metric is the one given at construction.
  void search(const MatrixView& queries, std::int64_t k, Id* ids, float* distances,
              const KnnOptions& options, KnnReport* report = nullptr);
  // As range_search() above; the same for options.metric.
  RangeNeighbors range_search(const MatrixView& queries, double radius, const KnnOptions& options,
                              KnnReport* report = nullptr);

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace knear::cuda
