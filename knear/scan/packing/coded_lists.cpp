#include "knear/scan/packing/coded_lists.hpp"

#include <algorithm>
#include <cmath>

namespace knear::detail {

CodedLists CodedLists::of(std::span<const std::uint32_t> list_of, MatrixView<std::uint8_t> codes,
                          std::span<const float> scalars) {
  CodedLists out(list_of, codes.cols(), !scalars.empty());
  for (std::int64_t row = 0; row < codes.rows(); ++row)
    out.put(row, codes.row(row), scalars.empty() ? 0 : scalars[row]);
  out.finish();
  return out;
}

CodedLists::CodedLists(std::span<const std::uint32_t> list_of, std::int64_t width,
                       bool with_scalars)
    : width_(width),
      codes_(list_of.size() * static_cast<std::size_t>(width) + code_padding),
      scalars_(with_scalars ? list_of.size() + scalar_padding : 0) {
  set_lists(list_of);
}

CodedLists::CodedLists(std::vector<std::uint32_t> lists, std::vector<std::int64_t> begin,
                       std::int64_t width, AlignedArray<std::uint8_t> codes,
                       AlignedArray<float> scalars, std::shared_ptr<const CheckedBlocks> guard)
    : width_(width),
      lists_(std::move(lists)),
      begin_(std::move(begin)),
      codes_(std::move(codes)),
      scalars_(std::move(scalars)),
      guard_(std::move(guard)) {
  finish();
}

void CodedLists::set_lists(std::span<const std::uint32_t> list_of) {
  for (std::size_t row = 0; row < list_of.size(); ++row) {
    if (lists_.empty() || lists_.back() != list_of[row]) {
      lists_.push_back(list_of[row]);
      begin_.push_back(static_cast<std::int64_t>(row));
    }
    begin_.back() = static_cast<std::int64_t>(row) + 1;
  }
}

void CodedLists::put(std::int64_t row, const std::uint8_t* code, float scalar) {
  const Place to = place(row);
  std::uint8_t* const at = codes_.data() + (to.code - codes_.data());
  for (std::int64_t b = 0; b < width_; ++b) at[b * to.stride] = code[b];
  if (has_scalars()) scalars_[row] = scalar;
}

void CodedLists::finish() {
  const auto rows_end = has_scalars() ? scalars_.begin() + rows() : scalars_.begin();
  for (const float* at = scalars_.begin(); at != rows_end; ++at)
    largest_scalar_ = std::max(largest_scalar_, std::abs(*at));
}

std::pair<std::int64_t, std::int64_t> CodedLists::rows_of(std::int64_t list) const {
  std::size_t at = list;
  if (at >= lists_.size() || lists_[at] != at) {
    const auto found = std::lower_bound(lists_.begin(), lists_.end(), at);
    if (found == lists_.end() || *found != at) return {0, 0};
    at = static_cast<std::size_t>(found - lists_.begin());
  }
  return {begin_[at], begin_[at + 1]};
}

std::vector<std::uint32_t> CodedLists::list_of() const {
  std::vector<std::uint32_t> out(rows());
  for (std::size_t l = 0; l < lists_.size(); ++l)
    std::fill(out.begin() + begin_[l], out.begin() + begin_[l + 1], lists_[l]);
  return out;
}

std::int64_t CodedLists::list_at(std::int64_t row) const {
  const auto next = std::upper_bound(begin_.begin(), begin_.end(), row);
  return lists_[next - begin_.begin() - 1];
}

CodedLists::Place CodedLists::place(std::int64_t row) const {
  const auto next = std::upper_bound(begin_.begin(), begin_.end(), row);
  return place(row, *(next - 1), *next);
}

std::int64_t CodedLists::bytes() const {
  return static_cast<std::int64_t>(codes_.bytes() + scalars_.bytes() +
                                   lists_.capacity() * sizeof lists_[0] +
                                   begin_.capacity() * sizeof begin_[0]);
}

}  // namespace knear::detail
