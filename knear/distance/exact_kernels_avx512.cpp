// The reference's partial sums for AVX-512. See exact_kernels.inl.
#define KNEAR_BYTES 64
#define KNEAR_TABLE exact_kernels_avx512
#include "knear/distance/exact_kernels.inl"
