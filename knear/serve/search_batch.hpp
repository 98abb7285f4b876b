// knear/serve/search_batch.hpp -- one search for all queries of a batch (search_queue.hpp).
#pragma once
#include "knear/serve/search_queue.hpp"

namespace knear::serve {

// What a batch came to, for who watches.
struct BatchReport {
  std::int64_t jobs = 0, rows = 0;
  // Searches that are answered in part: for put_back().
  std::vector<SearchJob> unfinished = {};
  // Searches that need something to be made first (core/stop_check.hpp), as they were.
  std::vector<SearchJob> unprepared = {};
  // True if the index answered without something that it would otherwise make first.
  bool lacks_something = false;
  double seconds = 0;
  Clock::time_point answered = {};          // when the first was told
  std::shared_ptr<const Found> found = {};  // of the last search; none where it failed
};

// Answers the jobs, each by its done(): with a Refusal those that expired (504) and those whose
// client hung up (503), others with what one search of all their queries found. Where that ends in
// an error each is searched by itself, so that nobody gets the error of another. A search makes
// nothing first that others would use too. It ends within half a second once all jobs of the batch
// are over. Throws nothing.
BatchReport answer(Batch batch, int threads);

}  // namespace knear::serve
