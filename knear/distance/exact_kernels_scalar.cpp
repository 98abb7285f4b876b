// The reference's partial sums for registers of 16 bytes, which every processor has. See
// exact_kernels.inl.
#define KNEAR_BYTES 16
#define KNEAR_TABLE exact_kernels_scalar
#include "knear/distance/exact_kernels.inl"
