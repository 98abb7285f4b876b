#include "knear/core/row_filter.hpp"

#include <algorithm>
#include <bit>

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
  for (std::size_t word = 0; word < data.bits.size(); ++word)
    for (std::uint64_t left = data.bits[word]; left; left &= left - 1)
      data.allowed.push_back(static_cast<std::uint32_t>(word * 64 + std::countr_zero(left)));
  RowFilter out;
  out.data_ = std::make_shared<const Data>(std::move(data));
  return out;
}

RowFilter RowFilter::of_ids(std::span<const Id> ids, std::int64_t rows) {
  check_rows(rows);
  Data data{rows, std::vector<std::uint64_t>(static_cast<std::size_t>((rows + 63) / 64)), {}};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= rows)
      throw InvalidArgument("filter holds id {} in place {}, but the base has rows 0 to {}", ids[i],
                            i, rows - 1);
    data.bits[static_cast<std::size_t>(ids[i] >> 6)] |= std::uint64_t{1} << (ids[i] & 63);
  }
  return of(std::move(data));
}

RowFilter RowFilter::of_bits(std::span<const std::uint8_t> bits, std::int64_t rows) {
  check_rows(rows);
  if (static_cast<std::int64_t>(bits.size()) != (rows + 7) / 8)
    throw ShapeMismatch("filter has {} bytes of bits, but {} rows make {}", bits.size(), rows,
                        (rows + 7) / 8);
  Data data{rows, std::vector<std::uint64_t>(static_cast<std::size_t>((rows + 63) / 64)), {}};
  for (std::size_t i = 0; i < bits.size(); ++i)
    data.bits[i / 8] |= std::uint64_t{bits[i]} << (i % 8 * 8);
  if (rows % 64 != 0) data.bits.back() &= (std::uint64_t{1} << (rows % 64)) - 1;
  return of(std::move(data));
}

std::span<const std::uint32_t> RowFilter::allowed(std::int64_t begin, std::int64_t end) const {
  const auto place = [&](std::int64_t row) {
    return std::lower_bound(data_->allowed.begin(), data_->allowed.end(), row,
                            [](std::uint32_t a, std::int64_t b) { return a < b; });
  };
  return {place(begin), place(end)};
}

std::int64_t RowFilter::bytes() const {
  if (!data_) return 0;
  return static_cast<std::int64_t>(data_->bits.size() * 8 + data_->allowed.size() * 4);
}

}  // namespace knear
