#include "distributed/whole_problem.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/hash.h"
#include "core/index.h"
#include "core/overlap.h"
#include "polyhead/attention_arguments.h"
#include "sdpa/normal_form.h"

namespace polyhead::distributed {
namespace {

template <class Tensors>
constexpr bool kBackward = std::is_same_v<Tensors, SdpaBackward>;

// Calls f() and turns its Error into a Refusal: f() depends only on agreed facts, so it fails on every rank.
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

std::string text_of(const std::optional<Diagonal>& diagonal) { return diagonal ? cat(static_cast<int>(diagonal->corner), ' ', diagonal->shift) : std::string("none"); }

// Returns a text that names the dtype and all extents except that of the queries.
std::string kind_of(const ConstTensorView& view) {
  if (!view) return "none";
  Shape shape = view.shape();
  if (shape.size() >= 2) shape[-2] = 0;
  return cat(view.dtype(), shape);
}

// Returns a view of this shape without memory, for checks that read shapes only.
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

// True for a tensor [*,T_r] of ArgumentExtent::sequences, which has a number for each of this rank's queries.
bool per_query(const Argument& argument, const ConstTensorView& view, const ConstTensorView& q) {
  return argument.extent == ArgumentExtent::sequences && view && view.rank() == q.rank() - 2;
}

// Returns a copy of the options without tensors, mask and relative bias. Dropout is also left out if its keep bits are a tensor.
SdpaOptions without_tensors(const SdpaOptions& options) {
  SdpaOptions result = options;
  visit_arguments(result, TensorArguments{[](const Argument&, ConstTensorView& view) { view = {}; }});
  result.mask = {}, result.relative_bias = {};
  if (options.dropout.keep) result.dropout = {};
  return result;
}

// True for tensors that belong to whole sequences, to documents or to heads: they are the same on every rank.
bool in_positions(ArgumentExtent extent) {
  return extent == ArgumentExtent::sequences || extent == ArgumentExtent::documents || extent == ArgumentExtent::heads;
}

// Copies the tensors for which wanted(argument, view) is true.
template <class Wanted>
void copy_tensors(const SdpaOptions& from, SdpaOptions& to, const Wanted& wanted) {
  std::vector<ConstTensorView> views;
  visit_arguments(from, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) {
    views.push_back(wanted(argument, view) ? view : ConstTensorView());
  }});
  auto next = views.begin();
  visit_arguments(to, TensorArguments{[&](const Argument&, ConstTensorView& view) { view = *next++; }});
}

// Returns the options that refer to positions in the whole sequence.
SdpaOptions of_positions(const SdpaOptions& options, const ConstTensorView& q) {
  SdpaOptions result = without_tensors(options);
  result.mask = options.mask, result.relative_bias = options.relative_bias;  // copy_tensors() replaces their tensors
  copy_tensors(options, result, [&](const Argument& argument, const ConstTensorView& view) {
    return in_positions(argument.extent) && !per_query(argument, view, q);
  });
  return result;
}

// Returns the options whose tensors have rows for this rank's queries, or for all keys.
SdpaOptions of_rows(const SdpaOptions& options, const ConstTensorView& q) {
  SdpaOptions result = without_tensors(options);
  result.dropout = options.dropout;
  copy_tensors(options, result, [&](const Argument& argument, const ConstTensorView& view) {
    const bool by_row = argument.extent == ArgumentExtent::pairs || argument.extent == ArgumentExtent::keys || argument.extent == ArgumentExtent::rows;
    return by_row || per_query(argument, view, q);
  });
  return result;
}

// Throws an Error if a tensor is given that neither of_positions() nor of_rows() copies. A new argument is then not ignored by mistake.
void require_handed_on(const char* operation, const SdpaOptions& options, const ConstTensorView& q) {
  const auto given = [](const SdpaOptions& some) {
    std::vector<bool> flags;
    visit_arguments(some, TensorArguments{[&](const Argument&, const ConstTensorView& view) { flags.push_back(static_cast<bool>(view)); }});
    return flags;
  };
  const std::vector<bool> by_position = given(of_positions(options, q)), by_row = given(of_rows(options, q));
  std::size_t at = 0;
  visit_arguments(options, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) {
    const bool handed_on = by_position[at] || by_row[at];
    ++at;
    require(!view || handed_on, operation, ": ", argument.path(), " over several ranks is not supported");
  }});
}

