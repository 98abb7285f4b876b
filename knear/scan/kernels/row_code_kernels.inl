// knear/scan/kernels/row_code_kernels.inl -- distances of 8-bit codes, written once and compiled
// for each level.
//
// The including file defines KNEAR_DISTANCES (the name of the function), KNEAR_WIDTH (bytes of
// codes a step, a divisor of row_code_step), the type Sums (a register of 32-bit sums) and
//   Sums add_squares(Sums, const int16_t* a, const uint8_t* b)   of KNEAR_WIDTH codes
//   void add_up(const Sums* four, uint32_t* out)                 the sums of four registers
// Everything is static and of C types: no inline function may be shared with another level.
//
// Rows come in fours, so that four sums go on side by side and are added up together.

namespace knear::detail {

void KNEAR_DISTANCES(const int16_t* query, const uint8_t* codes, int64_t stride, int64_t step,
                     const uint32_t* rows, int64_t count, uint32_t* out) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint8_t* const a = codes + static_cast<int64_t>(rows[i]) * step;
    const uint8_t* const b = codes + static_cast<int64_t>(rows[i + 1]) * step;
    const uint8_t* const c = codes + static_cast<int64_t>(rows[i + 2]) * step;
    const uint8_t* const d = codes + static_cast<int64_t>(rows[i + 3]) * step;
    Sums sums[4] = {};
    for (int64_t j = 0; j < stride; j += KNEAR_WIDTH) {
      sums[0] = add_squares(sums[0], query + j, a + j);
      sums[1] = add_squares(sums[1], query + j, b + j);
      sums[2] = add_squares(sums[2], query + j, c + j);
      sums[3] = add_squares(sums[3], query + j, d + j);
    }
    add_up(sums, out + i);
  }
  if (i == count) return;
  uint32_t last[4];
  Sums sums[4] = {};
  for (int64_t r = i; r < count; ++r) {
    const uint8_t* const a = codes + static_cast<int64_t>(rows[r]) * step;
    for (int64_t j = 0; j < stride; j += KNEAR_WIDTH)
      sums[r - i] = add_squares(sums[r - i], query + j, a + j);
  }
  add_up(sums, last);
  for (int64_t r = i; r < count; ++r) out[r] = last[r - i];
}

}  // namespace knear::detail
