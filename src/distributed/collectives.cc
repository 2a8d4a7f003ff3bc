#include "polyhead/distributed/collectives.h"

#include <algorithm>
#include <optional>

#include "core/overlap.h"
#include "distributed/agreement.h"
#include "distributed/redistribution.h"

namespace polyhead::distributed {
namespace {

int from_first(const Call& call, int axis, int rank) {
  require(axis >= -rank && axis < rank, call.operation(), ": there is no axis ", axis, " in a tensor of ", rank, " dimensions");
  return axis < 0 ? axis + rank : axis;
}

std::vector<std::int64_t> bounds_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> bounds{0};
  for (const std::int64_t count : counts) bounds.push_back(bounds.back() + count);
  return bounds;
}

template <class View>
View part_of(const View& view, int axis, const std::vector<std::int64_t>& bounds, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  return view.slice(axis, bounds[at], bounds[at + 1]);
}

// Adds to the statement the facts about a tensor that is cut along `axis`: all extents except that one must agree.
void describe(Statement& statement, const ConstTensorView& view, int axis) {
  statement.same("the dtype", view.dtype());
  statement.same("the axis", std::int64_t{axis});
  statement.same("the number of dimensions", std::int64_t{view.rank()});
  for (int i = 0; i < view.rank(); ++i) {
    if (i != axis) statement.same("an extent that is not cut", view.extent(i));
  }
}

// Waits for a message and copies it to `view`.
void take_into(Call& call, std::optional<Call::Incoming>&& incoming, const TensorView& view) {
  if (!incoming) return;
  const Tensor part = call.take(std::move(*incoming));
  copy(part, view);
}

std::optional<Call::Incoming> receive_like(Call& call, const ConstTensorView& view, MessageKind kind, int from) {
  if (view.numel() == 0) return std::nullopt;
  return call.receive(view.dtype(), view.shape(), kind, from);
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
    Statement statement(call);
    int at = 0;
    statement.refuse(refusal_of([&] {
      require_timeout(call.operation(), options.timeout);
      at = from_first(call, axis, own.rank());
      Shape wanted = own.shape(), given = all.shape();
      require(given.size() == wanted.size() && all.dtype() == own.dtype(), call.operation(), ": own is ", own.dtype(), ' ', own.shape(), " and all ", all.dtype(), ' ', all.shape(),
              "; they must differ along the axis only");
      wanted[at] = given[at] = 0;
      require(wanted == given, call.operation(), ": own is ", own.shape(), " and all ", all.shape(), "; they must differ along axis ", at, " only");
    }));
    describe(statement, own, at);
    statement.same("the extent of all", all && at < all.rank() ? all.extent(at) : -1);
    statement.may_differ("rows", at < own.rank() ? own.extent(at) : -1);
    statement.agree(call);
    const std::vector<std::int64_t> bounds = bounds_of(statement.of_ranks("rows"));
    if (bounds.back() != all.extent(at))
      throw Refusal(ErrorCode::invalid_argument, cat("all_gather: the ranks have ", bounds.back(), " rows in total, but the tensor all has ", all.extent(at)));
    const Tensor mine = Tensor::copy_of(own);
    std::vector<std::optional<Call::Incoming>> incoming(static_cast<std::size_t>(call.size()));
    for (int i = 1; i < call.size(); ++i) {
      const int other = (call.rank() + i) % call.size();
      if (mine.numel() > 0) call.send(mine, MessageKind::to_rows, other);
      incoming[static_cast<std::size_t>(other)] = receive_like(call, part_of(all, at, bounds, other), MessageKind::to_rows, other);
    }
    copy(own, part_of(all, at, bounds, call.rank()));
    for (int other = 0; other < call.size(); ++other) take_into(call, std::move(incoming[static_cast<std::size_t>(other)]), part_of(all, at, bounds, other));
  });
}

