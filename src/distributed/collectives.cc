#include "polyhead/distributed/collectives.h"

#include <algorithm>
#include <optional>

#include "core/overlap.h"
#include "distributed/agreement.h"
#include "distributed/redistribution.h"
#include "nn/elementwise.h"

namespace polyhead::distributed {
namespace {

int from_first(const Call& call, int axis, int rank) {
  require(axis >= -rank && axis < rank, call.operation(), ": there is no axis ", axis, " in a tensor of ", rank, " dimensions");
  return axis < 0 ? axis + rank : axis;
}

// The bounds that cut a tensor along one axis into one part for each rank.
class Cut {
 public:
  Cut(int axis, const std::vector<std::int64_t>& counts) : axis_(axis) {
    for (const std::int64_t count : counts) bounds_.push_back(bounds_.back() + count);
  }
  std::int64_t extent() const { return bounds_.back(); }
  template <class View>
  View part(const View& view, int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    return view.slice(axis_, bounds_[at], bounds_[at + 1]);
  }

 private:
  int axis_;
  std::vector<std::int64_t> bounds_{0};
};

// Adds to the statement the facts about a tensor that is cut along `axis`: dtype, axis, and all other extents must be the same on every rank.
void describe(Statement& statement, const ConstTensorView& view, int axis) {
  statement.same("the dtype", view.dtype());
  statement.same("the axis", std::int64_t{axis});
  statement.same("the number of dimensions", std::int64_t{view.rank()});
  for (int i = 0; i < view.rank(); ++i) {
    if (i != axis) statement.same("an extent that is not cut", view.extent(i));
  }
}

// Throws an Error unless `own` and the tensor `name` have the same dtype, and the same extents along all axes except `axes`. `which` names these axes in words,
// `numbers` by number.
void require_alike(const Call& call, const ConstTensorView& own, const char* name, const ConstTensorView& view, std::initializer_list<int> axes, const char* which, const std::string& numbers) {
  Shape wanted = own.shape(), given = view.shape();
  require(given.size() == wanted.size() && view.dtype() == own.dtype(), call.operation(), ": own is ", own.dtype(), ' ', own.shape(), " and ", name, ' ', view.dtype(), ' ', view.shape(),
          "; they must differ along the ", which, " only");
  for (const int axis : axes) wanted[axis] = given[axis] = 0;
  require(wanted == given, call.operation(), ": own is ", own.shape(), " and ", name, ' ', view.shape(), "; they must differ along ", numbers, " only");
}

// Agrees with the other ranks on how the tensor `all` is cut into the tensors `own`, one on each rank. `given` is the input of the operation: own or all.
Cut agree_on_cut(Call& call, const CollectiveOptions& options, const ConstTensorView& given, int axis, const ConstTensorView& own, const ConstTensorView& all, bool adds) {
  Statement statement(call);
  int at = 0;
  statement.refuse(refusal_of([&] {
    require_timeout(call.operation(), options.timeout);
    at = from_first(call, axis, given.rank());
    require(!adds || is_floating(given.dtype()), call.operation(), ": the tensor is ", given.dtype(), "; it must be floating");
    require_alike(call, own, "all", all, {at}, "axis", cat("axis ", at));
  }));
  describe(statement, given, at);
  statement.same("the extent of all", at < all.rank() ? all.extent(at) : -1);
  statement.may_differ("rows", at < own.rank() ? own.extent(at) : -1);
  statement.agree(call);
  Cut cut(at, statement.of_ranks("rows"));
  if (cut.extent() != all.extent(at)) throw Refusal(ErrorCode::invalid_argument, cat(call.operation(), ": the ranks have ", cut.extent(), " rows in total, but the tensor all has ", all.extent(at)));
  return cut;
}

using AllIncoming = std::vector<std::optional<Call::Incoming>>;  // for each rank

// Sends theirs(rank) to each other rank. Returns the messages to receive from the other ranks: each has the dtype and shape of mine(rank). Tensors without
// elements are not sent.
template <class Theirs, class Mine>
AllIncoming exchange(Call& call, MessageKind kind, const Theirs& theirs, const Mine& mine) {
  AllIncoming incoming(static_cast<std::size_t>(call.size()));
  for (int i = 1; i < call.size(); ++i) {
    const int other = (call.rank() + i) % call.size();
    if (const Tensor& tensor = theirs(other); tensor.numel() > 0) call.send(tensor, kind, other);
    if (const ConstTensorView like = mine(other); like.numel() > 0) incoming[static_cast<std::size_t>(other)] = call.receive(like.dtype(), like.shape(), kind, other);
  }
  return incoming;
}

// Waits for the messages, and copies the message of each rank to mine(rank).
template <class Mine>
void take_into(Call& call, AllIncoming incoming, const Mine& mine) {
  for (int other = 0; other < call.size(); ++other) {
    if (!incoming[static_cast<std::size_t>(other)]) continue;
    const Tensor part = call.take(std::move(*incoming[static_cast<std::size_t>(other)]));
    copy(part, mine(other));
  }
}

}  // namespace

void all_reduce(Communicator& communicator, TensorView x, const CollectiveOptions& options) {
  run_call(communicator, "all_reduce", options.timeout, [&](Call& call) {
    Statement statement(call);
    describe(statement, x, -1);
    statement.refuse(refusal_of([&] {
      require_timeout(call.operation(), options.timeout);
      require(x && is_floating(x.dtype()), call.operation(), ": the tensor is ", x.dtype(), "; it must be floating");
    }));
    statement.agree(call);
    Tensor sum = Tensor::copy_of(x);
    all_reduce(call, sum);
    copy(sum, x);
  });
}

void all_gather(Communicator& communicator, ConstTensorView own, int axis, TensorView all, const CollectiveOptions& options) {
  run_call(communicator, "all_gather", options.timeout, [&](Call& call) {
    const Cut cut = agree_on_cut(call, options, own, axis, own, all, false);
    const auto part = [&](int rank) { return cut.part(all, rank); };
    const Tensor mine = Tensor::copy_of(own);
    AllIncoming incoming = exchange(call, MessageKind::to_rows, [&](int) -> const Tensor& { return mine; }, part);
    copy(own, part(call.rank()));
    take_into(call, std::move(incoming), part);
  });
}

void reduce_scatter(Communicator& communicator, ConstTensorView all, int axis, TensorView own, const CollectiveOptions& options) {
  run_call(communicator, "reduce_scatter", options.timeout, [&](Call& call) {
    const Cut cut = agree_on_cut(call, options, all, axis, own, all, true);
    const auto part = [&](int rank) { return Tensor::copy_of(cut.part(all, rank)); };
    AllIncoming incoming = exchange(call, MessageKind::addends, part, [&](int) { return own; });
    if (own.numel() == 0) return;
    const DType wide = accumulation_dtype(all.dtype());  // add up in the accumulation dtype and round once, at the end
    Tensor sum;
    for (int rank = 0; rank < call.size(); ++rank) {
      Tensor next = rank == call.rank() ? part(rank) : call.take(std::move(*incoming[static_cast<std::size_t>(rank)]));
      if (next.dtype() != wide) next = Tensor::copy_of(next, wide);
      if (rank == 0) {
        sum = std::move(next);
      } else {
        nn::add(next, sum, nullptr);
      }
    }
    copy(sum, own);
  });
}

void all_to_all(Communicator& communicator, ConstTensorView own, int from_axis, int to_axis, TensorView other, const CollectiveOptions& options) {
  run_call(communicator, "all_to_all", options.timeout, [&](Call& call) {
    Statement statement(call);
    int from = 0, to = 0;
    statement.refuse(refusal_of([&] {
      require_timeout(call.operation(), options.timeout);
      from = from_first(call, from_axis, own.rank()), to = from_first(call, to_axis, own.rank());
      require(from != to, call.operation(), ": both axes are ", from, "; they must differ");
      const Operand outputs[] = {{"other", other}}, inputs[] = {{"own", own}};
      require_no_overlap(call.operation(), outputs, inputs);
      require_alike(call, own, "other", other, {from, to}, "two axes", cat("axes ", from, " and ", to));
    }));
    const bool fits = own && other && other.rank() == own.rank();
    statement.same("the dtype", own.dtype());
    statement.same("the first axis", std::int64_t{from});
    statement.same("the second axis", std::int64_t{to});
    statement.same("the number of dimensions", std::int64_t{own.rank()});
    for (int i = 0; i < own.rank(); ++i) {
      if (i != from && i != to) statement.same("an extent that is not cut", own.extent(i));
    }
    statement.same("the whole extent of the first axis", fits ? other.extent(from) : -1);
    statement.same("the whole extent of the second axis", fits ? own.extent(to) : -1);
    statement.may_differ("rows", fits ? own.extent(from) : -1);
    statement.may_differ("columns", fits ? other.extent(to) : -1);
    statement.agree(call);
    const Cut rows(from, statement.of_ranks("rows")), columns(to, statement.of_ranks("columns"));
    if (rows.extent() != other.extent(from) || columns.extent() != own.extent(to)) {
      throw Refusal(ErrorCode::invalid_argument, cat("all_to_all: the ranks have ", rows.extent(), " and ", columns.extent(), " rows in total along the two axes, whose extents are ", other.extent(from),
                                                     " and ", own.extent(to)));
    }
    const auto part = [&](int rank) { return rows.part(other, rank); };
    AllIncoming incoming = exchange(call, MessageKind::to_rows, [&](int rank) { return Tensor::copy_of(columns.part(own, rank)); }, part);
    copy(columns.part(own, call.rank()), part(call.rank()));
    take_into(call, std::move(incoming), part);
  });
}

}  // namespace polyhead::distributed
