#include "knear/graph/layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "knear/core/public_call.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/transform/pca.hpp"

namespace knear {
namespace {

constexpr std::int64_t rows_of_task = 1024;
constexpr int pushes = 5;          // rows drawn at random for each step to a neighbour
constexpr float longest_move = 4;  // of one step in one coordinate, as UMAP has it
constexpr double side = 10;        // places begin in [-side, side]

std::int64_t tasks_of(std::int64_t rows) { return (rows + rows_of_task - 1) / rows_of_task; }

// Calls f(row) for all rows, in tasks.
template <class F>
void each_row(int threads, std::int64_t rows, F&& f) {
  parallel_for(threads, tasks_of(rows), [&](std::int64_t task) {
    const std::int64_t end = std::min(rows, (task + 1) * rows_of_task);
    for (std::int64_t row = task * rows_of_task; row < end; ++row) f(row);
  });
}

// How far a neighbour is as the weights take it: Euclidean for l2, and for products by how much
// they are smaller than the largest.
double length_of(Metric metric, float distance, float nearest) {
  switch (metric) {
    case Metric::l2:
      return std::sqrt(std::max(0.0, static_cast<double>(distance)));
    case Metric::ip:
      return static_cast<double>(nearest) - static_cast<double>(distance);
    case Metric::cosine:
    case Metric::l1:
    case Metric::hamming:
      break;
  }
  return std::max(0.0, static_cast<double>(distance));
}

// The strength in (0, 1] of the edge to each neighbour [n x k], 0 where there is none: 1 up to the
// nearest that is no copy, then falling such that those of a row add up to log2(k).
Matrix<float> strengths(const NeighborGraph& graph, int threads) {
  const std::int64_t k = graph.k();
  Matrix<float> out(graph.rows(), k);
  const double wanted = std::max(1.0, std::log2(static_cast<double>(k)));
  each_row(threads, graph.rows(), [&](std::int64_t i) {
    const Id* ids = graph.ids().row(i);
    const float* distances = graph.distances().row(i);
    const std::int64_t count = std::find(ids, ids + k, no_id) - ids;
    if (count == 0) return;
    std::vector<double> lengths(count);
    for (std::int64_t j = 0; j < count; ++j) {
      if (!std::isfinite(distances[j]))
        throw InvalidArgument("graph: the distance of rows {} and {} is not finite", i, ids[j]);
      lengths[j] = length_of(graph.metric(), distances[j], distances[0]);
    }
    const auto first = std::find_if(lengths.begin(), lengths.end(), [](double x) { return x > 0; });
    const double free = first == lengths.end() ? 0 : *first;
    // The width, by bisection; 64 steps leave nothing of the interval.
    double low = 0, high = 1e-12;
    const auto sum = [&](double width) {
      double total = 0;
      for (const double length : lengths) total += std::exp(-std::max(0.0, length - free) / width);
      return total;
    };
    while (high < 1e300 && sum(high) < std::min(wanted, static_cast<double>(count) * 0.999))
      high *= 4;
    for (int step = 0; step < 64; ++step) {
      const double middle = 0.5 * (low + high);
      (sum(middle) < wanted ? low : high) = middle;
    }
    for (std::int64_t j = 0; j < count; ++j)
      out.row(i)[j] = static_cast<float>(std::exp(-std::max(0.0, lengths[j] - free) / high));
  });
  return out;
}

// Both directions of each edge, with the strength that either of two independent ones is there.
SparseGraph symmetric_strengths(const NeighborGraph& graph, int threads) {
  const Matrix<float> own = strengths(graph, threads);
  // "Nearer" for ip is the larger: of both directions the stronger is kept, and made the union.
  SparseGraph out = symmetric(graph.ids(), own.view(), Metric::ip, Closure::either, threads);
  const std::int64_t k = graph.k();
  const auto strength = [&](Id a, Id b) -> float {
    const Id* ids = graph.ids().row(a);
    const auto at = std::find(ids, ids + k, b) - ids;
    return at == k ? 0.0f : own.row(a)[at];
  };
  each_row(threads, out.rows(), [&](std::int64_t i) {
    for (std::int64_t e = out.begin[i]; e < out.begin[i + 1]; ++e) {
      const Id other = out.ids[e];
      const float a = strength(i, other), b = strength(other, i);
      out.distances[e] = a + b - a * b;
    }
  });
  return out;
}

float clipped(float x) { return std::clamp(x, -longest_move, longest_move); }

// One epoch of one row: to the neighbours whose turn it is, and off random rows.
void move_row(const SparseGraph& edges, const Matrix<float>& before, Matrix<float>& after, Id row,
              std::int64_t epoch, std::uint64_t seed, float rate) {
  const auto rows = static_cast<std::uint64_t>(edges.rows());
  Random random(seed ^
                (static_cast<std::uint64_t>(epoch) * rows + static_cast<std::uint64_t>(row)) *
                    0x9e3779b97f4a7c15u);
  random.next();
  float x = before.row(row)[0], y = before.row(row)[1];
  for (std::int64_t e = edges.begin[row]; e < edges.begin[row + 1]; ++e) {
    const Id other = edges.ids[e];
    // An edge of strength s has its turn in a share s of the epochs, drawn for both ends alike.
    const auto least = static_cast<std::uint64_t>(std::min(row, other));
    const auto most = static_cast<std::uint64_t>(std::max(row, other));
    const double phase = Random(seed + least * rows + most).uniform();
    const double share = static_cast<double>(edges.distances[e]);
    if (std::floor(static_cast<double>(epoch) * share + phase) ==
        std::floor(static_cast<double>(epoch + 1) * share + phase))
      continue;
    {
      const float dx = x - before.row(other)[0], dy = y - before.row(other)[1];
      const float pull = -2.0f / (1.0f + dx * dx + dy * dy);
      x += rate * clipped(pull * dx), y += rate * clipped(pull * dy);
    }
    for (int push = 0; push < pushes; ++push) {
      const auto off = static_cast<Id>(random.below(rows));
      if (off == row) continue;
      const float dx = x - before.row(off)[0], dy = y - before.row(off)[1];
      const float square = dx * dx + dy * dy;
      const float force = 2.0f / ((0.001f + square) * (1.0f + square));
      x += rate * clipped(force * dx), y += rate * clipped(force * dy);
    }
  }
  after.row(row)[0] = x, after.row(row)[1] = y;
}

void check_places(MatrixView<float> places, std::int64_t rows) {
  if (places.rows() != rows || places.cols() != 2)
    throw ShapeMismatch("places are {} x {}, but the graph has {} rows and a map two columns",
                        places.rows(), places.cols(), rows);
  for (std::int64_t i = 0; i < rows; ++i)
    if (!std::isfinite(places.row(i)[0]) || !std::isfinite(places.row(i)[1]))
      throw InvalidArgument("places must be finite, but row {} is not", i);
}

}  // namespace

Matrix<float> principal_places(AnyMatrixView base, int threads, const Progress& progress) {
  return detail::public_call([&] {
    const std::int64_t n = base.rows(), dim = base.cols();
    Matrix<float> out(n, 2);
    if (n == 0) return out;
    // Rows at equal places all over the base, 64 MiB of them at most.
    const std::int64_t most = std::clamp<std::int64_t>((std::int64_t{8} << 20) / dim, 2, 4096);
    const std::int64_t sampled = std::min(n, most);
    Matrix<double> sample(sampled, dim);
    visit(base, [&](auto typed) {
      for (std::int64_t s = 0; s < sampled; ++s)
        for (std::int64_t c = 0; c < dim; ++c) {
          const double value = to_double(typed.row(s * n / sampled)[c]);
          if (!std::isfinite(value))
            throw InvalidArgument("base must be finite, but row {} column {} is not",
                                  s * n / sampled, c);
          sample.row(s)[c] = value;
        }
    });
    if (n == 1) return out;
    const std::int64_t components = std::min<std::int64_t>(2, dim);
    const PrincipalComponents pca = principal_components(sample, components, threads, progress);
    Matrix<double> exact(n, 2);
    visit(base, [&](auto typed) {
      each_row(threads, n, [&](std::int64_t i) {
        for (std::int64_t p = 0; p < components; ++p) {
          double sum = 0;
          for (std::int64_t c = 0; c < dim; ++c)
            sum += (to_double(typed.row(i)[c]) - pca.mean[c]) * pca.basis.row(p)[c];
          if (!std::isfinite(sum))
            throw InvalidArgument("base must be finite, but row {} is not", i);
          exact.row(i)[p] = sum;
        }
      });
    });
    double largest = 0;
    for (std::int64_t i = 0; i < n; ++i)
      largest = std::max({largest, std::abs(exact.row(i)[0]), std::abs(exact.row(i)[1])});
    const double scale = largest > 0 ? side / largest : 0;
    Random random(1);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t p = 0; p < 2; ++p)
        out.row(i)[p] = static_cast<float>(exact.row(i)[p] * scale * (1 - 1e-4) +
                                           (random.uniform() - 0.5) * 1e-3);
    return out;
  });
}

