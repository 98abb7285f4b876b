// Lloyd's iterations over blocks of rows, with sums that do not depend on their order.
#include "knear/cluster/k_means.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "knear/cluster/centroid_scan.hpp"
#include "knear/cluster/codebook.hpp"
#include "knear/cluster/device/device_assignment.hpp"
#include "knear/cluster/divided_rows.hpp"
#include "knear/cluster/far_rows.hpp"
#include "knear/cluster/row_values.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/reference.hpp"

namespace knear {
namespace {

using detail::blocks_of;
using detail::CentroidScan;
using detail::DeviceAssignment;
using detail::DividedRows;
using detail::each_block;
using detail::FarRow;
using detail::is_spherical;
using detail::load_row;
using detail::make_splits;
using detail::OpenAssignment;
using detail::own_rows_at;
using detail::part_of;
using detail::rows_of_all;
using detail::sample_of;
using detail::Split;
using detail::splits_for_empty;
using detail::to_gains;
using detail::weights_of_all;
using detail::write_centroid;

constexpr std::uint32_t no_centroid = DeviceAssignment::no_centroid;
constexpr std::int64_t most_centroids = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t seeding_rows = 64;  // from which a centroid is drawn by k-means++

// 2^e such that |x| < 2^e; the least exponent for 0.
int exponent_above(double x) { return x > 0 ? std::ilogb(x) + 1 : -900; }

// What rows are like: checked, and the units in which sums are counted.
struct Units {
  double coordinate = 1, weight = 1;

  Units(const DividedRows& rows, const KMeansOptions& options) {
    const int threads = resolve_threads(options.threads);
    double largest = 0, heaviest = options.weights.empty() && rows.own.rows > 0 ? 1 : 0;
    rows.work([&] {
      each_block(rows.own, [&](std::int64_t begin, AnyMatrixView block) {
        find_value_range(block, options.metric, "rows", threads, rows.first + begin);
        if (!traits_of(options.metric).unit_rows)
          largest = std::max(largest, largest_of(block, threads));
      });
    });
    if (traits_of(options.metric).unit_rows) largest = 1;
    for (const float one : options.weights) heaviest = std::max(heaviest, double{one});
    if (rows.peers) {
      double both[] = {largest, heaviest};
      rows.peers->largest(both);
      largest = both[0], heaviest = both[1];
    }
    // n terms of less than 2^62 / n units each, and half a unit of rounding.
    const int room = 62 - std::bit_width(static_cast<std::uint64_t>(rows.total - 1));
    coordinate = std::ldexp(1.0, std::max(-1000, exponent_above(largest * heaviest) - room));
    weight = std::ldexp(1.0, exponent_above(heaviest) - room);
  }

 private:
  static double largest_of(AnyMatrixView block, int threads) {
    constexpr std::int64_t together = 4096;
    std::vector<double> parts((block.rows() + together - 1) / together);
    parallel_for(threads, std::ssize(parts), [&](std::int64_t task) {
      visit(block, [&](auto typed) {
        // Several at once, so that one comparison does not wait for the one before.
        constexpr std::int64_t lanes = 32;
        using Wide = decltype(widened(*typed.row(0)));
        Wide of[lanes] = {}, most = 0;
        const std::int64_t end = std::min(typed.rows(), (task + 1) * together), dim = typed.cols();
        const auto take = [](Wide& sofar, Wide x) {
          const Wide size = x < 0 ? -x : x;
          sofar = size > sofar ? size : sofar;
        };
        for (std::int64_t i = task * together; i < end; ++i) {
          const auto* row = typed.row(i);
          std::int64_t j = 0;
          for (; j + lanes <= dim; j += lanes)
            for (std::int64_t l = 0; l < lanes; ++l) take(of[l], widened(row[j + l]));
          for (; j < dim; ++j) take(most, widened(row[j]));
        }
        for (const Wide x : of) take(most, x);
        parts[task] = most;
      });
    });
    return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
  }
};

// Bytes for codes of rows that all k-means of the process may keep; some run at the same time.
std::atomic<std::int64_t>& room_for_codes() {
  static std::atomic<std::int64_t> room = machine_memory() / 16;
  return room;
}

// One run of Lloyd's iterations.
class Lloyd {
 public:
  Lloyd(const OpenAssignment& open, const DividedRows& rows, const KMeansOptions& options,
        const Units& units, Matrix<float> centroids, std::int64_t fixed, bool measures,
        bool keeps_codes)
      : rows_(rows),
        options_(options),
        units_(units),
        threads_(resolve_threads(options.threads)),
        spherical_(is_spherical(options.metric)),
        count_(centroids.rows()),
        fixed_(fixed),
        measures_(measures),
        codes_(room_for_codes()),
        keeps_codes_(keeps_codes),
        nearest_(rows.own.rows, no_centroid),
        sums_(count_, rows.own.dim),
        weights_(count_),
        costs_(count_),
        centroids_(std::move(centroids)),
        on_device_(static_cast<bool>(open)) {
    const auto take = [this](std::int64_t first, std::span<const std::uint32_t> nearest,
                             std::span<const double> keys) {
      std::copy(nearest.begin(), nearest.end(), nearest_.begin() + first);
      if (measures_) note_keys(static_cast<std::size_t>(first), keys);
    };
    rows.work([&] {
      if (!open) return;
      // The processor does it all where the device has no memory for sums.
      try {
        device_ = open({rows.own.rows, rows.own.dim, count_, options.metric, options.weights,
                        units.coordinate, units.weight, threads_, take, rows.between_devices});
      } catch (const MemoryBudgetError&) {
      }
    });
    if (device_) block_rows_ = device_->block_rows();
    // Once before rows fill the memory: the first sum takes some for itself.
    if (rows.between_devices && rows.sum(device_ ? 0 : 1) == 0) {
      between_devices_ = true;
      device_->fetch_sums(/*of_all=*/true);
    }
  }
  Lloyd(const Lloyd&) = delete;  // the device calls it
  Lloyd& operator=(const Lloyd&) = delete;

