// knear/index/index_cuda.hpp -- searches of an index for queries that are in the memory of a GPU.
//
//   cuda::MatrixView queries{device_pointer, ElementType::f32, 1000, 128};
//   cuda::search(index, queries, 10, ids, distances, stream);    // [1000 x 10] each, there too
//
// Of a flat index whose rows fit half of the GPU's free memory neither queries nor answers cross
// the bus: rows stay there from the first search on, queries are used in place. 8 bytes for each
// query and segment of the index come back, and a bit for each row goes there where rows were
// removed or a filter is given. What is searched for by way of the processor's memory nonetheless:
// queries of zeros by ip and cosine; those whose lists of candidates were full
// (report.scan.repeated_queries counts both); all of them where a filter allows fewer than one row
// in sixteen, where the rows are too many, by cosine f64 for a look at their lengths, and of all
// other kinds of index. Built with KNEAR_CUDA only.
#pragma once
#include <cstdint>

#include "knear/index/index.hpp"
#include "knear/knn/knn_cuda.hpp"

namespace knear::cuda {

// The answer of index.search() on the GPU where queries [q x dim] are, to the bit: writes ids and
// distances [q x k], which are in its memory too. After the work that `stream` (of that GPU) has
// been given; done when it returns. Any number of threads. Throws what Index::search() throws, and
// InvalidArgument for a pointer that is not of a GPU or of another one, and for options.device
// other than "cpu" (unsaid), "cuda" or that GPU's own name, cuda:N; DeviceError if a call fails.
void search(const Index& index, const MatrixView& queries, std::int64_t k, Id* ids,
            float* distances, CUstream_st* stream = nullptr, const SearchOptions& options = {},
            KnnReport* report = nullptr);

}  // namespace knear::cuda
