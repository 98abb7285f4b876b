#include "knear/knn/search/search_request.hpp"

#include <algorithm>
#include <cmath>

#include "knear/core/threads.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/knn/search/device_engine.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t max_dim = 65536, most_logical_rows = std::int64_t{1} << 40;

template <class... Arguments>
void refuse_if(bool wrong, ErrorFormat<std::type_identity_t<Arguments>...> text,
               Arguments&&... arguments) {
  if (wrong) throw InvalidArgument(text, std::forward<Arguments>(arguments)...);
}

// That method, recall and what belongs to a method go together.
void check_method(const MethodOptions& method) {
  const double recall = method.recall.value_or(1);
  refuse_if(!(recall > 0 && recall <= 1), "recall must be in (0, 1], but is {}", recall);
  const auto refuse = [&](std::string_view name, std::int64_t value, Method of) {
    refuse_if(value < 0, "{} must be at least 0, but is {}", name, value);
    refuse_if(value > 0 && method.kind != of, "{} is {}, but method is {}, not {}", name, value,
              name_of(method.kind), name_of(of));
  };
  refuse("samples", method.threshold_heap.samples, Method::threshold_heap);
  refuse("query_batch", method.threshold_heap.query_batch, Method::threshold_heap);
  refuse("logical_rows", method.partial_reduce.logical_rows, Method::partial_reduce);
  refuse_if(!method.partial_reduce.aggregate && method.kind != Method::partial_reduce,
            "aggregate is off, but method is {}, not partial-reduce", name_of(method.kind));
  refuse_if(recall < 1 && (method.kind == Method::exact || method.kind == Method::threshold_heap),
            "method is {}, which finds everything, but recall is {}", name_of(method.kind), recall);
}

void check_kind(SearchKind kind, const KnnOptions& options) {
  constexpr std::string_view exact[] = {
      {}, "a self-join", "a base that is read in blocks", "a range search"};
  if (kind == SearchKind::nearest) return check_method(options.method);
  check_exact(options.method, exact[static_cast<int>(kind)]);
}

void check_first_pass(const SearchRequest& request) {
  const FirstPass pass = request.options.first_pass;
  const std::int64_t dim = request.queries.cols();
  for (const SearchRequest::Segment& segment : request.segments)
    refuse_if(pass == FirstPass::integer && !segment.integer,
              "first_pass is integer, but that needs l2 or ip and whole numbers of 8 bits on both "
              "sides");
  refuse_if(pass == FirstPass::prefix && !request.segments.empty() && dim < least_prefix_dim,
            "first_pass is prefix, but that needs {} columns, not {}", least_prefix_dim, dim);
}

void check_tuning(const SearchRequest& request) {
  const KnnOptions& options = request.options;
  const TuningOverrides& choices = options.tuning;
  const FirstPass pass = options.first_pass;
  refuse_if(choices.group != 0 && choices.group != 1 && choices.group != 4 && choices.group != 12,
            "choices name a group of {}, but it must be 1, 4 or 12", choices.group);
  refuse_if(choices.parts < 0 || choices.parts > 4096,
            "choices name {} parts, but there must be 1 to 4096", choices.parts);
  refuse_if(choices.columns < 0 || choices.columns > 128 || choices.columns % 8 != 0,
            "choices name {} columns, but it must be a multiple of 8 up to 128", choices.columns);
  refuse_if(choices.tile < 0 || choices.tile > most_tile,
            "choices name a tile of {} KiB, but there must be 1 to {}", choices.tile, most_tile);
  refuse_if(
      pass == FirstPass::direct &&
          (choices.group > 0 || choices.parts > 0 || choices.tile > 0 || !choices.guess),
      "choices name group, parts, tile or guess=off, but first_pass is direct, which has none "
      "of these");
  if (choices.refine.value_or(false)) {
    refuse_if(pass != FirstPass::automatic && pass != FirstPass::int8 && pass != FirstPass::prefix,
              "choices say refine=on, but first_pass is {}, not int8 or prefix", name_of(pass));
    refuse_if(options.memory > 0, "choices say refine=on, but memory is limited to {} bytes",
              options.memory);
    const auto is_integer = [](const SearchRequest::Segment& segment) { return segment.integer; };
    refuse_if(pass != FirstPass::int8 && !request.segments.empty() &&
                  std::all_of(request.segments.begin(), request.segments.end(), is_integer),
              "choices say refine=on, but whole numbers of 8 bits are exact without");
  }
  refuse_if(choices.clusters < 0, "choices name {} clusters, but there must be 1 at least",
            choices.clusters);
  refuse_if((choices.columns > 0 || choices.clusters > 0) && pass != FirstPass::prefix,
            "choices name columns or clusters of a prefix, but first_pass is {}, not prefix",
            name_of(pass));
  refuse_if(choices.columns > request.queries.cols(),
            "choices name {} columns of a prefix, but there are only {}", choices.columns,
            request.queries.cols());
}

