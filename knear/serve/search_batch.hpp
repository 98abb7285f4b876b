// knear/serve/search_batch.hpp -- one search for all queries of a batch (search_queue.hpp).
#pragma once
#include "knear/serve/search_queue.hpp"

namespace knear::serve {

// What a batch came to, for who watches.
struct BatchReport {
  std::int64_t jobs = 0, rows = 0;
  double seconds = 0;
  Clock::time_point answered = {};          // when the first was told
  std::shared_ptr<const Found> found = {};  // of the last search; none where it failed
};

// Answers the jobs, each by its done(): with a Refusal (504) those that expired, others with what
// one search of all their queries found. Where that ends in an error each is searched by itself, so
// that nobody gets the error of another. Throws nothing.
BatchReport answer(Batch batch, int threads);

}  // namespace knear::serve
