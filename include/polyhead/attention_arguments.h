// Lists the arguments of attention: visit_arguments(options, f) calls f(argument, member) for each argument.
// Code that must treat every argument uses this list: the checks for overlapping memory, the cutting of tensors by sequences and ranks, the comparison of
// arguments between ranks, the command line and Python.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "polyhead/mask.h"
#include "polyhead/relative_bias.h"
#include "polyhead/sdpa.h"
#include "polyhead/sdpa_derivatives.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// The shapes that an argument may have. Code that passes only some sequences, queries or keys to a call finds here which axes of the argument it must cut.
enum class ArgumentExtent : std::uint8_t {
  none,          // not a tensor
  query_heads,   // q and out: [*,N,T,width]
  key_heads,     // k and v: [*,K,S,width]
  scales,        // scales of int8 keys or values: [*,K,S]
  pairs,         // one value for each pair of a query and a key: broadcasts to [*,N,T,S]
  query_blocks,  // lists of key blocks for each block of queries: broadcasts to [*,N,blocks of queries,listed blocks of keys]
  rows,          // a tensor of one axis [N] has one value for each head; any other tensor broadcasts to [*,N,T]
  keys,          // one value for each key: broadcasts to [*,S]
  sequences,     // one value for each sequence, [*], or for each query, [*,T]
  documents,     // [D+1]: the borders of D documents, which all sequences share
  heads,         // [N,...]: one value or row for each head, which all sequences share
};

struct Argument {
  const char* name;  // the argument's name in Python
  ArgumentExtent extent = ArgumentExtent::none;
  bool has_gradient = false;     // true: visit_gradients() also visits the gradient or the tangent of this argument
  const char* member = nullptr;  // the member's path in the options, for example "relative_bias.slopes"; nullptr: the same as `name`

  constexpr const char* path() const { return member != nullptr ? member : name; }  // Returns the name that messages and files use for the argument.
  // Returns the part of path() before the dot: "relative_bias" for the slopes.
  constexpr std::string_view option() const { return std::string_view(path()).substr(0, std::string_view(path()).find('.')); }
};

// `mask` is a Mask or a const Mask. The structured binding lists every member of Mask, so a member that is added to Mask must be added here, or the code does
// not compile.
template <class M, class F>
  requires std::same_as<std::remove_const_t<M>, Mask>
constexpr void visit_arguments(M& mask, const F& f) {
  auto& [named, causal, window, key_starts, key_lengths, attend, block, attend_keys, block_keys, diagonal_offsets, query_offsets, key_offsets, blocks] = mask;
  f(Argument{"attend", ArgumentExtent::pairs}, attend);
  f(Argument{"block", ArgumentExtent::pairs}, block);
  f(Argument{"attend_keys", ArgumentExtent::keys}, attend_keys);
  f(Argument{"block_keys", ArgumentExtent::keys}, block_keys);
  f(Argument{"causal"}, causal);
  f(Argument{"window"}, window);
  f(Argument{"key_starts", ArgumentExtent::sequences}, key_starts);
  f(Argument{"key_lengths", ArgumentExtent::sequences}, key_lengths);
  f(Argument{"diagonal_offsets", ArgumentExtent::sequences}, diagonal_offsets);
  f(Argument{"query_offsets", ArgumentExtent::documents}, query_offsets);
  f(Argument{"key_offsets", ArgumentExtent::documents}, key_offsets);
  f(Argument{"blocks", ArgumentExtent::query_blocks}, blocks.lists);
  f(Argument{"block_size"}, blocks.size);
}

template <class Bias, class F>
  requires std::same_as<std::remove_const_t<Bias>, RelativeBias>
constexpr void visit_arguments(Bias& bias, const F& f) {
  auto& [named, slopes, table, bidirectional, max_distance, diagonal] = bias;
  f(Argument{"slopes", ArgumentExtent::heads, true, "relative_bias.slopes"}, slopes);
  f(Argument{"table", ArgumentExtent::heads, true, "relative_bias.table"}, table);
  f(Argument{"bidirectional", ArgumentExtent::none, false, "relative_bias.bidirectional"}, bidirectional);
  f(Argument{"max_distance", ArgumentExtent::none, false, "relative_bias.max_distance"}, max_distance);
  f(Argument{"diagonal", ArgumentExtent::none, false, "relative_bias.diagonal"}, diagonal);
}

// The arguments that SdpaOptions and nn::AttentionOptions have in common.
template <class Options>
constexpr auto shared_arguments(Options& options) {
  return std::tie(options.mask, options.bias, options.sink, options.relative_bias);
}

template <class From, class To>
constexpr void copy_shared_arguments(const From& from, To& to) {
  shared_arguments(to) = shared_arguments(from);
}

template <class Options, class F>
constexpr void visit_shared_arguments(Options& options, const F& f) {
  const auto [mask, bias, sink, relative_bias] = shared_arguments(options);
  visit_arguments(mask, f);
  f(Argument{"bias", ArgumentExtent::pairs, true}, bias);
  f(Argument{"sink", ArgumentExtent::rows, true}, sink);
  f(Argument{"relative_bias"}, relative_bias);
}

