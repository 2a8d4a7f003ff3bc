#include "distributed/agreement.h"

#include <bit>
#include <cstring>

namespace polyhead::distributed {
namespace {

// A Statement travels as one message: kFacts values, then the text of a refusal. The message has the same size for all operations, so that ranks which call
// different operations can still compare their statements.
constexpr std::int64_t kFacts = 64, kText = 512, kBytes = 8 * kFacts + kText;

Tensor packed(const std::vector<std::int64_t>& values, const std::string& text) {
  Tensor message(DType::u8, {kBytes});
  std::memcpy(message.data<std::uint8_t>(), values.data(), values.size() * 8);
  std::memcpy(message.data<std::uint8_t>() + 8 * kFacts, text.data(), std::min<std::size_t>(text.size(), kText - 1));
  return message;
}

}  // namespace

void Statement::same(const char* name, double value) { add(name, std::bit_cast<std::int64_t>(value), Type::real, true); }

void Statement::agree(Call& call) {
  require(values_.size() <= kFacts, call.operation(), ": a statement has ", static_cast<std::int64_t>(values_.size()), " facts");
  std::vector<Call::Incoming> incoming;
  const Tensor mine = packed(values_, refusal_);
  for (int i = 1; i < call.size(); ++i) {
    const int other = (call.rank() + i) % call.size();
    call.send(mine, MessageKind::statement, other);
    incoming.push_back(call.receive(DType::u8, {kBytes}, MessageKind::statement, other));
  }
  all_.assign(static_cast<std::size_t>(call.size()), values_);
  std::vector<std::string> refusals(all_.size());
  refusals[static_cast<std::size_t>(call.rank())] = refusal_;
  for (Call::Incoming& next : incoming) {
    const auto from = static_cast<std::size_t>(next.from);
    const Tensor message = call.take(std::move(next));
    std::memcpy(all_[from].data(), message.data<std::uint8_t>(), values_.size() * 8);
    refusals[from] = reinterpret_cast<const char*>(message.data<std::uint8_t>() + 8 * kFacts);
  }
  call.finish();
  // A rank that refuses the call throws its own reason. The facts are compared in order, the operation first: if operations differ, later facts mean different
  // things.
  if (!refusal_.empty()) throw Refusal(ErrorCode::invalid_argument, refusal_);
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    const Fact& fact = facts_[i];
    for (std::size_t rank = 1; rank < all_.size() && fact.same; ++rank) {
      if (all_[rank][i] == all_[0][i]) continue;
      const auto other = static_cast<std::int64_t>(rank);
      const std::string how = fact.type == Type::hash ? cat("rank ", other, " gives another value than rank 0")
                                                      : cat(text_of(fact.type, all_[0][i]), " on rank 0 and ", text_of(fact.type, all_[rank][i]), " on rank ", other);
      throw Refusal(ErrorCode::invalid_argument, cat(call.operation(), ": ", fact.name, " differs: ", how, "; all ranks must give the same value"));
    }
  }
  for (std::size_t rank = 0; rank < refusals.size(); ++rank) {
    if (!refusals[rank].empty()) throw Refusal(ErrorCode::invalid_argument, cat("rank ", static_cast<std::int64_t>(rank), " refuses: ", refusals[rank]));
  }
}

std::string Statement::text_of(Type type, std::int64_t value) {
  return type == Type::real ? cat(std::bit_cast<double>(value)) : type == Type::dtype ? cat(static_cast<DType>(value)) : cat(value);
}

std::vector<std::int64_t> Statement::of_ranks(const char* name) const {
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    if (std::strcmp(facts_[i].name, name) != 0) continue;
    std::vector<std::int64_t> values;
    for (const std::vector<std::int64_t>& of_rank : all_) values.push_back(of_rank[i]);
    return values;
  }
  fail(ErrorCode::invalid_argument, "a statement has no fact ", name);
}

}  // namespace polyhead::distributed
