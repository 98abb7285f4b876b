// tests/index/index_model.hpp -- what an index has to answer, whatever it is made of: a map from
// ids to rows. Each row is transformed, put into a list, coded and refined by itself; keys are
// those of row_coder.hpp and code_scan.hpp, one row after another.
//
//   OpenIndex index(shape);
//   index.train(vectors);
//   IndexModel model(index);
//   model.put(7, vectors, 3);                              // row 3 under id 7
//   model.search(queries, 0, 10, {.probes = 3}, [](Id) { return true; });  // keys and ids
//
// What the index has learned and which lists a query probes are taken from it: they have tests of
// their own.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/life/segment_store.hpp"

namespace knear {

// An index that a test can look into.
class OpenIndex : public Index {
 public:
  explicit OpenIndex(const detail::IndexShape& shape)
      : Index(std::make_unique<detail::IndexImpl>(shape)) {}
  explicit OpenIndex(Index index) : Index(std::move(index)) {}
  std::shared_ptr<const detail::State> state() const { return body().one().state(); }
  const detail::IndexShape& shape() const { return body().shape; }
};

inline AnyMatrix copy_of(AnyMatrixView rows) {
  AnyMatrix out(rows.type(), rows.rows(), rows.cols());
  detail::copy_exactly(rows, rows.type(), out.row(0));
  return out;
}
inline std::vector<double> doubles_of(AnyMatrixView row) {
  return visit(row, [](auto typed) {
    std::vector<double> out;
    for (std::int64_t j = 0; j < typed.cols(); ++j) out.push_back(to_double(typed.row(0)[j]));
    return out;
  });
}
inline double distance_of(Metric metric, AnyMatrixView query, AnyMatrixView row) {
  return visit(query, [&](auto a) {
    return visit(row,
                 [&](auto b) { return reference_distance(metric, a.row(0), b.row(0), a.cols()); });
  });
}

class IndexModel {
 public:
  // Of an index that is trained.
  explicit IndexModel(const OpenIndex& index) : shape_(index.shape()), learned_(index.state()) {
    if (!residual()) return;
    const MatrixView<float> centroids = learned_->coarse->centroids();
    middle_.assign(static_cast<std::size_t>(centroids.cols()), 0);
    for (std::int64_t l = 0; l < centroids.rows(); ++l)
      for (std::size_t j = 0; j < middle_.size(); ++j) middle_[j] += double{centroids.row(l)[j]};
    for (double& x : middle_) x /= static_cast<double>(centroids.rows());
  }

  struct Row {
    std::uint32_t list = 0, second = 0;  // of a row in one list these are the same
    // Where rows are vectors: as they are kept, behind the transforms.
    AnyMatrix kept = {};
    // Where they are codes: what these stand for, without the centroid; its scalar; and what
    // refined answers are measured by.
    std::vector<float> decoded = {};
    float scalar = 0;
    AnyMatrix refining = {};
  };
  std::map<Id, std::shared_ptr<const Row>> rows;

  void put(Id id, AnyMatrixView vectors, std::int64_t i) {
    rows[id] = std::make_shared<const Row>(row_of(vectors.rows(i, i + 1)));
  }

  struct How {
    std::int64_t probes = 0;  // of lists
    std::int64_t factor = 0;  // of codes that are refined: so many times k are measured
  };
  // Keys and ids of the nearest rows to query q among those that are allowed.
  template <class Allowed>
  std::vector<std::pair<double, Id>> search(AnyMatrixView queries, std::int64_t q, std::int64_t k,
                                            How how, Allowed allowed) const {
    const AnyMatrixView query = queries.rows(q, q + 1);
    const AnyMatrix asked = inner(query);
    std::vector<char> probed(static_cast<std::size_t>(std::max<std::int64_t>(1, shape_.lists)),
                             shape_.lists == 0);
    if (shape_.lists > 0) {
      const Neighbors near = learned_->coarse->probe(asked, how.probes, 1);
      for (std::int64_t p = 0; p < how.probes; ++p)
        probed[static_cast<std::size_t>(near.ids.row(0)[p])] = 1;
    }
    std::vector<std::pair<double, Id>> found;
    const CodeKeys key(*this, asked);
    for (const auto& [id, row] : rows)
      if ((probed[row->list] || probed[row->second]) && allowed(id))
        found.emplace_back(
            shape_.codes ? key(*row)
                         : order_key(shape_.metric, distance_of(shape_.metric, asked, row->kept)),
            id);
    const auto keep_nearest = [&](std::int64_t most) {
      const auto end = found.begin() + std::min(std::ssize(found), most);
      std::nth_element(found.begin(), end, found.end());
      found.erase(end, found.end());
      std::sort(found.begin(), found.end());
    };
    if (how.factor > 0) {
      keep_nearest(k * how.factor);
      for (auto& [measured, id] : found)
        measured =
            order_key(shape_.metric, distance_of(shape_.metric, query, rows.at(id)->refining));
    }
    keep_nearest(k);
    return found;
  }

  // What the index says the vector of a row is.
  std::vector<double> reconstructed(const Row& row) const {
    if (shape_.refine) return doubles_of(row.refining);
    Matrix<float> whole;
    AnyMatrixView vector = row.kept;
    if (shape_.codes) {
      whole = Matrix<float>(1, shape_.inner_dim());
      for (std::size_t j = 0; j < row.decoded.size(); ++j)
        whole.row(0)[j] =
            row.decoded[j] + (residual() ? learned_->coarse->centroids().row(row.list)[j] : 0.0f);
      vector = whole.view();
    }
    return doubles_of(learned_->transform ? learned_->transform->inverse(vector).view() : vector);
  }

