// FAISS's files: fields one after another, each index with four letters before it.
#include "knear/index/faiss/faiss_writer.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/index/codecs/faiss_fields.hpp"
#include "knear/index/form/form.hpp"
#include "knear/index/impl/index_impl.hpp"

namespace knear::detail {
namespace {

constexpr float usual_k_factor = 4;

void write_begin(FaissWriter& writer, const FaissRowWriter& rows, std::int64_t dim, std::int64_t n,
                 Metric metric) {
  writer.header(rows.letters(false), dim, n, metric);
  rows.write_begin(writer, n);
}

// random: the last one is a rotation that nothing was learned for, which OPQ's is not.
void write_transforms(FaissWriter& writer, const Transform& transform, bool random) {
  const std::vector<Transform::Step> steps = transform.steps();
  writer.value(static_cast<std::int32_t>(steps.size()));
  for (const Transform::Step& step : steps) {
    switch (step.kind) {
      case Transform::Kind::unit_norm:
        writer.letters("VNrm"), writer.value(2.0f);
        break;
      case Transform::Kind::shift: {  // FAISS takes a mean away
        std::vector<float> mean;
        for (const float x : step.offset) mean.push_back(-x);
        writer.letters("VCnt"), writer.array(std::span<const float>(mean));
        break;
      }
      case Transform::Kind::linear:
        writer.letters(random && &step == &steps.back() ? "rrot" : "LTra");
        writer.value(static_cast<std::uint8_t>(!step.offset.empty()));
        writer.array(std::span(step.matrix.data(), step.dim_out * step.dim_in));
        writer.array(step.offset);
        break;
    }
    writer.value(static_cast<std::int32_t>(step.dim_in));
    writer.value(static_cast<std::int32_t>(step.dim_out));
    writer.value(std::uint8_t{1});
  }
}

// Writes one index, whose rows come in the order of their ids.
class IndexWriter {
 public:
  // probes: of lists, which FAISS's searches begin with. reconstructs: whether FAISS has to find
  // rows by their ids.
  IndexWriter(FaissWriter& writer, const IndexShape& shape, const State& state, std::int64_t probes,
              bool reconstructs, const Progress& progress)
      : writer_(writer),
        shape_(shape),
        form_(form_of(shape)),
        state_(state),
        probes_(probes),
        reconstructs_(reconstructs),
        progress_(progress) {
    for (const Segment& segment : state.segments)
      for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
        if (segment.live.contains(row)) ids_.push_back(segment.rows->ids()(row));
    std::sort(ids_.begin(), ids_.end());
    for (const Id id : ids_) places_.push_back(state.find(id));
  }

  void write() {
    const std::int64_t n = rows();
    const bool own =
        !form_->has_ids_in_lists() && n > 0 && (ids_.front() != 0 || ids_.back() != n - 1);
    const auto rows = form_->faiss_rows(state_), finer = form_->faiss_refinement(state_);
    if (own) writer_.header("IxM2", shape_.dim, n, shape_.metric);
    if (finer) writer_.header("IxRF", shape_.dim, n, shape_.metric);
    if (state_.transform) {
      writer_.header("IxPT", shape_.dim, n, shape_.metric);
      write_transforms(writer_, *state_.transform,
                       shape_.transforms.back().kind == TransformShape::Kind::rotation);
    }
    if (shape_.lists > 0)
      write_lists(*rows);
    else
      write_flat(*rows, shape_.inner_dim(), progress_);
    if (finer) write_flat(*finer, shape_.dim, {}), writer_.value(usual_k_factor);
    if (own) writer_.array(std::span<const Id>(ids_));
  }

 private:
  std::int64_t rows() const { return std::ssize(ids_); }

  void write_row(FaissRowWriter& rows, std::size_t i) {
    const State::Place& place = places_[i];
    rows.write_row(writer_, *state_.segments[place.segment].rows, place.row, ids_[i]);
  }

