// Indexes made of what files of FAISS hold, and written like them.
#include "knear/index/faiss_file.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/value_range.hpp"
#include "knear/index/faiss_reader.hpp"
#include "knear/index/flat.hpp"
#include "knear/index/index_impl.hpp"
#include "knear/index/ivf_flat.hpp"
#include "knear/index/segment_store.hpp"
#include "knear/io/atomic_file.hpp"

namespace knear {
namespace {

constexpr std::int32_t inner_product = 0, l2 = 1;

void check_ids(std::span<const Id> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0)
      throw InvalidArgument("ids must not be negative, but hold {} in place {}", ids[i], i);
  detail::check_each_once(ids);
}

// An index of the codes that a file has, in its lists.
Index coded(detail::FaissContent content, const ChangeOptions& options) {
  using detail::RowCoder;
  const detail::IndexShape shape{
      .dim = content.dim,
      .metric = content.metric,
      .transforms = content.transforms,
      .lists = content.lists,
      .codes = content.codes,
      .refine = content.refining ? std::optional(detail::RefineShape{}) : std::nullopt};
  detail::State state;
  const std::int64_t n = content.size(), dim = shape.inner_dim();
  if (!content.chain.empty()) state.transform = Transform::chain(content.chain);
  if (!content.trained) {
    if (n > 0) throw CorruptFile("there are rows, but no quantizer");
    return IndexOfShape(shape);
  }
  if (content.lists > 0) {
    state.coarse = std::make_shared<const detail::CoarseQuantizer>(std::move(content.centroids),
                                                                   content.metric);
  }
  state.recall = std::make_shared<detail::RecallCurves>(n);
  const detail::CodeShape& codes = *content.codes;
  const std::vector<float>& numbers = content.quantizer;
  if (codes.is_product()) {
    const std::int64_t rows = codes.sub_quantizers << codes.bits;
    state.coder = std::make_shared<const RowCoder>(
        codes, content.metric, state.coarse,
        ProductQuantizer::from_centroids({numbers.data(), rows, dim / codes.sub_quantizers},
                                         codes.sub_quantizers, codes.bits));
  } else {
    // A code c of FAISS stands for the middle of its range: least + width (c + 1/2) / 255.
    const float levels = codes.bits == 8 ? 255 : 15;
    std::vector<float> low, step;
    for (std::size_t j = 0; j < static_cast<std::size_t>(dim); ++j) {
      const float width = numbers[static_cast<std::size_t>(dim) + j];
      step.push_back(width / levels), low.push_back(numbers[j] + width * 0.5f / levels);
    }
    const auto scalar = ScalarQuantizer::from_levels(
        codes.bits == 8 ? ScalarCode::bits8 : ScalarCode::bits4, low, step);
    state.coder = std::make_shared<const RowCoder>(codes, content.metric, state.coarse,
                                                   RowCoder::product_of(scalar), scalar);
  }
  std::vector<Id>& ids = content.ids;
  if (ids.empty()) {
    ids.resize(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
  }
  check_ids(ids);
  state.type = ElementType::f32;
  if (n > 0) {
    const detail::SegmentStore store(shape);
    if (content.refining) find_value_range(content.rows.view(), content.metric, "vectors", 0);
    state.segments.push_back(store.segment_of_codes(
        state, content.code_rows.view(), content.list_of, ids, content.rows.view(), options));
    state.size = n;
    const Id last = *std::max_element(ids.begin(), ids.end());
    state.next_id = last == std::numeric_limits<Id>::max() ? last : last + 1;
  }
  return IndexOfShape(shape, std::move(state));
}

Index made_of(detail::FaissContent content, const ChangeOptions& options) {
  const auto filled = [&](Index index) {
    index.reserve(content.rows.rows());
    if (content.ids.empty())
      index.add(content.rows.view(), options);
    else
      index.add(content.rows.view(), content.ids, options);
    return index;
  };
  if (content.codes) return coded(std::move(content), options);
  if (!content.chain.empty())
    throw CorruptFile(
        "transforms before vectors are not read, only before codes (IndexPQ, IndexIVFPQ, ...)");
  if (content.rounded) {
    Index index = IndexOfShape({.dim = content.dim,
                                .metric = content.metric,
                                .lists = content.lists,
                                .rounded = content.rounded});
    if (content.lists == 0) return filled(std::move(index));
    throw CorruptFile("halves in inverted lists are not read");
  }
  if (content.lists == 0) return filled(FlatIndex(content.dim, content.metric));
  if (!content.trained) {
    if (content.rows.rows() > 0) throw CorruptFile("there are rows, but no centroids");
    return IvfFlatIndex(content.dim, content.lists, content.metric);
  }
  // Rows stay in the lists that FAISS has them in, whatever is nearest: what lists are probed for
  // is certain by their radii alone.
  const detail::IndexShape shape{
      .dim = content.dim, .metric = content.metric, .lists = content.lists};
  find_value_range(content.centroids.view(), content.metric, "centroids", 1);
  detail::State state;
  state.coarse =
      std::make_shared<const detail::CoarseQuantizer>(std::move(content.centroids), content.metric);
  state.size = content.rows.rows();
  state.recall = std::make_shared<detail::RecallCurves>(state.size);
  check_ids(content.ids);
  detail::SegmentStore(shape).append_kept(state, content.rows.view(), content.ids, content.list_of,
                                          options);
  return IndexOfShape(shape, std::move(state));
}

class Writer {
 public:
  explicit Writer(const std::string& path) : file_(path) {}

  template <class T>
  void value(T x) {
    file_.write(&x, sizeof x);
  }
  void letters(std::string_view four) { file_.write(four.data(), 4); }
  void header(std::string_view type, std::int64_t dim, std::int64_t rows, bool trained,
              Metric metric) {
    letters(type);
    value(static_cast<std::int32_t>(dim)), value(rows);
    value(std::int64_t{1} << 20), value(std::int64_t{1} << 20);
    value(static_cast<std::uint8_t>(trained)), value(metric == Metric::l2 ? l2 : inner_product);
  }
  void flat_header(std::int64_t dim, std::int64_t rows, Metric metric) {
    header(metric == Metric::l2 ? "IxF2" : "IxFI", dim, rows, true, metric);
    value(static_cast<std::uint64_t>(rows * dim));
  }
  void bytes(const void* data, std::size_t size) { file_.write(data, size); }
  void commit() { file_.commit(); }

 private:
  io::AtomicFile file_;
};

// Writes rows as float32, some at a time.
void write_rows(Writer& writer, const Index& index, std::span<const Id> ids) {
  constexpr std::size_t together = 4096;
  for (std::size_t begin = 0; begin < ids.size(); begin += together) {
    const std::span<const Id> some = ids.subspan(begin, std::min(together, ids.size() - begin));
    const AnyMatrix rows = index.reconstruct(some);
    Matrix<float> floats(std::ssize(some), index.dim());
    const std::int64_t bad = detail::copy_exactly(rows.view(), ElementType::f32, floats.data());
    if (bad >= 0)
      throw InvalidArgument(
          "index holds vectors of type {}, and float32, which FAISS has, does not hold that of id "
          "{}",
          name_of(index.element_type()), some[static_cast<std::size_t>(bad)]);
    writer.bytes(floats.data(), some.size() * static_cast<std::size_t>(index.dim()) * 4);
  }
}

// Of a quantiser: its parts, bits and centroids; or the ranges of columns.
void write_product(Writer& writer, const ProductQuantizer& quantizer) {
  writer.value(static_cast<std::uint64_t>(quantizer.dim()));
  writer.value(static_cast<std::uint64_t>(quantizer.sub_quantizers()));
  writer.value(static_cast<std::uint64_t>(quantizer.bits()));
  const MatrixView<float> centroids = quantizer.all_centroids();
  const auto numbers = static_cast<std::size_t>(centroids.rows() * centroids.cols());
  writer.value(static_cast<std::uint64_t>(numbers));
  writer.bytes(centroids.data(), numbers * sizeof(float));
}
void write_scalar(Writer& writer, const ScalarQuantizer& scalar) {
  const bool bits8 = scalar.code() == ScalarCode::bits8;
  writer.value(std::int32_t{bits8 ? 0 : 1}), writer.value(std::int32_t{0}), writer.value(0.0f);
  writer.value(static_cast<std::uint64_t>(scalar.dim()));
  writer.value(static_cast<std::uint64_t>(scalar.code_size()));
  std::vector<float> least, width;
  for (std::size_t j = 0; j < static_cast<std::size_t>(scalar.dim()); ++j) {
    width.push_back(scalar.step()[j] * (bits8 ? 255.0f : 15.0f));
    least.push_back(scalar.low()[j] - scalar.step()[j] / 2);
  }
  writer.value(static_cast<std::uint64_t>(2 * scalar.dim()));
  writer.bytes(least.data(), least.size() * sizeof(float));
  writer.bytes(width.data(), width.size() * sizeof(float));
}

void write_transforms(Writer& writer, const detail::IndexShape& shape, const Transform& transform,
                      std::int64_t rows) {
  const std::vector<Transform::Step> steps = transform.steps();
  writer.header("IxPT", shape.dim, rows, true, shape.metric);
  writer.value(static_cast<std::int32_t>(steps.size()));
  for (const Transform::Step& step : steps) {
    if (step.kind == Transform::Kind::unit_norm) {
      writer.letters("VNrm");
      writer.value(2.0f);
    } else {
      // A shift is the identity and an offset.
      Matrix<float> matrix(step.dim_out, step.dim_in);
      for (std::int64_t i = 0; i < step.dim_out; ++i)
        for (std::int64_t j = 0; j < step.dim_in; ++j)
          matrix.row(i)[j] =
              step.kind == Transform::Kind::shift ? (i == j ? 1.0f : 0.0f) : step.matrix.row(i)[j];
      const auto numbers = static_cast<std::size_t>(step.dim_out * step.dim_in);
      writer.letters("LTra");
      writer.value(static_cast<std::uint8_t>(!step.offset.empty()));
      writer.value(static_cast<std::uint64_t>(numbers));
      writer.bytes(matrix.data(), numbers * sizeof(float));
      writer.value(static_cast<std::uint64_t>(step.offset.size()));
      writer.bytes(step.offset.data(), step.offset.size_bytes());
    }
    writer.value(static_cast<std::int32_t>(step.dim_in));
    writer.value(static_cast<std::int32_t>(step.dim_out));
    writer.value(std::uint8_t{1});
  }
}

// The codes of an index, under the ids 0, 1, ... that its own ids have in their order.
void write_codes(Writer& writer, const detail::IndexShape& shape, const detail::State& state,
                 const std::vector<Id>& ids) {
  const detail::RowCoder& coder = *state.coder;
  const std::int64_t n = std::ssize(ids), dim = shape.inner_dim(), size = coder.code_size();
  if (shape.refine) writer.header("IxRF", shape.dim, n, true, shape.metric);
  if (state.transform) write_transforms(writer, shape, *state.transform, n);
  const auto write_code = [&](const detail::State::Place& place, std::vector<std::uint8_t>& code) {
    const auto from = state.segments[place.segment].rows->coded().lists->place(place.row);
    for (std::int64_t b = 0; b < size; ++b)
      code[static_cast<std::size_t>(b)] = from.code[b * from.stride];
    writer.bytes(code.data(), code.size());
  };
  std::vector<std::uint8_t> code(static_cast<std::size_t>(size));
  const bool product = coder.shape().is_product();
  if (shape.lists == 0) {
    writer.header(product ? "IxPq" : "IxSQ", dim, n, true, shape.metric);
    if (product)
      write_product(writer, coder.quantizer());
    else
      write_scalar(writer, *coder.scalar());
    writer.value(static_cast<std::uint64_t>(n * size));
    for (const Id id : ids) write_code(state.find(id), code);
    if (product) {
      writer.value(std::int32_t{0}), writer.value(std::uint8_t{0}), writer.value(std::int32_t{0});
    }
    return;
  }
  writer.header(product ? "IwPQ" : "IwSq", dim, n, true, shape.metric);
  writer.value(static_cast<std::uint64_t>(shape.lists)), writer.value(std::uint64_t{1});
  const MatrixView<float> centroids = state.coarse->centroids();
  writer.flat_header(dim, shape.lists, shape.metric);
  writer.bytes(centroids.data(), static_cast<std::size_t>(shape.lists * dim) * sizeof(float));
  writer.value(std::uint8_t{0}), writer.value(std::uint64_t{0});  // no map of ids
  const auto residual = static_cast<std::uint8_t>(shape.codes->residual);
  if (product) {
    writer.value(residual), writer.value(static_cast<std::uint64_t>(size));
    write_product(writer, coder.quantizer());
  } else {
    write_scalar(writer, *coder.scalar());
    writer.value(static_cast<std::uint64_t>(size)), writer.value(residual);
  }
  std::vector<std::vector<Id>> lists(static_cast<std::size_t>(shape.lists));  // ids by their order
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const detail::State::Place place = state.find(ids[i]);
    const detail::CodedLists& from = *state.segments[place.segment].rows->coded().lists;
    lists[static_cast<std::size_t>(from.list_at(place.row))].push_back(static_cast<Id>(i));
  }
  writer.letters("ilar");
  writer.value(static_cast<std::uint64_t>(shape.lists));
  writer.value(static_cast<std::uint64_t>(size));
  writer.letters("full");
  writer.value(static_cast<std::uint64_t>(shape.lists));
  for (const auto& list : lists) writer.value(static_cast<std::uint64_t>(list.size()));
  for (const auto& list : lists) {
    for (const Id i : list) write_code(state.find(ids[static_cast<std::size_t>(i)]), code);
    writer.bytes(list.data(), list.size() * sizeof(Id));
  }
}

void write_lists(Writer& writer, const Index& index, const std::vector<Id>& ids,
                 const Progress& progress) {
  const Metric metric = index.metric();
  const std::int64_t dim = index.dim(), lists = index.lists();
  writer.header("IwFl", dim, std::ssize(ids), true, metric);
  writer.value(static_cast<std::uint64_t>(lists)), writer.value(std::uint64_t{1});
  const Matrix<float> centroids = index.centroids();
  writer.flat_header(dim, lists, metric);
  writer.bytes(centroids.data(), static_cast<std::size_t>(lists * dim) * sizeof(float));
  writer.value(std::uint8_t{0}), writer.value(std::uint64_t{0});  // no map of ids
  writer.letters("ilar");
  writer.value(static_cast<std::uint64_t>(lists));
  writer.value(static_cast<std::uint64_t>(dim) * sizeof(float));
  const std::vector<std::int64_t> of = index.lists_of(ids);
  std::vector<std::vector<Id>> rows(static_cast<std::size_t>(lists));
  for (std::size_t i = 0; i < ids.size(); ++i)
    rows[static_cast<std::size_t>(of[i])].push_back(ids[i]);
  writer.letters("full");
  writer.value(static_cast<std::uint64_t>(lists));
  for (const auto& list : rows) writer.value(static_cast<std::uint64_t>(list.size()));
  Reporter reporter(progress, "write", lists);
  for (const auto& list : rows) {
    write_rows(writer, index, list);
    writer.bytes(list.data(), list.size() * sizeof(Id));
    reporter.add(1);
  }
}

}  // namespace

