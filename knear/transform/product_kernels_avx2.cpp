// Products of matrices for AVX2. See product_kernels.inl.
#define KNEAR_BYTES 32
#define KNEAR_REGISTERS 2
#define KNEAR_TABLE product_kernels_avx2
#include "knear/transform/product_kernels.inl"
