// The tile kernels for AVX-512 with VNNI.
#define KNEAR_TABLE scan_kernels_avx512_vnni
#include "knear/scan/kernels/tile_kernels_avx512_vnni.inl"
