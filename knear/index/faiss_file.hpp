// knear/index/faiss_file.hpp -- indexes in the files of FAISS (read_index, write_index).
//
//   Index index = read_faiss("old.faiss");      // Index::load() does the same for such a file
//   write_faiss(index, "for_others.faiss");
//
// Read: IndexFlat, IndexPQ and IndexPQFastScan of 8 and 4 bits, IndexScalarQuantizer of 8 and 4
// bits, fp16 and bf16, and the same in inverted lists (IndexIVFFlat, ...PQ, ...PQFastScan,
// ...ScalarQuantizer), of L2 and of inner products; all of them behind linear transforms, PCA, OPQ,
// centring and normalisation (IndexPreTransform), codes with an IndexRefine by vectors, halves or
// codes (of vectors refined by themselves the vectors), and each in an IndexIDMap or IDMap2. For L2
// the quantiser of the lists may be any of these, for products it is an IndexFlat. Every other type
// is refused by its name.
//
// Centroids are FAISS's, and every row stays in the list that FAISS has it in, so that the same
// probes find the same. Where an index over the centroids finds fewer of them than there are
// probes, FAISS probes no more lists, and knear goes on to others. Lists are probed in the order
// that the metric of the index has, for ip that of the products with their centroids. Rows that are
// added go to the list of the centroid nearest in l2; for centroids of length 1, as FAISS learns
// them for ip, that has the largest product. Residuals in QT_8bit_direct, which has no negative
// ones, are refused. Halves of what is left beside centroids (IVFn,SQfp16 of FAISS's factory)
// become float32 vectors. FAISS sums distances of fast-scan codes in bytes, which are float32 here.
// Linear maps of which a file does not say what they were are named RRn, or OPQm_n before product
// codes.
//
// Written: every index for l2 and ip, in an IDMap2 where ids are not 0, 1, ..., but for lists of
// products that are found by an index, and codes of what is left beside centroids that the index
// over these does not hold as they are, from which FAISS would take them. nprobe and k_factor are
// arguments of searches here, so they are not read, except those of a quantiser, and 1 and 4 are
// written. What a recall takes is not in such files, nor by what else than products lists for ip
// are found: these are probed in the order of products once they are read again.
#pragma once
#include <string>

#include "knear/index/index.hpp"

namespace knear {

// The vectors are copied to memory once more than the file has while it is read. Throws IoError;
// CorruptFile for a file that is none of these, that is cut off or whose numbers do not fit, naming
// what is wrong; MemoryBudgetError.
Index read_faiss(const std::string& path, const ChangeOptions& options = {});

// Whether a file begins as FAISS files of indexes do.
bool is_faiss_file(const std::string& path);

// Whole or not at all; shards as one index. The index must not be changed meanwhile. Throws
// InvalidArgument for cosine, a metric that FAISS has not, for an index that is not trained, for
// one that FAISS has not, and for vectors that float32 does not hold exactly; IoError; Cancelled.
void write_faiss(const Index& index, const std::string& path, const Progress& progress = {});

}  // namespace knear
