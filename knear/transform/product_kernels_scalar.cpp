// Products of matrices for registers of 16 bytes, which every processor has. See
// product_kernels.inl.
#define KNEAR_BYTES 16
#define KNEAR_REGISTERS 2
#define KNEAR_TABLE product_kernels_scalar
#include "knear/transform/product_kernels.inl"
