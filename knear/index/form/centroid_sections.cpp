#include "knear/index/form/centroid_sections.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "knear/index/form/form_file.hpp"

namespace knear::detail {
namespace {

struct ListFields {
  std::int64_t lists;
  std::uint64_t trained;  // 1: there are centroids
  double longest;         // Lifts
};

// An index over centroids [lists x dim], nullptr if it is not trained; its shape.
std::shared_ptr<const CentroidIndex> load_centroid_index(Sections in, std::int64_t lists,
                                                         std::int64_t dim, Metric metric,
                                                         bool trained, IndexShape& shape,
                                                         MakeCentroidIndex make) {
  const std::vector<char> kind = in.list<char>("kind");
  SavedIndex saved = load_sections(in, {kind.data(), kind.size()}, make);
  shape = saved.shape;
  if (shape.dim != dim || shape.metric != metric || !shape.coarse.empty() || shape.in_two_lists)
    in.refuse("index", "it is none over these centroids");
  const auto probes = in.fields<std::int64_t>("probes");
  if (!trained) return nullptr;
  if (shape.lists > 0 ? probes < 1 || probes > shape.lists : probes != 0)
    in.refuse("probes", "they are more than the lists, or none");
  auto index = make(shape, std::move(saved.state), lists, probes);
  if (!index) in.refuse("index", "it holds others than the centroids");
  return index;
}

// index: nullptr before training.
void add_centroid_index(io::ArchiveWriter& writer, const std::string& prefix,
                        const IndexShape& shape, const CentroidIndex* index) {
  writer.set_prefix(prefix);
  const std::string kind = shape.kind();
  const std::int64_t probes = index ? index->probes() : 0;
  writer.add_copy("kind", kind.data(), kind.size());
  writer.add_copy("probes", &probes, sizeof probes);
  if (index)
    index->save(writer);
  else
    add_sections(writer, shape, {});
  writer.set_prefix("");
}

}  // namespace

void load_centroids(Sections& in, IndexShape& index, State& state, MakeCentroidIndex make) {
  const auto fields = in.fields<ListFields>("lists");
  if (fields.lists < 1 || fields.lists > (1 << 24) || fields.trained > 1)
    in.refuse("lists", "its numbers are none");
  index.lists = fields.lists;
  const std::int64_t dim = index.inner_dim();
  const Metric metric = index.metric;
  CentroidIndexes indexes;
  if (in.has("coarse/kind")) {
    IndexShape shape;
    indexes.plain = load_centroid_index(in.nested("coarse/"), fields.lists, dim,
                                        centroid_metric(metric), fields.trained == 1, shape, make);
    index.coarse = {shape};
  }
  if (fields.trained == 0) return;
  const auto stored = in.finite("centroids", fields.lists * dim);
  Matrix<float> centroids(fields.lists, dim);
  std::copy_n(stored.data(), stored.size(), centroids.data());
  Lifts lifts;
  if (fields.longest != 0) {
    lifts.longest = fields.longest;
    lifts.values = in.list<float>("lifts");
    if (!traits_of(index.metric).lifted || std::ssize(lifts.values) != fields.lists ||
        !(fields.longest > 0 && fields.longest < 1e15) ||
        !std::all_of(lifts.values.begin(), lifts.values.end(),
                     [](float x) { return x >= 0 && std::isfinite(x); }))
      in.refuse("lifts", "they are none");
    if (indexes.plain) {
      IndexShape shape;
      indexes.lifted = load_centroid_index(in.nested("lifted/"), fields.lists, dim + 1, Metric::l2,
                                           true, shape, make);
    }
  }
  state.coarse = std::make_shared<const CoarseQuantizer>(std::move(centroids), metric,
                                                         std::move(lifts), std::move(indexes));
}

void add_centroids(io::ArchiveWriter& writer, const IndexShape& shape, const State& state) {
  const CoarseQuantizer* const coarse = state.coarse.get();
  const ListFields lists{shape.lists, coarse != nullptr, coarse ? coarse->lifts().longest : 0};
  writer.add_copy("lists", &lists, sizeof lists);
  if (coarse) {
    const MatrixView<float> centroids = coarse->centroids();
    writer.add("centroids", centroids.data(),
               static_cast<std::size_t>(centroids.rows() * centroids.cols()) * sizeof(float));
  }
  if (lists.longest > 0)
    writer.add("lifts", coarse->lifts().values.data(),
               coarse->lifts().values.size() * sizeof(float));
  if (shape.coarse.empty()) return;
  IndexShape inner = shape.coarse.front();
  inner.dim = shape.inner_dim();
  inner.metric = centroid_metric(shape.metric);
  add_centroid_index(writer, "coarse/", inner, coarse ? coarse->indexes().plain.get() : nullptr);
  if (coarse && coarse->indexes().lifted)
    add_centroid_index(writer, "lifted/", inner, coarse->indexes().lifted.get());
}

}  // namespace knear::detail
