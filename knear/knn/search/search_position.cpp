#include "knear/knn/search/search_position.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "knear/core/stop_check.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t most_rows = std::int64_t{1} << 30;  // of a chunk: slots have 32 bits
constexpr std::int64_t least_chunk_rows = 4096;            // but for the last of a segment

// The first passes for data that is not whole: each is tried where the one before let too much
// through. Without the dot-product instructions all run at the rate of fp32, whose bound is the
// tightest. Where even that is useless, measuring every row in order is cheaper than measuring most
// of them as they come.
std::vector<FirstPass> precision_cascade(Isa isa) {
  if (has_byte_products(isa)) {
    // A 64-bit ARM multiplies int16 at half the rate of fp32.
    if (isa == Isa::neon_dot || isa == Isa::neon_i8mm)
      return {FirstPass::int8, FirstPass::fp32, FirstPass::direct};
    return {FirstPass::int8, FirstPass::int16, FirstPass::fp32, FirstPass::direct};
  }
  return {FirstPass::fp32, FirstPass::direct};
}

}  // namespace

SearchPosition::SearchPosition(const SearchRequest& asked, DeviceEngine* where)
    : request(asked), device(where), tile_bytes(asked.options.tuning.tile * 1024) {
  if (device && request.limited()) more_bytes = device->reserved_bytes(request);
}

void SearchPosition::enter(const Segment& one, std::int64_t first, std::int64_t end) {
  segment = &one, begin = first;
  whole = end - first == base().rows();
  rows = base().part(first, end);
  count = one.given.allowed_between(first, end);
  subset.clear();
}

AllowedRows SearchPosition::allowed() const {
  const SearchSegment& given = segment->given;
  if (count == rows.rows()) return {};
  if (given.live) return {.live = given.live, .live_offset = begin};
  return {.filter = &given.filter, .offset = given.filter_offset + begin};
}

void SearchPosition::list_allowed() {
  if (count < rows.rows() && subset.empty())
    subset = segment->given.allowed_rows(begin, begin + rows.rows());
}