// What a metric that no scan by products has can do: every pair is measured.
void check_measured(const KnnOptions& options) {
  if (traits_of(options.metric).by_products) return;
  const std::string_view metric = name_of(options.metric);
  const Method method = options.method.kind;
  refuse_if(method != Method::automatic && method != Method::exact,
            "method is {}, but metric is {}, which has only auto and exact", name_of(method),
            metric);
  refuse_if(options.first_pass != FirstPass::automatic && options.first_pass != FirstPass::direct,
            "first_pass is {}, but metric is {}, which has only auto and direct",
            name_of(options.first_pass), metric);
  const TuningOverrides& choices = options.tuning;
  refuse_if(choices.group > 0 || choices.parts > 0 || choices.tile > 0 || choices.columns > 0 ||
                choices.clusters > 0 || !choices.guess || choices.refine.has_value(),
            "choices are made, but metric is {}, whose search has none", metric);
  refuse_if(parse_devices(options.device).cuda(),
            "device is {}, but metric is {}, which the processor alone measures", options.device,
            metric);
}

// What threshold-heap and partial-reduce have not.
void check_plain(const KnnOptions& options) {
  const TuningOverrides& choices = options.tuning;
  const std::string_view method = name_of(options.method.kind);
  refuse_if(options.first_pass == FirstPass::prefix,
            "first_pass is prefix, but method is {}, which has no such pass", method);
  refuse_if(!choices.guess, "choices say guess=off, but method is {}, which guesses none", method);
  refuse_if(choices.refine.has_value(),
            "choices say refine={}, but method is {}, which has no such step",
            choices.refine.value_or(false) ? "on" : "off", method);
  refuse_if(choices.parts > 0, "choices name {} parts, but method is {}, which has none",
            choices.parts, method);
}

void check_threshold_heap(const SearchRequest& request) {
  check_plain(request.options);
  const std::int64_t samples = request.options.method.threshold_heap.samples;
  refuse_if(samples > 0 && samples < request.k_asked, "samples must be at least k = {}, but are {}",
            request.k_asked, samples);
}

void check_partial_reduce(const SearchRequest& request) {
  const KnnOptions& options = request.options;
  const std::int64_t logical = options.method.partial_reduce.logical_rows;
  refuse_if(logical > 0 && (logical < request.rows || logical > most_logical_rows),
            "logical_rows must be between the {} rows that there are and 2^40, but is {}",
            request.rows, logical);
  check_plain(options);
  refuse_if(options.tuning.tile > 0,
            "choices name a tile, but method is partial-reduce, whose bins are tiles");
  refuse_if(options.first_pass == FirstPass::direct,
            "first_pass is direct, but method is partial-reduce, which has no bins then");
  refuse_if(!options.method.partial_reduce.aggregate && options.memory > 0,
            "aggregate is off, but memory is limited to {} bytes", options.memory);
  const Devices devices = parse_devices(options.device);
  if (!devices.cuda()) return;
  refuse_if(devices.several(),
            "device is {}, but method is partial-reduce, whose bins are those of one GPU",
            options.device);
  refuse_if(!options.method.partial_reduce.aggregate,
            "aggregate is off, but device is {}, which keeps no bins", options.device);
  refuse_if(
      options.memory > 0,
      "memory is limited to {} bytes, but method is partial-reduce and device is {}, where it "
      "has bins of whole chunks alone",
      options.memory, options.device);
}

