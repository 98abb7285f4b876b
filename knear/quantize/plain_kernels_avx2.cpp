// Numbers of scalar codes for the level avx2. See plain_kernels.inl.
#define KNEAR_BYTES 32
#define KNEAR_TABLE plain_kernels_avx2
#include "knear/quantize/plain_kernels.inl"
