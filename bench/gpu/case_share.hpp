// bench/gpu/case_share.hpp -- which of many numbered cases run, so that a run that is cut short has
// had some of each kind.
#pragma once
#include <cstdint>

#include "bench/gpu/deadline.hpp"

namespace knear::bench {

// A loop runs one in `every` of its cases, and each pass one in `passes` of these, another one than
// the passes before. So the first pass is spread over all of them, and all passes are everything.
// Once the deadline is over no case begins.
struct CaseShare {
  int every = 1, pass = 0, passes = 1;
  const Deadline* deadline = nullptr;

  CaseShare(int one_in) : every(one_in) {}
  CaseShare(int pass_number, int of, const Deadline* end)
      : pass(pass_number), passes(of), deadline(end) {}
  CaseShare one_in(int n) const {
    CaseShare out = *this;
    out.every = n;
    return out;
  }

  bool is_over() const { return deadline && deadline->left() <= 0; }
  bool takes(std::int64_t number) const {
    return number % every == 0 && number / every % passes == pass && !is_over();
  }
  // Whether to run what runs once and takes long: not in a first pass that may be all.
  bool takes_once() const { return every == 1 && pass == (passes == 1 ? 0 : 1) && !is_over(); }
};

}  // namespace knear::bench
