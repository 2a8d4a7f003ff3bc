// A simulated network: it passes messages on to another communicator, and delivers each message no sooner than a link with a given rate and delay would.
// All ranks must be processes of one machine, because the times of sending and receiving are read from the machine's clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "polyhead/distributed/communicator.h"

namespace polyhead::bench {

// Each rank has one link, over which the messages to this rank arrive one after the other. A message of up to 64 KiB begins to arrive `delay` after it was sent.
// A larger message begins to arrive 2 `delay` after it was announced and its receive was posted, because the receiver must request it (rendezvous, as in MPI).
// The processor time of a message is not simulated: it is what the wrapped communicator needs.
class SimulatedLink final : public distributed::Communicator {
 public:
  SimulatedLink(distributed::Communicator& ranks, double bytes_per_second, std::chrono::nanoseconds delay)
      : ranks_(ranks), bytes_per_second_(bytes_per_second), delay_(delay) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void progress() override {
    ranks_.progress();
    look();
  }

  std::unique_ptr<distributed::Transfer> send(const distributed::Message& message, int to, int tag) override {
    const distributed::Message stamp = new_stamp();
    const std::int64_t now = nanoseconds_now();
    std::memcpy(stamp.bytes.data(), &now, sizeof now);
    auto before = ranks_.send(stamp, to, tag);
    return std::make_unique<Sent>(std::move(before), ranks_.send(message, to, tag));
  }
  std::unique_ptr<distributed::Transfer> receive(const distributed::Message& message, int from, int tag) override {
    auto received = std::make_unique<Received>(*this);
    received->made = nanoseconds_now(), received->bytes = static_cast<double>(message.bytes.size());
    received->stamp = new_stamp();
    received->stamp_transfer = ranks_.receive(received->stamp, from, tag);
    received->message_transfer = ranks_.receive(message, from, tag);
    open_.push_back(received.get());
    return received;
  }

 private:
  using Limit = std::chrono::nanoseconds;

  struct Sent final : distributed::Transfer {
    Sent(std::unique_ptr<Transfer> stamp, std::unique_ptr<Transfer> message) : stamp_transfer(std::move(stamp)), message_transfer(std::move(message)) {}
    bool wait(Limit limit) override { return message_transfer->wait(limit) && stamp_transfer->wait(limit); }
    std::unique_ptr<Transfer> stamp_transfer, message_transfer;
  };

  struct Received final : distributed::Transfer {
    explicit Received(SimulatedLink& of) : link(of) {}
    Received(const Received&) = delete;
    Received& operator=(const Received&) = delete;
    ~Received() override { std::erase(link.open_, this); }
    bool wait(Limit limit) override {
      const std::int64_t end = nanoseconds_now() + limit.count();
      for (;;) {
        link.look();
        const std::int64_t now = nanoseconds_now();
        if (arrival >= 0 && now >= arrival) return message_transfer->wait(Limit(std::max<std::int64_t>(end - now, 0)));
        if (now >= end) return false;
        std::this_thread::sleep_for(Limit(std::min<std::int64_t>({20'000, end - now, arrival >= 0 ? arrival - now : 20'000})));
      }
    }
    SimulatedLink& link;
    std::int64_t made = 0, arrival = -1;  // in nanoseconds; arrival is -1 until it is known
    double bytes = 0;
    distributed::Message stamp;
    std::unique_ptr<Transfer> stamp_transfer, message_transfer;
  };

  static std::int64_t nanoseconds_now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
  static distributed::Message new_stamp() {
    auto memory = std::make_shared<std::int64_t>();
    return {std::as_writable_bytes(std::span(memory.get(), 1)), memory};
  }

  // Computes arrival times over the link for the messages that were announced since the last call of look().
  void look() {
    for (Received* const received : open_) {
      if (received->arrival >= 0 || !received->stamp_transfer->wait(Limit(0))) continue;
      std::int64_t sent = 0;
      std::memcpy(&sent, received->stamp.bytes.data(), sizeof sent);
      const std::int64_t announced = sent + delay_.count();
      const bool at_once = received->bytes <= 65536;
      const std::int64_t ready = at_once ? announced : std::max(announced, received->made) + 2 * delay_.count();
      busy_until_ = std::max(ready, busy_until_) + static_cast<std::int64_t>(received->bytes / bytes_per_second_ * 1e9);
      received->arrival = busy_until_;
    }
  }

  distributed::Communicator& ranks_;
  const double bytes_per_second_;
  const std::chrono::nanoseconds delay_;
  std::int64_t busy_until_ = 0;
  std::vector<Received*> open_;
};

}  // namespace polyhead::bench
