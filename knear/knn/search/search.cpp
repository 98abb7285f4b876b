#include "knear/knn/search/search.hpp"

#include <utility>

namespace knear::detail {

ExactNeighbors Search::run(KnnReport* report) {
  ExactNeighbors all;
  run_from(all);
  if (report) *report = this->report();
  return all;
}

KnnReport Search::report() const {
  KnnReport out = report_.report(at_);
  set_promise(out, request_, all_exact(request_.queries.rows()));
  return out;
}

void Search::run_from(ExactNeighbors& all) {
  const std::int64_t q = request_.queries.rows(), k = request_.k;
  bool first = all.columns() == 0;
  const auto set_upper_bounds = [&] {
    if (all.columns() < k || k == 0) return;
    at_.upper_bounds.resize(q);
    for (std::int64_t i = 0; i < q; ++i) at_.upper_bounds[i] = all.keys.row(i)[k - 1];
  };
  set_upper_bounds();
  at_.for_each_chunk([&] {
    const std::int64_t width = std::min(k, at_.count);
    ExactNeighbors found(q, width);
    search_chunk(found);
    if (const RowIds ids = at_.ids(); ids.ids || ids.first != 0)
      each_query([&](std::int64_t i) {
        for (std::int64_t j = 0; j < width; ++j)
          if (found.ids.row(i)[j] != no_id) found.ids.row(i)[j] = ids(found.ids.row(i)[j]);
      });
    if (std::exchange(first, false))
      all = std::move(found);
    else
      merge(all, found, k, request_.threads);
    set_upper_bounds();
  });
}

void Search::each_query(const std::function<void(std::int64_t)>& f) const {
  const std::int64_t queries = request_.queries.rows();
  const std::int64_t block =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, request_.k_asked));
  const std::int64_t tasks = (queries + block - 1) / block;
  parallel_for(tasks > 1 ? request_.threads : 1, tasks, [&](std::int64_t task) {
    for (std::int64_t q = task * block; q < std::min(queries, (task + 1) * block); ++q) f(q);
  });
}

void Search::search_chunk(ExactNeighbors& out) {
  std::vector<std::int64_t> todo = at_.all_queries();
  if (at_.device) {
    todo = at_.device->nearest(at_, report_, std::move(todo), out);
    report_.note_fallback(std::ssize(todo));
    if (todo.empty()) return;
  }
  if (at_.prepared().on_device)
    search_copies(todo, out);
  else
    search_queries(std::move(todo), out);
}

void Search::search_queries(std::vector<std::int64_t> todo, ExactNeighbors& out) {
  ChunkSearch chunk = passes_.begin(out.columns(), at_.upper_bounds);
  chunk.todo = std::move(todo);
  at_.answer_zero_queries(chunk.todo, chunk.job.allowed, out);
  if (request_.kind == SearchKind::self_join) prefix_.self_join(chunk, out);
  if (request_.joined) return;
  tree_.search(chunk, out);
  if (!chunk.todo.empty()) prefix_.search(chunk, out);
  if (!chunk.todo.empty()) search_by_passes(chunk, out);
}

void Search::search_by_passes(ChunkSearch& chunk, ExactNeighbors& out) {
  ScanJob& job = chunk.job;
  std::vector<std::int64_t>& todo = chunk.todo;
  const Progress& progress = request_.options.progress;
  const std::vector<FirstPass>& passes = chunk.choice.passes;
  at_.expect(passes_.expected_seconds(chunk.choice));
  for (std::size_t p = 0; p < passes.size() && !todo.empty(); ++p) {
    const FirstPass pass = passes[p];
    const std::int64_t before = std::ssize(todo);
    if (pass == FirstPass::direct) {
      report_.note_pass(pass, before, at_.count);
      at_.list_allowed();
      scan_directly(job, at_.subset, todo, out, report_.stats, progress);
      return;
    }
    const bool last = p + 1 == passes.size();
    job.may_give_up = !last;
    at_.make_room(pass);
    const auto packed = passes_.packed(pass, chunk.choice);
    const bool few = before < std::int64_t{48} * request_.threads;
    const double survivors = at_.prepared().seen(FirstPass::int8, request_.k, few).survivors;
    const auto codes = passes_.per_row_codes(*packed, chunk.choice, before, survivors);
    job.per_row_codes = codes.get();
    todo = last ? scan(*packed, job, todo, out, report_.stats, progress)
                : try_pass(*packed, chunk, survivors > 0, out);
    job.per_row_codes = nullptr;
    report_.note_packed(at_.prepared(), *packed, pass);
    report_.note_scored(*packed, before);
    report_.note_pass(pass, before - std::ssize(todo), at_.count);
    if (p == 0 && !report_.has_prefix()) report_.note_fallback(std::ssize(todo));
  }
}

