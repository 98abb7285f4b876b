// The reference's partial sums for AVX-512. See exact_kernels.inl.

// GCC 12 warns of a variable of its own header that is left unset on purpose.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define KNEAR_BYTES 64
#define KNEAR_TABLE exact_kernels_avx512
#include "knear/distance/exact_kernels.inl"
