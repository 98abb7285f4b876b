// knear/core/row_set.hpp -- a set of rows from which single ones are taken away, cheaply copied.
//
//   RowSet live(1'000'000);                  // all of them
//   RowSet fewer = live;                     // shares what has not changed
//   fewer.remove(17);
//
// One bit per row, in pages that copies share until one of them changes: a snapshot for searches
// that still run costs a pointer for every 32,768 rows, and removing a row copies a page.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace knear {

class RowSet {
 public:
  RowSet() = default;
  // The set of rows 0, ..., rows - 1.
  explicit RowSet(std::int64_t rows) : rows_(rows), count_(rows) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t count() const { return count_; }
  bool all() const { return count_ == rows_; }
  bool contains(std::int64_t row) const {
    if (pages_.empty()) return true;
    const Page* page = pages_[row / page_rows].get();
    return !page || page->word[row % page_rows / 64] >> (row & 63) & 1;
  }
  // How many of rows begin, ..., end - 1 are in the set.
  std::int64_t count(std::int64_t begin, std::int64_t end) const {
    if (all()) return end - begin;
    if (begin == 0 && end == rows_) return count_;
    std::int64_t n = 0;
    for (std::int64_t row = begin; row < end;) {
      const Page* page = pages_[row / page_rows].get();
      const std::int64_t stop = std::min(end, row - row % page_rows + page_rows);
      if (!page) {
        n += stop - row, row = stop;
      } else if (row % 64 == 0 && row + 64 <= stop) {
        n += std::popcount(page->word[row % page_rows / 64]);
        row += 64;
      } else {
        n += contains(row++);
      }
    }
    return n;
  }
  // Removes a row; false if it was not in the set. Must not run while another thread uses this very
  // object; copies may be in use.
  bool remove(std::int64_t row) {
    if (!contains(row)) return false;
    if (pages_.empty()) pages_.resize((rows_ + page_rows - 1) / page_rows);
    auto& page = pages_[row / page_rows];
    // Shared pages are never written. A page of our own may be, since nobody else can get hold of
    // it meanwhile.
    if (!page)
      page = std::make_shared<Page>(Page::full());
    else if (page.use_count() > 1)
      page = std::make_shared<Page>(*page);
    page->word[row % page_rows / 64] &= ~(std::uint64_t{1} << (row & 63));
    --count_;
    return true;
  }
  std::int64_t bytes() const {
    std::int64_t n = static_cast<std::int64_t>(pages_.size() * sizeof(pages_[0]));
    for (const auto& page : pages_) n += page ? static_cast<std::int64_t>(sizeof(Page)) : 0;
    return n;
  }

 private:
  static constexpr std::int64_t page_rows = 32768;
  struct Page {
    std::array<std::uint64_t, page_rows / 64> word;
    static Page full() {
      Page out;
      out.word.fill(~std::uint64_t{0});
      return out;
    }
  };
  std::int64_t rows_ = 0, count_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;  // empty: all rows; null: all rows of the page
};

}  // namespace knear
