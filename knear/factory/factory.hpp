// knear/factory/factory.hpp -- an index from the string by which the field names it.
//
//   Index index = make_index("IVF1024,Flat", 96, Metric::l2);
//
//   Flat              every vector, searched exactly
//   PQm, PQmx8        codes of m bytes
//   PQmx4, PQmx4fs    codes of m half bytes
//   SQ8, SQ4          a byte or half a byte a column
//   Graphn            every vector, and a graph of n links a row to find it by, 4 to 256
//   SQfp16, SQbf16    vectors that are rounded to halves, searched exactly
//   IVFn,...          n inverted lists, 1 to 2^24, of any of these; codes are of residuals
//   IVFn(index),...   the same, whose centroids are found by an index of their own; for ip none
//                     with transforms or product quantizers
//   IVFn_SOAR,...     n inverted lists of vectors, 2 or more, with each vector in two of them
//   ...,RFlat         codes and the vectors, by which the nearest codes are measured
//   ...,Refine(form)  the same by codes or halves of the vectors: SQfp16, SQbf16, SQ8, SQ4, PQm
//   PCAn,...          n principal components first; PCAW: whitened, PCAR: rotated, PCAWR. By l2 the
//                     mean is subtracted. By ip and cosine it stays, and the components are the
//                     directions of the largest sums of squares, of rows of length 1 for cosine:
//                     with all components, products and cosines are those of the vectors
//   OPQm_d,...        rotated to d columns for a quantiser of m parts; OPQm: to as many as before
//   RRn,... RR,...    a random rotation, to n columns or as many; of more columns than there are,
//                     which lengthens rows and changes no distance but for its rounding
//   L2norm,...        vectors are given length 1
//   IDMap, IDMap2     before or behind: nothing, since every index takes ids of the caller's
//
// Anything else is refused by its name and place. The index has to be trained before vectors are
// added, unless it is flat. Distances are those after the transforms, but refined ones those of
// the vectors themselves.
//
// Flat. Answers are those of knn() (knn/knn.hpp) over the rows that are there, ties by id, to the
// bit, whatever the history of the index, unless less recall is asked for: it is also what faster
// indexes are measured against. Memory: as every index (index/index.hpp); d + K + 26 bytes a row
// more where searches without a memory limit have come to go by a prefix of K columns, 8 to 128, or
// optimize() made one, or d + 16 where rows that 8 bits leave are scored again, which they do once
// it has paid. A recall below 1 (SearchMethod::recall, with everything else left to the index) may
// go by inverted lists that the index makes of its rows: from 16,384 rows on, for k up to a 256th
// of them, once such searches have taken as long as making them does, or after tune(). They hold
// until the rows change, take d + 16 bytes a row, and are not kept by save(). Queries unlike the
// rows, filters and limited memory are answered by all rows; report.method says which it was.
//
// IVFn. Each row is in the list of the centroid nearest to it, and a query is compared with the
// rows of the few lists nearest to it (Johnson, Douze and Jégou 2017, section 2). With vectors the
// answer is exact among the rows of the lists that are probed: they are scanned by certified codes
// of 8 bits, as a flat index is, and what is left is measured in float64, so the same centroids and
// probes give the same answer on every machine, for any batch, and after any history of changes.
// With `certify` the report says of which queries it is the answer of a flat index too: |q - c|
// less the radius of a list bounds the distance of everything in it. recall = 1 goes on until that
// holds for all. By l2 and ip the list is that of the centroid nearest in l2; by cosine of the
// largest cosine. A query probes the centroids that are nearest to it by the metric of the index;
// for ip those of the least lifted distance, so that lists of long vectors do not come first
// whatever their direction (docs/decisions.md). Memory: 4 bytes a coordinate of each centroid more.
// Lists of fewer than 4 rows on average are measured as they are instead of packed.
//
// IVFn_SOAR. Each row is in a second list too, whose centroid lies in another direction from the
// row than that of the first (Sun et al., "SOAR", NeurIPS 2023). For vectors whose clusters
// overlap, as those of text do: queries reach the same recall with a fraction of the probes.
// Answers have each row once, and recall = 1 is as exact as with IVFn. Lists have twice as many
// rows, so that vectors in clusters that lie apart are slower. list_sizes() and lists_of() are of
// first lists. Searched by the processor only. Memory: about dim + 20 bytes a row more, and half a
// panel of 32 rows a list.
//
// Codes. A code says what is left of a vector beside the centroid of its list, or the whole vector.
// Distances are those of the query to what codes stand for, summed in float32 from tables of the
// query, so approximate; the answer is the nearest codes of the lists that are probed, the same on
// every machine, for any batch and after any history. With RFlat the vectors are kept too, and some
// times as many codes as neighbours are wanted (refine_factor) are measured by these, in float64.
// For cosine, rows and queries are given length 1, and the distance is 1 - cos to what the code
// stands for. reconstruct() gives that too, or with RFlat the vectors as they were added. Memory of
// a row: its code, 8 bytes for the id, 4 for a scalar (not for ip, nor for l2 without lists), and 4
// more from the first call that looks an id up; with RFlat the vector. Beside these, once: 1,024
// bytes and a vector for each of the 1,000 that training keeps apart to know recall by, which below
// a million rows is more than some codes are; none with TrainOptions::hold_out = false.
//
// Graphn. For one query at a time at a high recall, where inverted lists have to look into many
// lists. A search needs method.ef, how many of the nearest rows that it has seen it keeps, or
// method.recall, from which the index chooses that by 1,000 of its rows, each left out of its own
// answer; recall = 1, the method exact, filters that leave few rows, range searches and fewer than
// 1,024 rows are answered by comparing all rows, as a flat index does. What is found is measured in
// float64: distances are exact. Rows added after the graph was made are compared beside it; rows
// taken out are walked through but not found. The next search makes the graph anew once an eighth
// of the rows (and more than 1,024) has come or a quarter has gone; optimize() does so if any need
// to be. So answers depend on the rows that the graph was made of too; the same calls in the same
// order give the same answers on every machine and for any number of threads. Memory: 1 byte a
// coordinate, 4 bytes a link and 16 more a row, a sixteenth more for the coarser layers; while the
// graph is made their packed codes, about 24 bytes a link, and a copy of the vectors unless they
// lie in one segment. Where a sample shows that codes of 8 bits hide near rows (clusters far apart,
// uneven lengths, a time axis), the graph is made of the numbers themselves, in 4 bytes a
// coordinate (8 of f64 rows), and a search takes about a third longer. Sources: Malkov and Yashunin
// 2018 (the search), Fu et al. 2019 (links chosen from a k-NN graph).
#pragma once
#include <cstdint>
#include <string_view>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/index/index.hpp"

namespace knear {

// Throws InvalidArgument for a string that names no index, saying which part of it is wrong and
// where, and unless 1 <= dim <= 65536.
Index make_index(std::string_view factory, std::int64_t dim, Metric metric = Metric::l2);
// "IVFn,Flat" with given centroids [n x dim], trained by that. Throws InvalidArgument for a NaN or
// infinity, naming its row, and unless 1 <= dim <= 65536 and 1 <= n <= 2^24.
Index index_with_centroids(MatrixView<float> centroids, Metric metric = Metric::l2);
// Whether such an index has to be trained. Throws as make_index(), but for what depends on dim.
bool learns(std::string_view factory);

}  // namespace knear