void check_range(const KnnOptions& options) {
  refuse_if(options.first_pass == FirstPass::prefix,
            "first_pass is prefix, but a range search has no such pass");
  refuse_if(!options.tuning.guess,
            "choices say guess=off, but a range search guesses no threshold");
  refuse_if(options.tuning.refine.has_value(),
            "choices say refine={}, but a range search has no such step",
            options.tuning.refine.value_or(false) ? "on" : "off");
}

// That a GPU can do what was chosen.
void check_device_options(const KnnOptions& options, std::int64_t dim) {
  if (!parse_devices(options.device).cuda()) return;
  const FirstPass pass = options.first_pass;
  refuse_if(pass != FirstPass::automatic && pass != FirstPass::integer && pass != FirstPass::int8,
            "first_pass is {}, but device is {}, which has auto, integer and int8", name_of(pass),
            options.device);
  const TuningOverrides& choices = options.tuning;
  const auto refuse = [&](std::string_view choice) {
    throw InvalidArgument("choices say {}, but device is {}, which makes none", choice,
                          options.device);
  };
  if (choices.group > 0) refuse(fmt::format("group={}", choices.group));
  if (choices.parts > 0) refuse(fmt::format("parts={}", choices.parts));
  if (choices.tile > 0) refuse(fmt::format("tile={}", choices.tile));
  if (!choices.guess) refuse("guess=off");
  if (choices.refine) refuse(*choices.refine ? "refine=on" : "refine=off");
  refuse_if(pass == FirstPass::integer && dim > most_device_integer_dim,
            "first_pass is integer, but device is {}, which has it up to {} columns",
            options.device, most_device_integer_dim);
}

}  // namespace

std::int64_t SearchSegment::allowed_between(std::int64_t begin, std::int64_t end) const {
  if (live) return live->count(begin, end);
  if (filter.everything()) return end - begin;
  return filter.count(filter_offset + begin, filter_offset + end);
}

std::vector<std::uint32_t> SearchSegment::allowed_rows(std::int64_t begin, std::int64_t end) const {
  if (!live && !filter.everything())
    return filter.allowed(filter_offset + begin, filter_offset + end);
  std::vector<std::uint32_t> out;
  for (std::int64_t row = begin; row < end; ++row)
    if (!live || live->contains(row)) out.push_back(static_cast<std::uint32_t>(row - begin));
  return out;
}

SearchRequest::SearchRequest(SearchKind what, std::span<const SearchSegment> among,
                             AnyMatrixView asked, std::int64_t wanted, const KnnOptions& how,
                             Reuse later)
    : SearchRequest(Checked(), what, among, asked,
                    (check_kind(what, how),
                     find_value_range(asked, how.metric, "queries", resolve_threads(how.threads))),
                    wanted, how, later) {}

SearchRequest::SearchRequest(SearchKind what, std::span<const SearchSegment> among,
                             AnyMatrixView asked, const ValueRange& found, std::int64_t wanted,
                             const KnnOptions& how, Reuse later)
    : SearchRequest((check_kind(what, how), Checked()), what, among, asked, found, wanted, how,
                    later) {}

SearchRequest::SearchRequest(Checked, SearchKind what, std::span<const SearchSegment> among,
                             AnyMatrixView asked, const ValueRange& found, std::int64_t wanted,
                             const KnnOptions& how, Reuse later)
    : kind(what),
      queries(asked),
      options(how),
      reuse(later),
      threads(resolve_threads(how.threads)),
      isa(active_isa()),
      peaks(planning_peaks(isa, threads)),
      query_range(found),
      k_asked(wanted + (what == SearchKind::self_join)) {
  check_measured(options);
  take(among);
  check_first_pass(*this);
  check_tuning(*this);
  const Method method = options.method.kind;
  if (method == Method::partial_reduce) check_partial_reduce(*this);
  check_device_options(options, queries.cols());
  if (method == Method::threshold_heap) check_threshold_heap(*this);
  if (kind == SearchKind::range) check_range(options);
}

SearchRequest SearchRequest::among(std::span<const SearchSegment> others, AnyMatrixView some,
                                   std::int64_t wanted) const {
  SearchRequest out = *this;
  out.kind = SearchKind::nearest, out.queries = some, out.k_asked = wanted, out.already = 0;
  out.expecting = {}, out.joined = {}, out.preparation = {};
  out.take(others);
  return out;
}

void SearchRequest::merge_with(std::int64_t columns) {
  already = columns;
  k = std::min(k_asked, already + allowed_rows);
}

