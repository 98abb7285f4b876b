#include "knear/scan/packing/duplicates.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

using Hashed = std::pair<std::uint64_t, std::uint32_t>;  // hash, row

// The number without its sign if it is a zero: -0 and 0 give the same keys.
template <class T>
T without_sign_of_zero(T bits) {
  constexpr T sign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  return bits == sign ? T{0} : bits;
}

template <class T>
void copy_without_signs(const void* row, std::int64_t count, std::byte* out) {
  const auto* const from = static_cast<const std::byte*>(row);
  for (std::int64_t i = 0; i < count; ++i) {
    T bits;
    std::memcpy(&bits, from + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    bits = without_sign_of_zero(bits);
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof bits), &bits, sizeof bits);
  }
}

Hashed hash(ComparableRows& rows, std::int64_t i) {
  return {XXH3_64bits(rows.row(i), rows.bytes()), static_cast<std::uint32_t>(i)};
}

}  // namespace

const void* ComparableRows::row(std::int64_t i) {
  const void* const found = base_.row(i, scratch_.data());
  switch (base_.type()) {
    case ElementType::f64:
      copy_without_signs<std::uint64_t>(found, base_.cols(), copy_.data());
      break;
    case ElementType::f32:
      copy_without_signs<std::uint32_t>(found, base_.cols(), copy_.data());
      break;
    case ElementType::f16:
    case ElementType::bf16:
      copy_without_signs<std::uint16_t>(found, base_.cols(), copy_.data());
      break;
    case ElementType::u8:
    case ElementType::i8:
      return found;
  }
  return copy_.data();
}

Duplicates Duplicates::find(const BaseRows& base, std::span<const std::uint32_t> subset,
                            int threads) {
  const std::int64_t n = subset.empty() ? base.rows() : static_cast<std::int64_t>(subset.size());
  const auto row_of = [&](std::int64_t i) { return subset.empty() ? i : std::int64_t{subset[i]}; };
  ComparableRows rows(base), other_rows(base);
  const std::int64_t sample = std::min<std::int64_t>(n, 4096);
  std::vector<Hashed> all(sample);
  for (std::int64_t i = 0; i < sample; ++i)
    all[i] = hash(rows, row_of(static_cast<std::int64_t>(static_cast<__int128>(i) * n / sample)));
  std::sort(all.begin(), all.end());
  const auto same_hash = [](const Hashed& a, const Hashed& b) { return a.first == b.first; };
  if (std::adjacent_find(all.begin(), all.end(), same_hash) == all.end()) return {};

  all.resize(n);
  constexpr std::int64_t block = 4096;
  parallel_for(threads, (n + block - 1) / block, [&](std::int64_t b) {
    ComparableRows of_block(base);
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
      all[i] = hash(of_block, row_of(i));
  });
  std::sort(all.begin(), all.end());

  // (first row, other row) of each copy. In a run of equal hashes each row is compared with the
  // first; one that only collides is kept as a row of its own.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> copies;
  for (std::int64_t i = 0; i < n;) {
    std::int64_t end = i + 1;
    for (; end < n && same_hash(all[i], all[end]); ++end)
      if (std::memcmp(rows.row(all[i].second), other_rows.row(all[end].second), rows.bytes()) == 0)
        copies.emplace_back(all[i].second, all[end].second);
    i = end;
  }
  std::sort(copies.begin(), copies.end());

  Duplicates out;
  std::vector<char> is_copy(base.rows(), 0);
  for (const auto& [first, other] : copies) {
    if (out.firsts_.empty() || out.firsts_.back() != first) {
      out.firsts_.push_back(first);
      out.begin_.push_back(static_cast<std::uint32_t>(out.others_.size()));
    }
    out.others_.push_back(other);
    is_copy[other] = 1;
  }
  out.begin_.push_back(static_cast<std::uint32_t>(out.others_.size()));
  out.rows_.reserve(n - static_cast<std::int64_t>(out.others_.size()));
  for (std::int64_t i = 0; i < n; ++i)
    if (!is_copy[row_of(i)]) out.rows_.push_back(static_cast<std::uint32_t>(row_of(i)));
  return out;
}

Duplicates Duplicates::from_lists(std::vector<std::uint32_t> rows,
                                  std::vector<std::uint32_t> firsts,
                                  std::vector<std::uint32_t> begin,
                                  std::vector<std::uint32_t> others, std::int64_t base_rows) {
  const auto ascends = [](const std::vector<std::uint32_t>& list) {
    return std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
  };
  const auto are_rows = [&](const std::vector<std::uint32_t>& list) {
    return std::all_of(list.begin(), list.end(),
                       [&](std::uint32_t row) { return row < base_rows; });
  };
  if (rows.empty() || firsts.empty() || begin.size() != firsts.size() + 1 || begin.front() != 0 ||
      begin.back() != others.size() || !ascends(begin) || !ascends(rows) || !ascends(firsts) ||
      !are_rows(rows) || !are_rows(firsts) || !are_rows(others))
    throw CorruptFile("lists of equal rows contradict one another");
  Duplicates out;
  out.rows_ = std::move(rows), out.firsts_ = std::move(firsts);
  out.begin_ = std::move(begin), out.others_ = std::move(others);
  return out;
}

std::span<const std::uint32_t> Duplicates::others(std::uint32_t first) const {
  const auto at = std::lower_bound(firsts_.begin(), firsts_.end(), first);
  if (at == firsts_.end() || *at != first) return {};
  const std::size_t i = at - firsts_.begin();
  return {others_.data() + begin_[i], others_.data() + begin_[i + 1]};
}

}  // namespace knear::detail
