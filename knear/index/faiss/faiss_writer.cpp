// FAISS's files: fields one after another, each index with four letters before it.
#include "knear/index/faiss/faiss_writer.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/index/codecs/faiss_fields.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/quantizers/centroid_index.hpp"

namespace knear::detail {
namespace {

constexpr float usual_k_factor = 4;

void write_flat_header(FaissWriter& writer, std::int64_t dim, std::int64_t rows, Metric metric) {
  const MetricTraits traits = traits_of(metric);
  writer.header(traits.squared ? "IxF2" : traits.product ? "IxFI" : "IxFl", dim, rows, metric);
  writer.value(static_cast<std::uint64_t>(rows * dim));
}

// Writes what stands before rows that are in no lists: codes, halves or floats.
void write_head(FaissWriter& writer, std::int64_t dim, std::int64_t rows, Metric metric,
                const std::optional<CodeShape>& codes, const RowCoder* coder,
                const std::optional<ElementType>& rounded) {
  if (!codes && !rounded) return write_flat_header(writer, dim, rows, metric);
  writer.header(codes ? codec_of(*codes).faiss_letters(false) : "IxSQ", dim, rows, metric);
  if (codes)
    codec_of(*codes).write_faiss(writer, coder->quantizer());
  else
    write_faiss_halves(writer, *rounded, dim);
  writer.value(static_cast<std::uint64_t>(rows * (codes ? coder->code_size() : 2 * dim)));
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
        writer.array(
            std::span(step.matrix.data(), static_cast<std::size_t>(step.dim_out * step.dim_in)));
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
    // Lists of vectors have the ids of these.
    const bool in_lists = shape_.lists > 0 && !shape_.codes,
               own = !in_lists && n > 0 && (ids_.front() != 0 || ids_.back() != n - 1);
    if (own) writer_.header("IxM2", shape_.dim, n, shape_.metric);
    if (shape_.refine) writer_.header("IxRF", shape_.dim, n, shape_.metric);
    if (state_.transform) {
      writer_.header("IxPT", shape_.dim, n, shape_.metric);
      write_transforms(writer_, *state_.transform,
                       shape_.transforms.back().kind == TransformShape::Kind::rotation);
    }
    if (shape_.lists > 0)
      write_lists(in_lists);
    else
      write_flat();
    if (shape_.refine) write_refinement();
    if (own) writer_.array(std::span<const Id>(ids_));
  }

 private:
  using Place = State::Place;

  std::int64_t rows() const { return std::ssize(ids_); }

  // The form of the rows, as floats: halves where the index rounds to these.
  ElementType type() const { return shape_.rounded.value_or(ElementType::f32); }
  std::int64_t row_bytes() const {
    return shape_.codes ? state_.coder->code_size() : shape_.inner_dim() * size_of(type());
  }

