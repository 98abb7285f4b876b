// tests/mpi/fake_nccl.hpp -- an NCCL without GPUs: its ranks are threads of one process, its memory
// that of the processor.
//
//   FakeNccl& nccl = FakeNccl::start();                 // and link fake_nccl.cpp
//   as_peers(4, [&](Peers& peers) { ... NcclSums ... });
//   nccl.made(); nccl.closed(); nccl.aborted();
//
// It stands for the library and holds the caller to what NCCL's reference asks for: communicators
// do not block and are asked until they are ready, which is when all ranks of one id have come,
// each once and all with as many; between ranks one sum is the same as the others' in count, type
// and operation, and is done when all have asked for it; a communicator with a call under way takes
// no other one; it is closed once, in order by all ranks or by an abort, which the others are told
// as an error. Whoever does otherwise gets ncclInvalidUsage, which a test sees as an error.
#pragma once
#include <nccl.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace knear::test {

class FakeNccl {
 public:
  // The one of the process, as new.
  static FakeNccl& start();
  static FakeNccl& now();

  // From the rank's call of that number (from 0) on this fails: at once, or when it is asked for.
  void fail(int rank, const std::string& call, int number, ncclResult_t result, bool at_once);

  // Communicators that were made, closed in order, and aborted.
  int made();
  int closed();
  int aborted();
  // Whether all sums that were asked for on the stream are done.
  bool done(cudaStream_t stream);
  // The device that was current when the rank's communicator was made, and the streams of its sums.
  int device_of(int rank);
  std::vector<cudaStream_t> streams_of(int rank);
  std::vector<std::size_t> counts_of(int rank);

  struct World;  // the communicators of one id

 private:
  friend struct FakeNcclCall;
  struct Sum {
    const unsigned long long* from;
    unsigned long long* to;
    std::size_t count;
    cudaStream_t stream;
  };
  struct Failure {
    int number;
    ncclResult_t result;
    bool at_once;
  };

  std::recursive_mutex mutex_;
  std::map<std::string, std::shared_ptr<World>> worlds_;  // by id
  std::map<std::pair<int, std::string>, Failure> failures_;
  std::map<cudaStream_t, int> left_;  // sums that are not done, by stream
  std::map<int, int> devices_;
  std::map<int, std::vector<Sum>> sums_;  // by rank
  int ids_ = 0, made_ = 0, closed_ = 0, aborted_ = 0;
};

}  // namespace knear::test
