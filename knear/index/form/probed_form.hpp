// knear/index/form/probed_form.hpp -- what the forms share that look at some lists of each query:
// inverted lists of vectors (lists_form.cpp) and codes, in lists or without (codes_form.cpp).
#pragma once
#include <memory>
#include <optional>
#include <string_view>

#include "knear/index/form/form.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/probed_options.hpp"
#include "knear/knn/lists/probed_search.hpp"
#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {

class ProbedForm : public Form {
 public:
  using Form::Form;

  void begin(State& state) const override;
  void follow(State& next, const State& before, std::span<const Id> added) const override;
  bool is_trained(const State& state) const override {
    return shape_.lists == 0 || state.coarse != nullptr;
  }
  bool learns() const override { return true; }
  std::int64_t least_training_rows() const override { return shape_.lists; }
  // Finds the centroids of lists, if there are any.
  void train(State& next, const TrainingRows& from) const override;
  ExactNeighbors nearest_in(const FormQuery& query, MatrixView<Id> lists, std::int64_t k,
                            KnnReport* report) const override;
  std::optional<std::int64_t> make_ready(const State&, const ChangeOptions&) const override {
    return {};
  }

  // A search of lists that can be begun anew, once it is known to have probed by the wrong rule.
  class Attempt;

  std::int64_t bytes(const State& state) const override;
  void load_recall(Sections& in, State& state) const override;
  void check_faiss(const State& state) const override;

 protected:
  virtual SearchRequest request(SearchKind kind, const FormQuery& query, std::int64_t k,
                                const KnnOptions& options) const = 0;
  virtual std::unique_ptr<ProbedSearch> open(const FormQuery& query, const SearchRequest& request,
                                             std::int64_t refine_factor,
                                             std::int64_t more_bytes) const = 0;

  static void save_recall(io::ArchiveWriter& writer, const State& state);

  // The rows within a radius in some lists of each query, or where there are no lists in all.
  // proven: whether these are all of them.
  RangeLists within_lists(const FormQuery& query, const SearchRequest& request, double radius,
                          const ProbedOptions& asked, bool proven, KnnReport* report) const;
};

class ProbedForm::Attempt {
 public:
  // What is given has to stay. more_bytes: as ListSearch takes them.
  Attempt(const ProbedForm& form, const FormQuery& query, const SearchRequest& request,
          std::int64_t more_bytes)
      : form_(form), query_(query), request_(request), more_bytes_(more_bytes) {}

  // Has probed nothing yet; what was found before is dropped.
  void begin(std::int64_t refine_factor) {
    probing_.reset();  // which refers to the search
    search_ = form_.open(query_, request_, refine_factor, more_bytes_);
    probing_.emplace(query_.state, request_, *search_);
  }
  // The probing of the latest begin().
  ListProbing& probing() { return *probing_; }

 private:
  const ProbedForm& form_;
  const FormQuery& query_;
  const SearchRequest& request_;
  const std::int64_t more_bytes_;
  std::unique_ptr<ProbedSearch> search_;
  std::optional<ListProbing> probing_;
};

// The calibrations that a search has to make before it can begin: its request tells them.
class Calibrations {
 public:
  explicit Calibrations(SearchRequest& request) : request_(request) {}

  // Measures the recall curve of the index and keeps it.
  template <class Make>
  RecallCurve first(Make make) {
    add_note(
        fmt::format("recall of {} neighbours was calibrated first, which the index keeps, and "
                    "its file once it is saved ('knear tune' does that)",
                    request_.k_asked));
    return by_batch(make);
  }
  // Makes a curve of the queries of this search alone.
  template <class Make>
  RecallCurve by_batch(Make make) {
    const Stopwatch time;
    RecallCurve out = make();
    request_.preparation.seconds += time.seconds();
    return out;
  }
  void add_note(std::string_view note) { detail::add_note(request_.preparation.note, note); }

 private:
  SearchRequest& request_;
};

// Returns the promise of a search of `batch` queries by the rule of a point, whose answer is not
// proven.
PromiseReport calibrated_promise(const RecallPoint& point, double recall, std::int64_t batch);

// Keeps a curve with a state and says what it tells.
std::vector<OperatingPoint> keep_curve(const State& state, const RecallCurve& curve);

}  // namespace knear::detail
