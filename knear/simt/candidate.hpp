// knear/simt/candidate.hpp -- one (distance, id) pair per lane, and the total order of answers.
#pragma once
#include <limits>

#include "knear/simt/warp.hpp"

namespace knear {

template <Warp W, class Id>
struct Candidate {
  Lanes<W, float> distance;
  Lanes<W, Id> id;
};

// Per lane, whether a precedes b: smaller distance, then smaller id. False if either is NaN.
template <Warp W, class Id>
KNEAR_WARP typename W::Mask precedes(const Candidate<W, Id>& a, const Candidate<W, Id>& b) {
  return (a.distance < b.distance) | ((a.distance == b.distance) & (a.id < b.id));
}

template <Warp W, class Id>
KNEAR_WARP Candidate<W, Id> select(W w, typename W::Mask m, const Candidate<W, Id>& a,
                                   const Candidate<W, Id>& b) {
  return {w.select(m, a.distance, b.distance), w.select(m, a.id, b.id)};
}

template <Warp W, class Id>
KNEAR_WARP Candidate<W, Id> shuffle_xor(W w, const Candidate<W, Id>& x, int distance) {
  return {w.shuffle_xor(x.distance, distance), w.shuffle_xor(x.id, distance)};
}

template <Warp W, class Id>
KNEAR_WARP Candidate<W, Id> broadcast(W w, const Candidate<W, Id>& x, int source) {
  return {w.broadcast(x.distance, source), w.broadcast(x.id, source)};
}

// The candidate of an empty place, which comes after every other, the infinitely far ones included.
// Its id is the largest of its type, which no candidate may have.
template <class Id, Warp W>
KNEAR_WARP Candidate<W, Id> no_candidate(W w) {
  return {w.fill(std::numeric_limits<float>::infinity()), w.fill(std::numeric_limits<Id>::max())};
}

}  // namespace knear
