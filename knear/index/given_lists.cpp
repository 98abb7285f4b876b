#include "knear/index/given_lists.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/impl/index_impl.hpp"

namespace knear::detail {
namespace {

void check_kept_plainly(const IndexShape& shape) {
  if (!shape.transforms.empty() || shape.refine)
    throw InvalidArgument("index {} has transforms or refines codes, so that it takes no lists",
                          shape.description());
}

void check_list(Id list, std::int64_t count) {
  if (list >= count || list < 0)
    throw InvalidArgument("lists hold {}, but the index has {} of them", list, count);
}

// The lists of each query, those that are no_id last.
Matrix<Id> in_order(MatrixView<Id> lists, std::int64_t count) {
  Matrix<Id> out(lists.rows(), lists.cols());
  std::vector<Id> sorted;
  for (std::int64_t q = 0; q < lists.rows(); ++q) {
    Id* const to = out.row(q);
    Id* const end = std::copy_if(lists.row(q), lists.row(q) + lists.cols(), to,
                                 [](Id list) { return list != no_id; });
    for (const Id* list = to; list < end; ++list) check_list(*list, count);
    std::fill(end, to + lists.cols(), no_id);
    sorted.assign(to, end);
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
      throw InvalidArgument("lists hold {} twice for query {}", *twice, q);
  }
  return out;
}

}  // namespace

Index trained_index(const TrainedForm& form) {
  return public_call([&]() -> Index {
    check_index_dim(form.dim);
    IndexShape shape{.dim = form.dim,
                     .metric = form.metric,
                     .lists = form.centroids.rows(),
                     .codes = form.codes,
                     .rounded = form.rounded};
    State state;
    if (shape.lists > 0) {
      check_lists(shape.lists);
      if (form.centroids.cols() != form.dim)
        throw ShapeMismatch("centroids have {} columns, dim is {}", form.centroids.cols(),
                            form.dim);
      find_value_range(form.centroids, form.metric, "centroids", 0);
      Matrix<float> own(shape.lists, form.dim);
      copy_exactly(form.centroids, ElementType::f32, own.data());
      state.coarse = std::make_shared<const CoarseQuantizer>(std::move(own), form.metric, Lifts{},
                                                             CentroidIndexes{});
    }
    form_of(shape)->learn_numbers(state, form.numbers, {});
    return Index(std::make_unique<IndexImpl>(shape, std::move(state)));
  });
}

void add_to_lists(Index& index, AnyMatrixView rows, std::span<const Id> lists,
                  const ChangeOptions& options) {
  public_call([&] {
    IndexImpl& impl = index.body().one();
    const IndexShape& shape = impl.shape;
    check_kept_plainly(shape);
    std::lock_guard lock(impl.writer);
    State next = *impl.state();
    impl.check_trained(next, "adding rows");
    const std::int64_t code_size = impl.form->code_size(next),
                       columns = code_size > 0 ? code_size : shape.dim;
    if (rows.cols() != columns || (code_size > 0 && rows.type() != ElementType::u8))
      throw ShapeMismatch("rows are {} with {} columns, but index {} keeps {} {} a row",
                          name_of(rows.type()), rows.cols(), shape.description(), columns,
                          code_size > 0 ? "bytes" : "numbers");
    if (std::ssize(lists) != (shape.lists > 0 ? rows.rows() : 0))
      throw ShapeMismatch("lists are {} for {} rows, but index {} has {} lists", lists.size(),
                          rows.rows(), shape.description(), shape.lists);
    if (rows.rows() == 0) return;
    for (const Id list : lists) check_list(list, shape.lists);
    const std::vector<std::uint32_t> list_of(lists.begin(), lists.end());
    impl.store->append_kept(next, rows, {}, list_of, {}, options);
    impl.publish(std::move(next));
  });
}

Neighbors search_lists(const Index& index, AnyMatrixView queries, MatrixView<Id> lists,
                       std::int64_t k, const SearchOptions& options, KnnReport* report) {
  return public_call([&] {
    const IndexImpl& impl = index.body().one();
    const IndexShape& shape = impl.shape;
    const Stopwatch time;
    check_kept_plainly(shape);
    if (shape.lists == 0)
      throw InvalidArgument("index {} has no inverted lists", shape.description());
    check_answer(queries.rows(), k);
    impl.check_columns("queries", queries);
    if (lists.rows() != queries.rows())
      throw ShapeMismatch("lists are {} rows, queries are {}", lists.rows(), queries.rows());
    const auto now = impl.state();
    impl.check_trained(*now, "searching");
    check_padding(queries.rows(), k, now->size, options.memory);
    const Matrix<Id> probes = in_order(lists, shape.lists);
    const IdFilter filter = quick_filter(now->size, now->next_id, options.filter);
    const std::vector<SearchSegment> segments = search_segments_of(*now, filter);
    const ExactNeighbors near = impl.form->nearest_in({*now, segments, queries, queries, options},
                                                      probes.view(), k, report);
    if (report) impl.set_call_of(*report, *now, time);
    return rounded(near, shape.metric, queries.rows(), k, resolve_threads(options.threads));
  });
}

}  // namespace knear::detail
