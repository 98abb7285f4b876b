// The reference's partial sums for SSE2, which every x86-64 has. See exact_kernels.inl.
#define KNEAR_BYTES 16
#define KNEAR_TABLE exact_kernels_scalar
#include "knear/distance/exact_kernels.inl"
