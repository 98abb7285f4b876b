// Numbers of scalar codes for the level avx512. See plain_kernels.inl.
#define KNEAR_BYTES 64
#define KNEAR_TABLE plain_kernels_avx512
#include "knear/quantize/plain_kernels.inl"
