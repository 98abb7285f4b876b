// knear/select/kernels/select_loops.inl -- the loops of select_kernels.inl for levels without
// compression of registers. The level has defined at_most(p, flip, bound): a bit for each of eight
// values.

namespace knear::detail {
namespace {

int64_t append(const float* row, int64_t count, uint32_t flip, float bound, uint32_t first,
               uint64_t* out) {
  uint64_t* const begin = out;
  const auto key_of = [&](int64_t i) {
    uint32_t bits;
    __builtin_memcpy(&bits, row + i, 4);
    bits ^= flip;
    if (bits == 0x80000000u) bits = 0;
    const uint32_t ordered = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return uint64_t{ordered} << 32 | (first + static_cast<uint32_t>(i));
  };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    uint32_t passed = at_most(row + i, flip, bound) | at_most(row + i + 8, flip, bound) << 8;
    for (; passed != 0; passed &= passed - 1) *out++ = key_of(i + __builtin_ctz(passed));
  }
  for (; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, row + i, 4);
    bits ^= flip;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    if (value <= bound) *out++ = key_of(i);
  }
  return out - begin;
}

// Values that are not low are above, except NaN. No branch depends on a comparison, as below.
int64_t split_values(const float* from, int64_t count, uint32_t flip, float pivot, float* low,
                     float* above, int64_t* aboves) {
  int64_t lows = 0, highs = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = flip != 0 ? -from[i] : from[i];
    const bool is_low = value <= pivot, is_high = value > pivot;
    low[lows] = value, above[highs] = value;
    lows += is_low, highs += is_high;
  }
  *aboves = highs;
  return lows;
}

int64_t take(const float* row, int64_t count, uint32_t flip, float last, int64_t ties, int64_t room,
             float* values, int64_t* places) {
  int64_t taken = 0;
  for (int64_t i = 0; i < count && taken < room; ++i) {
    const float value = flip != 0 ? -row[i] : row[i];
    const bool tie = value == last && ties > 0;
    values[taken] = row[i], places[taken] = i;
    ties -= tie, taken += tie || value < last;
  }
  return taken;
}

// No branch depends on a comparison: every key is written to both sides and one end moves.
int64_t split(uint64_t* keys, int64_t count, uint64_t pivot, uint64_t* spare, int64_t* above) {
  int64_t low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key = keys[i];
    const bool is_low = key <= pivot;
    keys[low] = key, spare[high] = key;
    low += is_low, high += !is_low;
  }
  *above = high;
  return low;
}

void unpack(const uint64_t* keys, int64_t count, uint32_t, const float* row, float* values,
            int64_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t place = static_cast<uint32_t>(keys[i]);
    values[i] = row[place], places[i] = place;
  }
}

int64_t cut(uint64_t* keys, int64_t count, uint64_t last) {
  int64_t low = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key = keys[i];
    keys[low] = key, low += key <= last;
  }
  return low;
}

constexpr int64_t most_few = 32;

// Sorts by rank: as many comparisons as pairs, none of them a branch.
void sort_few(uint64_t* keys, int64_t count) {
  uint64_t from[most_few];
  int32_t rank[most_few] = {};
  for (int64_t i = 0; i < count; ++i) from[i] = keys[i];
  for (int64_t i = 1; i < count; ++i) {
    int32_t before = 0;
    for (int64_t j = 0; j < i; ++j) {
      const int32_t less = from[j] < from[i];
      before += less, rank[j] += 1 - less;
    }
    rank[i] = before;
  }
  for (int64_t i = 0; i < count; ++i) keys[rank[i]] = from[i];
}

constexpr int64_t most_at_once = most_few;
void sort_at_once(uint64_t* keys, int64_t count) { sort_few(keys, count); }

constexpr int partition_sorted = 2, partition_by_place = 2;

}  // namespace
}  // namespace knear::detail
