#include "tests/mpi/fake_nccl.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

// What the compiler can hold the fake to, where it is built against NCCL's own header. The
// declarations are another part of that: definitions below have to be of the same types.
static_assert(NCCL_UNIQUE_ID_BYTES == 128 && sizeof(ncclUniqueId) == 128);
static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 &&
              ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7);
static_assert(ncclSum == 0 && ncclInt64 == 4 && ncclUint64 == 5);

namespace knear::test {

struct FakeNccl::World {
  int ranks = 0;
  std::map<int, ncclComm*> comms;
  std::vector<std::map<int, Sum>> sums;  // by number, then by rank
  std::set<int> finalized;
  bool broken = false;  // a rank has aborted
};

}  // namespace knear::test

struct ncclComm {
  std::shared_ptr<knear::test::FakeNccl::World> world;
  int rank = 0;
  std::size_t sums = 0;  // asked for
  ncclResult_t state = ncclInProgress;
  int polls = 0;                     // that are still to be answered with "in progress"
  std::optional<ncclResult_t> late;  // what the call under way ends in
  bool finalizing = false;
};

namespace knear::test {

FakeNccl& FakeNccl::now() {
  static FakeNccl one;
  return one;
}

FakeNccl& FakeNccl::start() {
  FakeNccl& one = now();
  std::lock_guard lock(one.mutex_);
  one.worlds_.clear(), one.failures_.clear(), one.left_.clear(), one.devices_.clear();
  one.sums_.clear();
  one.ids_ = one.made_ = one.closed_ = one.aborted_ = 0;
  return one;
}

void FakeNccl::fail(int rank, const std::string& call, int number, ncclResult_t result,
                    bool at_once) {
  std::lock_guard lock(mutex_);
  failures_[{rank, call}] = {number, result, at_once};
}

int FakeNccl::made() {
  std::lock_guard lock(mutex_);
  return made_;
}
int FakeNccl::closed() {
  std::lock_guard lock(mutex_);
  return closed_;
}
int FakeNccl::aborted() {
  std::lock_guard lock(mutex_);
  return aborted_;
}
bool FakeNccl::done(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  return left_[stream] == 0;
}
int FakeNccl::device_of(int rank) {
  std::lock_guard lock(mutex_);
  return devices_.at(rank);
}
std::vector<cudaStream_t> FakeNccl::streams_of(int rank) {
  std::lock_guard lock(mutex_);
  std::vector<cudaStream_t> out;
  for (const Sum& sum : sums_[rank]) out.push_back(sum.stream);
  return out;
}
std::vector<std::size_t> FakeNccl::counts_of(int rank) {
  std::lock_guard lock(mutex_);
  std::vector<std::size_t> out;
  for (const Sum& sum : sums_[rank]) out.push_back(sum.count);
  return out;
}

// One call of the library.
struct FakeNcclCall {
  FakeNccl& all = FakeNccl::now();
  std::lock_guard<std::recursive_mutex> lock{all.mutex_};

  // What a call that is fine returns: what it is to fail with at once, or that it is under way, and
  // then its end is known.
  ncclResult_t begun(ncclComm& comm, const char* call, int number) {
    comm.state = ncclInProgress, comm.polls = 2;
    const auto found = all.failures_.find({comm.rank, call});
    if (found == all.failures_.end() || number < found->second.number) return ncclInProgress;
    if (found->second.at_once) return comm.state = found->second.result;
    comm.late = found->second.result;
    return ncclInProgress;
  }

  ncclResult_t unique_id(ncclUniqueId* id) {
    std::memset(id, 0, sizeof *id);
    // All of its bytes count.
    const std::string text = "id " + std::to_string(++all.ids_);
    std::copy(text.begin(), text.end(), id->internal);
    std::copy(text.begin(), text.end(), id->internal + NCCL_UNIQUE_ID_BYTES - 16);
    all.worlds_[name(*id)] = std::make_shared<FakeNccl::World>();
    return ncclSuccess;
  }
  static std::string name(const ncclUniqueId& id) { return {id.internal, NCCL_UNIQUE_ID_BYTES}; }