// Calls f for each member of the options that the command line and Python offer too. score_rule, executor and workspace exist only in C++, so f is not called
// for them.
template <class Options, class F>
  requires std::same_as<std::remove_const_t<Options>, SdpaOptions>
constexpr void visit_arguments(Options& options, const F& f) {
  auto& [scale, mask, bias, relative_bias, softcap, score_rule, sink, dropout, empty_rows, precision, backend, executor, workspace] = options;
  visit_shared_arguments(options, f);
  f(Argument{"seed"}, dropout.seed);
  f(Argument{"dropout_keep", ArgumentExtent::pairs}, dropout.keep);
  f(Argument{"backend"}, backend);
  f(Argument{"scale"}, scale);
  f(Argument{"softcap"}, softcap);
  f(Argument{"dropout"}, dropout.p);
  f(Argument{"empty_rows"}, empty_rows);
  f(Argument{"precision"}, precision);
}

// Calls f for each input of the forward pass: q, k, v and the scales of int8 keys and values.
template <class Tensors, class F>
  requires std::same_as<std::remove_const_t<Tensors>, SdpaForward>
constexpr void visit_arguments(Tensors& tensors, const F& f) {
  f(Argument{"q", ArgumentExtent::query_heads, true}, tensors.q);
  f(Argument{"k", ArgumentExtent::key_heads, true}, tensors.k);
  f(Argument{"v", ArgumentExtent::key_heads, true}, tensors.v);
  f(Argument{"k_scale", ArgumentExtent::scales}, tensors.k_scale);
  f(Argument{"v_scale", ArgumentExtent::scales}, tensors.v_scale);
}

// visit_arguments(options, TensorArguments{f}) calls f(argument, view) for each argument that is a tensor, and for the slopes and the table of a relative bias.
// If the caller gave no tensor, the view is absent.
template <class F>
struct TensorArguments {
  F f;

  template <class Member>
  constexpr void operator()(const Argument& argument, Member& member) const {
    if constexpr (std::is_same_v<std::remove_const_t<Member>, ConstTensorView>) {
      f(argument, member);
    } else if constexpr (std::is_same_v<std::remove_const_t<Member>, RelativeBias>) {
      visit_arguments(member, *this);
    }
  }
};
template <class F>
TensorArguments(F) -> TensorArguments<F>;

// Calls f(name, view) for each tensor that is set in the mask.
template <class F>
void visit_given(const Mask& mask, const F& f) {
  visit_arguments(mask, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) {
    if (view) f(std::string_view(argument.name), view);
  }});
}

// visit_gradients(tensors, f) calls f(name, member) for each argument that has a gradient. The member is the argument's tangent in SdpaTangents, and its
// gradient in SdpaBackward and SdpaBackwardBackward. The slopes and the table of a relative bias share the name "relative_bias", because only one of them is
// given.
template <class Tangents, class F>
  requires std::same_as<std::remove_const_t<Tangents>, SdpaTangents>
constexpr void visit_gradients(Tangents& tangents, const F& f) {
  auto& [named, q, k, v, bias, relative_bias, sink] = tangents;
  f("q", q), f("k", k), f("v", v), f("bias", bias), f("sink", sink), f("relative_bias", relative_bias);
}

template <class Tensors, class F>
  requires std::same_as<std::remove_const_t<Tensors>, SdpaBackward>
constexpr void visit_gradients(Tensors& tensors, const F& f) {
  auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, d_bias, d_relative_bias, d_sink, d_score_rule] = tensors;
  f("q", d_q), f("k", d_k), f("v", d_v), f("bias", d_bias), f("sink", d_sink), f("relative_bias", d_relative_bias);
}

template <class Tensors, class F>
  requires std::same_as<std::remove_const_t<Tensors>, SdpaBackwardBackward>
constexpr void visit_gradients(Tensors& tensors, const F& f) {
  auto& [q, k, v, out, lse, d_out, d_gradients, d_q, d_k, d_v, d_d_out, d_bias, d_relative_bias, d_sink] = tensors;
  f("q", d_q), f("k", d_k), f("v", d_v), f("bias", d_bias), f("sink", d_sink), f("relative_bias", d_relative_bias);
}

// Calls f(name, argument, view) for each argument that has a gradient, in the order of visit_gradients() and with the same names. For a relative bias
// `argument` is "slopes" or "table"; for all other arguments it equals `name`. If the caller did not give the argument, `view` is absent.
template <class F>
void visit_differentiable(const SdpaForward& inputs, const SdpaOptions& options, const F& f) {
  Argument last{nullptr};
  ConstTensorView view;  // the tensor of the argument that `last` describes
  const TensorArguments take{[&](const Argument& argument, const ConstTensorView& given) {
    if (!argument.has_gradient) return;
    const bool is_other = last.name == nullptr || last.option() != argument.option();
    if (is_other && last.name != nullptr) f(last.option(), last.name, view);
    if (is_other || given) last = argument, view = given;
  }};
  visit_arguments(inputs, take);
  visit_arguments(options, take);
  f(last.option(), last.name, view);
}

}  // namespace polyhead
#pragma GCC visibility pop
