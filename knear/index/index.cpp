// The public calls of an index: each does what its body does, and names the errors that come from
// below (core/public_call.hpp).
#include "knear/index/index.hpp"

#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/faiss/faiss_import.hpp"
#include "knear/index/file/index_file.hpp"
#include "knear/index/shards/index_in_shards.hpp"
#include "knear/io/archive.hpp"

namespace knear {

using detail::IndexBody;
using detail::IndexInShards;
using detail::public_call;

namespace {

// One index, of whichever kind of file but a manifest.
std::unique_ptr<detail::IndexImpl> load_one(const std::string& path, const Progress& progress) {
  const bool archive = io::is_archive(path);
  if (!archive && detail::begins_as_faiss(path))
    return detail::import_faiss(path, {.progress = progress});
  if (archive || path.ends_with(".knear")) return detail::open_index(path);
  if (path.ends_with(".faiss")) return detail::import_faiss(path, {.progress = progress});
  const io::MappedFile readable(path);  // or an error that says why it is not
  throw CorruptFile("{} is neither a .knear file nor a FAISS index file", path);
}

template <class F>
auto of_shards(const IndexBody& body, F f) {
  return public_call([&] {
    std::vector<decltype(f(detail::ShardCounts{}))> out;
    for (const detail::ShardCounts& shard : body.shards()) out.push_back(f(shard));
    return out;
  });
}

}  // namespace

Index::Index(std::unique_ptr<IndexBody> body) : body_(std::move(body)) {}
Index::Index(Index&&) noexcept = default;
Index& Index::operator=(Index&&) noexcept = default;
Index::~Index() = default;

std::string Index::description() const { return body_->shape.description(); }
std::int64_t Index::dim() const { return body_->shape.dim; }
Metric Index::metric() const { return body_->shape.metric; }
std::int64_t Index::size() const { return body_->counts().size; }
ElementType Index::element_type() const { return body_->counts().type; }
Id Index::next_id() const { return body_->counts().next_id; }
std::int64_t Index::version() const { return body_->counts().version; }
bool Index::contains(Id id) const { return body_->contains(id); }
bool Index::keeps_vectors() const { return body_->shape.keeps_vectors(); }
bool Index::has_codes() const { return body_->shape.codes.has_value(); }
bool Index::has_graph() const { return body_->shape.has_graph(); }
std::int64_t Index::lists() const { return body_->shape.lists; }
bool Index::is_trained() const { return body_->counts().is_trained; }

Index Index::divided(const ShardingOptions& options) const {
  return public_call(
      [&] { return Index(std::make_unique<IndexInShards>(*body_->as_one(), options)); });
}
Index Index::as_one() const {
  return public_call([&] { return Index(body_->as_one()); });
}
std::int64_t Index::shards() const { return std::ssize(body_->shards()); }
std::int64_t Index::replicas() const { return body_->replicas(); }
std::vector<std::int64_t> Index::shard_sizes() const {
  return of_shards(*body_, [](const auto& shard) { return shard.rows; });
}
std::vector<std::string> Index::shard_names() const {
  return of_shards(*body_, [](const auto& shard) { return shard.name; });
}
std::vector<std::string> Index::missing_shards() const {
  return public_call([&] {
    std::vector<std::string> out;
    for (const detail::ShardCounts& shard : body_->shards())
      if (shard.missing) out.push_back(shard.name);
    return out;
  });
}

std::vector<Id> Index::ids() const {
  return public_call([&] { return body_->ids(); });
}
std::int64_t Index::memory_bytes() const {
  return public_call([&] { return body_->memory_bytes(); });
}
Matrix<float> Index::centroids() const {
  return public_call([&] { return body_->centroids(); });
}
std::vector<std::int64_t> Index::list_sizes() const {
  return public_call([&] { return body_->list_sizes(); });
}
std::vector<std::int64_t> Index::lists_of(std::span<const Id> ids) const {
  return public_call([&] { return body_->lists_of(ids); });
}
AnyMatrix Index::reconstruct(std::span<const Id> ids) const {
  return public_call([&] { return body_->reconstruct(ids); });
}

void Index::train(AnyMatrixView vectors, const TrainOptions& options) {
  public_call([&] { body_->train(vectors, options); });
}
void Index::add(AnyMatrixView vectors, const ChangeOptions& options) {
  public_call([&] {
    body_->check_not_too_far(vectors);
    body_->add(vectors, options);
  });
}
void Index::add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options) {
  public_call([&] {
    detail::check_given_ids(ids);
    body_->check_not_too_far(vectors);
    body_->add_with_any_ids(vectors, ids, options);
  });
}
void Index::reserve(std::int64_t rows) {
  public_call([&] { body_->reserve(rows); });
}
void Index::remove(std::span<const Id> ids, const ChangeOptions& options) {
  public_call([&] { body_->remove(ids, options); });
}
void Index::replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options) {
  public_call([&] {
    body_->check_not_too_far(vectors);
    body_->replace(ids, vectors, options);
  });
}
void Index::merge(const Index& other, MergeIds ids) {
  public_call([&] { body_->merge(*other.body_, ids); });
}
void Index::compact(const ChangeOptions& options) {
  public_call([&] { body_->compact(options); });
}
std::int64_t Index::optimize(const ChangeOptions& options) {
  return public_call([&] { return body_->optimize(options); });
}
std::vector<OperatingPoint> Index::tune(std::int64_t k, AnyMatrixView queries,
                                        const ChangeOptions& options) {
  return public_call([&] { return body_->tune(k, queries, options); });
}
std::vector<OperatingPoint> Index::tune(std::int64_t k, AnyMatrixView queries, AnyMatrixView base,
                                        std::span<const Id> ids, const ChangeOptions& options) {
  return public_call([&] { return body_->tune(k, queries, base, ids, options); });
}

Neighbors Index::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                        KnnReport* report) const {
  return public_call([&] { return body_->search(queries, k, options, report); });
}
RangeNeighbors Index::range_search(AnyMatrixView queries, double radius,
                                   const SearchOptions& options, KnnReport* report) const {
  return public_call([&] { return body_->range_search(queries, radius, options, report); });
}

void Index::set_audit(double share) {
  public_call([&] { body_->set_audit(share); });
}
double Index::audit() const { return body_->audit(); }
std::vector<AuditReport> Index::audits() const {
  return public_call([&] { return body_->audits(); });
}

void Index::save(const std::string& path, const Progress& progress) const {
  public_call([&] { body_->save(path, {.progress = progress}); });
}

Index Index::load(const std::string& path, const LoadOptions& options) {
  return public_call([&] {
    if (is_sharded_file(path)) return Index(std::make_unique<IndexInShards>(path, options));
    Index one(load_one(path, options.progress));
    if (options.allow_partial)
      throw InvalidArgument("allow_partial is for an index in shards, but '{}' is one file", path);
    return options.replicas == 0 || options.replicas == 1
               ? std::move(one)
               : one.divided({.replicas = options.replicas});
  });
}

bool is_sharded_file(const std::string& path) {
  return io::kind_of_archive(path) == detail::kind_of_shards;
}

}  // namespace knear
