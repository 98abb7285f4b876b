// knear/cluster/k_means.hpp -- k-means: rows in clusters around centroids, by Lloyd's iterations.
//
//   const KMeans found = k_means(rows, 1024, {.iterations = 20, .seed = 1});
//   found.centroids                                             // [1024 x dim]
//   const Assignment near = nearest_centroids(found.centroids.view(), rows);
//   near.ids, near.distances                                    // of each row, exactly
//
// Johnson et al., section 2: the coarse quantiser of IVFADC. Every assignment is the scan with
// k = 1, by the row's previous centroid as threshold: it equals that of float64, ties to the
// centroid of the smaller number. Sums do not depend on the order of their terms: each coordinate
// is counted as a multiple of one unit, in 64-bit integers, of which the largest value and the
// number of rows leave room for the sum. So the centroids have the same bits for any number of
// threads, instruction set, split into blocks and device.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/peers.hpp"
#include "knear/core/progress.hpp"

namespace knear {

// The first centroids, where none are given.
enum class Seeding : std::uint8_t {
  // Rows drawn at random, no row twice; with weights, each with a probability of its weight among
  // the rows that are left.
  random,
  // Each next one far from those before (Arthur and Vassilvitskii, 2007), drawn from 64 rows for
  // each centroid at most, whose distances are measured in float64: 64 k^2 dim operations.
  k_means_plus_plus
};
// "random", "k-means++".
std::string_view name_of(Seeding seeding);
// The inverse; throws InvalidArgument for any other word.
Seeding parse_seeding(std::string_view name);

// What an iteration did.
struct KMeansStep {
  int restart = 0, iteration = 0;  // both from 0
  // How good the assignment is to the centroids that the iteration began with: the weighted sum of
  // squared distances (l2) or of 1 - cosine, to be small, or of inner products (ip), to be large.
  double objective = 0;
  std::int64_t moved = 0;  // rows whose centroid is another one than before; at first all
  std::int64_t empty = 0;  // centroids that had no row, and were put beside one that costs much
  // With a device: rows that the processor assigned, since the device had no memory for them.
  std::int64_t fallback_rows = 0;
  // With devices that many processes have: whether these added up their sums among themselves
  // (DeviceSums), and not the processors.
  bool summed_by_devices = false;
  double seconds = 0;
};

struct KMeansOptions {
  // l2; or spherical k-means with centroids of length 1 and rows as they are (ip) or of length 1
  // too (cosine).
  Metric metric = Metric::l2;
  int iterations = 25;
  std::uint64_t seed = 1;
  Seeding seeding = Seeding::random;
  // As often from other seeds; the centroids with the best last objective are kept.
  int restarts = 1;
  // The first centroids [g x dim], g <= k; the others are seeded. The first `frozen_rows` of them
  // stay as they are.
  MatrixView<float> initial = {};
  std::int64_t frozen_rows = 0;
  // One for each row, finite and not negative, not all zero; empty: all 1.
  std::span<const float> weights = {};
  // With more rows than this for each centroid only so many are used, drawn at random; 0: all.
  std::int64_t rows_per_centroid = 0;
  // Ends early once an iteration improves the objective by no more than this share of it; once no
  // row moves in any case.
  double tolerance = 0;
  // 2: clusters the rows around about sqrt(k) centroids first, then each of these clusters by
  // itself: for so many centroids that comparing each row with all of them takes too long (Johnson
  // et al. have 85,000 and more). For rows in memory, of l2, without `initial`.
  int levels = 1;
  // Takes f64 rows too that lie so far from 0 that centroids, which are float32, cannot tell them
  // apart. They are refused otherwise (check_float32_tells_apart): their mean should be subtracted.
  bool takes_far_rows = false;
  int threads = 0;  // 0: all that the process may use
  // Where rows are assigned and added up: "cpu", or "cuda" or "cuda:N" for a GPU, with the same
  // bits. Rows stay there as long as there is memory, others go there in each iteration, and what
  // it has no memory for at all is the processor's (KMeansStep::fallback_rows), as is all else:
  // seeding, the middles, and with two levels the rows of each cluster of the first one. Takes sums
  // three times and some 16 MB of the processor's memory more. Throws DeviceUnavailable for a GPU
  // that is not there, or without CUDA. Each process has its own.
  std::string device = "cpu";
  Progress progress = {};  // its fraction is that of the iterations
  // Called after each iteration.
  std::function<void(const KMeansStep&)> report = {};
};

struct KMeans {
  Matrix<float> centroids;  // [k x dim]
  // Of the restart that was kept. With two levels those of the second one, all clusters together;
  // a row counts with the nearest of its own cluster's centroids.
  std::vector<KMeansStep> steps;
};

// Rows that are read block after block, as often as asked: for bases that do not fit in memory.
struct RowBlocks {
  std::int64_t rows = 0, dim = 0;
  // Calls take() with blocks [n x dim] in order, the same each time.
  std::function<void(const std::function<void(AnyMatrixView block)>& take)> read;
};

// Clusters rows [n x dim] of any element type, 1 <= k <= n, 1 <= dim <= 65536. Memory beside them:
// 4 bytes a row, sums, codes and centroids of up to 20 bytes a coordinate, buffers that do not grow
// with n, and, of rows that are no blocks, codes: a byte a coordinate (2 or 4 where that decides
// too little, or the processor prefers float32) and 80 bytes a row, of as many rows as a sixteenth
// of the machine's memory holds, which all k-means of the process share; k-means++ copies the rows
// that it draws from, a sample and two levels those that they use. Throws InvalidArgument
// naming the argument, for a NaN or an infinity with its row; ShapeMismatch for other columns or
// numbers of weights; Cancelled. The same result for the same arguments on every machine.
KMeans k_means(AnyMatrixView rows, std::int64_t k, const KMeansOptions& options = {});
KMeans k_means(const RowBlocks& rows, std::int64_t k, const KMeansOptions& options = {});

// The same of rows that are divided between processes: those of the first come first, and so on.
// Each calls it with its own rows, which may be none, and their weights; all other options are the
// same in all. Each gets the centroids that one process with all rows would, to the bit, and throws
// what any of them throws. Every process keeps 8 bytes a row more, sums twice, and the rows that
// are drawn, of all processes.
//
// between_devices: of each process for the device that it names, or nullptr in all. The sums of an
// iteration then go from device to device, unless some of them are of a processor, since a device
// had no memory for its rows. A device has sums once more then.
KMeans k_means(const RowBlocks& own_rows, Peers& peers, std::int64_t k,
               const KMeansOptions& options = {}, DeviceSums* between_devices = nullptr);

// The nearest centroid of each row and the distance to it, as knn(rows, centroids, 1) has them.
struct Assignment {
  std::vector<std::int64_t> ids;
  std::vector<float> distances;
};
// Centroids [c x dim], c >= 1; rows [n x dim]. Errors as those of k_means.
Assignment nearest_centroids(MatrixView<float> centroids, AnyMatrixView rows,
                             Metric metric = Metric::l2, int threads = 0,
                             const Progress& progress = {});

}  // namespace knear