  // Assigns all rows, then moves the centroids. `done`: restarts before this one.
  KMeansStep step(int restart, int iteration) {
    const auto start = std::chrono::steady_clock::now();
    KMeansStep out{.restart = restart, .iteration = iteration};
    const double before = restart * options_.iterations + iteration,
                 all = static_cast<double>(options_.restarts) * options_.iterations;
    // That so many of this process's rows are done; false: to be stopped.
    const auto report = [&](double done) {
      return options_.progress("k-means",
                               (before + done / static_cast<double>(rows_.own.rows)) / all);
    };
    const auto done_on_device = [&](std::int64_t rows) {
      stop_if_asked();
      if (options_.progress && !report(static_cast<double>(rows)))
        throw Cancelled("k-means: stopped on request");
    };
    std::optional<CentroidScan> scan;  // where the processor has rows to assign or to measure
    std::fill(costs_.begin(), costs_.end(), 0.0);
    objective_ = 0;
    if (rows_.peers && measures_) keys_.resize(nearest_.size());
    rows_.work([&] {
      const bool there = device_ && device_->begin(centroids_.view());
      if (there && holds_all_rows()) {
        for (const auto& [first, count] : device_->held()) {
          device_->assign_held(first, nearest_of(first, count));
          done_on_device(first + count);
        }
      } else {
        each_block(
            rows_.own,
            [&](std::int64_t begin, AnyMatrixView block) {
              const std::span<std::uint32_t> now = nearest_of(begin, block.rows());
              if (there && device_->assign(begin, block, now))
                return done_on_device(begin + block.rows());
              if (there) device_->collect();  // costs are added in the order of the rows
              if (on_device_) out.fallback_rows += block.rows();
              out.moved += assign_on_host(scan, iteration > 0, begin, block, now, report);
            },
            block_rows_);
      }
      if (there) out.moved += device_->finish(/*fetch=*/!between_devices_);
    });
    if (rows_.peers) {
      std::int64_t all_of[] = {out.moved, out.fallback_rows, adds_up_here_};
      rows_.peers->sum(all_of);
      out.moved = all_of[0], out.fallback_rows = all_of[1];
      out.summed_by_devices = between_devices_ && all_of[2] == 0;
    }
    gather_sums(out.summed_by_devices);
    if (rows_.peers && measures_) objective_ = add_costs_in_turn(keys_);
    out.objective = objective_;
    const bool any_empty = std::any_of(weights().begin() + fixed_, weights().end(),
                                       [](std::int64_t weight) { return weight == 0; });
    if (!measures_ && any_empty) measure_costs(scan_on_host(scan));
    if (out.moved > 0)
      out.empty = move_centroids(any_empty ? far_rows(scan_on_host(scan)) : std::vector<FarRow>());
    out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return out;
  }

  Matrix<float> take_centroids() { return std::move(centroids_); }

 private:
  CentroidScan& scan_on_host(std::optional<CentroidScan>& scan) {
    if (!scan)
      scan.emplace(centroids_.view(), options_.metric, threads_, keeps_codes_ ? &codes_ : nullptr);
    return *scan;
  }
  std::span<std::uint32_t> nearest_of(std::int64_t first, std::int64_t count) {
    return std::span(nearest_).subspan(first, count);
  }
  // Whether all own rows stay on the device, so that nobody has to read them again.
  bool holds_all_rows() const {
    std::int64_t held = 0;
    for (const auto& [first, count] : device_->held()) held += count;
    return held > 0 && held == rows_.own.rows;
  }

  // Assigns a block of rows on the processor, and moves them to the sums of their centroids.
  // Returns how many were moved.
  template <class Report>
  std::int64_t assign_on_host(std::optional<CentroidScan>& scan, bool start, std::int64_t begin,
                              AnyMatrixView block, std::span<std::uint32_t> now, Report report) {
    const auto first = static_cast<std::size_t>(begin),
               some = static_cast<std::size_t>(block.rows());
    const std::vector<std::uint32_t> old(now.begin(), now.end());
    std::vector<double> keys(measures_ ? some : 0);
    adds_up_here_ = true;
    Progress part;
    if (options_.progress)
      part = [&](std::string_view, double fraction) {
        return report(static_cast<double>(begin) + fraction * static_cast<double>(some));
      };
    scan_on_host(scan).assign(block, start, now, keys, part, begin);
    if (measures_) note_keys(first, keys);
    return move_rows(begin, block, old, now);
  }
  // Those of rows from `first` on: adds their costs, or keeps them where that is done in turn.
  void note_keys(std::size_t first, std::span<const double> keys) {
    if (rows_.peers)
      std::copy(keys.begin(), keys.end(), keys_.begin() + static_cast<std::ptrdiff_t>(first));
    else
      objective_ = add_costs(first, keys, objective_);
  }