// Checks what this rank can check without other ranks.
template <class Tensors>
bool check_own(const char* operation, const Tensors& own, const SdpaOptions& options, const DistributedOptions& distributed) {
  require_timeout(operation, distributed.timeout);
  require_handed_on(operation, options, own.q);
  if (options.score_rule) fail(ErrorCode::unsupported, operation, ": score_rule is given, which is not supported over several ranks");
  require(!options.sink || is_floating(options.sink.dtype()), operation, ": sink is ", options.sink.dtype(), "; it must have the dtype of q or of lse");
  ProblemMemory memory;
  bool native = false;
  if constexpr (kBackward<Tensors>) {
    Tensors tensors = own;
    tensors.d_bias = tensors.d_relative_bias = tensors.d_sink = {};
    native = normal_form(tensors, without_tensors(options), memory).native;
    visit_gradients(own, [&](const char* name, const TensorView& view) {
      require(!view || !overlaps_itself(view), operation, ": positions of d_", name, " share memory; over several ranks that is not supported");
    });
  } else {
    require(!own.attention_weights, operation, ": attention_weights over several ranks are not supported");
    require(!own.k_scale && !own.v_scale && own.k.dtype() != DType::i8, operation, ": int8 keys over several ranks are not supported");
    native = normal_form(own, without_tensors(options), operation, memory).native;
  }
  return native;
}

// Checks the tensors over query-key pairs and over query rows, once the number of all keys is known. Returns the key range of each query, if the call gives key
// ranges per query.
template <class Tensors>
std::optional<std::vector<KeyRange>> check_rows(const char* operation, const Tensors& own, const SdpaOptions& options, const Problem& whole) {
  Shape k = own.k.shape(), v = own.v.shape();
  k[-2] = v[-2] = whole.keys;
  Tensors tensors = own;
  tensors.k = shape_only(own.k.dtype(), k), tensors.v = shape_only(own.v.dtype(), v);
  ProblemMemory memory;
  require(!options.bias || !options.relative_bias, operation, ": bias and relative_bias are both given; only one of them may be");
  if constexpr (kBackward<Tensors>) {
    // Check overlaps with d_k and d_v here, because normal_form() gets neither: `tensors.k` has all keys, d_k only this rank's.
    std::vector<Operand> inputs;
    add_option_tensors(options, inputs);
    const Operand gradients[] = {{"d_k", own.d_k}, {"d_v", own.d_v}};
    std::vector<std::string> names;
    names.reserve(8);  // so that the strings do not move: each Operand has a view of its name
    visit_gradients(own, [&](const char* name, const TensorView& view) {
      if (const std::string_view of = name; of != "k" && of != "v") inputs.push_back({names.emplace_back(cat("d_", name)), view});
    });
    require_no_overlap(operation, gradients, inputs);
    tensors.d_k = tensors.d_v = tensors.d_relative_bias = {};
    if (own.d_relative_bias) {
      const ConstTensorView& of = options.relative_bias.parameter();
      require(of && own.d_relative_bias.shape() == of.shape() && own.d_relative_bias.dtype() == of.dtype(), operation, ": d_relative_bias is ", own.d_relative_bias.dtype(), ' ',
              own.d_relative_bias.shape(), "; it must have the shape and dtype of the slopes or the table");
    }
    normal_form(tensors, of_rows(options, own.q), memory);
  } else {
    normal_form(tensors, of_rows(options, own.q), operation, memory);
  }
  return memory.rules.range_per_query ? std::optional(std::move(memory.rules.ranges)) : std::nullopt;
}

