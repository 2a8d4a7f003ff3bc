// One distributed call: its tags, messages and timeouts.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "polyhead/distributed/attention.h"
#include "polyhead/distributed/communicator.h"
#include "polyhead/error.h"
#include "polyhead/tensor.h"

namespace polyhead::distributed {

// The content of a message. Messages of one kind between two ranks keep their order; messages of different kinds may overtake each other.
enum class MessageKind : std::uint8_t { statement, keys, values, d_keys, d_values, to_heads, to_rows, addends, sums };
inline constexpr int kAbortTag = 2047 * 16;  // tag of abort messages; all other tags are smaller

// An error that every rank of the call throws. The ranks therefore still agree on later messages, and later calls are allowed.
class Refusal : public Error {
 public:
  using Error::Error;
};

class Call {
 public:
  Call(Communicator& communicator, const char* operation, std::chrono::milliseconds timeout);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const char* operation() const { return operation_; }

  // Sends a contiguous tensor, whose memory must not change until finish().
  void send(const Tensor& tensor, MessageKind kind, int to);

  struct Incoming {
    Tensor tensor;
    std::unique_ptr<Transfer> transfer;
    MessageKind kind{};
    int from = 0;
  };
  Incoming receive(DType dtype, const Shape& shape, MessageKind kind, int from);
  // Waits for a tensor and returns it. Throws an Error that names the sender if nothing arrives in time.
  Tensor take(Incoming&& incoming);

  void finish();  // waits until all sent messages have left
  // Waits, oldest message first, until at most `most` sent messages of these kinds are under way. Frees the messages that have left.
  void limit_sent(std::initializer_list<MessageKind> kinds, std::size_t most);
  // Tries to tell the other ranks why this one leaves the call. Later calls are refused.
  void leave(const std::string& why, std::int64_t blamed = -1);
  void progress() { communicator_.progress(); }

  // Sets the number of multiply-adds of the busiest rank. The timeout is extended by the time that this rank would need for them, because a rank that computes
  // does not answer.
  void expect(double multiply_adds);
  void computed(double multiply_adds, std::chrono::nanoseconds time);

  const CallReport& report();
  // Ends the phase of agreement: the time so far counts as CallReport::agreement_seconds.
  void end_agreement() {
    report_.agreement_seconds = report_.waiting_seconds;
    report_.waiting_seconds = 0;
  }

 private:
  struct Sent {
    std::unique_ptr<Transfer> transfer;
    MessageKind kind;
    int to;
  };
  void wait(Transfer& transfer, int rank, std::string_view what);
  void wait_longer(Transfer& transfer, int rank, std::string_view what, std::chrono::steady_clock::time_point begin);
  struct AbortMessage {
    int blamed;  // the rank that did not answer; -1: none
    std::string text;
  };
  // Returns the abort message of a rank for which wanted(rank, blamed) is true, if one has arrived.
  template <class F>
  std::optional<AbortMessage> listen(const F& wanted);
  int tag(MessageKind kind) const { return call_ % 2047 * 16 + static_cast<int>(kind); }

  Communicator& communicator_;
  const char* operation_;
  std::chrono::nanoseconds timeout_;
  int rank_, size_, call_;
  double expected_ = 0;  // multiply-adds of the busiest rank in this call and in the previous call, because that rank may not have finished the previous call
  CallReport report_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<Sent> sent_;
};

// Throws an Error unless the timeout is positive. Call it where errors become refusals of the Statement, so that all ranks throw.
void require_timeout(const char* operation, std::chrono::milliseconds timeout);

// Runs f(call). If f throws an error that other ranks may not throw, the communicator is marked as faulty.
template <class F>
void run_call(Communicator& communicator, const char* operation, std::chrono::milliseconds timeout, const F& f) {
  Call call(communicator, operation, timeout);
  try {
    f(call);
    call.finish();
  } catch (const Refusal& refusal) {
    throw Error(refusal.code(), refusal.what());
  } catch (const std::exception& error) {
    call.leave(error.what());
    throw;
  }
}

}  // namespace polyhead::distributed
