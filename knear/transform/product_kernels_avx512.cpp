// Products of matrices for AVX-512. See product_kernels.inl.
#define KNEAR_BYTES 64
#define KNEAR_REGISTERS 4
#define KNEAR_TABLE product_kernels_avx512
#include "knear/transform/product_kernels.inl"
