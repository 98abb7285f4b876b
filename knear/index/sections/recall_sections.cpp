#include "knear/index/sections/recall_sections.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/value_range.hpp"

namespace knear::detail {
namespace {

// Of a RecallCurve: its fields, then its points.
struct CurveFields {
  std::int64_t k, points, keys;
};
struct PointFields {
  std::int64_t rule_lists;
  double spread, promised, expected, lists, rows;
};

// The RecallSpread of each point.
struct SpreadFields {
  double variance, part, shortfall;
  std::int64_t queries;
};

// Of a graph, of each point.
struct EffortFields {
  std::int64_t ef, starts;
};

// Of lists and codes, of each point and measure of nearness.
struct NearnessFields {
  std::int64_t groups, queries;
  double least, most;
};

struct KnownFields {
  std::int64_t queries;
  std::uint64_t type;
};

// Returns true if numbers are finite and ascend.
bool are_ascending(const std::vector<float>& keys) {
  return std::all_of(keys.begin(), keys.end(), [](float x) { return std::isfinite(x); }) &&
         std::is_sorted(keys.begin(), keys.end());
}

// Reads how much the recalls of queries differ, of the points of a curve. Returns false if the file
// does not have it.
bool load_spread(Sections& in, const std::string& prefix, RecallCurve& curve) {
  const auto fields = in.list<SpreadFields>(prefix + "spread");
  if (fields.empty()) return curve.points.empty();
  if (fields.size() != curve.points.size())
    in.refuse(prefix + "spread",
              fmt::format("it has {} entries for {} points", fields.size(), curve.points.size()));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const SpreadFields& from = fields[i];
    if (!(from.variance >= 0 && from.variance <= 1))
      in.refuse(prefix + "spread", fmt::format("variance {} is outside [0, 1]", from.variance));
    if (!(from.part >= 0 && from.part <= 1))
      in.refuse(prefix + "spread", fmt::format("part {} is outside [0, 1]", from.part));
    if (!(from.shortfall >= 0 && from.shortfall <= 1))
      in.refuse(prefix + "spread", fmt::format("shortfall {} is outside [0, 1]", from.shortfall));
    if (from.queries < 1 || from.queries > (std::int64_t{1} << 40))
      in.refuse(prefix + "spread", fmt::format("{} is no number of queries", from.queries));
    curve.points[i].spread = {from.variance, from.part, from.shortfall, from.queries};
  }
  return true;
}

// Recall by nearness, of the points of a curve; false: there is none.
bool load_nearness(Sections& in, const std::string& prefix, RecallCurve& curve) {
  const auto fields = in.list<NearnessFields>(prefix + "nearness");
  const auto bounds = in.list<float>(prefix + "nearness/bounds"),
             recalls = in.list<float>(prefix + "nearness/recalls"),
             shares = in.list<float>(prefix + "nearness/shares");
  const auto refuse = [&] { in.refuse(prefix + "nearness", "it holds what nobody has seen"); };
  if (fields.empty()) return curve.points.empty();
  if (fields.size() != curve.points.size() * nearness_measures || recalls.size() != shares.size() ||
      recalls.size() != bounds.size() + fields.size())
    refuse();
  const auto is_share = [](float x) { return x >= 0 && x <= 1; };
  if (!std::all_of(recalls.begin(), recalls.end(), is_share) ||
      !std::all_of(shares.begin(), shares.end(), is_share))
    refuse();
  std::size_t group = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const NearnessFields& from = fields[i];
    if (from.groups < 1 || from.groups > std::ssize(recalls) - static_cast<std::int64_t>(group) ||
        from.queries < 1 || from.queries > (std::int64_t{1} << 40) || !(from.least <= from.most) ||
        !std::isfinite(from.most - from.least))
      refuse();
    const auto some = [&](const std::vector<float>& all, std::size_t first, std::int64_t count) {
      if (first + static_cast<std::size_t>(count) > all.size()) refuse();
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    RecallByNearness& to = curve.points[i / nearness_measures].by_nearness[i % nearness_measures];
    to = {some(bounds, group - i, from.groups - 1), some(recalls, group, from.groups),
          some(shares, group, from.groups),         from.queries,
          static_cast<float>(from.least),           static_cast<float>(from.most)};
    if (!are_ascending(to.bounds)) refuse();
    group += from.groups;
  }
  if (group != recalls.size()) refuse();
  return true;
}

}  // namespace