  // Writes a vector in a type that FAISS has.
  void write_vector(const BaseRows& from, std::int64_t row, ElementType type, Id id) {
    vector_.resize(static_cast<std::size_t>(from.cols() * size_of(type)));
    scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(from.scratch_bytes())));
    if (copy_exactly(from.row_view(row, scratch_.data()), type, vector_.data()) >= 0)
      throw InvalidArgument(
          "index holds vectors of type {}, and float32, which FAISS has, does not hold that of id "
          "{}",
          name_of(state_.type.value_or(ElementType::f32)), id);
    writer_.bytes(vector_.data(), vector_.size());
  }
  // The row of an id as it is kept.
  void write_row(std::size_t i) {
    const Place& place = places_[i];
    const SegmentRows& rows = *state_.segments[place.segment].rows;
    if (!shape_.codes) return write_vector(rows.base(), place.row, type(), ids_[i]);
    const auto from = rows.coded().lists->place(place.row);
    code_.resize(static_cast<std::size_t>(row_bytes()));
    for (std::size_t b = 0; b < code_.size(); ++b)
      code_[b] = from.code[static_cast<std::int64_t>(b) * from.stride];
    writer_.bytes(code_.data(), code_.size());
  }

  void write_flat() {
    const std::int64_t n = rows(), dim = shape_.inner_dim();
    write_head(writer_, dim, n, shape_.metric, shape_.codes, state_.coder.get(), shape_.rounded);
    constexpr std::int64_t together = 4096;
    Reporter reporter(progress_, "write", (n + together - 1) / together);
    for (std::int64_t i = 0; i < n; ++i) {
      write_row(static_cast<std::size_t>(i));
      if (i % together == 0) reporter.add(1);
    }
    if (shape_.codes) codec_of(*shape_.codes).write_faiss_end(writer_);
  }

  // own_ids: of the rows, rather than their numbers.
  void write_lists(bool own_ids) {
    const std::int64_t n = rows(), dim = shape_.inner_dim();
    const auto lists = static_cast<std::uint64_t>(shape_.lists),
               size = static_cast<std::uint64_t>(row_bytes());
    writer_.header(shape_.codes     ? codec_of(*shape_.codes).faiss_letters(true)
                   : shape_.rounded ? "IwSq"
                                    : "IwFl",
                   dim, n, shape_.metric);
    writer_.value(lists), writer_.value(static_cast<std::uint64_t>(probes_));
    write_centroids();
    std::vector<std::vector<std::size_t>> rows_of(static_cast<std::size_t>(shape_.lists));
    std::vector<std::int64_t> where;  // of each row: its list, then its place there
    std::vector<std::vector<std::uint32_t>> list_of(state_.segments.size());
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      auto& lists_of_segment = list_of[places_[i].segment];
      if (lists_of_segment.empty())
        lists_of_segment = state_.segments[places_[i].segment].rows->list_of();
      const std::uint32_t list = lists_of_segment[static_cast<std::size_t>(places_[i].row)];
      where.push_back(std::int64_t{list} << 32 | std::ssize(rows_of[list]));
      rows_of[list].push_back(i);
    }
    writer_.value(static_cast<std::uint8_t>(reconstructs_));  // the map of ids
    writer_.array(std::span<const std::int64_t>(where.data(), reconstructs_ ? where.size() : 0));
    if (shape_.codes)
      codec_of(*shape_.codes)
          .write_faiss_of_lists(writer_, state_.coder->quantizer(), shape_.codes->residual);
    else if (shape_.rounded)
      write_faiss_halves(writer_, *shape_.rounded, dim), writer_.value(size),
          writer_.value(std::uint8_t{0});
    writer_.letters("ilar");
    writer_.value(lists), writer_.value(size);
    writer_.letters("full");
    writer_.value(lists);
    for (const auto& list : rows_of) writer_.value(static_cast<std::uint64_t>(list.size()));
    Reporter reporter(progress_, "write", shape_.lists);
    for (const auto& list : rows_of) {
      for (const std::size_t i : list) write_row(i);
      for (const std::size_t i : list) writer_.value(own_ids ? ids_[i] : static_cast<Id>(i));
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
    write_flat_header(writer_, centroids.cols(), centroids.rows(), shape_.metric);
    writer_.bytes(centroids.data(),
                  static_cast<std::size_t>(centroids.rows() * centroids.cols()) * sizeof(float));
  }

  void write_refinement() {
    const RefineShape& refine = *shape_.refine;
    const std::int64_t n = rows();
    write_head(writer_, shape_.dim, n, shape_.metric, refine.codes, state_.refiner.get(),
               refine.rounded);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const CodedRows& coded = state_.segments[places_[i].segment].rows->coded();
      const BaseRows from(coded.vectors, coded.guard.get());
      if (refine.codes)
        writer_.bytes(from.row(places_[i].row, nullptr),
                      static_cast<std::size_t>(state_.refiner->code_size()));
      else
        write_vector(from, places_[i].row, refine.rounded.value_or(ElementType::f32), ids_[i]);
    }
    if (refine.codes) codec_of(*refine.codes).write_faiss_end(writer_);
    writer_.value(usual_k_factor);
  }

  FaissWriter& writer_;
  const IndexShape& shape_;
  const State& state_;
  const std::int64_t probes_;
  const bool reconstructs_;
  const Progress& progress_;
  std::vector<Id> ids_;
  std::vector<Place> places_;  // of these
  std::vector<std::uint8_t> code_;
  std::vector<std::byte> vector_, scratch_;
};

// FAISS decodes what is left beside a centroid by what the index over the centroids says that this
// one is.
bool centroids_are_held(const State& state) {
  const CentroidIndex* index = state.coarse->indexes().plain.get();
  if (!index) return true;
  const MatrixView<float> centroids = state.coarse->centroids();
  std::vector<Id> numbers(static_cast<std::size_t>(centroids.rows()));
  std::iota(numbers.begin(), numbers.end(), Id{0});
  const AnyMatrix held = index->index().reconstruct(numbers);
  AnyMatrix floats(ElementType::f32, centroids.rows(), centroids.cols());
  if (copy_exactly(held, ElementType::f32, floats.row(0)) >= 0) return false;
  const float* const all = static_cast<const float*>(floats.row(0));
  return std::equal(all, all + centroids.rows() * centroids.cols(), centroids.data());
}

}  // namespace

void write_faiss_index(const IndexShape& shape, const State& state, const std::string& path,
                       const Progress& progress) {
  if (traits_of(shape.metric).unit_rows)
    throw InvalidArgument(
        "index has the metric cosine, which FAISS has not: it takes vectors of length 1 and ip");
  if (traits_of(shape.metric).bits)
    throw InvalidArgument(
        "index has the metric hamming: knear.faiss.IndexBinaryFlat writes FAISS's file of bits");
  if (traits_of(shape.metric).product && !shape.coarse.empty())
    throw InvalidArgument(
        "index {} finds its lists by an index over lifted centroids, which FAISS has not: for ip "
        "only centroids that are all compared are written for it",
        shape.description());
  for (const auto& codes : {shape.codes, shape.refine ? shape.refine->codes : std::nullopt})
    if (codes && codec_of(*codes).faiss_letters(shape.lists > 0).empty())
      throw InvalidArgument("index {} has codes that FAISS has not: {}", shape.description(),
                            codes->name());
  if (shape.has_graph())
    throw InvalidArgument("index {} has a graph that FAISS has not: add its vectors to another one",
                          shape.description());
  if (shape.codes && shape.codes->residual && !centroids_are_held(state))
    throw InvalidArgument(
        "index {} has codes of what is left beside its centroids, for which FAISS takes what the "
        "index over these, {}, has: that does not hold them as they are, as IVFn,Flat and what is "
        "refined by RFlat do",
        shape.description(), shape.coarse.front().description());
  FaissWriter writer(path);
  IndexWriter(writer, shape, state, 1, false, progress).write();
  writer.commit();
}

}  // namespace knear::detail
