// knear/select/sort/radix_sort.hpp -- a row of floats sorted by the digits of their bits, and the k
// smallest of it found by the same digits.
//
//   RadixSort sort;                                        // keeps its memory from row to row
//   int64_t numbers = sort(row, n, values, ids);           // all n, NaN last
//   int64_t found = sort.first(row, n, k, values, ids);    // the k first of them
//   RadixSelect select;
//   found = select(row, n, k, values, ids);                // the same, without sorting the rest
//
// The bits of a float, read as a number after a change for the sign, are in the order of the
// floats: 32 bits are three digits of 11, 11 and 10. Each key and its id share one 64-bit word.
//
// Sorting goes from the last digit to the first (LSD; Knuth, volume 3, 5.2.5): one reading of the
// row counts all three digits, then each pass scatters the words. A pass in which all have the same
// digit is skipped, as often happens for the first digit of distances. It is the full sort that
// earlier GPU searches used, and the measure for every partial one; 8 bytes read and 8 written per
// value and pass.
//
// Selection goes from the first digit on: its histogram gives the bucket that holds the k-th value;
// smaller values are chosen, larger ones dropped, and only the bucket is read again, by its next
// digit. That is two readings of the row, whatever k is, and O(k) to sort the chosen at the end:
// for k in the thousands, where insertion into a heap or list is slow.
//
// Order and ties: by value, then id, where the id is the place in the row. -0.0 is 0.0 and comes
// out as that; NaN of either sign comes last in a sort, as the quiet NaN, and is never selected.
// Rows have less than 2^31 values. Different objects may be used at once.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace knear {

namespace detail {

// A key in the upper half, an id in the lower.
using RadixWord = std::uint64_t;

inline constexpr std::uint32_t radix_key_of_nan = 0xffffffffu;

// Keys compare as the numbers do.
inline std::uint32_t radix_key(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x + 0.0f);  // -0.0 becomes 0.0
  // For a negative number all bits change, so that larger magnitudes come first; else only the
  // sign.
  const std::uint32_t key = bits ^ ((std::uint32_t{0} - (bits >> 31)) | 0x80000000u);
  return x == x ? key : radix_key_of_nan;
}
inline float radix_value(std::uint32_t key) {
  return std::bit_cast<float>(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu));
}
inline RadixWord radix_word(float value, std::size_t id) {
  return RadixWord{radix_key(value)} << 32 | id;
}

// The digits of a key, the most significant one first. Digits of 8 bits would take a fourth pass;
// digits of 16 bits two passes, with 65536 places to write at and counters that fill a cache.
struct RadixDigit {
  unsigned shift, bits;
  std::size_t values() const { return std::size_t{1} << bits; }
  std::size_t of(std::uint32_t key) const { return (key >> shift) & (values() - 1); }
  std::size_t of(RadixWord word) const { return of(static_cast<std::uint32_t>(word >> 32)); }
};
inline constexpr std::size_t radix_most_values = 2048;
inline constexpr std::array<RadixDigit, 3> radix_digits{{{21, 11}, {10, 11}, {0, 10}}};
// The last value of the first digit belongs to NaN alone: that of +infinity is three less.
using RadixHistogram = std::array<std::uint32_t, radix_most_values>;

// Scatters words by a digit, in their order. `counts` is overwritten.
inline void radix_scatter(const RadixWord* words, std::size_t count, RadixDigit digit,
                          RadixHistogram& counts, RadixWord* out) {
  std::uint32_t begin = 0;
  for (std::size_t value = 0; value < digit.values(); ++value) {
    const std::uint32_t here = counts[value];
    counts[value] = begin, begin += here;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const RadixWord word = words[i];
    out[counts[digit.of(word)]++] = word;
  }
}

using RadixHistograms = std::array<RadixHistogram, 3>;  // one for each digit
inline void radix_count(RadixWord word, RadixHistograms& counts) {
  for (std::size_t d = 0; d < 3; ++d) ++counts[d][radix_digits[d].of(word)];
}

// Sorts words whose digits are counted by their keys, stable; overwrites `from`, `spare` [count]
// and the counts, and returns the array that holds the result.
inline RadixWord* radix_sort_words(RadixWord* from, RadixWord* spare, std::size_t count,
                                   RadixHistograms& counts) {
  for (std::size_t d = 3; d-- > 0;) {
    if (count == 0 || counts[d][radix_digits[d].of(from[0])] == count) continue;
    radix_scatter(from, count, radix_digits[d], counts[d], spare);
    std::swap(from, spare);
  }
  return from;
}

inline void radix_unpack(const RadixWord* words, std::size_t count, float* values,
                         std::int32_t* ids) {
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = radix_value(static_cast<std::uint32_t>(words[i] >> 32));
    ids[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(words[i]));
  }
}
// Fills the places from `found` to k.
inline void radix_pad(std::size_t found, std::size_t k, float* values, std::int32_t* ids) {
  std::fill(values + found, values + k, std::numeric_limits<float>::infinity());
  std::fill(ids + found, ids + k, -1);
}

// Memory for so many words, whatever they hold.
inline RadixWord* radix_space(std::vector<RadixWord>& space, std::size_t count) {
  if (space.size() < count) {
    space.clear();  // so that nothing is moved
    space.resize(count);
  }
  return space.data();
}

}  // namespace detail

class RadixSort {
 public:
  // All of row[0 .. n), ascending, into values and ids [n]. Returns how many are numbers; NaN
  // follow.
  std::int64_t operator()(const float* row, std::int64_t n, float* values, std::int32_t* ids) {
    const std::size_t numbers = sort(row, n);
    detail::radix_unpack(sorted_, n, values, ids);
    return static_cast<std::int64_t>(numbers);
  }

