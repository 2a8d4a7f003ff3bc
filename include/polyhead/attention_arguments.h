// The table of attention's arguments: visit_arguments(options, f) calls f(argument, member) for each argument. Code that must treat every argument reads this
// table: the checks for overlapping memory, the cutting of tensors by sequences and ranks, the comparison of arguments between ranks, the command line and Python.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "polyhead/mask.h"
#include "polyhead/relative_bias.h"
#include "polyhead/sdpa.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// The kinds of shape that an argument may have. The kind says which axes of the tensor to cut for some of the sequences, queries or keys.
enum class ArgumentExtent : std::uint8_t {
  none,          // not a tensor
  query_heads,   // [*,N,T,width]
  key_heads,     // [*,K,S,width]
  scales,        // [*,K,S]
  pairs,         // broadcasts to [*,N,T,S]
  query_blocks,  // broadcasts to [*,N,blocks of queries,listed blocks of keys]
  rows,          // [N] with one value for each head; a tensor of any other rank broadcasts to [*,N,T]
  keys,          // broadcasts to [*,S]
  sequences,     // [*] or [*,T]
  documents,     // [D+1], the same for every sequence
  heads,         // [N,...], the same for every sequence
};

struct Argument {
  const char* name;  // the argument's name in Python
  ArgumentExtent extent = ArgumentExtent::none;
  bool has_gradient = false;     // true: the argument has a gradient and a tangent
  const char* member = nullptr;  // the argument's path in the options if it is inside another struct: "relative_bias.slopes"

  const char* path() const { return member != nullptr ? member : name; }  // the argument's name in messages, and the tensor's name in a file
};

// `mask` is a Mask or a const Mask. The structured binding lists every member of Mask, so a member that is added to Mask must be added here, or the code does
// not compile.
template <class M, class F>
  requires std::same_as<std::remove_const_t<M>, Mask>
void visit_arguments(M& mask, const F& f) {
  auto& [named, causal, window, key_lengths, attend, block, attend_keys, block_keys, diagonal_offsets, query_offsets, key_offsets, blocks] = mask;
  f(Argument{"attend", ArgumentExtent::pairs}, attend);
  f(Argument{"block", ArgumentExtent::pairs}, block);
  f(Argument{"attend_keys", ArgumentExtent::keys}, attend_keys);
  f(Argument{"block_keys", ArgumentExtent::keys}, block_keys);
  f(Argument{"causal"}, causal);
  f(Argument{"window"}, window);
  f(Argument{"key_lengths", ArgumentExtent::sequences}, key_lengths);
  f(Argument{"diagonal_offsets", ArgumentExtent::sequences}, diagonal_offsets);
  f(Argument{"query_offsets", ArgumentExtent::documents}, query_offsets);
  f(Argument{"key_offsets", ArgumentExtent::documents}, key_offsets);
  f(Argument{"blocks", ArgumentExtent::query_blocks}, blocks.lists);
  f(Argument{"block_size"}, blocks.size);
}

template <class Bias, class F>
  requires std::same_as<std::remove_const_t<Bias>, RelativeBias>
void visit_arguments(Bias& bias, const F& f) {
  auto& [named, slopes, table, bidirectional, max_distance, diagonal] = bias;
  f(Argument{"slopes", ArgumentExtent::heads, true, "relative_bias.slopes"}, slopes);
  f(Argument{"table", ArgumentExtent::heads, true, "relative_bias.table"}, table);
  f(Argument{"bidirectional", ArgumentExtent::none, false, "relative_bias.bidirectional"}, bidirectional);
  f(Argument{"max_distance", ArgumentExtent::none, false, "relative_bias.max_distance"}, max_distance);
  f(Argument{"diagonal", ArgumentExtent::none, false, "relative_bias.diagonal"}, diagonal);
}

// Calls f for the arguments that SdpaOptions and nn::AttentionOptions have in common.
template <class Options, class F>
void visit_shared_arguments(Options& options, const F& f) {
  visit_arguments(options.mask, f);
  f(Argument{"bias", ArgumentExtent::pairs, true}, options.bias);
  f(Argument{"sink", ArgumentExtent::rows, true}, options.sink);
  f(Argument{"relative_bias"}, options.relative_bias);
}

// Calls f for the options that the program and Python offer too. score_rule, executor and workspace exist only in C++, so f is not called for them.
template <class Options, class F>
  requires std::same_as<std::remove_const_t<Options>, SdpaOptions>
void visit_arguments(Options& options, const F& f) {
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

// Calls f for each input of the forward pass.
template <class Tensors, class F>
  requires std::same_as<std::remove_const_t<Tensors>, SdpaForward>
void visit_arguments(Tensors& tensors, const F& f) {
  f(Argument{"q", ArgumentExtent::query_heads, true}, tensors.q);
  f(Argument{"k", ArgumentExtent::key_heads, true}, tensors.k);
  f(Argument{"v", ArgumentExtent::key_heads, true}, tensors.v);
  f(Argument{"k_scale", ArgumentExtent::scales}, tensors.k_scale);
  f(Argument{"v_scale", ArgumentExtent::scales}, tensors.v_scale);
}

// visit_arguments(options, TensorArguments{f}) calls f(argument, view) for each argument that is a tensor, the slopes and the table of a relative bias included.
// The view of a tensor that was not given is absent.
template <class F>
struct TensorArguments {
  F f;

  template <class Member>
  void operator()(const Argument& argument, Member& member) const {
    if constexpr (std::is_same_v<std::remove_const_t<Member>, ConstTensorView>) {
      f(argument, member);
    } else if constexpr (std::is_same_v<std::remove_const_t<Member>, RelativeBias>) {
      visit_arguments(member, *this);
    }
  }
};
template <class F>
TensorArguments(F) -> TensorArguments<F>;

// Calls f(name, view) for each tensor that the mask has.
template <class F>
void visit_given(const Mask& mask, const F& f) {
  visit_arguments(mask, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) {
    if (view) f(std::string_view(argument.name), view);
  }});
}

}  // namespace polyhead
#pragma GCC visibility pop
