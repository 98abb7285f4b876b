// The kernels for codes for what every 64-bit ARM has: TBL looks 16 bytes up in one register, or in
// four. 4 bits are one look-up, 8 bits four, of which those beyond the registers leave what was
// there. See code_kernels.inl.
#include <arm_neon.h>
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"

#define KNEAR_BYTES 16
#include "knear/scan/kernels/code_kernels.inl"

namespace knear::detail {
namespace {

constexpr int sixteens = code_group_rows / 16;

// A bit for each of eight values that is at most its limit.
static inline uint64_t bits_of(uint32x4_t low, uint32x4_t high) {
  const uint16x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
  return vaddvq_u16(vandq_u16(vuzp1q_u16((uint16x8_t)low, (uint16x8_t)high), bit));
}

// Adds 16 bytes to the sums of as many rows.
static inline void add_bytes(uint16x8_t* sums, uint8x16_t bytes) {
  sums[0] = vaddw_u8(sums[0], vget_low_u8(bytes)), sums[1] = vaddw_high_u8(sums[1], bytes);
}

// The sums of a group of 64 rows whose codes lie `stride` apart; a last group that has fewer reads
// and adds up what lies behind it, in vain.
static inline void sums8(const CodeScanArgs& a, const uint8_t* codes, int64_t stride,
                         uint16_t* out) {
  uint16x8_t sums[2 * sixteens];
  for (auto& sum : sums) sum = vdupq_n_u16(0);
  const uint8_t* table = a.tables;
  for (int64_t b = 0; b < a.width; ++b, codes += stride, table += 256) {
    const uint8x16x4_t first = vld1q_u8_x4(table), second = vld1q_u8_x4(table + 64),
                       third = vld1q_u8_x4(table + 128), fourth = vld1q_u8_x4(table + 192);
#pragma GCC unroll 4
    for (int i = 0; i < sixteens; ++i) {
      const uint8x16_t code = vld1q_u8(codes + 16 * i), top = vdupq_n_u8(64);
      const uint8x16_t without1 = vsubq_u8(code, top), without2 = vsubq_u8(without1, top),
                       without3 = vsubq_u8(without2, top);
      uint8x16_t entries = vqtbl4q_u8(first, code);
      entries = vqtbx4q_u8(entries, second, without1);
      entries = vqtbx4q_u8(entries, third, without2);
      entries = vqtbx4q_u8(entries, fourth, without3);
      add_bytes(sums + 2 * i, entries);
    }
  }
  for (int i = 0; i < 2 * sixteens; ++i) vst1q_u16(out + 8 * i, sums[i]);
}

static inline void sums4(const CodeScanArgs& a, const uint8_t* codes, int64_t stride,
                         uint16_t* out) {
  uint16x8_t sums[2 * sixteens];
  for (auto& sum : sums) sum = vdupq_n_u16(0);
  const uint8_t* table = a.tables;
  for (int64_t b = 0; b < a.width; ++b, codes += stride, table += 32) {
    const uint8x16_t lower = vld1q_u8(table), upper = vld1q_u8(table + 16);
#pragma GCC unroll 4
    for (int i = 0; i < sixteens; ++i) {
      const uint8x16_t code = vld1q_u8(codes + 16 * i);
      // No entry is above 127: two fit a byte.
      add_bytes(sums + 2 * i, vaddq_u8(vqtbl1q_u8(lower, vandq_u8(code, vdupq_n_u8(15))),
                                       vqtbl1q_u8(upper, vshrq_n_u8(code, 4))));
    }
  }
  for (int i = 0; i < 2 * sixteens; ++i) vst1q_u16(out + 8 * i, sums[i]);
}

// Bit i is set for row first + i of a run if it may be near enough.
static inline uint64_t near_rows(const CodeScanArgs& a, const CodeRun& run, const uint16_t* sums,
                                 int64_t first, int64_t rows) {
  const float32x4_t offset = vdupq_n_f32(a.offset), slope = vdupq_n_f32(a.slope);
  const auto near_of = [&](uint32x4_t words, int64_t at) {
    float32x4_t limit = offset;
    if (run.scalars)
      limit = vaddq_f32(offset, vmulq_f32(slope, vld1q_f32(run.scalars + first + at)));
    return vcleq_f32(vcvtq_f32_u32(words), limit);
  };
  uint64_t near = 0;
  for (int64_t i = 0; i < rows; i += 8) {
    const uint16x8_t eight = vld1q_u16(sums + i);
    near |=
        bits_of(near_of(vmovl_u16(vget_low_u16(eight)), i), near_of(vmovl_high_u16(eight), i + 4))
        << i;
  }
  return rows < 64 ? near & ((uint64_t{1} << rows) - 1) : near;
}

static void values_up_to_neon(const int32_t* values, int64_t rows, int32_t limit, uint64_t* near) {
  const int32x4_t limits = vdupq_n_s32(limit);
  for (int64_t first = 0; first < rows; first += code_group_rows) {
    uint64_t bits = 0;
    for (int64_t i = 0; i < code_group_rows; i += 8)
      bits |= bits_of(vcleq_s32(vld1q_s32(values + first + i), limits),
                      vcleq_s32(vld1q_s32(values + first + i + 4), limits))
              << i;
    const int64_t group = rows - first;
    near[first / code_group_rows] = group < 64 ? bits & ((uint64_t{1} << group) - 1) : bits;
  }
}

template <void (*sums_of)(const CodeScanArgs&, const uint8_t*, int64_t, uint16_t*)>
static inline void scan_all(const CodeScanArgs& a) {
  for (int64_t r = 0; r < a.run_count; ++r) {
    const CodeRun& run = a.runs[r];
    const uint8_t* codes = run.codes;
    for (int64_t first = 0; first < run.rows; first += code_group_rows, codes += 64 * a.width) {
      const int64_t rows = run.rows - first < code_group_rows ? run.rows - first : code_group_rows;
      alignas(16) uint16_t sums[code_group_rows];
      sums_of(a, codes, rows, sums);
      if (a.values)
        put_values(a, run, sums, first, rows);
      else
        run.near[first / code_group_rows] = near_rows(a, run, sums, first, rows);
    }
  }
}
static void bits4_neon(const CodeScanArgs* args) { scan_all<sums4>(*args); }
static void bits8_neon(const CodeScanArgs* args) { scan_all<sums8>(*args); }

}  // namespace

const CodeKernels& code_kernels_neon() {
  static const CodeKernels kernels = {bits8_neon,    bits4_neon,  kth_value,  values_up_to_neon,
                                      plain_sums8,   plain_sums4, fill_table, round_down,
                                      plain_decode8, direct_sums8};
  return kernels;
}

}  // namespace knear::detail
