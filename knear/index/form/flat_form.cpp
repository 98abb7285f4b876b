// This form compares a query with all vectors. Where a search need not find everything, it makes
// inverted lists once they pay (index/lists/flat_lists.hpp).
#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/form.hpp"
#include "knear/index/lists/flat_lists.hpp"
#include "knear/index/sections/transform_sections.hpp"
#include "knear/index/sections/vector_sections.hpp"
#include "knear/knn/search/few_rows_search.hpp"
#include "knear/knn/search/search.hpp"

namespace knear::detail {
namespace {

class FlatForm final : public Form {
 public:
  using Form::Form;

  std::string kind() const override { return "Flat"; }
  std::string words() const override { return words_of(shape_.rounded); }

  void begin(State& state) const override {
    if (!state.flat_lists) state.flat_lists = std::make_shared<FlatLists>();
  }
  void follow(State& next, const State&, std::span<const Id>) const override {
    next.flat_lists = std::make_shared<FlatLists>();
  }

  bool nearest_at_once(const State& state, AnyMatrixView queries, std::int64_t k,
                       const SearchOptions& options, FewRowsSearch& search) const override {
    std::int64_t rows = 0;
    for (const Segment& segment : state.segments) rows += segment.rows->rows();
    if (state.size == 0 || !FewRowsSearch::are_few(rows, shape_.dim) || !leaves_all(options) ||
        shape_.alters_vectors() || !FewRowsSearch::serves(queries, shape_.metric))
      return false;
    search.begin(queries, shape_.metric, k, options.threads);
    for (const Segment& segment : state.segments)
      if (segment.live.count() > 0)
        search.add(segment.rows->base(), segment.rows->ids(),
                   segment.live.all() ? nullptr : &segment.live);
    return true;
  }
  ExactNeighbors nearest(const FormQuery& query, std::int64_t k, KnnReport* report) const override {
    Preparation preparation;
    if (traits_of(shape_.metric).by_products)
      if (auto near = query.state.flat_lists->search(query.state, shape_, query.queries, k,
                                                     query.options, preparation, report))
        return std::move(*near);
    SearchRequest request = this->request(SearchKind::nearest, query, k);
    request.preparation = std::move(preparation);
    return nearest_in_segments(request, report);
  }
  RangeLists within(const FormQuery& query, double radius, KnnReport* report) const override {
    return within_segments(request(SearchKind::range, query, usual_k), radius, report);
  }

  std::optional<std::int64_t> make_ready(const State& state,
                                         const ChangeOptions& options) const override {
    std::int64_t rows = 0;
    for (const Segment& segment : state.segments)
      if (optimize(segment.rows->prepared(), options.threads, options.progress))
        rows += segment.size();
    return rows;
  }
  std::int64_t bytes(const State& state) const override { return state.flat_lists->bytes(); }
  std::vector<OperatingPoint> tune(const State& state, std::int64_t k, AnyMatrixView vectors,
                                   const ChangeOptions& options) const override {
    check_by_products(shape_.metric, "tuning, by inverted lists,");
    const TransformedQueries inner(state, shape_.metric, vectors, options.threads);
    return points_of(state.flat_lists->tune(state, shape_, k, inner.view(), options));
  }

  bool takes_every_metric() const override { return true; }
  void save(io::ArchiveWriter& writer, const State& state) const override {
    add_transforms(writer, shape_, state.transform);
    add_rounded(writer, shape_);
    save_vectors(writer, state);
  }
  void load_learned(Sections& in, const FileHead&, IndexShape& shape, State&) const override {
    load_rounded(in, shape);
  }

 private:
  // Returns true if the options leave everything to the index: no more than threads and a recall
  // are given, and both are allowed. Few rows are searched exactly, which keeps every recall.
  static bool leaves_all(const SearchOptions& options) {
    const std::optional<double>& recall = options.method.recall;
    return options.threads >= 0 && options.threads <= 4096 && options.memory == 0 &&
           options.first_pass == FirstPass::automatic && options.filter.everything() &&
           !options.progress && options.device == "cpu" && options.tuning == TuningOverrides{} &&
           (!recall || (*recall > 0 && *recall <= 1)) &&
           options.method == SearchMethod{.recall = recall};
  }
  SearchRequest request(SearchKind kind, const FormQuery& query, std::int64_t k) const {
    SearchRequest out(kind, query.segments, query.queries, k,
                      options_of_scan(query.options, shape_.metric), Reuse::expected);
    out.altered_by = shape_.altered_by();
    return out;
  }
};

}  // namespace

FormEntry flat_form() {
  const auto take = [](FactoryWords& words, IndexShape& shape) {
    return shape.lists == 0 && take_vectors(words, shape) ? only_map : std::string_view();
  };
  return {{"Flat"},
          words_of_vectors,
          "",
          take,
          [](const IndexShape& shape) { return !shape.is_probed() && !shape.has_graph(); },
          make_form<FlatForm>};
}

}  // namespace knear::detail
