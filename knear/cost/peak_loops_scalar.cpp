// The loops of the scalar level: plain C++ over arrays that stay in the first-level cache, compiled
// for every x86-64. The compiler may use SSE2, as it may in the scalar kernels, so these are the
// rates of compiled code, not of an instruction.
#include "knear/cost/peak_loops.hpp"

namespace knear::detail {

const signed char peak_integers[64] = {
    17,  -42, 5,   33,  -8,  61,  -55, 20,  -3,  48,  -27, 11,  -60, 39,  2,   -19,
    52,  -34, 7,   25,  -46, 14,  58,  -9,  -31, 44,  22,  -57, 1,   36,  -13, 50,
    -24, 9,   -40, 28,  60,  -5,  16,  -51, 35,  -18, 3,   47,  -29, 12,  56,  -37,
    23,  -2,  41,  -15, 54,  -48, 6,   30,  -21, 10,  -59, 38,  26,  -44, 19,  -6};
const float peak_floats[16] = {0.75f, -0.5625f, 0.625f,  -0.875f, 0.9375f, -0.6875f, 0.53f, -0.79f,
                               0.97f, -0.51f,   0.8125f, -0.72f,  0.66f,   -0.91f,   0.58f, -0.84f};
const unsigned short peak_bf16[32] = {  // as floats: +-[0.5, 1)
    0x3f40, 0xbf10, 0x3f20, 0xbf60, 0x3f70, 0xbf30, 0x3f08, 0xbf4a, 0x3f78, 0xbf03, 0x3f50,
    0xbf38, 0x3f29, 0xbf68, 0x3f14, 0xbf57, 0x3f1c, 0xbf25, 0x3f6e, 0xbf44, 0x3f33, 0xbf7b,
    0x3f0b, 0xbf5d, 0x3f48, 0xbf18, 0x3f65, 0xbf3b, 0x3f2f, 0xbf72, 0x3f05, 0xbf53};

namespace {

constexpr int length = 1024;

// Hides from the compiler what the array holds, so that it cannot compute a round ahead.
template <class T>
void refresh(T* data) {
  asm volatile("" : : "r"(data) : "memory");
}

struct Arrays {
  float x[length], y[length];
  short u[length], v[length];
  signed char p[length], q[length];
  int r[length], s[length];
  Arrays() {
    for (int i = 0; i < length; ++i) {
      x[i] = peak_floats[i % 16];
      y[i] = peak_floats[(i + 5) % 16];
      u[i] = r[i] = p[i] = peak_integers[i % 64];
      v[i] = s[i] = q[i] = peak_integers[(i + 29) % 64];
    }
  }
};

void fp32(long rounds) {
  Arrays a;
  float sums[32] = {};  // four products in flight for each of two pipes, if the compiler uses SSE2
  for (; rounds > 0; --rounds) {
    refresh(&a);
    for (int i = 0; i < length; i += 32)
      for (int j = 0; j < 32; ++j) sums[j] += a.x[i + j] * a.y[i + j];
  }
  refresh(sums);
}

template <class T>
void integer(const T* x, const T* y, long rounds) {
  int sum = 0;
  for (; rounds > 0; --rounds) {
    refresh(x);
    refresh(y);
    int part = 0;  // at most 1024 * 61^2: no overflow
    for (int i = 0; i < length; ++i) part += x[i] * y[i];
    sum ^= part;
  }
  refresh(&sum);
}

void int16(long rounds) {
  Arrays a;
  integer(a.u, a.v, rounds);
}

void int8(long rounds) {
  Arrays a;
  integer(a.p, a.q, rounds);
}

void cop(long rounds) {
  Arrays a;
  unsigned best[32] = {};  // unsigned: the sums may wrap
  for (; rounds > 0; --rounds) {
    refresh(&a);
    for (int i = 0; i < length; i += 32)
      for (int j = 0; j < 32; ++j) {
        const int x = a.r[i + j], top = int(best[j]);
        best[j] = unsigned(x > top ? x : top) + 3u;
      }
  }
  refresh(best);
}

template <bool ahead>
void read(const void* data, long bytes) {
  const auto* words = static_cast<const unsigned long*>(data);
  unsigned long sums[16] = {};
  for (long i = 0; i < bytes / 8; i += 16) {
    if constexpr (ahead) {
      __builtin_prefetch(words + i + 512);
      __builtin_prefetch(words + i + 520);
    }
    for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  refresh(sums);
}

}  // namespace

PeakLoops peak_loops_scalar() {
  return {.fp32 = {fp32, 2.0 * length},
          .int16 = {int16, 2.0 * length},
          .int8 = {int8, 2.0 * length},
          .cop = {cop, 3.0 * length},
          .read = read<false>,
          .read_ahead = read<true>,
          .bf16 = {}};
}

}  // namespace knear::detail
