// Products of matrices for SSE2, which every x86-64 has. See product_kernels.inl.
#define KNEAR_BYTES 16
#define KNEAR_REGISTERS 2
#define KNEAR_TABLE product_kernels_scalar
#include "knear/transform/product_kernels.inl"