 private:
  bool residual() const { return shape_.lists > 0 && shape_.codes && shape_.codes->residual; }
  AnyMatrix inner(AnyMatrixView vectors) const {
    return copy_of(learned_->transform ? learned_->transform->apply(vectors, 1).view() : vectors);
  }
  static AnyMatrix halves_of(ElementType type, AnyMatrixView row) {
    const std::vector<double> from = doubles_of(row);
    AnyMatrix out(type, 1, row.cols());
    for (std::size_t j = 0; j < from.size(); ++j)
      if (type == ElementType::f16)
        static_cast<f16*>(out.row(0))[j] = to_f16(static_cast<float>(from[j]));
      else
        static_cast<bf16*>(out.row(0))[j] = to_bf16(static_cast<float>(from[j]));
    return out;
  }

  Row row_of(AnyMatrixView vector) const {
    Row out;
    AnyMatrix kept = inner(vector);
    if (shape_.rounded) kept = halves_of(*shape_.rounded, kept);
    if (shape_.lists > 0)
      out.list = static_cast<std::uint32_t>(
          reference_knn(kept, learned_->coarse->centroids(), 1,
                        shape_.metric == Metric::cosine ? Metric::cosine : Metric::l2)
              .ids.row(0)[0]);
    out.second = out.list;
    if (shape_.in_two_lists)
      out.second = learned_->coarse->second_lists(kept, {&out.list, 1}, 1).front();
    if (!shape_.codes) {
      out.kept = std::move(kept);
      return out;
    }
    const detail::RowCoder& coder = *learned_->coder;
    const Matrix<std::uint8_t> code = coder.encode(kept, {&out.list, 1}, 1, {}).codes;
    for (std::int64_t m = 0; m < coder.book().parts(); ++m) {
      const std::uint8_t byte = code.row(0)[coder.book().bits() == 8 ? m : m / 2];
      const int centroid = coder.book().bits() == 8 ? byte : byte >> (m % 2 * 4) & 15;
      const MatrixView<float> part = coder.book().part(m);
      out.decoded.insert(out.decoded.end(), part.row(centroid), part.row(centroid) + part.cols());
    }
    out.scalar = scalar_of(out);
    if (!shape_.refine) return out;
    if (learned_->refiner) {
      const Matrix<std::uint8_t> fine = learned_->refiner->encode(vector, {}, 1, {}).codes;
      out.refining = AnyMatrix(ElementType::f32, 1, shape_.dim);
      learned_->refiner->decode(fine.row(0), 1, 0, static_cast<float*>(out.refining.row(0)));
    } else {
      out.refining =
          shape_.refine->rounded ? halves_of(*shape_.refine->rounded, vector) : copy_of(vector);
    }
    return out;
  }
  float scalar_of(const Row& row) const {
    const float* centroid = residual() ? learned_->coarse->centroids().row(row.list) : nullptr;
    double sum = 0;
    for (std::size_t j = 0; j < row.decoded.size(); ++j) {
      const double r = row.decoded[j], c = centroid ? double{centroid[j]} : 0.0;
      if (shape_.metric == Metric::cosine)
        sum += (r + c) * (r + c);
      else if (centroid)
        sum += r * r + 2 * (c - middle_[j]) * r;
    }
    return static_cast<float>(shape_.metric == Metric::cosine ? std::sqrt(sum) : sum);
  }

  // The keys of codes for one query.
  class CodeKeys {
   public:
    CodeKeys(const IndexModel& model, AnyMatrixView asked)
        : model_(model), metric_(model.shape_.metric) {
      if (!model.shape_.codes) return;
      query_ = doubles_of(asked);
      if (metric_ == Metric::cosine) {
        // As rows are given length 1.
        double largest = 0, squares = 0;
        for (const double x : query_) largest = std::max(largest, std::abs(x));
        if (largest > 0) {
          for (double& x : query_) x /= largest, squares += x * x;
          for (double& x : query_) x = static_cast<float>(x / std::sqrt(squares));
        }
      }
      if (!model.residual()) return;
      const MatrixView<double> row(query_.data(), 1, std::ssize(query_));
      const MatrixView<float> centroids = model.learned_->coarse->centroids();
      const bool l2 = metric_ == Metric::l2;
      for (std::int64_t l = 0; l < centroids.rows(); ++l) {
        const double d = reference_distance(l2 ? Metric::l2 : Metric::ip, row.row(0),
                                            centroids.row(l), row.cols());
        terms_.push_back(static_cast<float>(l2 ? d : -d));
      }
    }
    double operator()(const Row& row) const {
      const bool l2 = metric_ == Metric::l2, residual = model_.residual();
      const std::int64_t parts = model_.learned_->coder->book().parts();
      const std::size_t width = query_.size() / static_cast<std::size_t>(parts);
      const float term = residual ? terms_[row.list] : 0;
      float sum = 0;
      for (std::size_t begin = 0; begin < query_.size(); begin += width) {
        double one = 0;
        for (std::size_t j = begin; j < begin + width; ++j) {
          const double q = query_[j], r = row.decoded[j];
          if (l2 && !residual)
            one += (q - r) * (q - r);
          else
            one += (l2 ? -2 * (q - model_.middle_[j]) : -q) * r;
        }
        sum += static_cast<float>(one);
      }
      if (metric_ == Metric::cosine) return row.scalar > 0 ? 1 + (term + sum) / row.scalar : 1;
      return l2 ? std::max(0.0f, (term + row.scalar) + sum) : term + sum;
    }

   private:
    const IndexModel& model_;
    const Metric metric_;
    std::vector<double> query_;
    std::vector<float> terms_;  // of each list
  };

  const detail::IndexShape shape_;
  const std::shared_ptr<const detail::State> learned_;
  std::vector<double> middle_;  // of the centroids, where codes are of residuals
};

}  // namespace knear
