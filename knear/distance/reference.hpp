// knear/distance/reference.hpp -- the float64 distance that every exact answer is measured by.
//
//   double d = reference_distance(Metric::l2, query, row, dim);
//
// The direct form, in double precision, every operation rounded once (no fused multiply-add):
//
//   l2      sum (x_i - y_i)^2
//   ip      sum x_i y_i
//   cosine  1 - sum x_i y_i / sqrt(sum x_i^2 * sum y_i^2), and 1 if either vector is zero;
//           0 or 2 where rounding leaves a little less or more
//   l1      sum |x_i - y_i|
//   hamming the number of bits that differ, of vectors of u8
//
// Order of partial sums, part of the definition: sixteen of them, the j-th taking the terms
// i = j, j + 16, j + 32, ... in that order, starting from 0; then s_j + s_{j+8} for j < 8,
// s_j + s_{j+4} for j < 4, s_j + s_{j+2} for j < 2, s_0 + s_1. Elements become double without
// rounding. So the bits are the same on every machine, and sixteen lanes may work at once.
//
// An exact search returns the k smallest in the total order (this distance, id), with products
// ordered descending; what it prints is this distance rounded to float32.
#pragma once
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear {

// The distance of two vectors [dim] of any two element types; dim >= 1; elements finite. Of f64
// elements beyond 1e150 squares are infinite, and for cosine those of a vector shorter than 1e-150
// vanish: searches refuse such vectors. Throws InvalidArgument for hamming of elements other than
// u8.
template <class Q, class B>
double reference_distance(Metric metric, const Q* query, const B* row, std::int64_t dim);

// What the total order compares: the distance, negated for ip, so that smaller is always nearer.
inline double order_key(Metric metric, double distance) {
  return larger_is_nearer(metric) ? 0.0 - distance : distance;
}
inline double distance_of_key(Metric metric, double key) {
  return larger_is_nearer(metric) ? 0.0 - key : key;
}

// Brute force by the definition above and a full sort: slow and obviously right; every test
// compares with it. queries [q x d], base [n x d], any element types; k >= 1.
Neighbors reference_knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, Metric metric);

}  // namespace knear