  void measure_costs(const CentroidScan& scan) {
    std::vector<double> keys(rows_.peers ? nearest_.size() : 0);
    rows_.work([&] {
      each_block(rows_.own, [&](std::int64_t begin, AnyMatrixView block) {
        const auto first = static_cast<std::size_t>(begin),
                   some = static_cast<std::size_t>(block.rows());
        if (!rows_.peers) keys.resize(some);
        const std::span<double> of_block =
            rows_.peers ? std::span(keys).subspan(first, some) : std::span(keys);
        scan.measure(block, std::span(nearest_).subspan(first, some), of_block);
        if (!rows_.peers) add_costs(first, of_block, 0);
      });
    });
    if (rows_.peers) add_costs_in_turn(keys);
  }
  // Adds what rows from `first` on add to the objective, and to the costs of their centroids: one
  // sum in the order of the rows, whatever the blocks.
  double add_costs(std::size_t first, std::span<const double> keys, double objective) {
    const auto cost_of = [&](std::size_t i) {
      return weight_of(first + i) * distance_of_key(options_.metric, keys[i]);
    };
    // Each in order, so one thread for each at most; a device is faster than one for both.
    constexpr std::size_t few = 16384;
    parallel_for(keys.size() < few ? 1 : threads_, 2, [&](std::int64_t task) {
      for (std::size_t i = 0; task == 0 && i < keys.size(); ++i) objective += cost_of(i);
      for (std::size_t i = 0; task == 1 && i < keys.size(); ++i)
        costs_[nearest_[first + i]] += cost_of(i);
    });
    return objective;
  }
  // The same of the rows of all processes, one after the other.
  double add_costs_in_turn(std::span<const double> keys) {
    std::vector<double> values = costs_;
    values.push_back(0);
    rows_.peers->in_turn(values, [&] {
      std::copy_n(values.begin(), costs_.size(), costs_.begin());
      values.back() = add_costs(0, keys, values.back());
      std::copy(costs_.begin(), costs_.end(), values.begin());
    });
    std::copy_n(values.begin(), costs_.size(), costs_.begin());
    return values.back();
  }
  double weight_of(std::size_t row) const {
    return options_.weights.empty() ? 1.0 : double{options_.weights[row]};
  }

  // Takes rows that moved out of the sums that they were in, and adds them to the others. Returns
  // how many there are.
  std::int64_t move_rows(std::int64_t begin, AnyMatrixView block,
                         std::span<const std::uint32_t> old, std::span<const std::uint32_t> now) {
    std::vector<std::int64_t> moved;
    for (std::size_t i = 0; i < now.size(); ++i)
      if (now[i] != old[i]) moved.push_back(static_cast<std::int64_t>(i));
    // A task has some of the centroids, so that no two write to the same sums.
    const std::int64_t tasks = std::min<std::int64_t>(count_, 2 * threads_);
    parallel_for(threads_, tasks, [&](std::int64_t task) {
      const auto from = static_cast<std::uint32_t>(count_ * task / tasks),
                 to = static_cast<std::uint32_t>(count_ * (task + 1) / tasks);
      visit(block, [&](auto typed) {
        std::vector<double> row(rows_.own.dim);
        for (const std::int64_t i : moved) {
          const std::uint32_t out = old[i], in = now[i];
          const bool leaves = out >= from && out < to, comes = in >= from && in < to;
          if (!leaves && !comes) continue;
          load_row(typed.row(i), rows_.own.dim, options_.metric, row.data());
          const double weight = weight_of(begin + i);
          if (leaves) add(row, -weight, out);
          if (comes) add(row, weight, in);
        }
      });
    });
    return std::ssize(moved);
  }
  void add(const std::vector<double>& row, double weight, std::uint32_t centroid) {
    const double factor = weight / units_.coordinate;
    std::int64_t* sum = sums_.row(centroid);
    for (std::size_t j = 0; j < row.size(); ++j) sum[j] += std::llrint(row[j] * factor);
    weights_[centroid] += std::llrint(weight / units_.weight);
  }

  // The sums of the processor, the device and all processes. Own ones stay apart: rows move from
  // one to the other. by_devices: all of them are on devices, which add them up.
  void gather_sums(bool by_devices) {
    if (!in_parts()) return;
    if (by_devices)
      device_->fetch_sums(/*of_all=*/true);
    else if (between_devices_)
      rows_.work([&] { device_->fetch_sums(/*of_all=*/false); });
    const std::int64_t dim = rows_.own.dim;
    if (all_sums_.rows() == 0) all_sums_ = Matrix<std::int64_t>(count_, dim);
    all_weights_ = weights_;
    constexpr std::int64_t together = 64;
    parallel_for(threads_, (count_ + together - 1) / together, [&](std::int64_t task) {
      const std::int64_t first = task * together, some = std::min(together, count_ - first);
      std::copy_n(sums_.row(first), some * dim, all_sums_.row(first));
      if (device_) device_->add_sums(first, some, all_sums_.row(first), &all_weights_[first]);
    });
    if (!rows_.peers || by_devices) return;
    rows_.peers->sum({all_sums_.data(), static_cast<std::size_t>(count_ * dim)});
    rows_.peers->sum(all_weights_);
  }
  bool in_parts() const { return rows_.peers || device_; }
  const Matrix<std::int64_t>& sums() const { return in_parts() ? all_sums_ : sums_; }
  const std::vector<std::int64_t>& weights() const { return in_parts() ? all_weights_ : weights_; }

