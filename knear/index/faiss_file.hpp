// knear/index/faiss_file.hpp -- indexes in the files of FAISS (read_index, write_index).
//
//   Index index = read_faiss("old.faiss");      // Index::load() does the same for such a file
//   write_faiss(index, "for_others.faiss");
//
// Read: IndexFlat (L2, IP), IndexPQ and IndexScalarQuantizer of 4 and 8 bits (and of fp16 and bf16
// without lists), IndexIVFFlat, IndexIVFPQ and IndexIVFScalarQuantizer over a flat quantiser with
// lists in the file; codes also behind linear transforms, PCA and normalisation
// (IndexPreTransform), and with IndexRefineFlat; all of these in an IndexIDMap or IDMap2. Every
// other type is refused by its name.
//
// Centroids are FAISS's, and every row stays in the list that FAISS has it in, so that the same
// probes find the same. Lists are probed in the order that the metric of the index has, for ip that
// of the products with their centroids. Rows that are added go to the list of the centroid nearest
// in l2; for centroids of length 1, as FAISS learns them for ip, that has the largest product.
//
// Written: the same types, in an IDMap2 where ids are not 0, 1, ...; of what refines codes the
// vectors alone, and no transforms before vectors. nprobe and k_factor are arguments of searches
// here, so they are not read, and 1 and 4 are written. What a recall takes is not in such files.
#pragma once
#include <string>

#include "knear/index/index.hpp"

namespace knear {

// The vectors are copied to memory, as f32, once more than the file has while it is read. Throws
// IoError; CorruptFile for a file that is none of these, that is cut off or whose numbers do not
// fit, naming what is wrong; MemoryBudgetError.
Index read_faiss(const std::string& path, const ChangeOptions& options = {});

// Whether a file begins as FAISS files of indexes do.
bool is_faiss_file(const std::string& path);

// Whole or not at all; the index must not be changed meanwhile. Throws InvalidArgument for cosine,
// a metric that FAISS has not, for an index that is not trained or that FAISS has not, and for
// vectors that float32 does not hold exactly; IoError; Cancelled.
void write_faiss(const Index& index, const std::string& path, const Progress& progress = {});

}  // namespace knear
