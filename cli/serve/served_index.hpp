// cli/serve/served_index.hpp -- an index under a name: one whose changes are kept
// (serve/durable_index.hpp), or with --read-only one that takes none.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/serve/requests.hpp"
#include "knear/serve/durable_index.hpp"

namespace knear::cli {

// Bytes that the machine has free, its page cache among them; 2^62 where it does not say.
std::int64_t available_memory();

// The number of neighbours that recall is calibrated for where an index was not tuned for k: the
// next of 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, ..., four in each doubling. So a server calibrates
// once for a range of k.
std::int64_t calibrated_k(std::int64_t k);

class ServedIndex {
 public:
  struct About {
    std::string kind;
    std::int64_t dim = 0, rows = 0, next_id = 0, version = 0, memory_bytes = 0, log_bytes = 0,
                 checkpoints = 0;
    Metric metric = Metric::l2;
    ElementType type = ElementType::f32;
    bool writable = false;
    std::vector<AuditReport> audits = {};
  };
  struct Shape {
    RowShape rows;
    // Whether searches for a recall below 1 go by lists or a graph, query by query.
    bool by_query = false;
    bool has_graph = false;
  };

  // Opens it, and makes what its first searches would have to wait for, which `progress` is told of
  // and may end. Throws as DurableIndex and Index::load() do.
  // audit: as Index::set_audit(); no value: 0.02 where the index can audit itself.
  ServedIndex(std::string name, std::string path, bool read_only, std::optional<double> audit,
              serve::DurableOptions options, const Progress& progress);

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  // Threads: any.
  About about() const;
  Shape shape() const;
  using State = std::shared_ptr<const serve::StoredIndex>;
  // The rows that searches see now.
  State state() const;
  // As Index::search() of a state. Where the index would have to calibrate recall for k first, and
  // this thread may not (core/stop_check.hpp), the answer is the beginning of that for
  // calibrated_k(k).
  static Neighbors search(const State& state, AnyMatrixView queries, std::int64_t k,
                          const SearchOptions& options, KnnReport* report);
  // Nullptr of one that takes no changes.
  serve::DurableIndex* durable() const { return durable_.get(); }
  // Opens the file again; of one that takes no changes always. Returns whether there is another.
  bool reload(bool discard_changes);

 private:
  State open(const std::string& path, const Progress& progress) const;

  const std::string name_, path_;
  const int threads_;
  const std::optional<double> audit_;
  std::unique_ptr<serve::DurableIndex> durable_;
  mutable std::mutex mutex_;
  State fixed_;  // of one that takes no changes
};

}  // namespace knear::cli
