// A Communicator for tests of distributed attention. The ranks are threads of one process, and messages are copied in memory.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "polyhead/distributed/communicator.h"
#include "polyhead/error.h"

namespace polyhead::test {

class ThreadNetwork {
 public:
  explicit ThreadNetwork(int ranks) : ranks_(ranks) {}

 private:
  friend class ThreadCommunicator;
  struct Post {
    distributed::Message message;
    bool done = false, short_message = false;
  };
  using Route = std::tuple<int, int, int>;  // from, to, tag

  std::shared_ptr<Post> post(const Route& route, const distributed::Message& message, bool sends) {
    const std::lock_guard lock(mutex_);
    auto mine = std::make_shared<Post>(Post{message});
    auto& waiting = (sends ? receives_ : sends_)[route];
    if (waiting.empty()) {
      (sends ? sends_ : receives_)[route].push_back(mine);
      return mine;
    }
    const std::shared_ptr<Post> other = waiting.front();
    waiting.pop_front();
    const distributed::Message &from = sends ? message : other->message, &to = sends ? other->message : message;
    Post& receiver = sends ? *other : *mine;
    receiver.short_message = from.bytes.size() != to.bytes.size();
    if (!receiver.short_message && !from.bytes.empty()) std::memcpy(to.bytes.data(), from.bytes.data(), from.bytes.size());
    mine->done = other->done = true;
    arrived_.notify_all();
    return mine;
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Route, std::deque<std::shared_ptr<Post>>> sends_, receives_;
};

class ThreadCommunicator final : public distributed::Communicator {
 public:
  ThreadCommunicator(ThreadNetwork& network, int rank) : network_(network), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return network_.ranks_; }
  std::unique_ptr<distributed::Transfer> send(const distributed::Message& message, int to, int tag) override {
    sent_bytes += static_cast<std::int64_t>(message.bytes.size());
    return std::make_unique<Waiting>(network_, network_.post({rank_, to, tag}, message, true), to);
  }
  std::unique_ptr<distributed::Transfer> receive(const distributed::Message& message, int from, int tag) override {
    return std::make_unique<Waiting>(network_, network_.post({from, rank_, tag}, message, false), from);
  }
  std::int64_t sent_bytes = 0;

 private:
  class Waiting final : public distributed::Transfer {
   public:
    Waiting(ThreadNetwork& network, std::shared_ptr<ThreadNetwork::Post> post, int other) : network_(network), post_(std::move(post)), other_(other) {}
    bool wait(std::chrono::nanoseconds limit) override {
      std::unique_lock lock(network_.mutex_);
      const bool done = network_.arrived_.wait_for(lock, std::min(limit, std::chrono::nanoseconds(std::chrono::hours(1))), [&] { return post_->done; });
      if (post_->short_message) throw Error(ErrorCode::communication, "rank " + std::to_string(other_) + " sent a message of another size");
      return done;
    }

   private:
    ThreadNetwork& network_;
    std::shared_ptr<ThreadNetwork::Post> post_;
    int other_;
  };

  ThreadNetwork& network_;
  int rank_;
};

// Runs f(communicator) on `ranks` threads. Returns for each rank the message of the exception that f threw, or an empty text if f threw none.
template <class F>
std::vector<std::string> run_ranks(int ranks, const F& f) {
  ThreadNetwork network(ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(network, rank);
      try {
        f(communicator);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace polyhead::test
