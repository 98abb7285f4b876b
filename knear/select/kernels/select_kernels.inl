// knear/select/kernels/select_kernels.inl -- selection and sorting of keys, written once for each
// level.
//
// The level has defined, in this namespace,
//   append(row, count, flip, bound, first, out)  as SelectKernels::gather
//   split(keys, count, pivot, spare, &above)     moves the keys up to the pivot to the front, in
//                                                order, and the others to spare; returns how many
//                                                are in front, `above` how many in spare
//   split_values(from, count, flip, pivot, low, above, &aboves)
//                                                moves the values up to the pivot, changed by flip,
//                                                to low, which may be from, and the others but NaN
//                                                to above; returns how many are low, `aboves` how
//                                                many above
//   take(...), cut(...)                          as SelectKernels::take, SelectKernels::cut
//   most_few, sort_few(keys, count)              sorts up to so many
//   most_at_once, sort_at_once(keys, count)      sorts up to so many, where that is faster than
//                                                dividing them first
//   unpack(...)                                  as SelectKernels::unpack
//   partition_sorted, partition_by_place         as SelectKernels has them
// and KNEAR_TABLE. No library code inside: a function of this file must not be merged by the linker
// with another level's.
//
// Selecting is quickselect (Hoare's Find) and sorting quicksort; a pivot is the wanted rank of a
// small sorted sample, as in Floyd and Rivest's Select. Keys are distinct, so a pivot always
// divides; when it keeps dividing badly, which takes adversarial keys, heapsort takes over.

