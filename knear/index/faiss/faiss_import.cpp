#include "knear/index/faiss/faiss_import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/value_range.hpp"
#include "knear/index/codecs/faiss_types.hpp"
#include "knear/index/faiss/faiss_reader.hpp"
#include "knear/index/form/form.hpp"
#include "knear/index/impl/index_over_centroids.hpp"
#include "knear/io/open_file.hpp"

namespace knear {
namespace {

using detail::CoarseQuantizer;
using detail::CodeShape;
using detail::FaissContent;
using detail::IndexImpl;
using detail::IndexShape;

std::unique_ptr<IndexImpl> made_of(FaissContent content, const ChangeOptions& options);

// A valid file whose lists are found in a way that is not read; knear.faiss.read_index reads it.
struct OtherLists {
  std::string what, reads;
};

// The centroids of lists: of an IndexFlat; or of any other index, by which they are found then.
std::shared_ptr<const CoarseQuantizer> coarse_of(FaissContent& of, IndexShape& shape,
                                                 const ChangeOptions& options) {
  FaissContent& from = *of.centroids;
  AnyMatrix found;
  detail::CentroidIndexes indexes;
  if (from.is_plain() && !from.codes && !from.rounded) {
    if (from.metric != of.metric)
      throw OtherLists{fmt::format("inverted lists that are found by {}, of rows by {}",
                                   name_of(from.metric), name_of(of.metric)),
                       "lists with one metric"};
    found = std::move(from.rows);
  } else {
    if (!traits_of(of.metric).squared || !traits_of(from.metric).squared)
      throw OtherLists{"an index that finds the centroids of its lists by inner products",
                       "an IndexFlat there"};
    // Which lists rows are in is what it found.
    constexpr float usual_factor = 4;
    if (from.fine && from.k_factor != usual_factor)
      throw OtherLists{
          fmt::format("an index over the centroids of its lists that measures {} codes for each "
                      "neighbour",
                      from.k_factor),
          fmt::format("k_factor {} there", usual_factor)};
    const std::int64_t probes = from.probes;
    std::unique_ptr<IndexImpl> index = made_of(std::move(from), options);
    shape.coarse = {index->shape};
    if (!shape.coarse.front().coarse.empty())
      throw OtherLists{"an index over the centroids of its lists that has one over its own", ""};
    if (!of.trained) return nullptr;
    const std::vector<Id> numbers = detail::first_ids(of.lists);
    if (index->ids() != numbers) throw CorruptFile("the centroids of its lists have other ids");
    // Codes are a few bytes where centroids are as many floats as there are columns.
    if (of.lists > machine_memory() / 16 / std::max<std::int64_t>(1, index->shape.dim))
      throw MemoryBudgetError("{} centroids of {} columns do not fit the memory of this machine",
                              of.lists, index->shape.dim);
    found = index->reconstruct(numbers);
    indexes.plain = std::make_shared<const detail::IndexOverCentroids>(std::move(index), probes);
  }
  if (!of.trained) return nullptr;
  Matrix<float> centroids(found.rows(), found.cols());
  detail::copy_exactly(found, ElementType::f32, centroids.data());
  find_value_range(centroids.view(), of.metric, "centroids", options.threads);
  return std::make_shared<const CoarseQuantizer>(std::move(centroids), of.metric, detail::Lifts{},
                                                 std::move(indexes));
}

// Rows that are what is left beside their centroids as they were.
AnyMatrix beside_centroids(const AnyMatrix& rows, std::span<const std::uint32_t> list_of,
                           MatrixView<float> centroids) {
  AnyMatrix out(ElementType::f32, rows.rows(), rows.cols());
  visit(rows.view(), [&](auto from) {
    for (std::int64_t i = 0; i < from.rows(); ++i) {
      const float* centroid = centroids.row(list_of[i]);
      for (std::int64_t j = 0; j < from.cols(); ++j)
        static_cast<float*>(out.row(i))[j] =
            static_cast<float>(double{centroid[j]} + to_double(from.row(i)[j]));
    }
  });
  return out;
}

// Keeps rows in the lists that FAISS has them in, whatever is nearest: what is certain of a list is
// its radius.
void keep_rows(detail::State& state, const IndexShape& shape, const detail::Form& form,
               FaissContent& content, const ChangeOptions& options) {
  if (content.rounded_residuals)
    content.rows = beside_centroids(content.rows, content.list_of, state.coarse->centroids());
  const AnyMatrixView rows =
      content.codes ? AnyMatrixView(content.code_rows.view()) : content.rows.view();
  AnyMatrixView fine;
  if (content.fine) {
    fine = content.fine->rows.view();
    if (!shape.refine->codes)
      find_value_range(fine, shape.metric, "vectors that refine codes", options.threads);
  }
  form.make_store()->append_kept(state, rows, content.ids, content.list_of, fine, options);
}

std::unique_ptr<IndexImpl> made_of(FaissContent content, const ChangeOptions& options) {
  IndexShape shape{.dim = content.dim,
                   .metric = content.metric,
                   .transforms = content.transforms,
                   .lists = content.lists,
                   .codes = content.codes,
                   .rounded = content.rounded_residuals ? std::nullopt : content.rounded};
  if (content.fine) shape.refine = detail::RefineShape{content.fine->rounded, content.fine->codes};
  detail::State state;
  if (content.lists > 0) state.coarse = coarse_of(content, shape, options);
  if (!content.trained) {
    if (content.size() > 0) throw CorruptFile("there are rows, but it is not trained");
    return std::make_unique<IndexImpl>(shape);
  }
  if (!content.chain.empty()) state.transform = Transform::chain(content.chain);
  const auto form = detail::form_of(shape);
  form->learn_numbers(
      state, content.quantizer,
      content.fine ? std::span<const float>(content.fine->quantizer) : std::span<const float>());
  for (std::size_t i = 0; i < content.ids.size(); ++i)
    if (content.ids[i] < 0)
      throw InvalidArgument("ids must not be negative, but hold {} in place {}", content.ids[i], i);
  detail::check_each_once(content.ids);
  state.size = content.size();
  if (state.size > 0) keep_rows(state, shape, *form, content, options);
  state.changed_rows = 0;
  return std::make_unique<IndexImpl>(shape, std::move(state));
}

}  // namespace

bool detail::begins_as_faiss(const std::string& path) {
  char first[4] = {};
  if (!io::read_beginning(path, first, sizeof first)) return false;
  const std::string_view letters(first, sizeof first), begin = letters.substr(0, 2);
  if (letters == "null") return false;  // which is written inside of an index
  if (!detail::name_of_faiss_index(letters).empty()) return true;
  // Of a later version. Four letters, which no number of columns is made of.
  return std::all_of(first, first + 4, [](char c) { return c > ' ' && c <= '~'; }) &&
         (begin == "Ix" || begin == "Iw" || begin == "Iv" || begin == "IB" || begin == "IH");
}

std::unique_ptr<detail::IndexImpl> detail::import_faiss(const std::string& path,
                                                        const ChangeOptions& options) {
  FaissContent content = read_faiss_content(path);
  try {
    return made_of(std::move(content), options);
  } catch (const OtherLists& other) {
    refuse_faiss(path, other.what, FaissModuleReads::yes, other.reads);
  } catch (const CorruptFile& error) {
    throw CorruptFile("{}: {}", path, error.what());
  } catch (const InvalidArgument& error) {  // a NaN, an id twice
    throw CorruptFile("{}: {}", path, error.what());
  }
}

}  // namespace knear