  // Returns the far row of each centroid [count_]; ties go to the smaller row.
  std::vector<FarRow> far_rows(const CentroidScan& scan) {
    const std::size_t count = count_;
    std::vector<double> best(2 * count, 0.0);  // gains, then rows: values that in_turn() passes on
    rows_.work([&] {
      std::vector<double> gains;
      each_block(rows_.own, [&](std::int64_t begin, AnyMatrixView block) {
        const auto first = static_cast<std::size_t>(begin),
                   some = static_cast<std::size_t>(block.rows());
        gains.resize(some);
        scan.measure(block, std::span(nearest_).subspan(first, some), gains);
        const std::span<const float> weights = options_.weights;
        to_gains(block, options_.metric, weights.empty() ? weights : weights.subspan(first, some),
                 threads_, gains);
        for (std::size_t i = 0; i < some; ++i) {
          const std::uint32_t c = nearest_[first + i];
          if (!(gains[i] > best[c])) continue;
          best[c] = gains[i];
          best[count + c] = static_cast<double>(rows_.first + begin + static_cast<std::int64_t>(i));
        }
      });
    });
    if (rows_.peers) {
      const std::vector<double> own = best;
      std::fill(best.begin(), best.end(), 0.0);
      rows_.peers->in_turn(best, [&] {
        for (std::size_t c = 0; c < count; ++c)
          if (own[c] > best[c]) best[c] = own[c], best[count + c] = own[count + c];
      });
    }
    std::vector<FarRow> out(count);
    for (std::size_t c = 0; c < count; ++c)
      if (best[c] > 0) out[c] = {best[c], static_cast<std::int64_t>(best[count + c])};
    return out;
  }
  // Puts each centroid in the middle of its rows, and those without rows beside others. Returns how
  // many have none.
  std::int64_t move_centroids(const std::vector<FarRow>& far) {
    parallel_for(threads_, (count_ - fixed_ + 63) / 64, [&](std::int64_t task) {
      std::vector<double> mean(rows_.own.dim);
      const std::int64_t end = std::min(count_, fixed_ + (task + 1) * 64);
      for (std::int64_t c = fixed_ + task * 64; c < end; ++c) {
        const auto weight = static_cast<double>(weights()[c]) * units_.weight;
        if (!(weight > 0)) continue;
        double moved = 0;
        for (std::size_t j = 0; j < mean.size(); ++j) {
          mean[j] = static_cast<double>(sums().row(c)[j]) * units_.coordinate / weight;
          const double by = mean[j] - centroids_.row(c)[j];
          moved += by * by;
        }
        write_centroid(mean, spherical_, centroids_.row(c));
        // The rows cost that much less beside their mean.
        double& cost = costs_[c];
        if (traits_of(options_.metric).squared) cost = std::max(0.0, cost - weight * moved);
      }
    });
    return split_for_empty(far);
  }

  // Puts centroids without rows beside others (far_rows.hpp). Returns how many have none.
  std::int64_t split_for_empty(const std::vector<FarRow>& far) {
    std::vector<double> all(weights().size());
    for (std::size_t c = 0; c < all.size(); ++c)
      all[c] = static_cast<double>(weights()[c]) * units_.weight;
    const std::vector<Split> splits =
        splits_for_empty(far, all, costs_, options_.metric, rows_.own.dim, fixed_);
    std::vector<std::int64_t> wanted;
    for (const Split& split : splits)
      if (split.row >= 0) wanted.push_back(split.row);
    std::sort(wanted.begin(), wanted.end());
    AnyMatrix rows;
    if (!wanted.empty()) rows = rows_of_all(rows_, part_of(wanted, rows_.first, rows_.own.rows));
    make_splits(splits, wanted, rows, options_.metric, centroids_);
    return std::ssize(splits);
  }

  const DividedRows& rows_;
  const KMeansOptions& options_;
  const Units units_;
  const int threads_;
  const bool spherical_;
  const std::int64_t count_, fixed_;  // fixed: centroids that stay, the first ones
  const bool measures_;               // whether the objective is wanted
  detail::RowCodes codes_;
  const bool keeps_codes_;
  std::vector<std::uint32_t> nearest_;
  Matrix<std::int64_t> sums_;          // in units of a coordinate
  std::vector<std::int64_t> weights_;  // in units of a weight
  Matrix<std::int64_t> all_sums_;      // with those of the device and of other processes, if any
  std::vector<std::int64_t> all_weights_;
  double objective_ = 0;      // of the rows so far
  std::vector<double> keys_;  // of own rows, if there are other processes
  // What the rows of a centroid add to the objective; once it has moved, what they will add.
  std::vector<double> costs_;
  Matrix<float> centroids_;
  const bool on_device_;  // as far as it has memory
  std::unique_ptr<DeviceAssignment> device_;
  bool between_devices_ = false;  // whether devices of all processes may add up their sums
  bool adds_up_here_ = false;     // whether some of the rows are in sums of the processor
  std::int64_t block_rows_ = detail::rows_in_block;
};

// Draws centroids [first, count) from `rows`, each next one with a probability that grows with the
// distance from those before (squared, or 1 - cosine) and the weight. Zero rows have no direction,
// so that spherical k-means draws none of them while there are others.
void seed_far_apart(AnyMatrixView rows, std::vector<double> weights, Metric metric,
                    std::int64_t first, int threads, const Progress& progress, Random& random,
                    Matrix<float>& centroids) {
  constexpr std::int64_t together = 256;
  const std::int64_t n = rows.rows(), blocks = (n + together - 1) / together;
  const Metric by = traits_of(metric).squared ? Metric::l2 : Metric::cosine;
  std::vector<double> share(n, first == 0 ? 1 : std::numeric_limits<double>::infinity());
  std::vector<double> sums(blocks), row(rows.cols());
  Reporter reporter(progress, "k-means", centroids.rows());
  for (std::int64_t i = 0; i < n && is_spherical(metric); ++i) {
    load_row(rows, i, metric, row.data());
    if (std::all_of(row.begin(), row.end(), [](double x) { return x == 0; })) weights[i] = 0;
  }
  // What is left of each row's share beside centroid c; c < 0: none.
  const auto measure = [&](std::int64_t c) {
    parallel_for(threads, blocks, [&](std::int64_t block) {
      ExactDistance distance(by, rows.type());
      if (c >= 0) distance.set_query(centroids.view(), c);
      double sum = 0;
      const std::int64_t end = std::min(n, (block + 1) * together);
      for (std::int64_t i = block * together; i < end; ++i) {
        double& kept = share[i];
        if (c >= 0) {
          const double key = std::max(0.0, distance.key(rows.row(i)));
          kept = c == 0 ? key : std::min(kept, key);
        }
        sum += kept * weights[i];
      }
      sums[block] = sum;
    });
    reporter.add(1);
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  };
  double total = measure(first == 0 ? -1 : 0);
  for (std::int64_t c = 1; c < first; ++c) total = measure(c);
  for (std::int64_t c = first; c < centroids.rows(); ++c) {
    std::int64_t chosen = -1;
    if (total > 0) {
      double at = random.uniform() * total;
      std::int64_t block = 0;
      while (block + 1 < blocks && at >= sums[block]) at -= sums[block++];
      // The last row that has a share, should rounding lead beyond it.
      const std::int64_t end = std::min(n, (block + 1) * together);
      for (std::int64_t i = block * together; i < end && at >= 0; ++i) {
        const double part = share[i] * weights[i];
        if (part > 0) chosen = i;
        at -= part;
      }
    }
    // All rows coincide with centroids: any will do.
    if (chosen < 0) chosen = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n)));
    load_row(rows, chosen, metric, row.data());
    if (!write_centroid(row, is_spherical(metric), centroids.row(c))) centroids.row(c)[0] = 1;
    total = measure(c);
  }
}