void reduce_scatter(Communicator& communicator, ConstTensorView all, int axis, TensorView own, const CollectiveOptions& options) {
  run_call(communicator, "reduce_scatter", options.timeout, [&](Call& call) {
    Statement statement(call);
    int at = 0;
    statement.refuse(refusal_of([&] {
      require_timeout(call.operation(), options.timeout);
      at = from_first(call, axis, all.rank());
      require(is_floating(all.dtype()), call.operation(), ": the tensor is ", all.dtype(), "; it must be floating");
      Shape wanted = all.shape(), given = own.shape();
      require(given.size() == wanted.size() && all.dtype() == own.dtype(), call.operation(), ": own is ", own.dtype(), ' ', own.shape(), " and all ", all.dtype(), ' ', all.shape(),
              "; they must differ along the axis only");
      wanted[at] = given[at] = 0;
      require(wanted == given, call.operation(), ": own is ", own.shape(), " and all ", all.shape(), "; they must differ along axis ", at, " only");
    }));
    describe(statement, all, at);
    statement.same("the extent of all", at < all.rank() ? all.extent(at) : -1);
    statement.may_differ("rows", own && at < own.rank() ? own.extent(at) : -1);
    statement.agree(call);
    const std::vector<std::int64_t> bounds = bounds_of(statement.of_ranks("rows"));
    if (bounds.back() != all.extent(at))
      throw Refusal(ErrorCode::invalid_argument, cat("reduce_scatter: the ranks have ", bounds.back(), " rows in total, but the tensor all has ", all.extent(at)));
    std::vector<std::optional<Call::Incoming>> incoming(static_cast<std::size_t>(call.size()));
    for (int i = 1; i < call.size(); ++i) {
      const int other = (call.rank() + i) % call.size();
      const ConstTensorView theirs = part_of(all, at, bounds, other);
      if (theirs.numel() > 0) call.send(Tensor::copy_of(theirs), MessageKind::addends, other);
      incoming[static_cast<std::size_t>(other)] = receive_like(call, own, MessageKind::addends, other);
    }
    if (own.numel() == 0) return;
    const DType wide = accumulation_dtype(all.dtype());  // sums in this dtype are rounded once, at the end
    Tensor sum;
    for (int rank = 0; rank < call.size(); ++rank) {
      Tensor next = rank == call.rank() ? Tensor::copy_of(part_of(all, at, bounds, rank)) : call.take(std::move(*incoming[static_cast<std::size_t>(rank)]));
      if (next.dtype() != wide) next = Tensor::copy_of(next, wide);
      if (rank == 0) {
        sum = std::move(next);
      } else {
        add(next, sum);
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
      Shape wanted = own.shape(), given = other.shape();
      require(given.size() == wanted.size() && other.dtype() == own.dtype(), call.operation(), ": own is ", own.dtype(), ' ', own.shape(), " and other ", other.dtype(), ' ', other.shape(),
              "; they must differ along the two axes only");
      wanted[from] = given[from] = wanted[to] = given[to] = 0;
      require(wanted == given, call.operation(), ": own is ", own.shape(), " and other ", other.shape(), "; they must differ along axes ", from, " and ", to, " only");
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
    const std::vector<std::int64_t> rows = bounds_of(statement.of_ranks("rows")), columns = bounds_of(statement.of_ranks("columns"));
    if (rows.back() != other.extent(from) || columns.back() != own.extent(to)) {
      throw Refusal(ErrorCode::invalid_argument, cat("all_to_all: the ranks have ", rows.back(), " and ", columns.back(), " rows of the two axes together, whose extents are ", other.extent(from),
                                                     " and ", own.extent(to)));
    }
    std::vector<std::optional<Call::Incoming>> incoming(static_cast<std::size_t>(call.size()));
    for (int i = 1; i < call.size(); ++i) {
      const int rank = (call.rank() + i) % call.size();
      const ConstTensorView theirs = part_of(own, to, columns, rank);
      if (theirs.numel() > 0) call.send(Tensor::copy_of(theirs), MessageKind::to_rows, rank);
      incoming[static_cast<std::size_t>(rank)] = receive_like(call, part_of(other, from, rows, rank), MessageKind::to_rows, rank);
    }
    copy(part_of(own, to, columns, call.rank()), part_of(other, from, rows, call.rank()));
    for (int rank = 0; rank < call.size(); ++rank) take_into(call, std::move(incoming[static_cast<std::size_t>(rank)]), part_of(other, from, rows, rank));
  });
}

}  // namespace polyhead::distributed