  // The k smallest numbers, ascending, into values and ids [k]; where there are fewer, +infinity
  // and -1 follow. Returns how many there are. Sorts all of them nevertheless.
  std::int64_t first(const float* row, std::int64_t n, std::int64_t k, float* values,
                     std::int32_t* ids) {
    const std::size_t numbers = sort(row, n);
    const std::size_t found = std::min(numbers, static_cast<std::size_t>(k));
    detail::radix_unpack(sorted_, found, values, ids);
    detail::radix_pad(found, k, values, ids);
    return static_cast<std::int64_t>(found);
  }

 private:
  // Returns how many are numbers.
  std::size_t sort(const float* row, std::size_t count) {
    detail::RadixWord* from = detail::radix_space(from_, count);
    detail::RadixWord* spare = detail::radix_space(spare_, count);
    detail::RadixHistograms counts{};
    for (std::size_t i = 0; i < count; ++i) {
      from[i] = detail::radix_word(row[i], i);
      detail::radix_count(from[i], counts);
    }
    const std::size_t numbers = count - counts[0].back();
    sorted_ = detail::radix_sort_words(from, spare, count, counts);
    return numbers;
  }

  std::vector<detail::RadixWord> from_, spare_;
  const detail::RadixWord* sorted_ = nullptr;
};

class RadixSelect {
 public:
  // The k smallest numbers of row[0 .. n), ascending, into values and ids [k]; where there are
  // fewer, +infinity and -1 follow. Returns how many there are.
  std::int64_t operator()(const float* row, std::int64_t n, std::int64_t k, float* values,
                          std::int32_t* ids) {
    const std::size_t count = n, wanted = static_cast<std::size_t>(k);
    const std::size_t found = choose(row, count, wanted);
    detail::radix_unpack(sort(found), found, values, ids);
    detail::radix_pad(found, wanted, values, ids);
    return static_cast<std::int64_t>(found);
  }

 private:
  // Fewer words than this are fewer than the counters that would have to be cleared and summed.
  static constexpr std::size_t few = 1024;

  // The value of a digit whose bucket holds the last of `wanted`, and how many come before it.
  struct Bucket {
    std::size_t value = 0, below = 0, size = 0;
  };
  static Bucket bucket_of(const detail::RadixHistogram& counts, std::size_t wanted) {
    Bucket bucket;
    while (bucket.below + counts[bucket.value] < wanted) bucket.below += counts[bucket.value++];
    bucket.size = counts[bucket.value];
    return bucket;
  }

  // Appends words of lower buckets to `chosen` and those of the bucket itself to `in_bucket`, both
  // in the order of their ids. Neither append is a branch, so each end needs a spare place.
  template <class WordAt>
  static void split(WordAt word_at, std::size_t count, detail::RadixDigit digit, std::size_t value,
                    detail::RadixWord* chosen, detail::RadixWord* in_bucket) {
    for (std::size_t i = 0; i < count; ++i) {
      const detail::RadixWord word = word_at(i);
      const std::size_t its = digit.of(word);
      *chosen = word, chosen += its < value;
      *in_bucket = word, in_bucket += its == value;
    }
  }

  // Sorts chosen_ [count], by keys and ids.
  const detail::RadixWord* sort(std::size_t count) {
    detail::RadixWord* const words = chosen_.data();
    if (count <= few) {
      std::sort(words, words + count);
      return words;
    }
    detail::RadixHistograms counts{};
    for (std::size_t i = 0; i < count; ++i) detail::radix_count(words[i], counts);
    return detail::radix_sort_words(words, detail::radix_space(bucket_, count), count, counts);
  }

  // Leaves the wanted words at the beginning of chosen_, equal keys in the order of their ids.
  // Returns how many: fewer than wanted if there are fewer numbers.
  std::size_t choose(const float* row, std::size_t count, std::size_t wanted) {
    constexpr detail::RadixDigit first = detail::radix_digits[0];
    // Distances share few first digits, so that neighbours would wait for each other's counter:
    // there are four histograms in turn.
    std::array<detail::RadixHistogram, 4> counts{};
    for (std::size_t i = 0; i < count; ++i) ++counts[i % 4][first.of(detail::radix_key(row[i]))];
    for (std::size_t value = 0; value < first.values(); ++value)
      counts[0][value] += counts[1][value] + counts[2][value] + counts[3][value];
    wanted = std::min(wanted, count - counts[0].back());
    detail::RadixWord* const chosen = detail::radix_space(chosen_, wanted + 1);
    if (wanted == 0) return 0;
    Bucket bucket = bucket_of(counts[0], wanted);
    detail::RadixWord* words = detail::radix_space(bucket_, bucket.size + 1);
    split([row](std::size_t i) { return detail::radix_word(row[i], i); }, count, first,
          bucket.value, chosen, words);
    std::size_t done = bucket.below;
    for (std::size_t d = 1; d < 3 && done + bucket.size > wanted; ++d) {
      const detail::RadixDigit digit = detail::radix_digits[d];
      const std::size_t size = bucket.size;
      counts[0].fill(0);
      for (std::size_t i = 0; i < size; ++i) ++counts[0][digit.of(words[i])];
      bucket = bucket_of(counts[0], wanted - done);
      // The bucket is cut down in place: writing stays behind reading.
      split([words](std::size_t i) { return words[i]; }, size, digit, bucket.value, chosen + done,
            words);
      done += bucket.below;
    }
    // Either the whole bucket is wanted, or all its keys are equal and those with the first ids
    // are.
    std::copy(words, words + (wanted - done), chosen + done);
    return wanted;
  }

  std::vector<detail::RadixWord> chosen_, bucket_;
};

}  // namespace knear