// Draws `count` different rows, ascending, each with a probability of its weight among the weights
// of the rows that are not drawn yet. At least `count` weights must be above 0.
std::vector<std::int64_t> drawn_by_weight(const std::vector<double>& weights, std::int64_t count,
                                          Random& random) {
  // A tree whose nodes hold the sum of their two children: sums never keep a rest of a weight that
  // has been taken out.
  const std::size_t leaves = std::bit_ceil(weights.size());
  std::vector<double> tree(2 * leaves, 0.0);
  std::copy(weights.begin(), weights.end(), tree.begin() + static_cast<std::ptrdiff_t>(leaves));
  for (std::size_t node = leaves - 1; node > 0; --node)
    tree[node] = tree[2 * node] + tree[2 * node + 1];
  std::vector<std::int64_t> out;
  while (std::ssize(out) < count) {
    double at = random.uniform() * tree[1];
    std::size_t node = 1;
    while (node < leaves) {
      node *= 2;
      if (tree[node + 1] > 0 && at >= tree[node]) at -= tree[node++];
    }
    out.push_back(static_cast<std::int64_t>(node - leaves));
    for (tree[node] = 0, node /= 2; node > 0; node /= 2)
      tree[node] = tree[2 * node] + tree[2 * node + 1];
  }
  std::sort(out.begin(), out.end());
  return out;
}

// The first centroids: those given, then seeded ones. progress: asked whether to go on.
Matrix<float> first_centroids(const DividedRows& rows, std::int64_t count,
                              const KMeansOptions& options, const Progress& progress,
                              Random& random) {
  const std::int64_t dim = rows.own.dim;
  Matrix<float> out(count, dim);
  const std::int64_t given = options.initial.rows();
  std::vector<double> vector(dim);
  for (std::int64_t c = 0; c < given; ++c) {
    std::copy_n(options.initial.row(c), dim, vector.begin());
    if (!write_centroid(vector, is_spherical(options.metric), out.row(c)))
      throw InvalidArgument("initial must have no zero rows for {}, but row {} is one",
                            name_of(options.metric), c);
  }
  if (given == count) return out;
  // DividedRows without weight are no centroids: numbers are those among the others.
  std::vector<std::int64_t> heavy;
  for (std::size_t i = 0; i < options.weights.size(); ++i)
    if (options.weights[i] > 0) heavy.push_back(static_cast<std::int64_t>(i));
  const bool weighted = rows.sum(options.weights.empty() ? 0 : 1) > 0;
  const std::vector<std::int64_t> counts =
      rows.numbers_of_all(weighted ? std::ssize(heavy) : rows.own.rows);
  const std::int64_t n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (n < count - given)
    throw InvalidArgument("k is {}, but only {} rows have a weight above 0", count, n);
  const bool far = options.seeding == Seeding::k_means_plus_plus;
  const std::int64_t wanted = far ? std::min(n, seeding_rows * (count - given)) : count - given;
  const std::size_t rank = rows.peers ? static_cast<std::size_t>(rows.peers->rank()) : 0;
  const std::int64_t before = std::accumulate(
      counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), std::int64_t{0});
  const auto draw = [&] {
    if (!weighted || far) return sample_of(n, wanted, random);
    std::vector<float> own_weights;
    for (const std::int64_t row : heavy) own_weights.push_back(options.weights[row]);
    const std::vector<double> weights = weights_of_all(rows, own_weights);
    const bool equal = std::all_of(weights.begin(), weights.end(),
                                   [&](double weight) { return weight == weights[0]; });
    return equal ? sample_of(n, wanted, random) : drawn_by_weight(weights, wanted, random);
  };
  std::vector<std::int64_t> which = part_of(draw(), before, counts[rank]);
  if (weighted)
    for (std::int64_t& row : which) row = heavy[row];
  const AnyMatrix sample = rows_of_all(rows, which);
  if (far) {
    std::vector<float> own_weights;
    for (std::size_t i = 0; i < which.size() && weighted; ++i)
      own_weights.push_back(options.weights[which[i]]);
    std::vector<double> weights(sample.rows(), 1.0);
    if (weighted) weights = weights_of_all(rows, own_weights);
    rows.work([&] {
      seed_far_apart(sample, weights, options.metric, given, resolve_threads(options.threads),
                     progress, random, out);
    });
    return out;
  }
  for (std::int64_t c = given; c < count; ++c) {
    load_row(sample, c - given, options.metric, vector.data());
    if (!write_centroid(vector, is_spherical(options.metric), out.row(c))) out.row(c)[0] = 1;
  }
  return out;
}

void check_columns(std::string_view argument, std::int64_t columns) {
  if (columns < 1 || columns > 65536)
    throw InvalidArgument("{} must have between 1 and 65536 columns, but has {}", argument,
                          columns);
}