bool is_faiss_file(const std::string& path) {
  char first[4] = {};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(first, sizeof first)) return false;
  // Four letters, which no number of columns is made of.
  if (!std::all_of(first, first + 4, [](char c) { return c > ' ' && c <= '~'; })) return false;
  const std::string_view begin(first, 2);
  return begin == "Ix" || begin == "Iw" || begin == "Iv" || begin == "IB" || begin == "IH";
}

Index read_faiss(const std::string& path, const ChangeOptions& options) {
  return detail::public_call([&] {
    detail::FaissContent content = detail::read_faiss_content(path);
    try {
      return made_of(std::move(content), options);
    } catch (const CorruptFile& error) {
      throw CorruptFile("{}: {}", path, error.what());
    } catch (const InvalidArgument& error) {  // a NaN, an id twice
      throw CorruptFile("{}: {}", path, error.what());
    }
  });
}

void write_faiss(const Index& index, const std::string& path, const Progress& progress) {
  detail::public_call([&] {
    const Metric metric = index.metric();
    if (metric == Metric::cosine)
      throw InvalidArgument(
          "index has the metric cosine, which FAISS has not: it takes vectors of length 1 and ip");
    if (!index.is_trained())
      throw InvalidArgument("index {} is not trained, which comes before writing it for FAISS",
                            index.description());
    const Index::Impl& impl = impl_of(index);
    const detail::IndexShape& shape = impl.shape;
    if (shape.refine && shape.refine != detail::RefineShape{})
      throw InvalidArgument("index {} is refined by {}, and only RFlat is written for FAISS",
                            index.description(), shape.refine->name());
    if (!shape.coarse.empty())
      throw InvalidArgument(
          "index {} finds its lists by an index, and only centroids that are all compared are "
          "written for FAISS",
          index.description());
    if (!shape.codes && !shape.transforms.empty())
      throw InvalidArgument(
          "index {} has vectors behind transforms, and only codes are written for FAISS there",
          index.description());
    const std::vector<Id> ids = index.ids();
    Writer writer(path);
    if (shape.codes) {
      const auto n = std::ssize(ids);
      const bool own = n > 0 && (ids.front() != 0 || ids.back() != n - 1);
      if (own) writer.header("IxM2", index.dim(), n, true, metric);
      write_codes(writer, shape, *impl.state(), ids);
      if (shape.refine) {
        writer.flat_header(index.dim(), n, metric);
        write_rows(writer, index, ids);
        writer.value(4.0f);
      }
      if (own) {
        writer.value(static_cast<std::uint64_t>(n));
        writer.bytes(ids.data(), ids.size() * sizeof(Id));
      }
      writer.commit();
      return;
    }
    if (index.lists() > 0) {
      write_lists(writer, index, ids, progress);
    } else {
      const auto n = std::ssize(ids);
      const bool own = n > 0 && (ids.front() != 0 || ids.back() != n - 1);
      if (own) writer.header("IxM2", index.dim(), n, true, metric);
      writer.flat_header(index.dim(), n, metric);
      write_rows(writer, index, ids);
      if (own) {
        writer.value(static_cast<std::uint64_t>(n));
        writer.bytes(ids.data(), ids.size() * sizeof(Id));
      }
    }
    writer.commit();
  });
}

}  // namespace knear
