// knear/select/select_kernels.inl -- selection and sorting of keys, written once for each level.
//
// The level has defined, in this namespace,
//   append(row, count, flip, bar, first, out)    as SelectKernels::gather
//   split(keys, count, pivot, spare, &above)     moves the keys up to the pivot to the front, in
//                                                order, and the others to spare; returns how many
//                                                are in front, `above` how many in spare
//   cut(...)                                     as SelectKernels::cut
//   most_few, sort_few(keys, count)              sorts up to so many
//   unpack(...)                                  as SelectKernels::unpack
// and KNEAR_TABLE. No library code inside: a function of this file must not be merged by the linker
// with another level's.
//
// Selecting is quickselect (Hoare's Find) and sorting quicksort; a pivot is the wanted rank of a
// small sorted sample, as in Floyd and Rivest's Select. Keys are distinct, so a pivot always
// divides; when it keeps dividing badly, which takes keys made for it, heapsort ends the matter.

namespace knear::detail {
namespace {

using Key = uint64_t;

void sift_down(Key* keys, int64_t root, int64_t count) {
  const Key key = keys[root];
  for (int64_t child; (child = 2 * root + 1) < count; root = child) {
    if (child + 1 < count && keys[child] < keys[child + 1]) ++child;
    if (keys[child] <= key) break;
    keys[root] = keys[child];
  }
  keys[root] = key;
}

void heap_sort(Key* keys, int64_t count) {
  for (int64_t i = count / 2; i-- > 0;) sift_down(keys, i, count);
  for (int64_t last = count - 1; last > 0; --last) {
    const Key largest = keys[0];
    keys[0] = keys[last], keys[last] = largest;
    sift_down(keys, 0, last);
  }
}

// The key of about this rank among keys [count], from a sample of up to most_few; `toward` moves
// the rank by so many standard deviations of the sample's.
Key pivot_at(const Key* keys, int64_t count, int64_t rank, int toward) {
  const int64_t size = count < 4096 ? 16 : most_few;
  Key sample[most_few + 8];
  const int64_t stride = count / size;
  // From the middle of each stride: the first key of a row that rises would be its least.
  for (int64_t i = 0; i < size; ++i) sample[i] = keys[i * stride + stride / 2];
  sort_few(sample, size);
  const double share = static_cast<double>(rank) / static_cast<double>(count);
  const double deviation = __builtin_sqrt(share * (1 - share) * static_cast<double>(size));
  const double place = share * static_cast<double>(size) + toward * (deviation + 0.5);
  const int64_t at = place < 0 ? 0 : static_cast<int64_t>(place);
  return sample[at < size ? at : size - 1];
}

int rounds_for(int64_t count) {
  int rounds = 8;
  for (; count > 1; count /= 2) rounds += 2;
  return rounds;
}

void sort_range(Key* keys, Key* spare, int64_t count, int rounds) {
  while (count > most_few) {
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
  sort_few(keys, count);
}

void sort_keys(Key* keys, Key* spare, int64_t count) {
  sort_range(keys, spare, count, rounds_for(count));
}

Key keep_smallest_keys(Key* keys, Key* spare, int64_t count, int64_t k) {
  const Key* const begin = keys;
  const int64_t wanted = k;
  for (int rounds = rounds_for(count); k < count; --rounds) {
    if (count <= most_few || rounds == 0) {
      if (count <= most_few)
        sort_few(keys, count);
      else
        heap_sort(keys, count);
      break;
    }
    // On the side of the smaller part, so that what is left to look at is little.
    const int toward = 2 * k < count ? 1 : -1;
    int64_t above = 0;
    const int64_t low = split(keys, count, pivot_at(keys, count, k, toward), spare, &above);
    if (low >= k) {
      count = low;
    } else {
      __builtin_memcpy(keys + low, spare, static_cast<size_t>(above) * sizeof(Key));
      keys += low, count = above, k -= low;
    }
  }
  Key last = begin[0];
  for (int64_t i = 1; i < wanted; ++i) last = begin[i] > last ? begin[i] : last;
  return last;
}

}  // namespace

const SelectKernels& KNEAR_TABLE() {
  static constexpr SelectKernels table = {append, keep_smallest_keys, cut, sort_keys, unpack};
  return table;
}

}  // namespace knear::detail