// Adds to the statement the facts on which all ranks must agree.
template <class Tensors>
void state(const Tensors& own, const SdpaOptions& options, const DistributedOptions& distributed, const ConstTensorView& pair_mask, const ConstTensorView& sink_rows, Statement& statement) {
  // A new argument of the options does not compile until it is named here. It then needs a fact, and a line in WholeProblem() if ranks compute with it.
  const auto& [scale, mask, bias, relative_bias, softcap, score_rule, sink, dropout, empty_rows, precision, backend, executor, workspace] = options;
  const auto& [named_rules, causal, window, key_starts, key_lengths, attend, block, attend_keys, block_keys, diagonal_offsets, query_offsets, key_offsets, blocks] = mask;
  const auto& [named_bias, slopes, table, bidirectional, max_distance, diagonal] = relative_bias;
  statement.same("the dtype of q", own.q.dtype());
  statement.same("the dtype of k", own.k.dtype());
  const Shape lead = own.q.rank() >= 3 ? own.q.shape().first(own.q.rank() - 3) : Shape{};
  statement.same("the number of leading dimensions", std::int64_t{lead.size()});
  statement.same_text("a leading dimension", cat(lead));
  statement.same("the number of query heads", extent(own.q, -3));
  statement.same("the number of key/value heads", extent(own.k, -3));
  statement.same("the width of a query head", extent(own.q, -1));
  statement.same("the width of a value head", extent(own.v, -1));
  statement.same("whether scale is given", std::int64_t{scale.has_value()});
  statement.same("scale", scale.value_or(0));
  statement.same("softcap", softcap);
  statement.same("the dropout probability", dropout.p);
  statement.same("the seed of dropout", static_cast<std::int64_t>(dropout.seed.value_or(0)));
  statement.same("empty_rows", static_cast<std::int64_t>(empty_rows));
  statement.same("precision", static_cast<std::int64_t>(precision));
  statement.same("whether the mask is causal", std::int64_t{causal.has_value()});
  statement.same_text("the causal diagonal", text_of(causal));
  statement.same("the window's left side", window.left.value_or(-1));
  statement.same("the window's right side", window.right.value_or(-1));
  statement.same_text("the window's diagonal", text_of(window.diagonal));
  visit_arguments(mask, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) {
    if (in_positions(argument.extent)) statement.same_hash(argument.name, per_query(argument, view, own.q) ? 1 : hash_of(view));
  }});
  statement.same("whether attend_keys is given", std::int64_t{static_cast<bool>(attend_keys)});
  statement.same_hash("attend_keys or block_keys", hash_of(attend_keys ? attend_keys : block_keys));
  statement.same("whether attend is given", std::int64_t{static_cast<bool>(attend)});
  statement.same_text("the kind of attend or block", kind_of(pair_mask));
  statement.same_text("the kind of bias", kind_of(bias));
  statement.same_text("the kind of dropout.keep", kind_of(dropout.keep));
  statement.same_text("the kind of sink", kind_of(sink_rows));
  statement.same("the dimensions of sink", std::int64_t{sink.rank()});
  statement.same("whether relative_bias has slopes", std::int64_t{static_cast<bool>(slopes)});
  statement.same_hash("relative_bias", relative_bias ? hash_of(relative_bias.parameter()) : 0);
  statement.same("relative_bias.max_distance", max_distance);
  statement.same("relative_bias.bidirectional", std::int64_t{bidirectional});
  statement.same_text("relative_bias.diagonal", text_of(diagonal));
  statement.same("the order of slices", static_cast<std::int64_t>(distributed.order));
  statement.same("the plan's head_ranks", std::int64_t{distributed.plan ? distributed.plan->head_ranks : -1});
  statement.same("the plan's ring_ranks", std::int64_t{distributed.plan ? distributed.plan->ring_ranks : -1});
  statement.same("one_row", distributed.one_row ? static_cast<std::int64_t>(*distributed.one_row) : -1);
  statement.same("links.ranks_per_machine", std::int64_t{distributed.links.ranks_per_machine});
  statement.same("links.near_bytes_per_second", distributed.links.near_bytes_per_second);
  statement.same("links.far_bytes_per_second", distributed.links.far_bytes_per_second);
  statement.same("links.seconds_per_message", distributed.links.seconds_per_message);
  statement.same("links.multiply_adds_per_second", distributed.links.multiply_adds_per_second);
  if constexpr (kBackward<Tensors>) {
    visit_gradients(own, [&](const char* name, const TensorView& view) { statement.same(cat("whether d_", name, " is wanted"), std::int64_t{static_cast<bool>(view)}); });
  } else {
    statement.same("whether lse is wanted", std::int64_t{static_cast<bool>(own.lse)});
  }
}