std::vector<std::int64_t> Search::try_pass(const PackedBase& packed, ChunkSearch& chunk,
                                           bool survivors_known, ExactNeighbors& out) {
  const std::vector<std::int64_t>& todo = chunk.todo;
  const Progress& progress = request_.options.progress;
  ScanStats& stats = report_.stats;
  const std::size_t probe = std::min<std::size_t>(todo.size() / 120 * 12, 96);
  if (probe == 0) return scan(packed, chunk.job, todo, out, stats, progress);
  const std::size_t step = todo.size() / probe;
  std::vector<std::int64_t> first, rest;
  for (std::size_t i = 0; i < todo.size(); ++i)
    (i % step == step / 2 && first.size() < probe ? first : rest).push_back(todo[i]);
  static const Progress quiet;
  const std::int64_t before = stats.survivors;
  std::vector<std::int64_t> again = scan(packed, chunk.job, first, out, stats, quiet);
  if (2 * again.size() <= first.size()) {
    std::shared_ptr<const PerRowCodes> codes;
    if (!chunk.job.per_row_codes && !survivors_known)
      codes = passes_.per_row_codes(
          packed, chunk.choice, std::ssize(rest),
          static_cast<double>(stats.survivors - before) / static_cast<double>(first.size()));
    if (codes) chunk.job.per_row_codes = codes.get();
    rest = scan(packed, chunk.job, rest, out, stats, progress);
  }
  again.insert(again.end(), rest.begin(), rest.end());
  std::sort(again.begin(), again.end());
  return again;
}

void Search::search_copies(const std::vector<std::int64_t>& todo, ExactNeighbors& out) {
  ExactNeighbors found;
  each_copy(todo, [&](const SearchRequest& request) {
    SearchRequest more = request;
    more.merge_with(found.columns());
    Search search(more);
    search.run_from(found);
    report_.note_search(search.report_);
  });
  for (std::size_t i = 0; i < todo.size(); ++i) {
    const auto from = static_cast<std::int64_t>(i);
    std::copy_n(found.keys.row(from), found.columns(), out.keys.row(todo[i]));
    std::copy_n(found.ids.row(from), found.columns(), out.ids.row(todo[i]));
  }
}

void Search::each_copy(const std::vector<std::int64_t>& todo,
                       const std::function<void(const SearchRequest&)>& f) const {
  constexpr std::int64_t copied_bytes = 256 << 20;
  const AnyMatrix some = copies_of(request_.queries, todo);
  const PreparedRows& there = at_.prepared();
  const std::int64_t n = at_.rows.rows(), memory = request_.options.memory;
  const std::int64_t piece = memory > 0 ? std::min(copied_bytes, memory / 4) : copied_bytes;
  const std::int64_t together = std::max<std::int64_t>(1, piece / at_.rows.row_bytes());
  Reporter reporter(request_.options.progress, "search copy", (n + together - 1) / together);
  for (std::int64_t from = 0; from < n; from += together) {
    const AnyMatrix copy = there.on_device->copy(at_.begin + from, std::min(together, n - from));
    PreparedRows here(copy.view(), there.metric, there.found);
    SearchSegment segment = at_.segment->given;
    segment.rows = &here, segment.ids = {from, nullptr};
    segment.filter_offset += at_.begin + from;
    SearchRequest request = request_.among({&segment, 1}, some.view(), request_.k_asked);
    request.options.device = "cpu", request.options.progress = {};
    request.options.first_pass = FirstPass::automatic, request.reuse = Reuse::none;
    if (memory > 0) request.options.memory -= piece;
    f(request);
    reporter.add(1);
  }
}

std::optional<FirstPass> Search::prepare() {
  const SearchRequest::Segment& segment = request_.segments.front();
  at_.enter(segment, 0, segment.given.rows->base.rows());
  std::vector<FirstPass> passes = at_.cascade();
  passes_.skip_useless(passes);
  const FirstPass pass = passes.front();
  if (pass == FirstPass::direct) return {};
  at_.prepared().adopt(pass, at_.prepared().packed(pass, passes_.packing({.keep = true})));
  return pass;
}

bool Search::optimize() {
  const SearchRequest::Segment& segment = request_.segments.front();
  at_.enter(segment, 0, segment.given.rows->base.rows());
  std::vector<FirstPass> passes = at_.cascade();
  passes_.skip_useless(passes);
  return prefix_.optimize({.passes = std::move(passes), .keep = true});
}

}  // namespace knear::detail
