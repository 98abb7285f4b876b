// The public calls of an index: each does what detail::IndexImpl does, and names the errors that
// come from below (core/public_call.hpp).
#include "knear/index/index.hpp"

#include <utility>

#include "knear/core/public_call.hpp"
#include "knear/index/faiss/faiss_import.hpp"
#include "knear/index/file/index_file.hpp"
#include "knear/index/graph/graph_search.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/impl/index_over_centroids.hpp"
#include "knear/io/archive.hpp"

namespace knear {

using detail::public_call;

Index::Index(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Index::Index(Index&&) noexcept = default;
Index& Index::operator=(Index&&) noexcept = default;
Index::~Index() = default;

std::string Index::description() const { return impl_->shape.description(); }
std::int64_t Index::dim() const { return impl_->shape.dim; }
Metric Index::metric() const { return impl_->shape.metric; }
std::int64_t Index::size() const { return impl_->state()->size; }
ElementType Index::element_type() const { return impl_->element_type(); }
Id Index::next_id() const { return impl_->state()->next_id; }
std::int64_t Index::version() const { return impl_->state()->version; }
bool Index::contains(Id id) const { return impl_->state()->find(id).row >= 0; }
bool Index::keeps_vectors() const { return impl_->shape.keeps_vectors(); }
bool Index::has_codes() const { return impl_->shape.codes.has_value(); }
bool Index::has_graph() const { return impl_->shape.has_graph(); }
std::int64_t Index::lists() const { return impl_->shape.lists; }
bool Index::is_trained() const { return impl_->is_trained(*impl_->state()); }

std::vector<Id> Index::ids() const {
  return public_call([&] { return impl_->ids(); });
}
std::int64_t Index::memory_bytes() const {
  return public_call([&] { return impl_->memory_bytes(); });
}
Matrix<float> Index::centroids() const {
  return public_call([&] { return impl_->centroids(); });
}
std::vector<std::int64_t> Index::list_sizes() const {
  return public_call([&] { return impl_->list_sizes(); });
}
std::vector<std::int64_t> Index::lists_of(std::span<const Id> ids) const {
  return public_call([&] { return impl_->lists_of(ids); });
}
AnyMatrix Index::reconstruct(std::span<const Id> ids) const {
  return public_call([&] { return impl_->reconstruct(ids); });
}

void Index::train(AnyMatrixView vectors, const TrainOptions& options) {
  public_call([&] { impl_->train(vectors, options, detail::IndexOverCentroids::trained); });
}
void Index::add(AnyMatrixView vectors, const ChangeOptions& options) {
  public_call([&] {
    impl_->check_not_too_far(vectors);
    impl_->add(vectors, options);
  });
}
void Index::add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options) {
  public_call([&] {
    impl_->check_not_too_far(vectors);
    impl_->add(vectors, ids, options);
  });
}
void Index::reserve(std::int64_t rows) {
  public_call([&] { impl_->reserve(rows); });
}
void Index::remove(std::span<const Id> ids, const ChangeOptions& options) {
  public_call([&] { impl_->remove(ids, options); });
}
void Index::replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options) {
  public_call([&] {
    impl_->check_not_too_far(vectors);
    impl_->replace(ids, vectors, options);
  });
}
void Index::merge(const Index& other, MergeIds ids) {
  public_call([&] { impl_->merge(*other.impl_, ids); });
}
void Index::compact(const ChangeOptions& options) {
  public_call([&] { impl_->compact(options); });
}
std::int64_t Index::optimize(const ChangeOptions& options) {
  return public_call([&] { return impl_->optimize(options); });
}
std::vector<OperatingPoint> Index::tune(std::int64_t k, AnyMatrixView queries,
                                        const ChangeOptions& options) {
  return public_call([&] { return impl_->tune(k, queries, options); });
}
std::vector<OperatingPoint> Index::tune(std::int64_t k, AnyMatrixView queries, AnyMatrixView base,
                                        std::span<const Id> ids, const ChangeOptions& options) {
  return public_call([&] { return impl_->tune(k, queries, base, ids, options); });
}

Neighbors Index::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                        KnnReport* report) const {
  return public_call([&] { return impl_->search(queries, k, options, report); });
}
RangeNeighbors Index::range_search(AnyMatrixView queries, double radius,
                                   const SearchOptions& options, KnnReport* report) const {
  return public_call([&] { return impl_->range_search(queries, radius, options, report); });
}

void Index::save(const std::string& path, const Progress& progress) const {
  public_call([&] {
    const auto state = impl_->state();
    if (state->graph) state->graph->get(*state, impl_->shape, 0, progress);
    detail::save_index(*state, impl_->shape, path, progress);
  });
}

Index Index::load(const std::string& path, const Progress& progress) {
  return public_call([&] {
    const bool archive = io::is_archive(path);
    if (!archive && detail::begins_as_faiss(path))
      return Index(detail::import_faiss(path, {.progress = progress}));
    if (archive || path.ends_with(".knear")) return Index(detail::open_index(path));
    if (path.ends_with(".faiss")) return Index(detail::import_faiss(path, {.progress = progress}));
    const io::MappedFile readable(path);  // or an error that says why it is not
    throw CorruptFile("{} is neither a .knear file nor a FAISS index file", path);
  });
}

}  // namespace knear
