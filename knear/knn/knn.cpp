#include "knear/knn/knn.hpp"

#include <charconv>

#include "knear/core/public_call.hpp"
#include "knear/knn/faster_device.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {
namespace {

template <class T>
struct Named {
  T value;
  std::string_view name;
};
constexpr Named<FirstPass> first_passes[] = {
    {FirstPass::automatic, "auto"}, {FirstPass::integer, "integer"}, {FirstPass::int8, "int8"},
    {FirstPass::int16, "int16"},    {FirstPass::fp32, "fp32"},       {FirstPass::direct, "direct"},
    {FirstPass::prefix, "prefix"}};
constexpr Named<Method> methods[] = {{Method::automatic, "auto"},
                                     {Method::exact, "exact"},
                                     {Method::threshold_heap, "threshold-heap"},
                                     {Method::partial_reduce, "partial-reduce"}};

template <class T>
std::string_view name_in(std::span<const Named<T>> all, T value) {
  for (const Named<T>& one : all)
    if (one.value == value) return one.name;
  return "?";
}

template <class T>
T value_in(std::span<const Named<T>> all, std::string_view argument, std::string_view name) {
  std::string names;
  for (const Named<T>& one : all) {
    if (one.name == name) return one.value;
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  throw InvalidArgument("{} must be one of {}, but is '{}'", argument, names, name);
}

}  // namespace

std::string_view name_of(FirstPass pass) { return name_in<FirstPass>(first_passes, pass); }
FirstPass parse_first_pass(std::string_view name) {
  return value_in<FirstPass>(first_passes, "first_pass", name);
}
std::string_view name_of(Method method) { return name_in<Method>(methods, method); }
Method parse_method(std::string_view name) { return value_in<Method>(methods, "method", name); }

TuningOverrides parse_tuning(std::string_view text) {
  TuningOverrides out;
  const auto refuse = [](std::string_view item) {
    throw InvalidArgument(
        "choices are group=1|4|12, parts=N, columns=N (a multiple of 8 up to 128), clusters=N, "
        "tile=N (KiB), guess=on|off and refine=on|off, with commas between them, but there is '{}'",
        item);
  };
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equal = item.find('=');
    if (equal == std::string_view::npos) refuse(item);
    const std::string_view name = item.substr(0, equal), value = item.substr(equal + 1);
    if (name == "guess" || name == "refine") {
      if (value != "on" && value != "off") refuse(item);
      if (name == "guess")
        out.guess = value == "on";
      else
        out.refine = value == "on";
      continue;
    }
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size()) refuse(item);
    if (name == "group" && (number == 1 || number == 4 || number == 12))
      out.group = static_cast<int>(number);
    else if (name == "parts" && number >= 1 && number <= 4096)
      out.parts = static_cast<int>(number);
    else if (name == "columns" && number >= 8 && number <= 128 && number % 8 == 0)
      out.columns = number;
    else if (name == "clusters" && number >= 1 && number <= 1 << 20)
      out.clusters = number;
    else if (name == "tile" && number >= 1 && number <= detail::most_tile)
      out.tile = number;
    else
      refuse(item);
  }
  return out;
}

using detail::Reuse;
using detail::SearchKind;
using detail::SearchRequest;

// A base of one segment.
class ExactSearcher::Impl {
 public:
  Impl(AnyMatrixView base, const KnnOptions& options)
      : matrix(base), rows_(base, options.metric, value_range(base, options)) {}

  SearchRequest request(SearchKind kind, AnyMatrixView queries, std::int64_t k,
                        const KnnOptions& options, Reuse reuse) {
    detail::check_answer(queries.rows(), k);
    detail::check_columns(queries.cols(), matrix.cols());
    if (options.method.aggregate)
      detail::check_padding(queries.rows(), k, matrix.rows(), options.memory);
    detail::check_metric(options.metric, rows_.metric);
    detail::check_filter(options.filter, matrix.rows());
    const detail::SearchSegment segment{&rows_, {}, options.filter};
    return detail::placed_request(kind, segment, queries, k, options, reuse);
  }

  const AnyMatrixView matrix;

 private:
  static ValueRange value_range(AnyMatrixView base, const KnnOptions& options) {
    detail::check_dim("base", base.cols());
    return find_value_range(base, options.metric, "base", options.threads);
  }
  detail::PreparedRows rows_;
};

ExactSearcher::ExactSearcher(AnyMatrixView base, const KnnOptions& options)
    : impl_(detail::public_call([&] { return std::make_unique<Impl>(base, options); })) {}
ExactSearcher::~ExactSearcher() = default;
ExactSearcher::ExactSearcher(ExactSearcher&&) noexcept = default;
ExactSearcher& ExactSearcher::operator=(ExactSearcher&&) noexcept = default;

Neighbors ExactSearcher::search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                                KnnReport* report) const {
  return detail::public_call([&] {
    return search_segments(
        impl_->request(SearchKind::nearest, queries, k, options, Reuse::expected), report);
  });
}

Neighbors ExactSearcher::self_join(std::int64_t k, const KnnOptions& options,
                                   KnnReport* report) const {
  return detail::public_call([&] {
    return search_segments(
        impl_->request(SearchKind::self_join, impl_->matrix, k, options, Reuse::expected), report);
  });
}

RangeNeighbors ExactSearcher::range_search(AnyMatrixView queries, double radius,
                                           const KnnOptions& options, KnnReport* report) const {
  return detail::public_call([&] {
    radius = detail::checked_radius(radius);
    return range_search_segments(
        impl_->request(SearchKind::range, queries, detail::usual_k, options, Reuse::expected),
        radius, report);
  });
}

// What is wrong with the arguments is said before the base is looked at.
Neighbors knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, const KnnOptions& options,
              KnnReport* report) {
  return detail::public_call([&] {
    detail::check_answer(queries.rows(), k);
    detail::check_columns(queries.cols(), base.cols());
    ExactSearcher::Impl impl(base, options);
    return search_segments(impl.request(SearchKind::nearest, queries, k, options, Reuse::none),
                           report);
  });
}

Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                    KnnReport* report) {
  return detail::public_call([&] { return detail::self_join(base, k, options, {}, report); });
}

RangeNeighbors range_search(AnyMatrixView queries, AnyMatrixView base, double radius,
                            const KnnOptions& options, KnnReport* report) {
  return detail::public_call([&] {
    radius = detail::checked_radius(radius);
    detail::check_columns(queries.cols(), base.cols());
    ExactSearcher::Impl impl(base, options);
    return range_search_segments(
        impl.request(SearchKind::range, queries, detail::usual_k, options, Reuse::none), radius,
        report);
  });
}

}  // namespace knear
