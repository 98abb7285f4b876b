// cli/npz.hpp -- a sparse matrix in the file of SciPy's save_npz().
//
//   write_npz("graph.npz", symmetric(...));     // scipy.sparse.load_npz("graph.npz")
//
// A zip file without compression of the .npy arrays format, shape, indptr, indices and data of a
// csr_matrix [rows x rows]. libzip writes it: to a temporary file, which takes the name at the end.
#pragma once
#include <string>

#include "knear/graph/sparse_graph.hpp"

namespace knear::cli {

// Throws IoError; then nothing has changed on disk. InvalidArgument where knear was built without
// libzip.
void write_npz(const std::string& path, const SparseGraph& graph);

}  // namespace knear::cli
