// knear/core/metric_names.cpp -- the words that a metric may be called by.
#include <string>

#include "knear/core/neighbors.hpp"

namespace knear {
namespace {

struct Synonym {
  std::string_view word;
  Metric metric;
};

// These words come from FAISS, scikit-learn, SciPy, hnswlib, ann-benchmarks, OpenSearch and the
// stores of vectors.
constexpr Synonym synonyms[] = {
    {"euclidean", Metric::l2},
    {"sqeuclidean", Metric::l2},
    {"dot", Metric::ip},
    {"dot_product", Metric::ip},
    {"inner_product", Metric::ip},
    {"angular", Metric::cosine},
    {"cosinesimil", Metric::cosine},
    {"cosine_similarity", Metric::cosine},
    {"manhattan", Metric::l1},
    {"cityblock", Metric::l1},
};

}  // namespace

Metric parse_metric(std::string_view name) {
  // Not by std::tolower, which depends on the locale.
  std::string small(name);
  for (char& c : small)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  std::string names;
  for (const Metric metric : all_metrics) {
    if (small == name_of(metric)) return metric;
    names += (names.empty() ? "" : ", ") + std::string(name_of(metric));
  }
  for (const Synonym& each : synonyms)
    if (small == each.word) return each.metric;
  throw InvalidArgument("metric must be one of {}, but is '{}'", names, name);
}

}  // namespace knear
