#include "knear/core/row_filter.hpp"
#include "knear/core/public_call.hpp"

#include <bit>
#include <cstring>

#include "knear/core/error.hpp"

namespace knear {
namespace {

void check_rows(std::int64_t rows) {
  if (rows < 0 || rows > std::int64_t{1} << 31)
    throw InvalidArgument("filter must be for 0 to {} rows, but is for {}", std::int64_t{1} << 31,
                          rows);
}

}  // namespace

RowFilter RowFilter::of(Data data) {
  for (std::uint64_t word : data.bits) data.count += std::popcount(word);
  RowFilter out;
  out.data_ = std::make_shared<const Data>(std::move(data));
  return out;
}

RowFilter RowFilter::of_ids(std::span<const Id> ids, std::int64_t rows) {
  return detail::public_call([&] {
    check_rows(rows);
    Data data{rows, std::vector<std::uint64_t>((rows + 63) / 64)};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= rows)
        throw InvalidArgument("filter holds id {} in place {}, but the base has rows 0 to {}",
                              ids[i], i, rows - 1);
      data.bits[ids[i] >> 6] |= std::uint64_t{1} << (ids[i] & 63);
    }
    return of(std::move(data));
  });
}

RowFilter RowFilter::of_bits(std::span<const std::uint8_t> bits, std::int64_t rows) {
  return detail::public_call([&] {
    check_rows(rows);
    if (static_cast<std::int64_t>(bits.size()) != (rows + 7) / 8)
      throw ShapeMismatch("filter has {} bytes of bits, but {} rows make {}", bits.size(), rows,
                          (rows + 7) / 8);
    Data data{rows, std::vector<std::uint64_t>((rows + 63) / 64)};
    static_assert(std::endian::native == std::endian::little);
    if (!bits.empty()) std::memcpy(data.bits.data(), bits.data(), bits.size());
    if (rows % 64 != 0) data.bits.back() &= (std::uint64_t{1} << (rows % 64)) - 1;
    return of(std::move(data));
  });
}

template <class F>
void RowFilter::for_each_word(std::int64_t begin, std::int64_t end, F f) const {
  for (std::int64_t first = begin / 64 * 64; first < end; first += 64) {
    std::uint64_t word = data_->bits[first / 64];
    if (first < begin) word = word >> (begin - first) << (begin - first);
    if (end - first < 64) word &= (std::uint64_t{1} << (end - first)) - 1;
    f(word, first);
  }
}

std::int64_t RowFilter::count(std::int64_t begin, std::int64_t end) const {
  std::int64_t count = 0;
  for_each_word(begin, end,
                [&](std::uint64_t word, std::int64_t) { count += std::popcount(word); });
  return count;
}

std::vector<std::uint32_t> RowFilter::allowed(std::int64_t begin, std::int64_t end) const {
  std::vector<std::uint32_t> rows;
  rows.reserve(count(begin, end));
  for_each_word(begin, end, [&](std::uint64_t word, std::int64_t first) {
    for (; word; word &= word - 1)
      rows.push_back(static_cast<std::uint32_t>(first + std::countr_zero(word) - begin));
  });
  return rows;
}

std::int64_t RowFilter::bytes() const {
  if (!data_) return 0;
  return static_cast<std::int64_t>(data_->bits.size() * 8);
}

}  // namespace knear
