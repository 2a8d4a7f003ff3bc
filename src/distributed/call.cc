#include "distributed/call.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/text.h"

namespace polyhead::distributed {

struct Communicator::History {
  std::string fault;
  int calls = 0;
  // Receives the last words of each other rank. Only a rank that has waited for long listens, so that most programs never have such messages.
  std::vector<Call::Incoming> listening;
};

Communicator::Communicator() : history_(std::make_unique<History>()) {}
Communicator::~Communicator() = default;

namespace {

constexpr std::int64_t kLastWords = 512;  // bytes

Message message_of(const Tensor& tensor) {
  const auto bytes = static_cast<std::size_t>(tensor.numel()) * info(tensor.dtype()).size;
  return {{static_cast<std::byte*>(const_cast<void*>(tensor.view().data())), bytes}, tensor.owner()};
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::statement: return "the sizes of its part";
    case Kind::keys: return "its keys";
    case Kind::values: return "its values";
    case Kind::d_keys: return "gradients of keys";
    case Kind::d_values: return "gradients of values";
    case Kind::to_heads: return "rows of heads";
    case Kind::to_rows: return "results of heads";
    case Kind::addends: return "addends of a sum over ranks";
    default: return "a sum over ranks";
  }
}

}  // namespace

Call::Call(Communicator& communicator, const char* operation, std::chrono::milliseconds timeout)
    : communicator_(communicator), operation_(operation), timeout_(timeout), rank_(communicator.rank()), size_(communicator.size()) {
  require(size_ >= 1 && rank_ >= 0 && rank_ < size_, operation, ": the communicator says rank ", rank_, " of ", size_, " ranks");
  require(timeout.count() > 0, operation, ": the timeout is ", timeout.count(), " ms; it must be positive");
  Communicator::History& history = *communicator.history_;
  require(history.fault.empty(), operation, ": this communicator had an error, after which its ranks do not agree on their messages; make a new one. The error was: ", history.fault);
  call_ = history.calls++;
}

void Call::send(const Tensor& tensor, Kind kind, int to) {
  report_.sent_bytes += static_cast<std::int64_t>(message_of(tensor).bytes.size());
  sent_.push_back({communicator_.send(message_of(tensor), to, tag(kind)), kind, to});
}

Call::Incoming Call::receive(DType dtype, const Shape& shape, Kind kind, int from) {
  Incoming incoming{Tensor::uninitialised(dtype, shape), nullptr, kind, from};
  incoming.transfer = communicator_.receive(message_of(incoming.tensor), from, tag(kind));
  return incoming;
}

Tensor Call::take(Incoming&& incoming) {
  wait(*incoming.transfer, incoming.from, cat("has not sent ", name_of(incoming.kind)));
  return std::move(incoming.tensor);
}

void Call::finish() {
  for (Sent& sent : sent_) wait(*sent.transfer, sent.to, cat("has not taken ", name_of(sent.kind)));
  sent_.clear();
}

void Call::computed(double multiply_adds, std::chrono::nanoseconds time) {
  multiply_adds_ += multiply_adds, nanoseconds_ += static_cast<double>(time.count());
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

void Call::wait_longer(Transfer& transfer, int rank, std::string_view what, std::chrono::steady_clock::time_point begin) {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  // Ranks share a machine or are of several kinds, hence the factor.
  const double per_multiply_add = multiply_adds_ > 0 ? nanoseconds_ / multiply_adds_ : 0;
  const std::chrono::nanoseconds work(static_cast<std::int64_t>(std::min(4 * expected_ * per_multiply_add, 1e18))), timeout = timeout_;
  const auto end = begin + timeout + work;
  if (transfer.wait(std::min<std::chrono::nanoseconds>(timeout / 4, 1s))) return;
  const std::chrono::nanoseconds slice = std::min<std::chrono::nanoseconds>(timeout / 16, 20ms);
  for (auto now = begin; now < end; now = Clock::now()) {
    if (transfer.wait(slice)) return;
    if (const std::optional<LastWords> words = listen(-1)) throw Error(ErrorCode::communication, words->text);
  }
  const auto seconds = std::chrono::duration<double>(timeout + work).count();
  LastWords fault{rank, cat(operation_, ": rank ", rank, ' ', what, " for ", static_cast<std::int64_t>(seconds * 10) / 10.0, " s (this is rank ", rank_, " of ", size_,
                            "; the timeout is ", static_cast<double>(timeout_.count()) / 1000, " s)")};
  leave(fault.text, rank);
  // The other may only be waiting for a third rank, which its last words will say.
  for (auto now = end; now < end + timeout / 8; now = Clock::now()) {
    std::this_thread::sleep_for(slice);
    if (const std::optional<LastWords> words = listen(fault.blamed)) fault = *words;
  }
  throw Error(ErrorCode::communication, fault.text);
}

std::optional<Call::LastWords> Call::listen(int rank) {
  std::vector<Incoming>& listening = communicator_.history_->listening;
  for (int other = static_cast<int>(listening.size()); other < size_; ++other) {
    Incoming incoming{Tensor(DType::u8, {kLastWords}), nullptr, {}, other};
    if (other != rank_) incoming.transfer = communicator_.receive(message_of(incoming.tensor), other, kLeavingTag);
    listening.push_back(std::move(incoming));
  }
  for (Incoming& words : listening) {
    if (words.from == rank_ || (rank >= 0 && words.from != rank) || !words.transfer->wait(std::chrono::nanoseconds(0))) continue;
    const std::uint8_t* const bytes = words.tensor.data<std::uint8_t>();
    std::int64_t blamed = -1;
    std::memcpy(&blamed, bytes, sizeof blamed);
    if (blamed == rank_) continue;  // this rank waits for another one itself
    return LastWords{static_cast<int>(blamed), cat(operation_, ": rank ", words.from, " left the call: ", reinterpret_cast<const char*>(bytes + sizeof blamed))};
  }
  return std::nullopt;
}

void Call::leave(const std::string& why, std::int64_t blamed) {
  if (!communicator_.history_->fault.empty()) return;
  communicator_.history_->fault = why;
  try {
    Tensor words(DType::u8, {kLastWords});
    std::memcpy(words.data<std::uint8_t>(), &blamed, sizeof blamed);
    std::memcpy(words.data<std::uint8_t>() + sizeof blamed, why.data(), std::min<std::size_t>(why.size(), kLastWords - sizeof blamed - 1));
    for (int other = 0; other < size_; ++other) {
      // Given up at once: the transport sends it if it can, and keeps its memory.
      if (other != rank_) communicator_.send(message_of(words), other, kLeavingTag)->wait(std::chrono::milliseconds(1));
    }
  } catch (const std::exception&) {  // the error that made this rank leave is the one to tell
  }
}

}  // namespace polyhead::distributed