namespace knear::detail {
namespace {

using Key = uint64_t;

template <class T>
void sift_down(T* items, int64_t root, int64_t count) {
  const T item = items[root];
  for (int64_t child; (child = 2 * root + 1) < count; root = child) {
    if (child + 1 < count && items[child] < items[child + 1]) ++child;
    if (items[child] <= item) break;
    items[root] = items[child];
  }
  items[root] = item;
}

template <class T>
void heap_sort(T* items, int64_t count) {
  for (int64_t i = count / 2; i-- > 0;) sift_down(items, i, count);
  for (int64_t last = count - 1; last > 0; --last) {
    const T largest = items[0];
    items[0] = items[last], items[last] = largest;
    sift_down(items, 0, last);
  }
}

// The rank that corresponds in a sorted sample of `size` to `rank` among `count` items; `toward`
// moves it by so many standard deviations of the sample's rank.
int64_t rank_in_sample(int64_t size, int64_t count, int64_t rank, int toward) {
  const double share = static_cast<double>(rank) / static_cast<double>(count);
  const double deviation = __builtin_sqrt(share * (1 - share) * static_cast<double>(size));
  const double place = share * static_cast<double>(size) + toward * (deviation + 0.5);
  const int64_t at = place < 0 ? 0 : static_cast<int64_t>(place);
  return at < size ? at : size - 1;
}

// The key of about this rank among keys [count], from a sample of up to most_few.
Key pivot_at(const Key* keys, int64_t count, int64_t rank, int toward) {
  const int64_t size = count < 4096 ? 16 : most_few;
  Key sample[most_few + 8];
  const int64_t stride = count / size;
  // From the middle of each stride: the first key of an ascending row would be its least.
  for (int64_t i = 0; i < size; ++i) sample[i] = keys[i * stride + stride / 2];
  sort_few(sample, size);
  return sample[rank_in_sample(size, count, rank, toward)];
}

int rounds_for(int64_t count) {
  int rounds = 8;
  for (; count > 1; count /= 2) rounds += 2;
  return rounds;
}

void sort_range(Key* keys, Key* spare, int64_t count, int rounds) {
  while (count > most_at_once) {
    if (rounds-- == 0) return heap_sort(keys, count);
    int64_t above = 0;
    const int64_t low = split(keys, count, pivot_at(keys, count, count / 2, 0), spare, &above);
    __builtin_memcpy(keys + low, spare, static_cast<size_t>(above) * sizeof(Key));
    // The shorter side by recursion, the longer by the loop.
    if (low < above) {
      sort_range(keys, spare, low, rounds);
      keys += low, count = above;
    } else {
      sort_range(keys + low, spare, above, rounds);
      count = low;
    }
  }
  sort_at_once(keys, count);
}

// Moves the k smallest to the front and sorts the last of them, before which stand only smaller
// ones; returns where these begin.
Key* narrow(Key* keys, Key* spare, int64_t count, int64_t k) {
  for (int rounds = rounds_for(count); k < count; --rounds) {
    if (count <= most_few || rounds == 0) {
      if (count <= most_few)
        sort_few(keys, count);
      else
        heap_sort(keys, count);
      return keys;
    }
    // The pivot lies towards the smaller side, so that little is left to look at; above the k-th
    // where all keys up to it are few enough to be sorted at the end.
    const int toward = 2 * k < count || 5 * k <= 4 * most_few ? 1 : -1;
    int64_t above = 0;
    const int64_t low = split(keys, count, pivot_at(keys, count, k, toward), spare, &above);
    if (low >= k) {
      count = low;
    } else {
      __builtin_memcpy(keys + low, spare, static_cast<size_t>(above) * sizeof(Key));
      keys += low, count = above, k -= low;
    }
  }
  return keys + k;
}

Key keep_smallest_keys(Key* keys, Key* spare, int64_t count, int64_t k) {
  narrow(keys, spare, count, k);
  Key last = keys[0];
  for (int64_t i = 1; i < k; ++i) last = keys[i] > last ? keys[i] : last;
  return last;
}

void sort_smallest_keys(Key* keys, Key* spare, int64_t count, int64_t k) {
  const int64_t unsorted = narrow(keys, spare, count, k) - keys;
  sort_range(keys, spare, unsorted, rounds_for(unsorted));
}

constexpr float infinity = __builtin_inff();

// As pivot_at; a NaN counts as +infinity.
float pivot_value(const float* values, int64_t count, uint32_t flip, int64_t rank, int toward) {
  const int64_t size = count < 512 || most_few < 64 ? 16 : 64;
  Key sample[most_few + 8];
  const int64_t stride = count / size;
  for (int64_t i = 0; i < size; ++i) {
    const float value = values[i * stride + stride / 2];
    const float turned = flip != 0 ? -value : value;
    sample[i] = Key{ordered_bits(turned <= infinity ? turned : infinity)} << 32 | i;
  }
  sort_few(sample, size);
  return value_of(sample[rank_in_sample(size, count, rank, toward)]);
}

// Quickselect on the values alone, which are half as long as keys. Values may be equal: a pivot
// that divides nothing is the largest, and then those below it are split off.
float nth_of_row(const float* row, int64_t count, uint32_t flip, int64_t k, float* low,
                 float* above, int64_t* ties) {
  const auto toward = [](int64_t rank, int64_t of) { return 2 * rank < of ? 1 : -1; };
  const float first =
      count <= most_few ? infinity : pivot_value(row, count, flip, k, toward(k, count));
  int64_t aboves = 0, lows = split_values(row, count, flip, first, low, above, &aboves);
  *ties = count;
  if (lows + aboves < k) return infinity;
  int64_t rank = k;  // among what is left, which is in `low` at the end of each round
  for (int rounds = rounds_for(count);; --rounds) {
    if (rank > lows) {
      float* const left = above;
      above = low, low = left;
      rank -= lows, lows = aboves;
    }
    if (lows <= most_few || rounds == 0) break;
    const int64_t left = lows;
    const float pivot = pivot_value(low, left, 0, rank, toward(rank, left));
    lows = split_values(low, left, 0, pivot, low, above, &aboves);
    if (lows < left) continue;
    *ties = rank;
    if (pivot == -infinity) return pivot;
    lows = split_values(low, left, 0, __builtin_nextafterf(pivot, -infinity), low, above, &aboves);
    *ties = rank - lows;
    if (rank > lows) return pivot;
  }
  float last;
  if (lows <= most_few) {
    Key few[most_few + 8];
    for (int64_t i = 0; i < lows; ++i) few[i] = Key{ordered_bits(low[i])} << 32 | i;
    sort_few(few, lows);
    last = value_of(few[rank - 1]);
  } else {
    heap_sort(low, lows);
    last = low[rank - 1];
  }
  *ties = rank;
  for (int64_t i = 0; i < lows; ++i) *ties -= low[i] < last;
  return last;
}

}  // namespace

const SelectKernels& KNEAR_TABLE() {
  static constexpr SelectKernels table = {partition_sorted,
                                          partition_by_place,
                                          append,
                                          nth_of_row,
                                          take,
                                          keep_smallest_keys,
                                          cut,
                                          sort_smallest_keys,
                                          unpack};
  return table;
}

}  // namespace knear::detail
