#include "knear/index/life/segment.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <utility>

#include "knear/core/system.hpp"

namespace knear::detail {

namespace {

// Buffers below this size are taken from the heap: the system takes longer to map and to unmap
// pages than it takes to add a few rows.
constexpr std::size_t least_mapped_bytes = 256 << 10;

void* memory_of_rows(std::size_t bytes) {
  if (bytes < least_mapped_bytes) return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  want_large_pages(memory, bytes);
  return memory;
}

}  // namespace

RowBuffer::RowBuffer(ElementType type, std::int64_t capacity, std::int64_t dim)
    : bytes_(std::max<std::size_t>(1, checked_size(capacity, dim, size_of(type)))) {
  void* memory = memory_of_rows(bytes_);
  if (!memory)
    throw MemoryBudgetError("no memory for a matrix of {} rows and {} columns", capacity, dim);
  rows = {type, memory, capacity, dim, dim};
}

RowBuffer::~RowBuffer() {
  void* const memory = const_cast<void*>(rows.data());
  if (bytes_ < least_mapped_bytes)
    std::free(memory);
  else
    munmap(memory, bytes_);
}

std::byte* RowBuffer::row(std::int64_t i) {
  return static_cast<std::byte*>(const_cast<void*>(rows.row(i)));
}

std::shared_ptr<SegmentRows> SegmentRows::of_matrix(MatrixRows rows, Metric metric) {
  std::shared_ptr<SegmentRows> out(new SegmentRows);
  out->prepared_ = std::make_unique<PreparedRows>(rows.base(), metric, rows.found);
  out->keeper_ = std::move(rows.keeper), out->matrix_ = rows.matrix;
  out->order_ = std::move(rows.order);
  out->ids_ = std::move(rows.ids), out->first_ = rows.first;
  out->guard_ = std::move(rows.guard);
  return out;
}

std::shared_ptr<SegmentRows> SegmentRows::of_panels(std::shared_ptr<const PackedBase> panels,
                                                    AlignedArray<std::uint32_t> slots,
                                                    AlignedArray<Id> ids, Id first, Metric metric) {
  std::shared_ptr<SegmentRows> out(new SegmentRows);
  out->panels_ = std::move(panels);
  out->ids_ = std::move(ids), out->first_ = first;
  out->order_ = std::move(slots);
  if (out->order_.size() == 0) {
    out->order_ = AlignedArray<std::uint32_t>(out->panels_->rows);
    const auto& numbers = out->panels_->ids;
    for (std::size_t slot = 0; slot < numbers.size(); ++slot)
      if (numbers[slot] != PackedBase::no_row)
        out->order_[numbers[slot]] = static_cast<std::uint32_t>(slot);
  }
  out->prepared_ = std::make_unique<PreparedRows>(BaseRows(*out->panels_, out->order()), metric,
                                                  out->panels_->range);
  out->prepared_->adopt(FirstPass::integer, out->panels_);
  return out;
}

std::shared_ptr<SegmentRows> SegmentRows::of_listed_panels(
    std::shared_ptr<const PackedLists> panels, std::vector<float> radii,
    AlignedArray<std::uint32_t> slots, AlignedArray<Id> ids, Id first, Metric metric) {
  auto out = of_panels(std::shared_ptr<const PackedBase>(panels, &panels->packed), std::move(slots),
                       std::move(ids), first, metric);
  out->lists_ = std::make_shared<ListedRows>(std::move(panels));
  out->radii_ = std::move(radii);
  return out;
}

std::shared_ptr<SegmentRows> SegmentRows::of_codes(CodedRows rows) {
  std::shared_ptr<SegmentRows> out(new SegmentRows);
  const auto [least, largest] = std::minmax_element(rows.ids.begin(), rows.ids.end());
  out->first_ = *least, out->last_ = *largest;
  out->coded_ = std::move(rows);
  return out;
}

void SegmentRows::set_lists(std::shared_ptr<ListedRows> lists, std::vector<float> radii) {
  lists_ = std::move(lists), radii_ = std::move(radii);
  if (lists_->numbers()) return;
  const std::shared_ptr<const PackedLists> packed = lists_->first_form();
  if (packed->has_centres()) return;
  // A scan of all rows goes by the same codes.
  prepared_->adopt(FirstPass::int8, std::shared_ptr<const PackedBase>(packed, &packed->packed));
}

std::shared_ptr<SegmentRows> SegmentRows::shifted(const std::shared_ptr<const SegmentRows>& from,
                                                  Id by) {
  const std::span<const Id> own = from->own_ids();
  AlignedArray<Id> ids(own.size());
  std::transform(own.begin(), own.end(), ids.begin(), [by](Id id) { return id + by; });
  if (from->is_codes()) {
    const CodedRows& coded = from->coded_;
    return of_codes({coded.lists, std::move(ids), coded.vectors, coded.keeper, coded.guard});
  }
  const auto with_prefix = [&](std::shared_ptr<SegmentRows> out) {
    out->lists_ = from->lists_, out->radii_ = from->radii_;
    if (AdoptedPrefix prefix = from->prepared_->adopted_prefix(); prefix.base)
      out->prepared_->adopt_prefix(std::move(prefix));
    return out;
  };
  if (from->is_panels())
    return with_prefix(
        of_panels(from->panels_, {}, std::move(ids), from->first_ + by, from->prepared_->metric));
  auto out = of_matrix({.matrix = from->matrix_,
                        .keeper = from->keeper_,
                        .found = from->found(),
                        .first = from->first_ + by,
                        .ids = std::move(ids),
                        .order = AlignedArray<std::uint32_t>::borrowed(from->order_.data(),
                                                                       from->order_.size(), from),
                        .guard = from->guard_},
                       from->prepared_->metric);
  for (int i = 0; i < first_pass_count; ++i)
    if (const auto pass = static_cast<FirstPass>(i); from->prepared_->is_adopted(pass))
      out->prepared_->adopt(pass, from->prepared_->kept(pass)),
          out->prepared_->note_worth(pass, from->prepared_->worth_up_to(pass), true);
  return with_prefix(std::move(out));
}

std::shared_ptr<SegmentRows> SegmentRows::with_lists(const std::shared_ptr<const SegmentRows>& from,
                                                     std::shared_ptr<ListedRows> lists,
                                                     std::vector<float> radii) {
  auto out = shifted(from, 0);
  out->lists_ = std::move(lists), out->radii_ = std::move(radii);
  return out;
}

std::int64_t SegmentRows::find(Id id) const {
  if (is_codes()) {
    if (id < first_ || id > last_) return -1;
    const AlignedArray<Id>& all = coded_.ids;
    const std::lock_guard lock(looking_up_);
    if (by_id_.size() == 0) {
      AlignedArray<std::uint32_t> by_id(all.size());
      std::iota(by_id.begin(), by_id.end(), 0u);
      std::sort(by_id.begin(), by_id.end(),
                [&](std::uint32_t a, std::uint32_t b) { return all[a] < all[b]; });
      by_id_ = std::move(by_id);
    }
    const std::uint32_t* at =
        std::lower_bound(by_id_.begin(), by_id_.end(), id,
                         [&](std::uint32_t row, Id wanted) { return all[row] < wanted; });
    return at != by_id_.end() && all[*at] == id ? std::int64_t{*at} : -1;
  }
  if (!has_own_ids()) return id >= first_ && id - first_ < rows() ? id - first_ : -1;
  const Id* end = ids_.data() + ids_.size();
  const Id* at = std::lower_bound(ids_.data(), end, id);
  return at != end && *at == id ? at - ids_.data() : -1;
}

std::int64_t SegmentRows::bytes() const {
  if (is_codes()) {
    const std::lock_guard lock(looking_up_);
    return coded_.lists->bytes() + static_cast<std::int64_t>(coded_.ids.bytes() + by_id_.bytes()) +
           coded_.vectors.bytes();
  }
  return static_cast<std::int64_t>(order_.bytes() + ids_.bytes()) +
         static_cast<std::int64_t>(radii_.capacity() * sizeof(float)) +
         (is_panels() || buffer() ? 0 : matrix_.bytes()) + prepared_->bytes() +
         (lists_ ? lists_->bytes(*prepared_) : 0);
}

std::int64_t SegmentRows::bytes_of_lists() const {
  return static_cast<std::int64_t>(radii_.capacity() * sizeof(float)) +
         (lists_ ? lists_->bytes(*prepared_) : 0);
}

bool keeps_as_panels(Metric metric, const ValueRange& found) {
  const MetricTraits traits = traits_of(metric);
  return traits.by_products && !traits.unit_rows && found.integer &&
         (found.low >= 0 || found.high <= 127);
}

}  // namespace knear::detail
