#include "knear/mpi/mpi_peers.hpp"

#include <mpi.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear {
namespace {

constexpr std::size_t piece = std::size_t{1} << 27;  // values of a call
constexpr int turn_tag = 1, size_tag = 2, bytes_tag = 3;

// Calls f(first, count) for pieces of so many values.
template <class F>
void in_pieces(std::size_t count, F f) {
  for (std::size_t first = 0; first < count; first += piece)
    f(first, static_cast<int>(std::min(piece, count - first)));
}

// What waits for processes that are at work leaves the processor to them: Open MPI would look again
// and again whether they have come, on a processor that they could use where there are more
// processes or threads than processors. So calls are preceded by a wait for all who take part, and
// only what is then passed on, which takes little time, is MPI's own.
//
// Calls is_ready() until it is true, between pauses of a sixteenth of the time waited so far and a
// millisecond at most: no wait becomes longer by more than that.
template <class F>
void wait_until(F is_ready) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds busy{50'000}, longest{1'000'000};
  const auto start = Clock::now();
  while (!is_ready()) {
    const std::chrono::nanoseconds waited = Clock::now() - start;
    if (waited < busy) continue;
    const timespec pause{0, std::min(waited / 16, longest).count()};
    nanosleep(&pause, nullptr);
  }
}

void wait_for(MPI_Request& request) {
  wait_until([&] {
    int is_done = 0;
    MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    return is_done != 0;
  });
}

void wait_for_message(int from, int tag) {
  wait_until([&] {
    int is_ready = 0;
    MPI_Iprobe(from, tag, MPI_COMM_WORLD, &is_ready, MPI_STATUS_IGNORE);
    return is_ready != 0;
  });
}

}  // namespace

MpiSession::MpiSession(int& argc, char**& argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw Error("this MPI lets no process have several threads");
  }
}

MpiSession::~MpiSession() { MPI_Finalize(); }

// A communicator of its own, so that no other call takes part in a wait.
struct MpiPeers::Gate {
  Gate() { MPI_Comm_dup(MPI_COMM_WORLD, &all); }
  // Not freed before the end, which some processes may come to alone.
  MPI_Comm all;
};

MpiPeers::MpiPeers() : gate_(std::make_unique<Gate>()) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm here;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here);
  int here_size = 0;
  MPI_Comm_size(here, &here_size);
  MPI_Comm_rank(here, &number_here_);
  const detail::CpuMask own = detail::cpus_of_thread().value_or(detail::CpuMask{});
  std::vector<detail::CpuMask> all(here_size);
  MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, here);
  MPI_Comm_free(&here);
  sharers_ = static_cast<int>(std::count(all.begin(), all.end(), own));
}

MpiPeers::~MpiPeers() = default;

void MpiPeers::wait_for_all() {
  if (size_ == 1) return;
  MPI_Request request;
  MPI_Ibarrier(gate_->all, &request);
  wait_for(request);
}

bool MpiPeers::all_come(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int come = 0;;) {
    MPI_Test(&request, &come, MPI_STATUS_IGNORE);
    if (come) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 1);
  }
}

void MpiPeers::end_all(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

void MpiPeers::sum(std::span<std::int64_t> values) {
  wait_for_all();
  in_pieces(values.size(), [&](std::size_t first, int count) {
    // Without a sign, so that sums are modulo 2^64.
    MPI_Allreduce(MPI_IN_PLACE, values.data() + first, count, MPI_UINT64_T, MPI_SUM,
                  MPI_COMM_WORLD);
  });
}

void MpiPeers::largest(std::span<double> values) {
  wait_for_all();
  in_pieces(values.size(), [&](std::size_t first, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values.data() + first, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  });
}

std::vector<std::vector<std::byte>> MpiPeers::gather(std::span<const std::byte> own) {
  std::vector<std::int64_t> sizes(size_);
  auto size = static_cast<std::int64_t>(own.size());
  wait_for_all();
  MPI_Allgather(&size, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, MPI_COMM_WORLD);
  std::vector<std::vector<std::byte>> out(sizes.size());
  for (int from = 0; from < size_; ++from) {
    auto& bytes = out[from];
    if (from == rank_)
      bytes.assign(own.begin(), own.end());
    else
      bytes.resize(sizes[from]);
    pass_on(from, bytes);
  }
  return out;
}

void MpiPeers::broadcast(int from, std::span<std::byte> bytes) {
  wait_for_all();
  pass_on(from, bytes);
}

void MpiPeers::pass_on(int from, std::span<std::byte> bytes) {
  in_pieces(bytes.size(), [&](std::size_t first, int count) {
    MPI_Bcast(bytes.data() + first, count, MPI_BYTE, from, MPI_COMM_WORLD);
  });
}

void MpiPeers::send(int to, std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  MPI_Request request;
  MPI_Issend(&size, 1, MPI_INT64_T, to, size_tag, MPI_COMM_WORLD, &request);
  wait_for(request);
  in_pieces(bytes.size(), [&](std::size_t first, int count) {
    MPI_Send(bytes.data() + first, count, MPI_BYTE, to, bytes_tag, MPI_COMM_WORLD);
  });
}

std::vector<std::byte> MpiPeers::receive(int from) {
  std::int64_t size = 0;
  wait_for_message(from, size_tag);
  MPI_Recv(&size, 1, MPI_INT64_T, from, size_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  std::vector<std::byte> bytes(size);
  in_pieces(bytes.size(), [&](std::size_t first, int count) {
    MPI_Recv(bytes.data() + first, count, MPI_BYTE, from, bytes_tag, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
  });
  return bytes;
}

void MpiPeers::in_turn(std::span<double> values, const std::function<void()>& change) {
  if (rank_ > 0)
    in_pieces(values.size(), [&](std::size_t first, int count) {
      wait_for_message(rank_ - 1, turn_tag);
      MPI_Recv(values.data() + first, count, MPI_DOUBLE, rank_ - 1, turn_tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
    });
  change();
  if (rank_ + 1 < size_)
    in_pieces(values.size(), [&](std::size_t first, int count) {
      MPI_Send(values.data() + first, count, MPI_DOUBLE, rank_ + 1, turn_tag, MPI_COMM_WORLD);
    });
  wait_for_all();
  in_pieces(values.size(), [&](std::size_t first, int count) {
    MPI_Bcast(values.data() + first, count, MPI_DOUBLE, size_ - 1, MPI_COMM_WORLD);
  });
}

}  // namespace knear