std::vector<std::int64_t> SearchPosition::all_queries() const {
  std::vector<std::int64_t> out(request.queries.rows());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

ScanJob SearchPosition::job(AnyMatrixView queries, std::int64_t k) const {
  return {.queries = queries,
          .base = rows,
          .metric = request.options.metric,
          .k = k,
          .threads = request.threads,
          .isa = request.isa,
          .peaks = &request.peaks,
          .query_range = request.query_range};
}

void SearchPosition::answer_zero_queries(std::vector<std::int64_t>& todo,
                                         const AllowedRows& allowed, ExactNeighbors& out) const {
  double key = 0;
  switch (request.options.metric) {
    case Metric::l2:
    case Metric::l1:
    case Metric::hamming:
      return;
    case Metric::ip:
      break;
    case Metric::cosine:
      key = 1;
  }
  std::erase_if(todo, [&](std::int64_t q) {
    if (!is_zero(request.queries, q)) return false;
    std::int64_t next = 0;
    for (std::int64_t j = 0; j < out.columns(); ++j) {
      while (subset.empty() && !allowed(next)) ++next;
      out.keys.row(q)[j] = key;
      out.ids.row(q)[j] = subset.empty() ? next++ : std::int64_t{subset[j]};
    }
    return true;
  });
}

std::vector<FirstPass> SearchPosition::cascade() const {
  const KnnOptions& options = request.options;
  if (options.first_pass != FirstPass::automatic && options.first_pass != FirstPass::prefix)
    return {options.first_pass};
  if (!traits_of(options.metric).by_products) return {FirstPass::direct};
  if (segment->integer) return {FirstPass::integer};
  std::vector<FirstPass> passes = precision_cascade(request.isa);
  if (packs_always) std::erase(passes, FirstPass::direct);
  if (options.tuning.refine.value_or(false)) {  // what it refines is 8 bits
    std::erase(passes, FirstPass::int8);
    passes.insert(passes.begin(), FirstPass::int8);
    return passes;
  }
  // Packed rows that an index keeps, from a machine with other instructions say, cost nothing; and
  // the passes before theirs were found useless when they were made.
  for (FirstPass pass : {FirstPass::int16, FirstPass::int8})
    if (prepared().is_adopted(pass)) {
      const auto at = std::find(passes.begin(), passes.end(), pass);
      if (at == passes.end())
        passes.insert(passes.begin(), pass);
      else
        passes.erase(passes.begin(), at);
    }
  return passes;
}

FirstPass SearchPosition::device_pass() const {
  return segment->integer && request.options.first_pass != FirstPass::int8 &&
                 base().cols() <= most_device_integer_dim
             ? FirstPass::integer
             : FirstPass::int8;
}

std::int64_t SearchPosition::packed_bytes(std::int64_t n, FirstPass pass) const {
  if (pass == FirstPass::direct) return 0;
  if (pass == FirstPass::prefix) return prefix_bytes_for(n, base().cols());
  if (pass == FirstPass::integer) return PackedBase::bytes_for(n, base().cols(), format_int8, true);
  return PackedBase::bytes_for(n, base().cols(), format_of(pass), false) + 25 * n;
}

std::int64_t SearchPosition::packing_bytes(std::int64_t n, FirstPass pass) const {
  if (device && (pass == FirstPass::integer || pass == FirstPass::int8))
    return device->holds(*this) ? 0 : packed_bytes(n, device_pass());
  return prepared().is_adopted(pass) && tile_bytes == 0 ? 0 : packed_bytes(n, pass);
}

std::int64_t SearchPosition::other_bytes() const {
  const double queries = static_cast<double>(request.queries.rows()),
               dim = static_cast<double>(request.queries.cols());
  const double k = static_cast<double>(request.k), threads = request.threads;
  const double block = std::min(queries, static_cast<double>(queries_in_block(request.k)));
  const double per_query = dim * 4 + 256 + (1.5 * static_cast<double>(most_pending()) + 24) * 24;
  // Beside the lists, the prefix of each query and the clusters nearest to it.
  const bool by_prefix = request.options.first_pass == FirstPass::prefix ||
                         (segment && prepared().has_adopted_prefix());
  const double prefix = by_prefix ? 256 + 2 * 8 * 16 + 24 : 0;
  const double lists = queries * (k * 48 + static_cast<double>(request.k_asked) * 12 + 64 + prefix);
  // Queries as doubles: of a task, or where there are few of them, of each thread.
  const double doubles = std::max(64.0, std::min(queries, 4 * threads));
  // And what selecting and sorting k of them takes.
  const double scratch = threads * (doubles * dim * 8 + 208 * k + (1 << 16));
  return static_cast<std::int64_t>(std::min(
      lists + threads * block * per_query + scratch + (1 << 20) + static_cast<double>(more_bytes),
      4e18));
}

std::int64_t SearchPosition::most_chunk_rows() const {
  return std::clamp<std::int64_t>(base().rows(), 1,
                                  device ? device->most_chunk_rows(*this) : most_rows);
}

std::int64_t SearchPosition::least_bytes() const {
  if (base().rows() == 0) return 0;
  const FirstPass pass = first_pass();
  const std::int64_t thousands = (std::min(base().rows(), least_chunk_rows) + 1023) / 1024;
  return other_bytes() +
         std::min(packing_bytes(most_chunk_rows(), pass), thousands * packed_bytes(1024, pass));
}

void SearchPosition::check_memory() {
  if (!request.limited()) return;
  std::int64_t least = 0;
  for (const Segment& one : request.segments)
    segment = &one, least = std::max(least, least_bytes());
  if (request.options.memory < least) refuse_memory(least);
}

void SearchPosition::refuse_memory(std::int64_t least) const {
  throw MemoryBudgetError(
      "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
      request.options.memory, least, request.queries.rows(),
      request.k_asked - (request.kind == SearchKind::self_join), request.queries.cols());
}

std::int64_t SearchPosition::chunk_rows() const {
  const std::int64_t most = most_chunk_rows();
  if (!request.limited() || base().rows() == 0) return most;
  const std::int64_t left = request.options.memory - other_bytes();
  const FirstPass pass = first_pass();
  if (packing_bytes(most, pass) <= left) return most;
  const std::int64_t step = std::min(most, left / packed_bytes(1024, pass) * 1024);
  // What was packed when the memory was checked may have been let go of by another search.
  if (step < std::min(base().rows(), least_chunk_rows)) refuse_memory(least_bytes());
  return step;
}

void SearchPosition::make_room(FirstPass pass) {
  if (!request.limited()) return;
  const std::int64_t needed =
      packing_bytes(rows.rows(), pass) + other_bytes() + prepared().kept_bytes(nullptr);
  if (needed > request.options.memory)
    prepared().release_all_but(tile_bytes > 0 ? FirstPass::direct : pass);
}

void SearchPosition::expect(double seconds) {
  if (expected_ || !request.expecting || count == 0) return;
  expected_ = true;
  request.expecting(seconds * static_cast<double>(request.allowed_rows) /
                    static_cast<double>(count));
}

bool is_zero(AnyMatrixView vectors, std::int64_t row) {
  return visit(vectors, [&](auto view) {
    const auto* x = view.row(row);
    for (std::int64_t i = 0; i < view.cols(); ++i)
      if (to_double(x[i]) != 0) return false;
    return true;
  });
}

AnyMatrix copies_of(AnyMatrixView vectors, std::span<const std::int64_t> which) {
  AnyMatrix out(vectors.type(), std::ssize(which), vectors.cols());
  const std::size_t bytes = vectors.cols() * size_of(vectors.type());
  for (std::size_t i = 0; i < which.size(); ++i) {
    if (i % 256 == 0) stop_if_asked();
    std::memcpy(out.row(static_cast<std::int64_t>(i)), vectors.row(which[i]), bytes);
  }
  return out;
}

}  // namespace knear::detail