// Returns true if a tensor has one row for each of the rank's queries, on every rank; false if it has a single row that all ranks share.
bool has_own_rows(const char* operation, const char* name, const std::vector<std::int64_t>& extents, const std::vector<std::int64_t>& queries, std::optional<OneRow> one_row,
                  bool gradient) {
  bool own = true, shared = true;
  for (std::size_t rank = 0; rank < extents.size(); ++rank) own &= extents[rank] == queries[rank], shared &= extents[rank] == 1;
  for (std::size_t rank = 0; rank < extents.size() && !own && !shared; ++rank) {
    if (extents[rank] != queries[rank]) {
      throw Refusal(ErrorCode::invalid_argument, cat(operation, ": on rank ", static_cast<std::int64_t>(rank), ' ', name, " has ", extents[rank], " rows for ", queries[rank],
                                                     " queries; on every rank it must have one row for each query of that rank, or on every rank a single row"));
    }
  }
  if (!own || !shared || extents.size() == 1) return own;
  if (gradient && !one_row) {
    throw Refusal(ErrorCode::invalid_argument, cat(operation, ": every rank has one query, and ", name,
                                                   " has one row: set one_row to say whether the row is this rank's own or shared by all ranks. Its gradient depends on that"));
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
  bool native = false;
  Statement statement(call);
  statement.refuse(refusal_of([&] { native = check_own(operation, own, options, distributed); }));
  state(own, options, distributed, pair_mask, sink_rows, statement);
  statement.may_differ("queries", extent(own.q, -2));
  statement.may_differ("keys", extent(own.k, -2));
  statement.may_differ("bias rows", extent(in_full_rank(options.bias, 2), -2));
  statement.may_differ("mask rows", extent(in_full_rank(pair_mask, 2), -2));
  statement.may_differ("keep rows", extent(in_full_rank(options.dropout.keep, 2), -2));
  statement.may_differ("sink rows", extent(sink_rows, -2));
  if constexpr (!kBackward<Tensors>) {
    statement.may_differ("whether d_bias follows", std::int64_t{distributed.d_bias_follows});
    statement.may_differ("whether d_sink follows", std::int64_t{distributed.d_sink_follows});
  }
  statement.agree(call);

  const std::vector<std::int64_t> query_counts = statement.of_ranks("queries");
  queries = agreed([&] { return slices_of(distributed.order, query_counts, "queries", 'T'); });
  keys = agreed([&] { return slices_of(distributed.order, statement.of_ranks("keys"), "keys", 'S'); });
  const int rank = own.q.rank();
  Statement second(call);
  const auto pair_tensor = [&](const char* name, const ConstTensorView& view, bool own_rows) {
    second.same_hash(name, own_rows ? 0 : hash_of(view));
    return PairTensor{in_full_rank(view, rank), own_rows};
  };
  // Whether a single row is shared by the ranks or is the rank's own matters only for its gradient. Without a gradient it is treated as the rank's own row.
  const auto rows = [&](const char* fact, const char* name, const ConstTensorView& view, bool has_gradient = false, bool gradient = false) {
    return pair_tensor(name, view, has_own_rows(operation, name, statement.of_ranks(fact), query_counts, has_gradient ? distributed.one_row : std::nullopt, gradient));
  };
  bool d_bias = false, d_sink = false;
  if constexpr (kBackward<Tensors>) {
    d_bias = static_cast<bool>(own.d_bias), d_sink = static_cast<bool>(own.d_sink);
  } else {
    const auto any_rank = [&](const char* fact) {
      const std::vector<std::int64_t> said = statement.of_ranks(fact);
      return std::find(said.begin(), said.end(), 1) != said.end();
    };
    d_bias = any_rank("whether d_bias follows"), d_sink = any_rank("whether d_sink follows");
  }
  if (options.bias) pairs.bias = rows("bias rows", "bias", options.bias, true, d_bias);
  if (pair_mask) pairs.masks.push_back({rows("mask rows", mask.attend ? "attend" : "block", pair_mask), static_cast<bool>(mask.attend)});
  if (options.dropout.keep) pairs.keep = rows("keep rows", "dropout.keep", options.dropout.keep);
  if (options.sink) {
    const Tensor& sink = copies_.emplace_back(Tensor::copy_of(sink_rows, accumulation_dtype(own.q.dtype())));
    pairs.sink = options.sink.rank() == 1 ? pair_tensor("sink", sink, false) : rows("sink rows", "sink", sink, true, d_sink);
  }
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
    if (const std::optional<std::vector<KeyRange>> ranges = check_rows(operation, own, options, problem)) {
      std::vector<std::int64_t> numbers;
      for (const KeyRange& range : *ranges) numbers.insert(numbers.end(), {range.first, range.last});
      copies_.push_back(Tensor::of<std::int64_t>(appended(own.q.shape().first(own.q.rank() - 3), {1, own.q.extent(-2), 2}), numbers));
      pairs.ranges = {copies_.back(), true};
    }
    problem.dropout = {options.dropout.p, options.dropout.seed.value_or(0), {}, {}};
    plan = {1, call.size()};
    if (distributed.plan) {
      plan = *distributed.plan, plan_reason = "given by the caller";
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
                                             .backward = kBackward<Tensors>,
                                             .shared_head_bias = one_head,
                                             .needs_all_keys = options.empty_rows != EmptyRows::zero});
      plan = choice.plan, plan_reason = choice.reason;
    }
    require(plan.ring_ranks == 1 || options.empty_rows == EmptyRows::zero, operation, ": empty_rows is not zero, and the plan has a ring of ", plan.ring_ranks,
            "; a rank of a ring does not hold all keys of a row. Use a plan with ring_ranks = 1");
  }));
  second.agree(call);
}

template WholeProblem::WholeProblem(Call&, const SdpaForward&, const SdpaOptions&, const DistributedOptions&);
template WholeProblem::WholeProblem(Call&, const SdpaBackward&, const SdpaOptions&, const DistributedOptions&);

}  // namespace polyhead::distributed
