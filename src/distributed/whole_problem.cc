#include "distributed/whole_problem.h"

#include <type_traits>

#include "core/dispatch.h"
#include "core/hash.h"
#include "core/overlap.h"
#include "sdpa/normal_form.h"

namespace polyhead::distributed {
namespace {

template <class Tensors>
constexpr bool kBackward = std::is_same_v<Tensors, SdpaBackward>;

// What f() throws as an Error; empty if nothing.
template <class F>
std::string refusal_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// f() depends on what all ranks agreed on, so its Error is one of every rank.
template <class F>
auto agreed(const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Refusal(error.code(), error.what());
  }
}

std::int64_t extent(const ConstTensorView& view, int axis) { return view && view.rank() >= -axis ? view.extent(axis) : -1; }

std::int64_t hash_of(const ConstTensorView& view) {
  if (!view) return 0;
  const Tensor copy = Tensor::copy_of(view);
  const auto bytes = static_cast<std::size_t>(copy.numel()) * info(copy.dtype()).size;
  const std::string shape = cat(view.dtype(), view.shape());
  return static_cast<std::int64_t>(fnv1a({static_cast<const char*>(copy.view().data()), bytes}, fnv1a(shape)));
}

std::int64_t hash_of(const Diagonal& diagonal) { return static_cast<std::int64_t>(fnv1a(cat(static_cast<int>(diagonal.corner), ' ', diagonal.shift))); }

// The extents of a tensor but that of its queries.
std::int64_t hash_of_other_extents(const ConstTensorView& view) {
  if (!view) return 0;
  Shape shape = view.shape();
  if (shape.size() >= 2) shape[-2] = 0;
  while (!shape.empty() && shape[0] == 1 && shape.size() > 3) shape.erase(0);
  return static_cast<std::int64_t>(fnv1a(cat(view.dtype(), shape)));
}

// A view of this shape without memory of its own, for checks that read shapes only.
ConstTensorView shape_only(DType dtype, const Shape& shape) {
  static const std::int64_t zero[2] = {};
  Strides strides;
  for (int i = 0; i < shape.size(); ++i) strides.push_back(0);
  return {zero, dtype, shape, strides};
}

ConstTensorView in_full_rank(ConstTensorView view, int rank) {
  while (view && view.rank() < rank) view = view.unsqueeze(0);
  return view;
}

bool per_query(const ConstTensorView& key_lengths, const ConstTensorView& q) { return key_lengths && key_lengths.rank() == q.rank() - 2; }

// The options that need neither other ranks' sizes nor tensors.
SdpaOptions without_tensors(const SdpaOptions& options) {
  SdpaOptions result;
  result.scale = options.scale, result.softcap = options.softcap, result.precision = options.precision, result.empty_rows = options.empty_rows;
  if (!options.dropout.keep) result.dropout = {.p = options.dropout.p, .seed = options.dropout.seed};
  result.backend = options.backend, result.executor = options.executor, result.workspace = options.workspace;
  return result;
}

// The rules that count in positions of the whole sequence.
SdpaOptions of_positions(const SdpaOptions& options, const ConstTensorView& q) {
  SdpaOptions result = without_tensors(options);
  result.mask.causal = options.mask.causal, result.mask.window = options.mask.window;
  result.mask.query_offsets = options.mask.query_offsets, result.mask.key_offsets = options.mask.key_offsets;
  result.mask.diagonal_offsets = options.mask.diagonal_offsets;
  if (!per_query(options.mask.key_lengths, q)) result.mask.key_lengths = options.mask.key_lengths;
  result.relative_bias = options.relative_bias;
  return result;
}

// The tensors that have rows of this rank's queries, or of all keys.
SdpaOptions of_rows(const SdpaOptions& options, const ConstTensorView& q) {
  SdpaOptions result = without_tensors(options);
  result.mask.attend = options.mask.attend, result.mask.block = options.mask.block;
  result.mask.attend_keys = options.mask.attend_keys, result.mask.block_keys = options.mask.block_keys;
  if (per_query(options.mask.key_lengths, q)) result.mask.key_lengths = options.mask.key_lengths;
  result.bias = options.bias, result.sink = options.sink, result.dropout = options.dropout, result.relative_bias = options.relative_bias;
  return result;
}

// Checks what this rank can check by itself.
template <class Tensors>
bool check_own(const char* operation, const Tensors& own, const SdpaOptions& options) {
  ProblemMemory memory;
  bool native = false;
  if constexpr (kBackward<Tensors>) {
    Tensors tensors = own;
    tensors.d_bias = tensors.d_relative_bias = tensors.d_sink = {};
    native = normal_form(tensors, without_tensors(options), memory).native;
    for (const auto& [name, view] : {std::pair{"d_bias", own.d_bias}, {"d_sink", own.d_sink}, {"d_relative_bias", own.d_relative_bias}})
      require(!view || !overlaps_itself(view), operation, ": positions of ", name, " share memory; over several ranks that is not supported");
  } else {
    require(!own.attention_weights, operation, ": attention_weights over several ranks are not supported");
    require(!own.k_scale && !own.v_scale && own.k.dtype() != DType::i8, operation, ": int8 keys over several ranks are not supported");
    native = normal_form(own, without_tensors(options), operation, memory).native;
  }
  return native;
}

// Checks the tensors of pairs and rows, once the number of all keys is known.
template <class Tensors>
std::vector<std::int64_t> check_rows(const char* operation, const Tensors& own, const SdpaOptions& options, const Problem& whole) {
  Shape k = own.k.shape(), v = own.v.shape();
  k[-2] = v[-2] = whole.keys;
  Tensors tensors = own;
  tensors.k = shape_only(own.k.dtype(), k), tensors.v = shape_only(own.v.dtype(), v);
  ProblemMemory memory;
  if constexpr (kBackward<Tensors>) {
    tensors.d_k = tensors.d_v = {};
    normal_form(tensors, of_rows(options, own.q), memory);
  } else {
    normal_form(tensors, of_rows(options, own.q), operation, memory);
  }
  return memory.rules.length_per_query ? memory.rules.lengths : std::vector<std::int64_t>();
}

// Whether a tensor has rows of its own on every rank, or one row that all share.
bool has_own_rows(const char* operation, const char* name, const std::vector<std::int64_t>& extents, const std::vector<std::int64_t>& queries, std::optional<OneRow> one_row,
                  bool gradient) {
  bool own = true, shared = true;
  for (std::size_t rank = 0; rank < extents.size(); ++rank) own &= extents[rank] == queries[rank], shared &= extents[rank] == 1;
  for (std::size_t rank = 0; rank < extents.size() && !own && !shared; ++rank) {
    if (extents[rank] != queries[rank]) {
      throw Refusal(ErrorCode::invalid_argument, cat(operation, ": on rank ", static_cast<std::int64_t>(rank), ' ', name, " has ", extents[rank], " rows for ", queries[rank],
                                                     " queries; it has a row for each query on every rank, or one row on every rank"));
    }
  }
  if (!own || !shared || extents.size() == 1) return own;
  if (gradient && !one_row) {
    throw Refusal(ErrorCode::invalid_argument, cat(operation, ": every rank has one query, and ", name,
                                                   " has one row: it may be the rank's own or shared by all, which decides about its gradient. Give one_row"));
  }
  return one_row != OneRow::shared;
}

}  // namespace

