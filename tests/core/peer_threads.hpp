// tests/core/peer_threads.hpp -- threads that play the processes of core/peers.hpp.
//
//   as_peers(4, [&](Peers& peers) { ... });
//
// Each thread is one process. What one of them throws outside of together() ends the others at
// their next call, instead of letting them wait for it.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "knear/core/peers.hpp"
#include "knear/core/threads.hpp"

namespace knear::test {

// Where they leave and find what they tell each other.
class Board {
 public:
  explicit Board(int size) : notes_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(notes_.size()); }

  // Returns the notes of all once all have left theirs.
  std::vector<std::vector<std::byte>> exchange(int rank, std::vector<std::byte> note) {
    std::unique_lock lock(mutex_);
    notes_[static_cast<std::size_t>(rank)] = std::move(note);
    wait(lock);
    std::vector<std::vector<std::byte>> out = notes_;
    wait(lock);  // nobody writes before all have read
    return out;
  }
  void send(int from, int to, std::vector<std::byte> note) {
    std::lock_guard lock(mutex_);
    sent_[{from, to}].push_back(std::move(note));
    changed_.notify_all();
  }
  std::vector<std::byte> receive(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& notes = sent_[{from, to}];
    changed_.wait(lock, [&] { return !notes.empty() || given_up_; });
    if (notes.empty()) throw std::runtime_error("another process has ended");
    std::vector<std::byte> out = std::move(notes.front());
    notes.pop_front();
    return out;
  }
  void give_up() {
    std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }

 private:
  void wait(std::unique_lock<std::mutex>& lock) {
    const std::int64_t round = round_;
    if (++waiting_ == size()) {
      waiting_ = 0, ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || given_up_; });
    if (round_ == round) throw std::runtime_error("another process has ended");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> notes_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent_;  // by (from, to)
  int waiting_ = 0;
  std::int64_t round_ = 0;
  bool given_up_ = false;
};

class PeerThread : public Peers {
 public:
  PeerThread(Board& board, int rank) : board_(board), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return board_.size(); }
  void sum(std::span<std::int64_t> values) override {
    const auto all = gather(std::as_bytes(values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint64_t sum = 0;
      for (const auto& bytes : all) sum += reinterpret_cast<const std::uint64_t*>(bytes.data())[i];
      values[i] = static_cast<std::int64_t>(sum);
    }
  }
  void largest(std::span<double> values) override {
    for (const auto& bytes : gather(std::as_bytes(values)))
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::max(values[i], reinterpret_cast<const double*>(bytes.data())[i]);
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override {
    return board_.exchange(rank_, {own.begin(), own.end()});
  }
  void in_turn(std::span<double> values, const std::function<void()>& change) override {
    for (int turn = 0; turn < size(); ++turn) {
      if (turn == rank_) change();
      const auto all = gather(std::as_bytes(values));
      const auto* left =
          reinterpret_cast<const double*>(all[static_cast<std::size_t>(turn)].data());
      std::copy_n(left, values.size(), values.begin());
    }
  }
  void broadcast(int from, std::span<std::byte> bytes) override {
    const auto all =
        gather(rank_ == from ? std::span<const std::byte>(bytes) : std::span<const std::byte>());
    const auto& sent = all[static_cast<std::size_t>(from)];
    if (sent.size() != bytes.size()) throw std::logic_error("broadcast of another size");
    std::copy(sent.begin(), sent.end(), bytes.begin());
  }
  void send(int to, std::span<const std::byte> bytes) override {
    board_.send(rank_, to, {bytes.begin(), bytes.end()});
  }
  std::vector<std::byte> receive(int from) override { return board_.receive(from, rank_); }

 private:
  Board& board_;
  const int rank_;
};

inline void as_peers(int size, const std::function<void(Peers&)>& process) {
  Board board(size);
  run_together(size, [&](int rank) {
    PeerThread peers(board, rank);
    try {
      process(peers);
    } catch (...) {
      board.give_up();
      throw;
    }
  });
}

}  // namespace knear::test