Matrix<float> graph_layout(const NeighborGraph& graph, MatrixView<float> places,
                           const LayoutOptions& options) {
  return detail::public_call([&] {
    check_places(places, graph.rows());
    if (options.epochs < 0 || options.epochs > most_layout_epochs)
      throw InvalidArgument("epochs must be between 0 (as many as usual) and {}, but is {}",
                            most_layout_epochs, options.epochs);
    const std::int64_t n = graph.rows();
    const std::int64_t epochs = options.epochs > 0 ? options.epochs : (n <= 200000 ? 300 : 100);
    const int threads = resolve_threads(options.threads);
    Matrix<float> before(n, 2), after(n, 2);
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(before.row(i), places.row(i), 2 * sizeof(float));
    if (n == 0) return before;
    Reporter reporter(options.progress, "layout", epochs);
    const SparseGraph edges = symmetric_strengths(graph, threads);
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      const float rate = 1.0f - static_cast<float>(epoch) / static_cast<float>(epochs);
      each_row(threads, n, [&](std::int64_t row) {
        move_row(edges, before, after, row, epoch, options.seed, rate);
      });
      std::swap(before, after);
      if (options.on_places && (epoch + 1) % 10 == 0) options.on_places(before.view());
      reporter.add(1);
    }
    return before;
  });
}

}  // namespace knear
