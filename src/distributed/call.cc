#include "distributed/call.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/text.h"

namespace polyhead::distributed {

struct Communicator::History {
  std::string fault;
  int calls = 0;
  double expected = 0;                         // multiply-adds of the busiest rank in the previous call
  double multiply_adds = 0, nanoseconds = 0;  // multiply-adds and compute time of this rank, summed over all calls
  // Receives that wait for the abort message of each other rank. They are posted only after a long wait, so most programs never post them.
  std::vector<Call::Incoming> listening;
};

Communicator::Communicator() : history_(std::make_unique<History>()) {}
Communicator::~Communicator() = default;

namespace {

constexpr std::int64_t kAbortBytes = 512;

// Limits the timeout to a year, so that adding it to a time does not overflow. A timeout <= 0 becomes 30 s: require_timeout() refuses it, but the ranks need a
// working timeout to exchange this refusal.
std::chrono::nanoseconds limited(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return std::chrono::seconds(30);
  return std::min(timeout, std::chrono::milliseconds(std::chrono::hours(24 * 365)));
}

Message message_of(const Tensor& tensor) {
  const auto bytes = static_cast<std::size_t>(tensor.numel()) * info(tensor.dtype()).size;
  return {{static_cast<std::byte*>(const_cast<void*>(tensor.view().data())), bytes}, tensor.owner()};
}

const char* name_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::statement: return "the sizes of its part";
    case MessageKind::keys: return "its keys";
    case MessageKind::values: return "its values";
    case MessageKind::d_keys: return "gradients of keys";
    case MessageKind::d_values: return "gradients of values";
    case MessageKind::to_heads: return "rows of heads";
    case MessageKind::to_rows: return "results of heads";
    case MessageKind::addends: return "addends of a sum over ranks";
    default: return "a sum over ranks";
  }
}

}  // namespace

Call::Call(Communicator& communicator, const char* operation, std::chrono::milliseconds timeout)
    : communicator_(communicator), operation_(operation), timeout_(limited(timeout)), rank_(communicator.rank()), size_(communicator.size()) {
  require(size_ >= 1 && rank_ >= 0 && rank_ < size_, operation, ": the communicator says rank ", rank_, " of ", size_, " ranks");
  Communicator::History& history = *communicator.history_;
  require(history.fault.empty(), operation, ": this communicator had an error, after which its ranks do not agree on their messages; make a new one. The error was: ", history.fault);
  call_ = history.calls++;
  expected_ = history.expected;
}

void Call::send(const Tensor& tensor, MessageKind kind, int to) {
  report_.sent_bytes += static_cast<std::int64_t>(message_of(tensor).bytes.size());
  sent_.push_back({communicator_.send(message_of(tensor), to, tag(kind)), kind, to});
}

Call::Incoming Call::receive(DType dtype, const Shape& shape, MessageKind kind, int from) {
  Incoming incoming{Tensor::uninitialised(dtype, shape), nullptr, kind, from};
  incoming.transfer = communicator_.receive(message_of(incoming.tensor), from, tag(kind));
  return incoming;
}

Tensor Call::take(Incoming&& incoming) {
  wait(*incoming.transfer, incoming.from, cat("has not sent ", name_of(incoming.kind)));
  return std::move(incoming.tensor);
}

void Call::limit_sent(std::initializer_list<MessageKind> kinds, std::size_t most) {
  const auto counts = [&](const Sent& sent) { return std::find(kinds.begin(), kinds.end(), sent.kind) != kinds.end(); };
  std::erase_if(sent_, [&](const Sent& sent) { return counts(sent) && sent.transfer->wait(std::chrono::nanoseconds(0)); });
  auto under_way = static_cast<std::size_t>(std::count_if(sent_.begin(), sent_.end(), counts));
  for (Sent& sent : sent_) {
    if (under_way <= most) break;
    if (!counts(sent)) continue;
    wait(*sent.transfer, sent.to, cat("has not taken ", name_of(sent.kind)));
    --under_way;
  }
}

void Call::finish() {
  for (Sent& sent : sent_) wait(*sent.transfer, sent.to, cat("has not taken ", name_of(sent.kind)));
  sent_.clear();
}

void require_timeout(const char* operation, std::chrono::milliseconds timeout) {
  require(timeout.count() > 0, operation, ": the timeout is ", timeout.count(), " ms; it must be positive");
}

void Call::expect(double multiply_adds) {
  communicator_.history_->expected = multiply_adds;
  expected_ += multiply_adds;
}

void Call::computed(double multiply_adds, std::chrono::nanoseconds time) {
  communicator_.history_->multiply_adds += multiply_adds, communicator_.history_->nanoseconds += static_cast<double>(time.count());
  report_.compute_seconds += std::chrono::duration<double>(time).count();
}

