#include "knear/cluster/centroid_scan.hpp"

#include <algorithm>

#include "knear/core/threads.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/cost/plan.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/methods/nearest_row_scan.hpp"
#include "knear/scan/worthwhile.hpp"

namespace knear::detail {
namespace {

// The codes by which a pair is scored in the least time.
Format fastest_format(std::int64_t dim, const MachinePeaks& peaks) {
  const double int8 = pair_seconds(ScanOp::int8, dim, peaks),
               fp32 = pair_seconds(ScanOp::fp32, dim, peaks);
  return int8 <= fp32 ? format_int8 : format_fp32;
}

}  // namespace

CodingSpace space_of_centroids(const BaseRows& centroids, Metric metric, Isa isa,
                               const CodingSpace* last) {
  CodingSpace space = CodingSpace::choose(centroids, metric, isa);
  constexpr double worthwhile = 1.25;  // of squared lengths, to code all rows anew
  if (last && last->squares_of(centroids) <= worthwhile * space.squares_of(centroids)) return *last;
  return space;
}

CentroidScan::CentroidScan(MatrixView<float> centroids, Metric metric, int threads, RowCodes* codes)
    : centroids_(centroids),
      metric_(metric),
      threads_(resolve_threads(threads)),
      isa_(active_isa()),
      peaks_(&planning_peaks(isa_, threads_)),
      codes_(codes) {
  if (traits_of(metric).squared && FewRowsScan::suits(centroids.rows(), centroids.cols()))
    few_.emplace(centroids);
  else
    space_ = choose_space(), pack(fastest_format(centroids.cols(), *peaks_));
}

CodingSpace CentroidScan::choose_space() {
  if (!codes_) return space_of_centroids(centroids_, metric_, isa_, nullptr);
  CodingSpace space =
      space_of_centroids(centroids_, metric_, isa_, codes_->space_ ? &*codes_->space_ : nullptr);
  if (codes_->space_ && space.mean != codes_->space_->mean) codes_->blocks_.clear();
  codes_->space_ = space;
  return space;
}

void CentroidScan::pack(Format format) {
  packed_ = PackedBase::certified(centroids_, {}, format, space_, threads_, {}, 0,
                                  /*find_copies=*/false);
}

void CentroidScan::assign(AnyMatrixView rows, bool start, std::span<std::uint32_t> nearest,
                          std::span<double> keys, const Progress& progress, std::int64_t number) {
  if (few_) return assign_few(rows, nearest, keys, progress);
  std::vector<double> unwanted;
  if (keys.empty()) unwanted.resize(nearest.size()), keys = unwanted;
  // What the codes leave to be measured is seen on the first rows.
  constexpr std::int64_t probed = 4096;
  for (std::int64_t begin = 0; begin < rows.rows();) {
    const bool probe = begin == 0 && rows.rows() > 2 * probed;
    const std::int64_t end = probe ? probed : rows.rows();
    const ScanJob job{
        .queries = rows.rows(begin, end),
        .base = centroids_,
        .metric = metric_,
        .k = 1,
        .threads = threads_,
        .isa = isa_,
        .peaks = peaks_,
        .kept = codes_ ? &codes_->blocks_.try_emplace(number + begin, codes_->room_).first->second
                       : nullptr};
    // The rows that are probed are a part of the whole.
    Progress part;
    if (progress)
      part = [&](std::string_view, double done) {
        const double rows_done = double(begin) + done * double(end - begin);
        return progress("assign rows", rows_done / double(rows.rows()));
      };
    ScanStats stats;
    const auto first = static_cast<std::size_t>(begin),
               count = static_cast<std::size_t>(end - begin);
    scan_nearest_row(packed_, job, start, nearest.subspan(first, count), keys.subspan(first, count),
                     stats, part);
    // Each row is measured once in any case.
    const double measured = static_cast<double>(stats.survivors) / static_cast<double>(count) - 1;
    const double share = measured / static_cast<double>(centroids_.rows());
    if (measured > 1 && packed_.format != format_fp32 &&
        share > worthwhile_survivors(packed_.format, packed_.dim, *peaks_))
      pack(packed_.format == format_int8 ? format_int16 : format_fp32);
    begin = end;
  }
}

void CentroidScan::assign_few(AnyMatrixView rows, std::span<std::uint32_t> nearest,
                              std::span<double> keys, const Progress& progress) const {
  constexpr std::int64_t together = 1024;
  const std::int64_t tasks = (rows.rows() + together - 1) / together;
  Reporter reporter(progress, "assign rows", tasks);
  parallel_for(threads_, tasks, [&](std::int64_t task) {
    const std::int64_t begin = task * together, end = std::min(rows.rows(), begin + together);
    const auto first = static_cast<std::size_t>(begin),
               count = static_cast<std::size_t>(end - begin);
    few_->find(rows.rows(begin, end), isa_, nearest.subspan(first, count));
    reporter.add(1);
  });
  if (!keys.empty()) measure(rows, nearest, keys);
}

void CentroidScan::measure(AnyMatrixView rows, std::span<const std::uint32_t> nearest,
                           std::span<double> keys) const {
  constexpr std::int64_t together = 1024;
  parallel_for(threads_, (rows.rows() + together - 1) / together, [&](std::int64_t task) {
    ExactDistance distance(metric_, ElementType::f32, isa_);
    const std::int64_t end = std::min(rows.rows(), (task + 1) * together);
    for (std::int64_t i = task * together; i < end; ++i) {
      const std::size_t at = i;
      distance.set_query(rows, i);
      keys[at] = distance.key(centroids_.row(nearest[at], nullptr));
    }
  });
}

}  // namespace knear::detail