// rows: of all processes.
void check(const RowBlocks& own, std::int64_t rows, std::int64_t k, const KMeansOptions& options) {
  check_columns("rows", own.dim);
  if (rows < 1) throw InvalidArgument("rows are {}, but k-means takes one at least", rows);
  if (k < 1 || k > rows)
    throw InvalidArgument("k must be from 1 to {}, the number of rows, but is {}", rows, k);
  if (k > most_centroids)
    throw InvalidArgument("k must be at most {}, but is {}", most_centroids, k);
  const auto refuse_if = [](bool bad, std::string_view name, auto value, std::string_view what) {
    if (bad) throw InvalidArgument("{} must {}, but is {}", name, what, value);
  };
  check_by_products(options.metric, "k-means");
  refuse_if(options.iterations < 0, "iterations", options.iterations, "not be negative");
  refuse_if(options.restarts < 1, "restarts", options.restarts, "be at least 1");
  refuse_if(options.rows_per_centroid < 0, "rows_per_centroid", options.rows_per_centroid,
            "not be negative");
  refuse_if(!(options.tolerance >= 0 && options.tolerance < 1), "tolerance", options.tolerance,
            "be from 0 to below 1");
  refuse_if(options.levels != 1 && options.levels != 2, "levels", options.levels, "be 1 or 2");
  resolve_threads(options.threads);
  const MatrixView<float> initial = options.initial;
  if (initial.rows() > 0 && initial.cols() != own.dim)
    throw ShapeMismatch("initial has {} columns, rows have {}", initial.cols(), own.dim);
  if (initial.rows() > k)
    throw InvalidArgument("initial has {} rows, but k is {}", initial.rows(), k);
  for (std::int64_t c = 0; c < initial.rows(); ++c)
    for (std::int64_t j = 0; j < initial.cols(); ++j)
      if (!std::isfinite(initial.row(c)[j]))
        throw InvalidArgument("initial must be finite, but row {} column {} is {}", c, j,
                              initial.row(c)[j]);
  if (options.frozen_rows < 0 || options.frozen_rows > initial.rows())
    throw InvalidArgument("frozen_rows must be from 0 to {}, the rows of initial, but is {}",
                          initial.rows(), options.frozen_rows);
  const std::span<const float> weights = options.weights;
  if (!weights.empty() && std::ssize(weights) != own.rows)
    throw ShapeMismatch("weights are {}, rows are {}", weights.size(), own.rows);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0 && std::isfinite(weights[i])))
      throw InvalidArgument("weights must be finite and not negative, but weight {} is {}", i,
                            weights[i]);
  }
  // Of other processes the weights are not known here.
  if (own.rows == rows && !weights.empty() &&
      std::none_of(weights.begin(), weights.end(), [](float weight) { return weight > 0; }))
    throw InvalidArgument("weights must not all be 0");
  if (options.levels == 2 && !traits_of(options.metric).squared)
    throw InvalidArgument("levels is 2, which is for metric l2, but metric is {}",
                          name_of(options.metric));
  if (options.levels == 2 && initial.rows() > 0)
    throw InvalidArgument("levels is 2, which takes no initial centroids, but initial has {}",
                          initial.rows());
}

// measures: whether objectives are wanted; without them there are no restarts and no tolerance.
// keeps_codes: whether codes of rows may stay in memory from one iteration to the next.
KMeans cluster(const OpenAssignment& open, const DividedRows& rows, std::int64_t count,
               const KMeansOptions& options, bool measures, bool keeps_codes) {
  const Units units(rows, options);
  const bool more_is_better = traits_of(options.metric).larger_is_nearer;
  KMeans best;
  for (int restart = 0; restart < options.restarts; ++restart) {
    Random random(options.seed + static_cast<std::uint64_t>(restart));
    Progress seeding;  // of which the share done does not grow
    if (options.progress)
      seeding = [&](std::string_view stage, double) {
        return options.progress(stage, double(restart) / double(options.restarts));
      };
    Lloyd lloyd(open, rows, options, units, first_centroids(rows, count, options, seeding, random),
                options.frozen_rows, measures, keeps_codes);
    std::vector<KMeansStep> steps;
    for (int iteration = 0; iteration < options.iterations; ++iteration) {
      const KMeansStep step = lloyd.step(restart, iteration);
      if (options.report) options.report(step);
      steps.push_back(step);
      if (step.moved == 0) break;
      if (iteration == 0 || step.empty > 0 || options.tolerance == 0) continue;
      const double before = steps[steps.size() - 2].objective;
      const double gain = more_is_better ? step.objective - before : before - step.objective;
      if (gain <= options.tolerance * std::fabs(before)) break;
    }
    const auto worse = [&] {
      const double a = best.steps.back().objective, b = steps.back().objective;
      return more_is_better ? a < b : a > b;
    };
    if (restart == 0 || (!steps.empty() && worse()))
      best = {lloyd.take_centroids(), std::move(steps)};
  }
  return best;
}

KMeans cluster_in_memory(const OpenAssignment& open, AnyMatrixView rows, std::int64_t count,
                         KMeansOptions options) {
  const RowBlocks blocks = blocks_of(rows);
  return cluster(open, DividedRows(blocks), count, options, /*measures=*/true,
                 /*keeps_codes=*/true);
}

// DividedRows of a matrix, with their weights, gathered.
struct Subset {
  AnyMatrix rows;
  std::vector<float> weights;

  Subset(const RowBlocks& from, const KMeansOptions& options,
         const std::vector<std::int64_t>& which)
      : rows(own_rows_at(from, which)) {
    for (std::size_t i = 0; i < which.size() && !options.weights.empty(); ++i)
      weights.push_back(options.weights[which[i]]);
  }
  KMeansOptions with_weights(KMeansOptions options) const {
    options.weights = weights;
    return options;
  }
};

// As many rows, drawn at random.
Subset drawn(const RowBlocks& rows, std::int64_t count, const KMeansOptions& options) {
  Random random(options.seed);
  return {rows, options, sample_of(rows.rows, count, random)};
}