  ncclResult_t init(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank,
                    const ncclConfig_t* config) {
    const auto found = all.worlds_.find(name(id));
    if (found == all.worlds_.end() || config->blocking != 0) return ncclInvalidUsage;
    FakeNccl::World& world = *found->second;
    if (ranks < 1 || rank < 0 || rank >= ranks || world.comms.contains(rank) ||
        (world.ranks != 0 && world.ranks != ranks))
      return ncclInvalidUsage;
    world.ranks = ranks;
    *out = new ncclComm;
    (*out)->world = found->second, (*out)->rank = rank;
    world.comms[rank] = *out;
    ++all.made_;
    int device = -1;
    cudaGetDevice(&device);
    all.devices_[rank] = device;
    return begun(**out, "ncclCommInitRankConfig", 0);
  }

  ncclResult_t all_reduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                          ncclRedOp_t operation, ncclComm& comm, cudaStream_t stream) {
    if (comm.state != ncclSuccess || type != ncclUint64 || operation != ncclSum)
      return comm.state = ncclInvalidUsage;
    const std::size_t number = comm.sums++;
    const ncclResult_t result = begun(comm, "ncclAllReduce", static_cast<int>(number));
    if (result != ncclInProgress || comm.late) return result;
    FakeNccl::World& world = *comm.world;
    world.sums.resize(std::max(world.sums.size(), comm.sums));
    auto& parts = world.sums[number];
    const FakeNccl::Sum own = {static_cast<const unsigned long long*>(from),
                               static_cast<unsigned long long*>(to), count, stream};
    for (const auto& [rank, other] : parts)
      if (other.count != count) return comm.state = ncclInvalidUsage;
    parts[comm.rank] = own;
    all.sums_[comm.rank].push_back(own);
    ++all.left_[stream];
    if (std::ssize(parts) < world.ranks) return ncclInProgress;
    for (std::size_t i = 0; i < count; ++i) {
      unsigned long long sum = 0;
      for (const auto& [rank, part] : parts) sum += part.from[i];
      for (const auto& [rank, part] : parts) part.to[i] = sum;
    }
    for (const auto& [rank, part] : parts) --all.left_[part.stream];
    return ncclInProgress;
  }

  ncclResult_t state(ncclComm& comm, ncclResult_t* out) {
    FakeNccl::World& world = *comm.world;
    const bool all_there = comm.finalizing ? std::ssize(world.finalized) == world.ranks
                                           : std::ssize(world.comms) == world.ranks;
    if (comm.state == ncclInProgress && comm.polls-- <= 0) {
      if (comm.late)
        comm.state = *comm.late;
      else if (all_there)
        comm.state = ncclSuccess;
    }
    if (world.broken) comm.state = ncclRemoteError;
    *out = comm.state;
    return ncclSuccess;
  }

  ncclResult_t finalize(ncclComm& comm) {
    if (comm.state != ncclSuccess || comm.finalizing) return ncclInvalidUsage;
    comm.finalizing = true;
    comm.world->finalized.insert(comm.rank);
    return begun(comm, "ncclCommFinalize", 0);
  }
  ncclResult_t destroy(ncclComm* comm) {
    if (!comm->finalizing || comm->state != ncclSuccess) return ncclInvalidUsage;
    ++all.closed_;
    delete comm;
    return ncclSuccess;
  }
  ncclResult_t abort(ncclComm* comm) {
    ++all.aborted_;
    comm->world->broken = true;
    delete comm;
    return ncclSuccess;
  }
};

}  // namespace knear::test

using knear::test::FakeNcclCall;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return FakeNcclCall().unique_id(id); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return FakeNcclCall().init(comm, ranks, id, rank, config);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return FakeNcclCall().finalize(*comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return FakeNcclCall().destroy(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return FakeNcclCall().abort(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return FakeNcclCall().state(*comm, error);
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSystemError   ? "unhandled system error"
         : result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "invalid usage";
}
const char* ncclGetLastError(ncclComm_t comm) {
  return comm && comm->state == ncclSystemError ? "socket\nclosed\n" : "";
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return FakeNcclCall().all_reduce(from, to, count, type, operation, *comm, stream);
}

}  // extern "C"
