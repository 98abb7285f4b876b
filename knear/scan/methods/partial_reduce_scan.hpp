// knear/scan/methods/partial_reduce_scan.hpp -- the scan that keeps the best few rows of each bin.
//
// PartialReduce of Chern et al., "TPU-KNN" (2022), section 5, with more than one row kept of a bin.
// A bin is a tile of the packed base. Rows were interleaved over the tiles so that each run of as
// many rows as there are tiles has one row in every tile, beginning with a pseudo-random one
// (packed_base.hpp): of k rows, whichever they are and in whatever order the base is, the number c
// in a tile is a sum of independent trials with mean k / tiles, and no such sum has a larger E
// max(0, c - kept) than the binomial one (Hoeffding, 1956). So the guarantee needs no second copy
// of the base. It is about the interleaving: an order made by somebody who knows the hash can put
// all neighbours of a query into one tile. What is certified holds even then.
//
// What is below the k-th found so far is not looked at: it is none of the answer, kept or not.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/packing/interleaving.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"
#include "knear/select/sort/sort_pairs.hpp"

namespace knear::detail {

// As scan(), but that of each tile only the `kept` best rows count. Requires that copies of rows
// were packed each by itself. `dropped` [job.queries]: lowered to the least (key, row) that was
// dropped, in the total order; where the k-th of the answer does not come after it, the answer is
// that of scan(). With `candidates` [queries x tiles * kept] all that is kept is written there,
// those of tile t from place t * kept on, ascending and padded, instead of the k best to `out`.
void scan_partial_reduce(const PackedBase& packed, const ScanJob& job, int kept,
                         const std::vector<std::int64_t>& which, ExactNeighbors& out,
                         std::vector<KeyedId>& dropped, ExactNeighbors* candidates,
                         ScanStats& stats, const Progress& progress);

// The bins of a packed base, of which nothing else is needed.
struct RowBins {
  Interleaving interleaving;
  int kept;                               // rows of a bin that count
  std::span<const std::uint32_t> subset;  // the rows that were packed, ascending; empty: all

  // The bin of a row that was packed.
  std::int64_t bin_of(Id row) const;
};

// Takes the answer from an exact one: of a query's best rows in order (keys, rows [count]), those
// that count, at most k of them, to out_keys and out_rows [k], padded with +infinity and no_id.
// `dropped` is lowered to the first that does not. `whole`: that every row there is was listed.
// False if the list ends too soon to say what the k are; the query is to be scanned then.
//
// `taken` [bins.interleaving.tiles] holds zeros, before and after.
bool reduce_list(const double* keys, const Id* rows, std::int64_t count, bool whole,
                 const RowBins& bins, std::int64_t k, std::vector<int>& taken, double* out_keys,
                 Id* out_rows, KeyedId& dropped);

}  // namespace knear::detail