  // Writes rows that are in no lists.
  void write_flat(FaissRowWriter& rows, std::int64_t dim, const Progress& progress) {
    const std::int64_t n = this->rows();
    write_begin(writer_, rows, dim, n, shape_.metric);
    constexpr std::int64_t together = 4096;
    Reporter reporter(progress, "write", (n + together - 1) / together);
    for (std::int64_t i = 0; i < n; ++i) {
      write_row(rows, i);
      if (i % together == 0) reporter.add(1);
    }
    rows.write_end(writer_);
  }

  void write_lists(FaissRowWriter& rows) {
    const auto lists = static_cast<std::uint64_t>(shape_.lists),
               size = static_cast<std::uint64_t>(rows.row_bytes());
    writer_.header(rows.letters(true), shape_.inner_dim(), this->rows(), shape_.metric);
    writer_.value(lists), writer_.value(static_cast<std::uint64_t>(probes_));
    write_centroids();
    std::vector<std::vector<std::size_t>> rows_of(shape_.lists);
    std::vector<std::int64_t> where;  // of each row: its list, then its place there
    std::vector<std::vector<std::uint32_t>> list_of(state_.segments.size());
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      auto& lists_of_segment = list_of[places_[i].segment];
      if (lists_of_segment.empty())
        lists_of_segment = state_.segments[places_[i].segment].rows->list_of();
      const std::uint32_t list = lists_of_segment[places_[i].row];
      where.push_back(std::int64_t{list} << 32 | std::ssize(rows_of[list]));
      rows_of[list].push_back(i);
    }
    writer_.value(static_cast<std::uint8_t>(reconstructs_));  // the map of ids
    writer_.array(std::span<const std::int64_t>(where.data(), reconstructs_ ? where.size() : 0));
    rows.write_begin_of_lists(writer_);
    writer_.letters("ilar");
    writer_.value(lists), writer_.value(size);
    writer_.letters("full");
    writer_.value(lists);
    for (const auto& list : rows_of) writer_.value(static_cast<std::uint64_t>(list.size()));
    Reporter reporter(progress_, "write", shape_.lists);
    for (const auto& list : rows_of) {
      for (const std::size_t i : list) write_row(rows, i);
      for (const std::size_t i : list)
        writer_.value(form_->has_ids_in_lists() ? ids_[i] : static_cast<Id>(i));
      reporter.add(1);
    }
  }
  void write_centroids() {
    if (const CentroidIndex* index = state_.coarse->indexes().plain.get()) {
      const IndexImpl& impl = index->index();
      IndexWriter(writer_, impl.shape, *impl.state(), index->probes(), true, {}).write();
      return;
    }
    const MatrixView<float> centroids = state_.coarse->centroids();
    const auto floats = faiss_vectors(shape_.metric, centroids.cols(), {}, ElementType::f32);
    write_begin(writer_, *floats, centroids.cols(), centroids.rows(), shape_.metric);
    writer_.bytes(centroids.data(),
                  static_cast<std::size_t>(centroids.rows() * centroids.cols()) * sizeof(float));
  }

  FaissWriter& writer_;
  const IndexShape& shape_;
  const std::unique_ptr<const Form> form_;
  const State& state_;
  const std::int64_t probes_;
  const bool reconstructs_;
  const Progress& progress_;
  std::vector<Id> ids_;
  std::vector<State::Place> places_;  // of these
};

}  // namespace

void write_faiss_index(const IndexShape& shape, const State& state, const std::string& path,
                       const Progress& progress) {
  if (traits_of(shape.metric).unit_rows)
    throw InvalidArgument(
        "index has the metric cosine, which FAISS has not: it takes vectors of length 1 and ip");
  if (traits_of(shape.metric).bits)
    throw InvalidArgument(
        "index has the metric hamming: knear.faiss.IndexBinaryFlat writes FAISS's file of bits");
  form_of(shape)->check_faiss(state);
  FaissWriter writer(path);
  IndexWriter(writer, shape, state, 1, false, progress).write();
  writer.commit();
}

}  // namespace knear::detail