std::int64_t rows_used(std::int64_t rows, std::int64_t count, const KMeansOptions& options) {
  const std::int64_t each = options.rows_per_centroid;
  return each == 0 || each > rows / count ? rows : each * count;
}

// How many of `count` centroids each cluster gets: about in proportion to its size, one at least
// where there is a row, no more than rows.
std::vector<std::int64_t> shares_of(const std::vector<std::vector<std::int64_t>>& members,
                                    std::int64_t count) {
  std::vector<std::int64_t> out(members.size());
  for (std::size_t c = 0; c < members.size(); ++c) out[c] = members[c].empty() ? 0 : 1;
  std::int64_t left = count - std::accumulate(out.begin(), out.end(), std::int64_t{0});
  // Each next one goes where a centroid has most rows.
  std::vector<std::pair<double, std::int64_t>> heap;
  const auto push = [&](std::int64_t c) {
    const std::size_t at = c;
    const auto size = std::ssize(members[at]);
    if (out[at] >= size) return;
    heap.emplace_back(static_cast<double>(size) / static_cast<double>(out[at]), -c);
    std::push_heap(heap.begin(), heap.end());
  };
  for (std::int64_t c = 0; c < std::ssize(members); ++c)
    if (!members[c].empty()) push(c);
  for (; left > 0 && !heap.empty(); --left) {
    std::pop_heap(heap.begin(), heap.end());
    const std::int64_t c = -heap.back().second;
    heap.pop_back();
    ++out[c];
    push(c);
  }
  return out;
}

// Adds the steps of one cluster to those of all, as if all clusters had run side by side: what has
// ended stays as good as it was.
void add_steps(const std::vector<KMeansStep>& of_one, std::vector<KMeansStep>& all) {
  if (of_one.empty()) return;
  const double ended = all.empty() ? 0 : all.back().objective;
  for (std::size_t i = all.size(); i < of_one.size(); ++i)
    all.push_back({.iteration = static_cast<int>(i), .objective = ended});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool runs = i < of_one.size();
    all[i].objective += (runs ? of_one[i] : of_one.back()).objective;
    if (!runs) continue;
    all[i].moved += of_one[i].moved, all[i].empty += of_one[i].empty;
    all[i].fallback_rows += of_one[i].fallback_rows, all[i].seconds += of_one[i].seconds;
  }
}

KMeans cluster_in_two_levels(const OpenAssignment& open, AnyMatrixView rows, std::int64_t count,
                             KMeansOptions options) {
  const RowBlocks blocks = blocks_of(rows);
  options.levels = 1;
  const auto coarse_count = static_cast<std::int64_t>(std::lround(std::sqrt(double(count))));
  // Half of the progress is that of the first level.
  const auto from_to = [all = options.progress](double from, double to) -> Progress {
    if (!all) return {};
    return
        [=](std::string_view stage, double done) { return all(stage, from + (to - from) * done); };
  };
  options.progress = from_to(0, 0.5);
  const KMeans coarse = cluster_in_memory(open, rows, coarse_count, options);
  std::vector<std::uint32_t> nearest(rows.rows());
  std::vector<double> keys(nearest.size());
  CentroidScan(coarse.centroids.view(), Metric::l2, options.threads)
      .assign(rows, false, nearest, keys, from_to(0.5, 0.5));
  std::vector<std::vector<std::int64_t>> members(coarse_count);
  for (std::size_t i = 0; i < nearest.size(); ++i)
    if (options.weights.empty() || options.weights[i] > 0)
      members[nearest[i]].push_back(static_cast<std::int64_t>(i));
  const std::vector<std::int64_t> shares = shares_of(members, count);
  if (std::accumulate(shares.begin(), shares.end(), std::int64_t{0}) < count)
    throw InvalidArgument("k is {}, but fewer rows have a weight above 0", count);
  KMeans out{Matrix<float>(count, rows.cols()), {}};
  std::int64_t done = 0;
  for (std::size_t c = 0; c < members.size(); ++c) {
    if (shares[c] == 0) continue;
    const Subset subset(blocks, options, members[c]);
    KMeansOptions each = subset.with_weights(options);
    each.seed = options.seed + 1 + c;
    each.report = {};
    each.progress = from_to(0.5 + 0.5 * double(done) / double(count),
                            0.5 + 0.5 * double(done + shares[c]) / double(count));
    const KMeans fine = cluster_in_memory(open, subset.rows, shares[c], each);
    std::copy_n(fine.centroids.data(), shares[c] * rows.cols(), out.centroids.row(done));
    add_steps(fine.steps, out.steps);
    done += shares[c];
  }
  return out;
}

}  // namespace

Matrix<float> detail::codebook(AnyMatrixView rows, std::int64_t k, const KMeansOptions& options) {
  const RowBlocks blocks = blocks_of(rows);
  return cluster({}, DividedRows(blocks), k, options, /*measures=*/false, /*keeps_codes=*/true)
      .centroids;
}

std::string_view name_of(Seeding seeding) {
  return seeding == Seeding::random ? "random" : "k-means++";
}

Seeding parse_seeding(std::string_view name) {
  for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus})
    if (name == name_of(seeding)) return seeding;
  throw InvalidArgument("seeding must be random or k-means++, but is '{}'", name);
}

namespace {

// Returns the same blocks, and checks the first one when it is first read. Other metrics than l2
// are not checked: subtracting the mean, which is the remedy, would change directions and products.
RowBlocks told_apart(const RowBlocks& rows, const KMeansOptions& options) {
  if (!traits_of(options.metric).squared || options.takes_far_rows) return rows;
  RowBlocks out = rows;
  out.read = [read = rows.read, first = std::make_shared<bool>(true)](
                 const std::function<void(AnyMatrixView)>& take) {
    read([&](AnyMatrixView block) {
      if (std::exchange(*first, false)) check_float32_tells_apart(block, "rows", "centroids");
      take(block);
    });
  };
  return out;
}

}  // namespace

