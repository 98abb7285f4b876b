#include "knear/knn/knn.hpp"

#include <charconv>
#include <cmath>

#include "knear/core/threads.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {
namespace {

constexpr std::int64_t max_dim = 65536;

void check_dim(std::string_view argument, std::int64_t dim) {
  if (dim < 1 || dim > max_dim)
    throw InvalidArgument("{} must have between 1 and {} columns, but has {}", argument, max_dim,
                          dim);
}

}  // namespace

std::string_view name_of(FirstPass pass) {
  switch (pass) {
    case FirstPass::automatic:
      return "auto";
    case FirstPass::integer:
      return "integer";
    case FirstPass::int8:
      return "int8";
    case FirstPass::int16:
      return "int16";
    case FirstPass::fp32:
      return "fp32";
    case FirstPass::direct:
      return "direct";
    case FirstPass::prefix:
      return "prefix";
  }
  return "?";
}

FirstPass parse_first_pass(std::string_view name) {
  for (FirstPass pass : {FirstPass::automatic, FirstPass::integer, FirstPass::int8,
                         FirstPass::int16, FirstPass::fp32, FirstPass::direct, FirstPass::prefix})
    if (name == name_of(pass)) return pass;
  throw InvalidArgument(
      "first_pass must be one of auto, integer, int8, int16, fp32, direct, prefix, but is '{}'",
      name);
}

std::string_view name_of(Method method) {
  switch (method) {
    case Method::automatic:
      return "auto";
    case Method::exact:
      return "exact";
    case Method::threshold_heap:
      return "threshold-heap";
    case Method::partial_reduce:
      return "partial-reduce";
  }
  return "?";
}

Method parse_method(std::string_view name) {
  for (Method method :
       {Method::automatic, Method::exact, Method::threshold_heap, Method::partial_reduce})
    if (name == name_of(method)) return method;
  throw InvalidArgument(
      "method must be one of auto, exact, threshold-heap, partial-reduce, but is '{}'", name);
}

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

// A base of one segment.
class ExactSearcher::Impl {
 public:
  Impl(AnyMatrixView base, const KnnOptions& options)
      : matrix(base), rows(base, options.metric, surveyed(base, options)) {}

  detail::SearchSegment segment(const KnnOptions& options) {
    if (!options.filter.everything() && options.filter.rows() != rows.base.rows())
      throw ShapeMismatch("filter is for {} rows, base has {}", options.filter.rows(),
                          rows.base.rows());
    return {&rows, {}, options.filter};
  }

  const AnyMatrixView matrix;
  detail::PreparedRows rows;

 private:
  static ValueRange surveyed(AnyMatrixView base, const KnnOptions& options) {
    DefaultFloatMode mode;
    check_dim("base", base.cols());
    return find_value_range(base, "base", options.threads);
  }
};

ExactSearcher::ExactSearcher(AnyMatrixView base, const KnnOptions& options)
    : impl_(std::make_unique<Impl>(base, options)) {}
ExactSearcher::~ExactSearcher() = default;
ExactSearcher::ExactSearcher(ExactSearcher&&) noexcept = default;
ExactSearcher& ExactSearcher::operator=(ExactSearcher&&) noexcept = default;

namespace {

using detail::check_k;
using detail::check_radius;

void check_columns(AnyMatrixView queries, std::int64_t columns) {
  if (queries.cols() != columns)
    throw ShapeMismatch("queries have {} columns, base has {}", queries.cols(), columns);
}

void check_metric(Metric asked, Metric prepared) {
  if (asked != prepared)
    throw InvalidArgument("metric is {}, but the base was prepared for {}", name_of(asked),
                          name_of(prepared));
}

}  // namespace

Neighbors ExactSearcher::search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                                KnnReport* report) const {
  // Whatever the caller's mode is: with denormals off, zero queries and the distances of tiny
  // vectors would be others.
  DefaultFloatMode mode;
  check_k(k);
  check_columns(queries, impl_->rows.base.cols());
  check_metric(options.metric, impl_->rows.metric);
  const detail::SearchSegment segment = impl_->segment(options);
  return detail::search_segments({&segment, 1}, queries, k, options, detail::Reuse::expected,
                                 report);
}

Neighbors ExactSearcher::self_join(std::int64_t k, const KnnOptions& options,
                                   KnnReport* report) const {
  DefaultFloatMode mode;
  check_k(k);
  check_metric(options.metric, impl_->rows.metric);
  return detail::self_join_segment(impl_->segment(options), impl_->matrix, k, options,
                                   detail::Reuse::expected, report);
}

RangeNeighbors ExactSearcher::range_search(AnyMatrixView queries, double radius,
                                           const KnnOptions& options, KnnReport* report) const {
  DefaultFloatMode mode;
  check_radius(radius);
  check_columns(queries, impl_->rows.base.cols());
  check_metric(options.metric, impl_->rows.metric);
  const detail::SearchSegment segment = impl_->segment(options);
  return detail::range_search_segments({&segment, 1}, queries, radius, options,
                                       detail::Reuse::expected, report);
}

Neighbors knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, const KnnOptions& options,
              KnnReport* report) {
  DefaultFloatMode mode;
  check_k(k);
  check_columns(queries, base.cols());
  ExactSearcher::Impl impl(base, options);
  const detail::SearchSegment segment = impl.segment(options);
  return detail::search_segments({&segment, 1}, queries, k, options, detail::Reuse::none, report);
}

Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                    KnnReport* report) {
  DefaultFloatMode mode;
  check_k(k);
  ExactSearcher::Impl impl(base, options);
  return detail::self_join_segment(impl.segment(options), base, k, options, detail::Reuse::none,
                                   report);
}

RangeNeighbors range_search(AnyMatrixView queries, AnyMatrixView base, double radius,
                            const KnnOptions& options, KnnReport* report) {
  DefaultFloatMode mode;
  check_radius(radius);
  check_columns(queries, base.cols());
  ExactSearcher::Impl impl(base, options);
  const detail::SearchSegment segment = impl.segment(options);
  return detail::range_search_segments({&segment, 1}, queries, radius, options, detail::Reuse::none,
                                       report);
}

}  // namespace knear