void add_curves(io::ArchiveWriter& writer, const RecallCurves& curves, std::int64_t changed,
                const std::vector<float>* fresh) {
  writer.set_optional(true);
  const std::int64_t rows = curves.rows();
  writer.add_copy("recall/rows", &rows, sizeof rows);
  writer.add_copy("recall/changed", &changed, sizeof changed);
  if (fresh) writer.add_copy("recall/fresh", fresh->data(), fresh->size() * sizeof(float));
  const auto all = curves.all();
  for (std::size_t c = 0; c < all.size(); ++c) {
    const RecallCurve& curve = *all[c];
    const std::string prefix = fmt::format("recall/curves/{}/", c);
    const CurveFields fields{curve.k, std::ssize(curve.points), std::ssize(curve.nearest_keys)};
    std::vector<PointFields> points;
    for (const RecallPoint& at : curve.points)
      points.push_back(
          {at.rule.lists, at.rule.spread, at.promised, at.expected, at.lists, at.rows});
    writer.add_copy(prefix + "fields", &fields, sizeof fields);
    writer.add_copy(prefix + "points", points.data(), points.size() * sizeof points[0]);
    std::vector<SpreadFields> spreads;
    for (const RecallPoint& at : curve.points)
      spreads.push_back(
          {at.spread.variance, at.spread.part, at.spread.shortfall, at.spread.queries});
    writer.add_copy(prefix + "spread", spreads.data(), spreads.size() * sizeof spreads[0]);
    writer.add_copy(prefix + "keys", curve.nearest_keys.data(),
                    curve.nearest_keys.size() * sizeof(float));
    std::vector<std::int64_t> factors;
    for (const RecallPoint& at : curve.points) factors.push_back(at.rule.refine_factor);
    if (std::any_of(factors.begin(), factors.end(), [](std::int64_t x) { return x > 0; }))
      writer.add_copy(prefix + "refine", factors.data(), factors.size() * sizeof factors[0]);
    std::vector<EffortFields> efforts;
    for (const RecallPoint& at : curve.points) efforts.push_back({at.rule.ef, at.rule.starts});
    if (std::any_of(efforts.begin(), efforts.end(), [](const auto& x) { return x.ef > 0; }))
      writer.add_copy(prefix + "effort", efforts.data(), efforts.size() * sizeof efforts[0]);
    std::vector<NearnessFields> nearness;
    std::vector<float> bounds, recalls, shares;
    for (const RecallPoint& at : curve.points)
      for (const RecallByNearness& one : at.by_nearness) {
        nearness.push_back({std::ssize(one.recalls), one.queries, one.least, one.most});
        bounds.insert(bounds.end(), one.bounds.begin(), one.bounds.end());
        recalls.insert(recalls.end(), one.recalls.begin(), one.recalls.end());
        shares.insert(shares.end(), one.shares.begin(), one.shares.end());
      }
    if (recalls.empty()) continue;
    writer.add_copy(prefix + "nearness", nearness.data(), nearness.size() * sizeof nearness[0]);
    writer.add_copy(prefix + "nearness/bounds", bounds.data(), bounds.size() * sizeof bounds[0]);
    writer.add_copy(prefix + "nearness/recalls", recalls.data(),
                    recalls.size() * sizeof recalls[0]);
    writer.add_copy(prefix + "nearness/shares", shares.data(), shares.size() * sizeof shares[0]);
  }
  writer.set_optional(false);
}

void add_known(io::ArchiveWriter& writer, const KnownNeighbors& known) {
  writer.set_optional(true);
  const AnyMatrixView queries = known.queries();
  const KnownFields fields{queries.rows(), static_cast<std::uint64_t>(queries.type())};
  std::vector<std::int64_t> begin{0};
  std::vector<double> keys;
  std::vector<Id> ids;
  std::vector<std::uint8_t> all;
  for (const KnownNeighbors::List& list : known.lists()) {
    for (const auto& [key, id] : list.rows.all()) keys.push_back(key), ids.push_back(id);
    begin.push_back(std::ssize(ids)), all.push_back(list.all);
  }
  writer.add_copy("known/fields", &fields, sizeof fields);
  writer.add_copy("known/queries", queries.data(), queries.bytes());
  writer.add_copy("known/begin", begin.data(), begin.size() * sizeof begin[0]);
  writer.add_copy("known/keys", keys.data(), keys.size() * sizeof keys[0]);
  writer.add_copy("known/ids", ids.data(), ids.size() * sizeof ids[0]);
  writer.add_copy("known/all", all.data(), all.size());
  writer.set_optional(false);
}

void load_changes(Sections& in, State& state) {
  if (in.has("recall/changed")) {
    state.changed_rows = in.fields<std::int64_t>("recall/changed");
    if (state.changed_rows < 0 || state.changed_rows > (std::int64_t{1} << 40))
      in.refuse("recall/changed", "it is no number of rows");
  }
  if (in.has("recall/fresh")) {
    std::vector<float> keys = in.list<float>("recall/fresh");
    if (keys.empty() || !state.coarse || !are_ascending(keys))
      in.refuse("recall/fresh", "they are no keys in order");
    state.fresh_keys = std::make_shared<const std::vector<float>>(std::move(keys));
  }
}