void SearchRequest::take(std::span<const SearchSegment> among) {
  segments.clear(), rows = allowed_rows = 0;
  for (const SearchSegment& segment : among) {
    const BaseRows& base = segment.rows->base;
    const std::int64_t allowed = segment.allowed_between(0, base.rows());
    rows += segment.live ? allowed : base.rows(), allowed_rows += allowed;
    if (allowed > 0)
      segments.push_back(
          {segment, allowed,
           integer_fits(options.metric, segment.rows->found, query_range, base.cols())});
  }
  // The threshold of the largest serves the others.
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return a.allowed > b.allowed; });
  merge_with(already);
}

bool integer_fits(Metric metric, const ValueRange& base, const ValueRange& queries,
                  std::int64_t dim) {
  const MetricTraits traits = traits_of(metric);
  if (!traits.by_products || traits.unit_rows || !base.integer || !queries.integer) return false;
  for (const ValueRange& side : {base, queries})
    if (side.low < 0 && side.high > 127) return false;
  const std::int64_t low = std::min(base.low, queries.low),
                     high = std::max(base.high, queries.high);
  const std::int64_t reach = std::max(std::abs(low), std::abs(high)), width = high - low;
  const std::int64_t largest = traits.squared ? dim * std::max(width * width, reach * reach) / 2 + 1
                                              : 2 * dim * reach * reach;
  return largest < (std::int64_t{1} << 31) - 65536;
}

void check_k(std::int64_t k) {
  refuse_if(k < 1, "k must be at least 1, but is {}", k);
  refuse_if(k > max_k, "k must be at most {}, but is {}", max_k, k);
}

namespace {
constexpr std::int64_t neighbor_bytes = sizeof(float) + sizeof(Id);
}  // namespace

void check_padding(std::int64_t queries, std::int64_t k, std::int64_t rows, std::int64_t memory) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  if (memory > 0 || k <= rows || queries == 0 || k - rows <= most / neighbor_bytes / queries)
    return;
  throw MemoryBudgetError(
      "k is {}, but there are {} rows, so that {:.3g} bytes of the answer to {} queries would be "
      "padding: a smaller k finds every row, and with a limit of memory k may be larger",
      k, rows, double(neighbor_bytes) * double(k - rows) * double(queries), queries);
}

void check_answer(std::int64_t queries, std::int64_t k) {
  check_k(k);
  const std::int64_t most = machine_memory() / 2;
  if (queries > 0 && k > most / neighbor_bytes / queries)
    throw MemoryBudgetError(
        "k is {} and there are {} queries, so that the answer has {:.3g} bytes, but half of this "
        "machine's memory is {}",
        k, queries, double(neighbor_bytes) * double(k) * double(queries), most);
}

double checked_radius(double radius) {
  refuse_if(std::isnan(radius), "radius must be a number, but is {}", radius);
  // Beyond any distance of vectors of floats, of 65,536 columns at most.
  constexpr double everything = 1e100;
  return std::clamp(radius, -everything, everything);
}

void check_dim(std::string_view argument, std::int64_t dim) {
  refuse_if(dim < 1 || dim > max_dim, "{} must have between 1 and {} columns, but has {}", argument,
            max_dim, dim);
}

void check_columns(std::int64_t queries, std::int64_t base) {
  if (queries != base) throw ShapeMismatch("queries have {} columns, base has {}", queries, base);
}

void check_metric(Metric asked, Metric prepared) {
  refuse_if(asked != prepared, "metric is {}, but the base was prepared for {}", name_of(asked),
            name_of(prepared));
}

void check_filter(const RowFilter& filter, std::int64_t rows) {
  if (!filter.everything() && filter.rows() != rows)
    throw ShapeMismatch("filter is for {} rows, base has {}", filter.rows(), rows);
}

void check_exact(const MethodOptions& method, std::string_view search) {
  check_method(method);
  refuse_if(method.kind != Method::automatic && method.kind != Method::exact,
            "method is {}, but {} has only auto and exact", name_of(method.kind), search);
}

void check_processor(std::string_view device, std::string_view search) {
  refuse_if(parse_devices(device).cuda(), "device is {}, but {} runs on the processor alone",
            device, search);
}

}  // namespace knear::detail
