// knear/index/form/probed_form.hpp -- what the forms share that look at some lists of each query:
// inverted lists of vectors (lists_form.cpp) and codes, in lists or without (codes_form.cpp).
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "knear/index/form/form.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/knn/lists/probed_search.hpp"

namespace knear::detail {

class ProbedForm : public Form {
 public:
  using Form::Form;

  void begin(State&) const override {}
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

 protected:
  // Throws InvalidArgument for options that a scan of these rows does not take.
  virtual void check_scan_options(const KnnOptions& options) const = 0;
  // Codes that are measured more finely for each neighbour; 0: none. Throws InvalidArgument for a
  // factor, and for a proof, that the form has not.
  virtual std::int64_t refine_factor_of(const SearchOptions& options) const = 0;
  // What Method::exact asks for, which names neither probes nor a lower recall.
  virtual void ask_for_all(SearchOptions& options, const State& state, SearchKind kind) const = 0;
  virtual SearchRequest request(SearchKind kind, const FormQuery& query, std::int64_t k,
                                const KnnOptions& options) const = 0;
  virtual std::unique_ptr<ProbedSearch> open(const FormQuery& query, const SearchRequest& request,
                                             std::int64_t refine_factor,
                                             std::int64_t more_bytes) const = 0;

  // Throws InvalidArgument for what no search of this form takes, before all else: who asks for
  // another method need not know of lists.
  void check_scan(const SearchOptions& options) const;
  // The options as they are, or what `exact` asks for.
  SearchOptions all_if_exact(const SearchOptions& asked, const State& state, SearchKind kind) const;
  // Throws InvalidArgument for a number that is no refine_factor.
  static void check_refine_factor(std::int64_t factor);
  // As refine_factor_of(), of a range search, which is not told one.
  std::int64_t refine_factor_of_range(const SearchOptions& options) const;
  // Throws InvalidArgument for what no range search takes.
  void check_range(const SearchOptions& options) const;
  // The rows within a radius in some lists of each query, or where there are no lists in all.
  RangeLists within_lists(const FormQuery& query, const SearchRequest& request, double radius,
                          std::int64_t probes, std::int64_t refine_factor, bool proven,
                          KnnReport* report) const;
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

// How many lists are probed, by what was asked for; 0: as many as recall takes.
std::int64_t probes_of(const SearchOptions& options, std::int64_t lists);

// The calibrations that a search has to make before it can begin, which its report names.
class Calibrations {
 public:
  // Measures the recall curve of the index for k neighbours and keeps it.
  template <class Make>
  RecallCurve first(Make make) {
    made_first_ = true;
    return by_batch(make);
  }
  // Makes a curve of the queries of this search alone.
  template <class Make>
  RecallCurve by_batch(Make make) {
    const Stopwatch time;
    RecallCurve out = make();
    seconds_ += time.seconds();
    return out;
  }
  void note(KnnReport& report, const std::string& more) const {
    report.note = more;
    if (made_first_)
      report.note = fmt::format(
          "recall of {} neighbours was calibrated first, which the index keeps, and "
          "its file once it is saved ('knear tune' does that){}{}",
          report.k, more.empty() ? "" : "; ", more);
    report.prepare_seconds += seconds_;
  }
  double seconds() const { return seconds_; }

 private:
  bool made_first_ = false;
  double seconds_ = 0;
};

// Says in a report whether every answer is exact, or that nothing is known of them.
void set_recall(KnnReport& report, bool exact, std::int64_t queries);

// Keeps a curve with a state and says what it tells.
std::vector<OperatingPoint> keep_curve(const State& state, const RecallCurve& curve);

}  // namespace knear::detail