const CallReport& Call::report() {
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return report_;
}

void Call::wait(Transfer& transfer, int rank, std::string_view what) {
  const auto begin = std::chrono::steady_clock::now();
  wait_longer(transfer, rank, what, begin);
  report_.waiting_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class F>
std::optional<Call::AbortMessage> Call::listen(const F& wanted) {
  std::vector<Incoming>& listening = communicator_.history_->listening;
  for (int other = static_cast<int>(listening.size()); other < size_; ++other) {
    Incoming incoming{Tensor(DType::u8, {kAbortBytes}), nullptr, {}, other};
    if (other != rank_) incoming.transfer = communicator_.receive(message_of(incoming.tensor), other, kAbortTag);
    listening.push_back(std::move(incoming));
  }
  for (Incoming& words : listening) {
    if (words.from == rank_ || !words.transfer->wait(std::chrono::nanoseconds(0))) continue;
    const std::uint8_t* const bytes = words.tensor.data<std::uint8_t>();
    std::int64_t blamed = -1;
    std::memcpy(&blamed, bytes, sizeof blamed);
    if (blamed == rank_ || !wanted(words.from, static_cast<int>(blamed))) continue;  // a message that blames this rank does not explain why this rank waits
    return AbortMessage{static_cast<int>(blamed), cat(operation_, ": rank ", words.from, " left the call: ", reinterpret_cast<const char*>(bytes + sizeof blamed))};
  }
  return std::nullopt;
}

void Call::wait_longer(Transfer& transfer, int rank, std::string_view what, std::chrono::steady_clock::time_point begin) {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  // The time for the expected work is multiplied by 4, because ranks may share a machine or be slower than this one.
  constexpr double kSlowest = 0.1;  // nanoseconds per multiply-add on a slow rank; used until this rank has measured its own speed
  const Communicator::History& history = *communicator_.history_;
  const double per_multiply_add = history.multiply_adds > 0 ? history.nanoseconds / history.multiply_adds : kSlowest;
  const std::chrono::nanoseconds work(static_cast<std::int64_t>(std::min(4 * expected_ * per_multiply_add, 1e18))), timeout = timeout_;
  const std::chrono::nanoseconds last_part = timeout / 8;  // reserved for receiving the abort messages of other ranks
  const auto end = begin + timeout - last_part + work;
  if (transfer.wait(std::min<std::chrono::nanoseconds>(timeout / 4, 1s))) return;
  const std::chrono::nanoseconds slice = std::min<std::chrono::nanoseconds>(timeout / 16, 20ms);
  std::optional<AbortMessage> fault;
  for (auto now = begin; now < end && !fault; now = Clock::now()) {
    if (transfer.wait(slice)) return;
    // The wait ends early if the awaited rank left the call, or if another rank left and blames the awaited rank or no rank. Other abort messages do not end
    // the wait.
    fault = listen([&](int from, int blamed) { return from == rank || blamed == rank || blamed < 0; });
  }
  if (!fault) {
    const auto seconds = std::chrono::duration<double>(timeout + work).count();
    fault = {rank, cat(operation_, ": rank ", rank, ' ', what, " for ", static_cast<std::int64_t>(seconds * 10) / 10.0, " s (this is rank ", rank_, " of ", size_,
                       "; the timeout is ", std::chrono::duration<double>(timeout_).count(), " s)")};
  }
  leave(fault->text, fault->blamed);
  // The silent rank may itself be waiting for a third rank and soon report that rank, so wait for its abort message.
  const auto last = Clock::now() + last_part;
  while (fault->blamed >= 0 && Clock::now() < last) {
    std::this_thread::sleep_for(slice);
    const int blamed = fault->blamed;
    if (const std::optional<AbortMessage> message = listen([&](int from, int) { return from == blamed; })) fault = message;
  }
  throw Error(ErrorCode::communication, fault->text);
}

void Call::leave(const std::string& why, std::int64_t blamed) {
  if (!communicator_.history_->fault.empty()) return;
  communicator_.history_->fault = why;
  try {
    Tensor words(DType::u8, {kAbortBytes});
    std::memcpy(words.data<std::uint8_t>(), &blamed, sizeof blamed);
    std::memcpy(words.data<std::uint8_t>() + sizeof blamed, why.data(), std::min<std::size_t>(why.size(), kAbortBytes - sizeof blamed - 1));
    for (int other = 0; other < size_; ++other) {
      // Wait 1 ms at most: the transport delivers the message if it can, and keeps the message's memory alive.
      if (other != rank_) communicator_.send(message_of(words), other, kAbortTag)->wait(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {  // ignored: the error that made this rank leave is more important
  }
}

}  // namespace polyhead::distributed