std::shared_ptr<const KnownNeighbors> load_known(Sections& in, const IndexShape& shape) {
  if (!in.has("known/fields")) return nullptr;
  const auto fields = in.fields<KnownFields>("known/fields");
  if (fields.queries < 0 || fields.queries > KnownNeighbors::most_queries ||
      fields.type >= element_type_count)
    in.refuse("known/fields", "its numbers are none");
  const auto type = static_cast<ElementType>(fields.type);
  const auto stored =
      in.array<std::uint8_t>("known/queries", fields.queries * shape.dim * size_of(type));
  auto queries = std::make_shared<AnyMatrix>(type, fields.queries, shape.dim);
  if (stored.size() > 0) std::memcpy(queries->row(0), stored.data(), stored.size());
  try {
    find_value_range(queries->view(), shape.metric, "queries", 1);
  } catch (const InvalidArgument&) {
    in.refuse("known/queries", "they hold a NaN or infinity");
  }
  const auto begin = in.array<std::int64_t>("known/begin", fields.queries + 1);
  const auto keys = in.list<double>("known/keys");
  const auto ids = in.list<Id>("known/ids");
  const auto all = in.array<std::uint8_t>("known/all", fields.queries);
  if (ids.size() != keys.size() || begin[0] != 0 || begin[fields.queries] != std::ssize(ids))
    in.refuse("known/begin", "they are no division of the neighbours");
  std::vector<KnownNeighbors::List> lists(fields.queries);
  for (std::size_t q = 0; q < lists.size(); ++q) {
    lists[q].all = all[q] != 0;
    if (begin[q + 1] < begin[q] || begin[q + 1] > std::ssize(ids))
      in.refuse("known/begin", "they are no division of the neighbours");
    std::vector<KnownNeighbors::Row> rows;
    for (auto i = static_cast<std::size_t>(begin[q]); i < static_cast<std::size_t>(begin[q + 1]);
         ++i)
      rows.emplace_back(static_cast<float>(keys[i]), ids[i]);
    if (!std::is_sorted(rows.begin(), rows.end()) ||
        std::any_of(rows.begin(), rows.end(),
                    [](const auto& row) { return !std::isfinite(row.first); }))
      in.refuse("known/keys", "they do not ascend");
    lists[q].rows = KnownNeighbors::Rows(rows);
  }
  return std::make_shared<const KnownNeighbors>(std::move(queries), shape.metric, std::move(lists));
}

std::shared_ptr<RecallCurves> load_curves(Sections& in, std::int64_t lists, bool graph) {
  const auto rows = in.fields<std::int64_t>("recall/rows");
  if (rows < 0 || rows > (std::int64_t{1} << 40))
    in.refuse("recall/rows", "it is no number of rows");
  auto out = std::make_shared<RecallCurves>(rows);
  for (int c = 0; in.has(fmt::format("recall/curves/{}/fields", c)); ++c) {
    const std::string prefix = fmt::format("recall/curves/{}/", c);
    const auto fields = in.fields<CurveFields>(prefix + "fields");
    if (fields.k < 1 || fields.k > max_k) in.refuse(prefix + "fields", "its numbers are none");
    RecallCurve curve;
    curve.k = fields.k;
    for (const auto& at : in.list<PointFields>(prefix + "points")) {
      const double numbers[] = {at.spread, at.promised, at.expected, at.lists, at.rows};
      if (at.rule_lists < 1 || at.rule_lists > lists ||
          !std::all_of(std::begin(numbers), std::end(numbers),
                       [](double x) { return std::isfinite(x); }) ||
          at.promised < 0 || at.promised > 1 || at.expected < 0 || at.expected > 1)
        in.refuse(prefix + "points", "it holds what nobody has seen");
      curve.points.push_back({{.lists = at.rule_lists, .spread = at.spread},
                              at.promised,
                              at.expected,
                              at.lists,
                              at.rows});
    }
    curve.nearest_keys = in.list<float>(prefix + "keys");
    const auto factors = in.list<std::int64_t>(prefix + "refine");
    if (!factors.empty() && factors.size() != curve.points.size())
      in.refuse(prefix + "refine", "they are not as many as the points");
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (factors[i] < 0 || factors[i] > (1 << 20))
        in.refuse(prefix + "refine", "it holds what nobody has seen");
      curve.points[i].rule.refine_factor = factors[i];
    }
    const auto efforts = in.list<EffortFields>(prefix + "effort");
    if (efforts.size() != (graph ? curve.points.size() : 0))
      in.refuse(prefix + "effort", "they are not as many as the points");
    for (std::size_t i = 0; i < efforts.size(); ++i) {
      if (efforts[i].ef < 1 || efforts[i].ef > (1 << 24) || efforts[i].starts < 1 ||
          efforts[i].starts > (1 << 24))
        in.refuse(prefix + "effort", "it holds what nobody has seen");
      curve.points[i].rule.ef = efforts[i].ef, curve.points[i].rule.starts = efforts[i].starts;
    }
    if (std::ssize(curve.points) != fields.points ||
        std::ssize(curve.nearest_keys) != fields.keys || !are_ascending(curve.nearest_keys))
      in.refuse(prefix + "keys", "they are others than were saved");
    // Curves of earlier versions lack the spread, or what is found far away: recall is calibrated
    // again.
    const bool complete = load_spread(in, prefix, curve);
    if ((load_nearness(in, prefix, curve) || graph) && complete) out->set(std::move(curve));
  }
  return out;
}

}  // namespace knear::detail
