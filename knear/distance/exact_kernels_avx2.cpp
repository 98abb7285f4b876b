// The reference's partial sums for AVX2. See exact_kernels.inl.
#define KNEAR_BYTES 32
#define KNEAR_TABLE exact_kernels_avx2
#include "knear/distance/exact_kernels.inl"
