#include "distributed/redistribution.h"

#include <algorithm>

#include "nn/elementwise.h"

namespace polyhead::distributed {
namespace {

Shape with_heads_and_rows(const ConstTensorView& like, std::int64_t heads, std::int64_t rows) {
  Shape shape = like.shape();
  shape[-3] = heads, shape[-2] = rows;
  return shape;
}

std::int64_t count_of(const KeyRange& range) { return range.last - range.first; }

}  // namespace

KeyRange heads_of_member(std::int64_t heads, std::int64_t kv_heads, int member, int members) {
  const std::int64_t whole = kv_heads >= members ? kv_heads : heads, size = whole > 0 ? heads / whole : 0;
  return {whole * member / members * size, whole * (member + 1) / members * size};
}

KeyRange kv_heads_of(KeyRange heads, std::int64_t group) {
  if (heads.empty()) return {0, 0};
  return {heads.first / group, (heads.last - 1) / group + 1};
}

GroupRows::GroupRows(const std::vector<std::vector<Positions>>& of_members) : of_members_(of_members) {
  std::vector<Positions> all;
  for (const std::vector<Positions>& ranges : of_members) all.insert(all.end(), ranges.begin(), ranges.end());
  all_ = joined(all);
}

Tensor to_heads(Call& call, const Members& group, const GroupRows& rows, const std::vector<KeyRange>& heads, const ConstTensorView& of_rows) {
  const KeyRange own = heads[static_cast<std::size_t>(group.me)];
  Tensor result = Tensor::uninitialised(of_rows.dtype(), with_heads_and_rows(of_rows, count_of(own), rows.count()));
  const auto place = [&](int member, const ConstTensorView& from) {
    rows.for_each_range(member, [&](std::int64_t first, std::int64_t to, std::int64_t count) {
      copy(from.slice(-2, first, first + count), result.view().slice(-2, to, to + count));
    });
  };
  std::vector<Call::Incoming> incoming;
  for (int i = 1; i < group.size(); ++i) {
    const int member = (group.me + i) % group.size();
    const KeyRange& theirs = heads[static_cast<std::size_t>(member)];
    if (!theirs.empty() && of_rows.numel() > 0) call.send(Tensor::copy_of(of_rows.slice(-3, theirs.first, theirs.last)), MessageKind::to_heads, group.rank(member));
    const Shape shape = with_heads_and_rows(of_rows, count_of(own), rows.count(member));
    if (numel(shape) > 0) incoming.push_back(call.receive(of_rows.dtype(), shape, MessageKind::to_heads, group.rank(member)));
  }
  place(group.me, of_rows.slice(-3, own.first, own.last));
  for (Call::Incoming& next : incoming) {
    const int member = static_cast<int>(std::find(group.ranks.begin(), group.ranks.end(), next.from) - group.ranks.begin());
    const Tensor from = call.take(std::move(next));
    place(member, from);
  }
  return result;
}

Tensor to_rows(Call& call, const Members& group, const GroupRows& rows, const std::vector<KeyRange>& heads, std::int64_t all_heads, const ConstTensorView& of_heads) {
  const std::int64_t own_rows = rows.count(group.me);
  Tensor result(of_heads.dtype(), with_heads_and_rows(of_heads, all_heads, own_rows));
  const auto part_of = [&](int member) {  // returns the rows of a member
    Tensor part = Tensor::uninitialised(of_heads.dtype(), with_heads_and_rows(of_heads, of_heads.extent(-3), rows.count(member)));
    rows.for_each_range(member, [&](std::int64_t first, std::int64_t from, std::int64_t count) {
      copy(of_heads.slice(-2, from, from + count), part.view().slice(-2, first, first + count));
    });
    return part;
  };
  std::vector<Call::Incoming> incoming(static_cast<std::size_t>(group.size()));
  for (int i = 1; i < group.size(); ++i) {
    const int member = (group.me + i) % group.size();
    Tensor theirs = part_of(member);
    if (theirs.numel() > 0) call.send(theirs, MessageKind::to_rows, group.rank(member));
    const Shape shape = with_heads_and_rows(of_heads, count_of(heads[static_cast<std::size_t>(member)]), own_rows);
    if (numel(shape) > 0) incoming[static_cast<std::size_t>(member)] = call.receive(of_heads.dtype(), shape, MessageKind::to_rows, group.rank(member));
  }
  std::vector<bool> written(static_cast<std::size_t>(all_heads));
  for (int member = 0; member < group.size(); ++member) {
    const KeyRange& theirs = heads[static_cast<std::size_t>(member)];
    Call::Incoming& next = incoming[static_cast<std::size_t>(member)];
    if (member != group.me && !next.transfer) continue;
    const Tensor part = member == group.me ? part_of(member) : call.take(std::move(next));
    for (std::int64_t n = theirs.first; n < theirs.last; ++n) {
      const ConstTensorView from = part.view().slice(-3, n - theirs.first, n - theirs.first + 1);
      const TensorView to = result.view().slice(-3, n, n + 1);
      // copy the first result of a head: adding it to 0 would turn -0 into +0
      written[static_cast<std::size_t>(n)] ? nn::add(from, to, nullptr) : copy(from, to);
      written[static_cast<std::size_t>(n)] = true;
    }
  }
  return result;
}

void all_reduce(Call& call, Tensor& tensor) {
  if (call.size() == 1 || tensor.numel() == 0) return;
  if (const DType wide = accumulation_dtype(tensor.dtype()); wide != tensor.dtype()) {  // add up in the accumulation dtype and round once, at the end
    Tensor sum = Tensor::copy_of(tensor, wide);
    all_reduce(call, sum);
    return copy(sum, tensor);
  }
  const TensorView all = tensor.view().reshape({tensor.numel()});
  const auto part = [&](int rank) { return all.slice(0, tensor.numel() * rank / call.size(), tensor.numel() * (rank + 1) / call.size()); };
  std::vector<Call::Incoming> addends(static_cast<std::size_t>(call.size())), sums;
  const ConstTensorView own = part(call.rank());
  for (int i = 1; i < call.size(); ++i) {
    const int other = (call.rank() + i) % call.size();
    if (part(other).numel() > 0) call.send(Tensor::copy_of(part(other)), MessageKind::addends, other);
    if (own.numel() > 0) addends[static_cast<std::size_t>(other)] = call.receive(tensor.dtype(), own.shape(), MessageKind::addends, other);
  }
  if (own.numel() > 0) {
    Tensor sum = call.rank() == 0 ? Tensor::copy_of(own) : call.take(std::move(addends[0]));
    for (int rank = 1; rank < call.size(); ++rank) {
      if (rank == call.rank()) {
        nn::add(own, sum, nullptr);
      } else {
        const Tensor next = call.take(std::move(addends[static_cast<std::size_t>(rank)]));
        nn::add(next, sum, nullptr);
      }
    }
    copy(sum, part(call.rank()));
    for (int i = 1; i < call.size(); ++i) call.send(sum, MessageKind::sums, (call.rank() + i) % call.size());
  }
  for (int i = 1; i < call.size(); ++i) {
    const int other = (call.rank() + i) % call.size();
    if (part(other).numel() > 0) sums.push_back(call.receive(tensor.dtype(), part(other).shape(), MessageKind::sums, other));
  }
  for (Call::Incoming& next : sums) {
    const TensorView to = part(next.from);
    const Tensor sum = call.take(std::move(next));
    copy(sum, to);
  }
}

}  // namespace polyhead::distributed
