// Numbers of scalar codes for the level scalar. See plain_kernels.inl.
#define KNEAR_BYTES 16
#define KNEAR_TABLE plain_kernels_scalar
#include "knear/quantize/plain_kernels.inl"