template <class Tensors>
WholeProblem::WholeProblem(Call& call, const Tensors& own, const SdpaOptions& options, const DistributedOptions& distributed) {
  const char* const operation = call.operation();
  const Mask& mask = options.mask;
  const ConstTensorView pair_mask = mask.attend ? mask.attend : mask.block;
  const ConstTensorView sink_rows = options.sink ? in_full_rank(rows_of_sink(options.sink), 2).unsqueeze(-1) : ConstTensorView();
  Statement statement;
  bool native = false;
  statement.alike("the operation", std::int64_t{kBackward<Tensors>});
  statement.refuse(refusal_of([&] { native = check_own(operation, own, options); }));
  statement.alike("the dtype of q", static_cast<std::int64_t>(own.q.dtype()));
  statement.alike("the dtype of k", static_cast<std::int64_t>(own.k.dtype()));
  const Shape lead = own.q.rank() >= 3 ? own.q.shape().first(own.q.rank() - 3) : Shape{};
  statement.alike("the number of leading dimensions", std::int64_t{lead.size()});
  for (int axis = 0; axis < std::min(lead.size(), 4); ++axis) statement.alike("a leading dimension", lead[axis]);
  statement.alike("the leading dimensions (hash)", static_cast<std::int64_t>(fnv1a(cat(lead))));
  statement.alike("the number of query heads", extent(own.q, -3));
  statement.alike("the number of key/value heads", extent(own.k, -3));
  statement.alike("the width of a query head", extent(own.q, -1));
  statement.alike("the width of a value head", extent(own.v, -1));
  statement.alike("scale", options.scale.value_or(-1));
  statement.alike("softcap", options.softcap);
  statement.alike("the dropout probability", options.dropout.p);
  statement.alike("the seed of dropout", static_cast<std::int64_t>(options.dropout.seed.value_or(0)));
  statement.alike("empty_rows", static_cast<std::int64_t>(options.empty_rows));
  statement.alike("precision", static_cast<std::int64_t>(options.precision));
  statement.alike("whether the mask is causal", std::int64_t{mask.causal.has_value()});
  statement.alike("the causal diagonal (hash)", hash_of(mask.causal.value_or(Diagonal{})));
  statement.alike("the window's left side", mask.window.left.value_or(-1));
  statement.alike("the window's right side", mask.window.right.value_or(-1));
  statement.alike("the window's diagonal (hash)", hash_of(mask.window.diagonal.value_or(Diagonal::bottom_right())));
  statement.alike("key_lengths (hash)", per_query(mask.key_lengths, own.q) ? 1 : hash_of(mask.key_lengths));
  statement.alike("attend_keys or block_keys (hash)", hash_of(mask.attend_keys ? mask.attend_keys : mask.block_keys) + std::int64_t{static_cast<bool>(mask.attend_keys)});
  statement.alike("diagonal_offsets (hash)", hash_of(mask.diagonal_offsets));
  statement.alike("query_offsets (hash)", hash_of(mask.query_offsets));
  statement.alike("key_offsets (hash)", hash_of(mask.key_offsets));
  statement.alike("attend or block (kind and extents)", hash_of_other_extents(pair_mask) + std::int64_t{static_cast<bool>(mask.attend)});
  statement.alike("bias (extents)", hash_of_other_extents(options.bias));
  statement.alike("dropout.keep (extents)", hash_of_other_extents(options.dropout.keep));
  statement.alike("sink (extents)", hash_of_other_extents(sink_rows));
  statement.alike("relative_bias (hash)", options.relative_bias ? hash_of(options.relative_bias.parameter()) + std::int64_t{static_cast<bool>(options.relative_bias.slopes)} : 0);
  statement.alike("relative_bias.max_distance", options.relative_bias.max_distance * 2 + std::int64_t{options.relative_bias.bidirectional});
  statement.alike("relative_bias.diagonal (hash)", options.relative_bias.diagonal ? hash_of(*options.relative_bias.diagonal) : 0);
  statement.alike("the order of slices", static_cast<std::int64_t>(distributed.order));
  statement.alike("the plan's head_ranks", std::int64_t{distributed.plan ? distributed.plan->head_ranks : -1});
  statement.alike("the plan's ring_ranks", std::int64_t{distributed.plan ? distributed.plan->ring_ranks : -1});
  statement.alike("links.ranks_per_machine", std::int64_t{distributed.links.ranks_per_machine});
  statement.alike("links.near_bytes_per_second", distributed.links.near_bytes_per_second);
  statement.alike("links.far_bytes_per_second", distributed.links.far_bytes_per_second);
  statement.alike("links.seconds_per_message", distributed.links.seconds_per_message);
  statement.alike("links.multiply_adds_per_second", distributed.links.multiply_adds_per_second);
  if constexpr (kBackward<Tensors>) {
    std::int64_t wanted = 0, bit = 1;
    for (const TensorView& gradient : {own.d_q, own.d_k, own.d_v, own.d_bias, own.d_relative_bias, own.d_sink}) wanted += gradient ? bit : 0, bit *= 2;
    statement.alike("which gradients are wanted", wanted);
  } else {
    statement.alike("whether lse is wanted", std::int64_t{static_cast<bool>(own.lse)});
  }
  statement.own("queries", extent(own.q, -2));
  statement.own("keys", extent(own.k, -2));
  statement.own("bias rows", extent(in_full_rank(options.bias, 2), -2));
  statement.own("mask rows", extent(in_full_rank(pair_mask, 2), -2));
  statement.own("keep rows", extent(in_full_rank(options.dropout.keep, 2), -2));
  statement.own("sink rows", extent(sink_rows, -2));
  statement.agree(call);

  const std::vector<std::int64_t> query_counts = statement.of_ranks("queries");
  queries = agreed([&] { return slices_of(distributed.order, query_counts, "queries", 'T'); });
  keys = agreed([&] { return slices_of(distributed.order, statement.of_ranks("keys"), "keys", 'S'); });
  const int rank = own.q.rank();
  Statement second;
  const auto rows = [&](const char* fact, const char* name, const ConstTensorView& view, bool gradient = false) {
    const PairTensor tensor{in_full_rank(view, rank), has_own_rows(operation, name, statement.of_ranks(fact), query_counts, distributed.one_row, gradient)};
    second.alike(name, tensor.own_rows ? 0 : hash_of(view));
    return tensor;
  };
  bool d_bias = false, d_sink = false;
  if constexpr (kBackward<Tensors>) d_bias = static_cast<bool>(own.d_bias), d_sink = static_cast<bool>(own.d_sink);
  if (options.bias) pairs.bias = rows("bias rows", "bias", options.bias, d_bias);
  if (pair_mask) pairs.masks.push_back({rows("mask rows", mask.attend ? "attend" : "block", pair_mask), static_cast<bool>(mask.attend)});
  if (options.dropout.keep) pairs.keep = rows("keep rows", "dropout.keep", options.dropout.keep);
  if (options.sink) pairs.sink = rows("sink rows", "sink", copies_.emplace_back(Tensor::copy_of(sink_rows, accumulation_dtype(own.q.dtype()))), d_sink && options.sink.rank() != 1);
  if (options.sink && options.sink.rank() == 1) pairs.sink.own_rows = false;  // [N]
  if (const ConstTensorView& of_keys = mask.attend_keys ? mask.attend_keys : mask.block_keys)
    pairs.masks.push_back({{in_full_rank(of_keys, rank - 2).unsqueeze(-2).unsqueeze(-2), false}, static_cast<bool>(mask.attend_keys)});

  second.refuse(refusal_of([&] {
    Shape q = own.q.shape(), k = own.k.shape();
    std::int64_t all_queries = 0, all_keys = 0;
    for (const auto& ranges : queries) all_queries += count_of(ranges);
    for (const auto& ranges : keys) all_keys += count_of(ranges);
    q[-2] = all_queries, k[-2] = all_keys;
    const MapsInput input{.q = shape_only(own.q.dtype(), q), .k = shape_only(own.k.dtype(), k)};
    problem = normal_form(input, of_positions(options, own.q), MapValue::probability, operation, memory);
    problem.v_width = own.v.extent(-1), problem.native = native;
    const std::vector<std::int64_t> lengths = check_rows(operation, own, options, problem);
    if (per_query(mask.key_lengths, own.q)) {
      Shape shape = lead;
      shape.push_back(1), shape.push_back(own.q.extent(-2)), shape.push_back(1);
      copies_.push_back(Tensor::of<std::int64_t>(shape, lengths));
      pairs.lengths = {copies_.back(), true};
    }
    problem.dropout = {options.dropout.p, options.dropout.seed.value_or(0), {}, {}};
    plan = {1, call.size()};
    if (distributed.plan) {
      plan = *distributed.plan, plan_reason = "the caller's";
      require(plan.head_ranks >= 1 && plan.ring_ranks >= 1 && std::int64_t{plan.head_ranks} * plan.ring_ranks == call.size(), operation, ": the plan has ", plan.head_ranks,
              " head ranks and ", plan.ring_ranks, " ring ranks; their product must be the number of ranks, ", call.size());
    } else {
      bool one_head = false;
      const auto look = [&](const PairTensor& tensor) { one_head |= tensor && tensor.own_rows && tensor.one_head() && tensor.view.extent(-1) > 1 && problem.heads > 1; };
      look(pairs.bias), look(pairs.keep);
      for (const PairMask& of_pairs : pairs.masks) look(of_pairs.pairs);
      const PlanChoice choice = choose_plan({.ranks = call.size(),
                                             .links = distributed.links,
                                             .batch = problem.batch,
                                             .heads = problem.heads,
                                             .kv_heads = problem.kv_heads,
                                             .queries = problem.queries,
                                             .keys = problem.keys,
                                             .qk_width = problem.qk_width,
                                             .v_width = problem.v_width,
                                             .element_bytes = static_cast<int>(info(own.q.dtype()).size),
                                             .shared_head_bias = one_head,
                                             .needs_all_keys = options.empty_rows != EmptyRows::zero});
      plan = choice.plan, plan_reason = choice.reason;
    }
    require(plan.ring_ranks == 1 || options.empty_rows == EmptyRows::zero, operation, ": empty_rows is not zero, and the plan has a ring of ", plan.ring_ranks,
            "; a rank of a ring does not see all keys of a row. Use a plan with ring_ranks = 1");
  }));
  second.agree(call);
}

template WholeProblem::WholeProblem(Call&, const SdpaForward&, const SdpaOptions&, const DistributedOptions&);
template WholeProblem::WholeProblem(Call&, const SdpaBackward&, const SdpaOptions&, const DistributedOptions&);

}  // namespace polyhead::distributed