KMeans detail::k_means_on(const OpenAssignment& open, const RowBlocks& given, std::int64_t k,
                          const KMeansOptions& options) {
  return public_call([&] {
    const RowBlocks rows = told_apart(given, options);
    check(rows, rows.rows, k, options);
    if (options.levels == 2)
      throw InvalidArgument("levels = 2 is for rows in memory, not for blocks");
    const std::int64_t most = rows_used(rows.rows, k, options);
    if (most == rows.rows)
      return cluster(open, DividedRows(rows), k, options, /*measures=*/true, /*keeps_codes=*/false);
    const Subset used = drawn(rows, most, options);
    return cluster_in_memory(open, used.rows, k, used.with_weights(options));
  });
}

KMeans detail::k_means_on(const OpenAssignment& open, const RowBlocks& given, Peers& peers,
                          std::int64_t k, const KMeansOptions& options,
                          DeviceSums* between_devices) {
  return public_call([&] {
    const RowBlocks own_rows = told_apart(given, options);
    const DividedRows rows(own_rows, peers, between_devices);
    rows.work([&] {
      check(own_rows, rows.total, k, options);
      if (options.levels == 2)
        throw InvalidArgument("levels = 2 is for rows in memory, not for those of many processes");
    });
    std::int64_t weighted = !options.weights.empty(), some = own_rows.rows > 0;
    std::int64_t positive = std::any_of(options.weights.begin(), options.weights.end(),
                                        [](float weight) { return weight > 0; });
    weighted = rows.sum(weighted), positive = rows.sum(positive), some = rows.sum(some);
    if (weighted > 0 && weighted < some)
      throw InvalidArgument("weights are given in {} of the {} processes that have rows", weighted,
                            some);
    if (weighted > 0 && positive == 0) throw InvalidArgument("weights must not all be 0");
    const std::int64_t most = rows_used(rows.total, k, options);
    if (most == rows.total)
      return cluster(open, rows, k, options, /*measures=*/true, /*keeps_codes=*/false);
    // Those drawn are few and stay in memory.
    Random random(options.seed);
    const std::vector<std::int64_t> which =
        part_of(sample_of(rows.total, most, random), rows.first, own_rows.rows);
    std::optional<Subset> used;
    rows.work([&] { used.emplace(own_rows, options, which); });
    RowBlocks blocks = blocks_of(used->rows);
    blocks.dim = own_rows.dim;  // which no rows do not say
    return cluster(open, DividedRows(blocks, peers, between_devices), k,
                   used->with_weights(options),
                   /*measures=*/true, /*keeps_codes=*/true);
  });
}

KMeans detail::k_means_on(const OpenAssignment& open, AnyMatrixView rows, std::int64_t k,
                          const KMeansOptions& options) {
  return public_call([&] {
    const RowBlocks blocks = blocks_of(rows);
    check(blocks, rows.rows(), k, options);
    if (traits_of(options.metric).squared && !options.takes_far_rows)
      check_float32_tells_apart(rows, "rows", "centroids");
    const auto by_levels = options.levels == 2 ? cluster_in_two_levels : cluster_in_memory;
    const std::int64_t most = rows_used(rows.rows(), k, options);
    if (most == rows.rows()) return by_levels(open, rows, k, options);
    const Subset used = drawn(blocks, most, options);
    return by_levels(open, used.rows, k, used.with_weights(options));
  });
}

KMeans k_means(AnyMatrixView rows, std::int64_t k, const KMeansOptions& options) {
  return detail::k_means_on(detail::open_assignment(options.device), rows, k, options);
}

KMeans k_means(const RowBlocks& rows, std::int64_t k, const KMeansOptions& options) {
  return detail::k_means_on(detail::open_assignment(options.device), rows, k, options);
}

KMeans k_means(const RowBlocks& own_rows, Peers& peers, std::int64_t k,
               const KMeansOptions& options, DeviceSums* between_devices) {
  // A device that is missing in one process ends all of them.
  OpenAssignment open;
  together(peers, [&] { open = detail::open_assignment(options.device); });
  return detail::k_means_on(open, own_rows, peers, k, options, between_devices);
}

Assignment nearest_centroids(MatrixView<float> centroids, AnyMatrixView rows, Metric metric,
                             int threads, const Progress& progress) {
  return detail::public_call([&] {
    check_by_products(metric, "nearest_centroids");
    check_columns("centroids", centroids.cols());
    if (centroids.rows() < 1 || centroids.rows() > most_centroids)
      throw InvalidArgument("centroids must be from 1 to {}, but are {}", most_centroids,
                            centroids.rows());
    if (rows.cols() != centroids.cols())
      throw ShapeMismatch("rows have {} columns, centroids have {}", rows.cols(), centroids.cols());
    const int used = resolve_threads(threads);
    find_value_range(centroids, metric, "centroids", used);
    find_value_range(rows, metric, "rows", used);
    Assignment out;
    out.ids.resize(rows.rows());
    out.distances.resize(out.ids.size());
    CentroidScan scan(centroids, metric, used);
    std::vector<std::uint32_t> nearest;
    std::vector<double> keys;
    each_block(blocks_of(rows), [&](std::int64_t begin, AnyMatrixView block) {
      const std::size_t some = block.rows();
      nearest.resize(some), keys.resize(some);
      Progress part;
      if (progress)
        part = [&](std::string_view, double done) {
          return progress("assign", (double(begin) + done * double(some)) / double(rows.rows()));
        };
      scan.assign(block, false, nearest, keys, part);
      for (std::size_t i = 0; i < some; ++i) {
        const std::size_t at = static_cast<std::size_t>(begin) + i;
        out.ids[at] = nearest[i];
        out.distances[at] = static_cast<float>(distance_of_key(metric, keys[i]));
      }
    });
    return out;
  });
}

}  // namespace knear
