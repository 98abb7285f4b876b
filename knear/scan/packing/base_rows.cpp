#include "knear/scan/packing/base_rows.hpp"

#include <algorithm>
#include <cstring>

#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

BaseRows::BaseRows(const PackedBase& panels, std::span<const std::uint32_t> slots)
    : type_(panels.row_offset ? ElementType::i8 : ElementType::u8),
      panels_(&panels),
      places_(slots.data()),
      rows_(static_cast<std::int64_t>(slots.size())),
      cols_(panels.dim) {}

BaseRows::BaseRows(const JoinedRows& rows)
    : type_(rows.parts().front().rows.type()),
      joined_(&rows),
      rows_(rows.rows()),
      cols_(rows.parts().front().rows.cols()) {
  for (const JoinedRows::Part& part : rows.parts())
    joined_scratch_bytes_ = std::max(joined_scratch_bytes_, part.rows.scratch_bytes());
}

BaseRows BaseRows::part(std::int64_t begin, std::int64_t end) const {
  BaseRows out = *this;
  out.rows_ = end - begin;
  if (places_)
    out.places_ += begin;
  else
    out.matrix_ = matrix_.rows(begin, end);
  return out;
}

AnyMatrix BaseRows::sample(std::int64_t count) const {
  AnyMatrix out(type_, count, cols_);
  std::vector<std::byte> scratch(scratch_bytes());
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(
        out.row(i),
        row(static_cast<std::int64_t>(static_cast<__int128>(i) * rows_ / count), scratch.data()),
        row_bytes());
  return out;
}

const void* BaseRows::row_elsewhere(std::int64_t i, std::byte* scratch) const {
  if (panels_) return unpack(i, scratch);
  const JoinedRows::Part& part = joined_->part_of(i);
  return part.rows.row(i - part.first, scratch);
}

void BaseRows::prefetch_joined(std::int64_t i, std::int64_t bytes) const {
  const JoinedRows::Part& part = joined_->part_of(i);
  part.rows.prefetch(i - part.first, bytes);
  if (part.ids.ids) __builtin_prefetch(part.ids.ids + (i - part.first));
}

Id BaseRows::id_of_joined(std::int64_t i) const {
  const JoinedRows::Part& part = joined_->part_of(i);
  return part.ids(i - part.first);
}

const void* BaseRows::unpack(std::int64_t i, std::byte* scratch) const {
  const std::uint32_t slot = places_[i];
  const std::int64_t panel_bytes = panels_->steps * panel_step_bytes;
  const std::uint8_t* panel = panels_->codes.data() + slot / panel_rows * panel_bytes;
  if (panels_->guard) panels_->guard->touch(panel, panel_bytes);
  const std::uint8_t* from = panel + slot % panel_rows * step_bytes;
  // Codes are the numbers, raised by 128 where some are negative: the sign bit inverted.
  const std::uint32_t flip = panels_->row_offset ? 0x80808080u : 0;
  for (std::int64_t s = 0; s < panels_->steps; ++s, from += panel_step_bytes) {
    std::uint32_t step;
    std::memcpy(&step, from, 4);
    step ^= flip;
    std::memcpy(scratch + 4 * s, &step, 4);
  }
  return scratch;
}

std::vector<JoinedRows::Part>::const_iterator JoinedRows::part_after(std::int64_t row) const {
  return std::upper_bound(parts_.begin(), parts_.end(), row,
                          [](std::int64_t i, const Part& part) { return i < part.first; });
}

}  // namespace knear::detail
