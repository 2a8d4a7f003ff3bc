// Scaled dot-product attention, forward and backward (Vaswani et al. 2017, eq. 1, with the options below).
//
//   score[b,n,t,s] = softcap(scale * <q[b,n,t,:], k[b,n/(N/K),s,:]>) + bias[b,n,t,s]      softcap(x) = c tanh(x/c), or x when c = 0
//   p[b,n,t,:]     = softmax of score over the keys that t may attend to
//   out[b,n,t,:]   = sum_s drop(p)[b,n,t,s] v[b,n/(N/K),s,:]                               lse[b,n,t] = log sum_s exp(score[b,n,t,s])
// A score rule of the caller (polyhead/score_rule.h) changes scale <q,k> before softcap. A relative bias (polyhead/relative_bias.h) computes bias[b,n,t,s] by a
// formula. With sink logits the sum in the softmax has one more term, exp(sink[b,n,t]): p = exp(score - lse) and lse = log(exp(sink) + sum_s exp(score)).
//
// Letters: * any number of leading (batch) dimensions, with the index b, N query heads, K key/value heads (N % K == 0), T queries, S keys, H width of a
// query/key head, V width of a value head; drop = dropout. Any strides are legal; every extent may be 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/executor.h"
#include "polyhead/mask.h"
#include "polyhead/named_members.h"
#include "polyhead/relative_bias.h"
#include "polyhead/score_rule.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct SdpaForward {
  ConstTensorView q;  // [*,N,T,H], float32, float64, bfloat16 or float16; out, the bias and attention_weights have the same dtype
  ConstTensorView
      k;  // [*,K,S,H], of the dtype of q. Unless q is float64, k may also be bfloat16, float16, or int8 with scales, as key/value caches store keys.
  ConstTensorView v;     // [*,K,S,V], of the dtype of k
  TensorView out;        // [*,N,T,V]; it may not overlap an input
  TensorView lse = {};   // [*,N,T], optional; float64 for float64 inputs, else float32
  // [*,N,T,S], optional: p before dropout, in the dtype of q. Requesting it does not change `out`. The functions in polyhead/maps.h write chosen rows, top keys
  // and pooled maps in less memory.
  TensorView attention_weights = {};
  // float32 [*,K,S]: the scales of int8 k and v; an Error for other dtypes. The value of an element is its scale times its int8 number, rounded
  // once to float32. quantize_rows() of polyhead/quantize.h computes int8 elements and their scales.
  ConstTensorView k_scale = {}, v_scale = {};
};

struct SdpaBackward {
  // The tensors that the forward pass read. All three must have one dtype, because the backward pass supports no other dtype for k and v.
  ConstTensorView q, k, v;
  ConstTensorView out, lse;   // the outputs of the forward pass
  ConstTensorView d_out;      // [*,N,T,V]
  TensorView d_q, d_k, d_v;   // the gradients of q, k and v, with their shapes; a gradient is computed if its view is given
  // The gradient of options.bias, in its shape. If elements of the view share memory (zero or overlapping strides), their gradients are summed; this also holds
  // for d_relative_bias and d_sink.
  TensorView d_bias = {};
  TensorView d_relative_bias = {};  // the gradient of options.relative_bias.slopes or .table, in its shape and dtype
  TensorView d_sink = {};     // the gradient of options.sink, in its shape and dtype
  // float64 [N, options.score_rule.gradient_count]: the gradients of the numbers that the score rule reads, summed over all sequences
  TensorView d_score_rule = {};
};

// Dropout of attention weights: keeps each with probability 1 - p and multiplies it by 1/(1 - p). The keep bits come from Philox 4x32-10 (Salmon et al. 2011)
// keyed by (seed, b, n, t, s). They are the same for every backend and number of threads, and are never stored.
struct Dropout {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  double p = 0;              // probability that an attention weight is dropped, in [0,1]
  std::optional<std::uint64_t> seed{};  // required if p > 0, unless `keep` is given; pass a new seed for each training step
  ConstTensorView keep = {};  // Bool, broadcasts to [*,N,T,S]: the caller's own keep bits, used instead of the generator's. Error if p is 0.
};

// How bfloat16 q, k and v are multiplied.
// exact:  q, k and v are converted to float32, in which a product of two bfloat16 numbers is exact.
// native: If q, k and v are all bfloat16 and the processor multiplies bfloat16 (instruction sets amx_bf16 and avx512_bf16), its bfloat16 instructions are used.
//         Before p is multiplied by v, p is rounded to bfloat16, and so is d_score in the backward pass, as in PyTorch. Subnormal numbers count as 0
//         (docs/maths.md, section 7). Gradients have the error of PyTorch's fused kernel: 1.4 times the error of float32 gradients that are rounded to
//         bfloat16, and up to 3 times if the row has more than 256 keys and a few of them have most of its attention weight.
// In both cases sums are float32. Calls with other dtypes, attention maps and the backend `reference` always multiply exactly.
enum class Precision : std::uint8_t { exact, native };

struct Backend;
class Workspace;

struct SdpaOptions {
  std::optional<double> scale{};  // the factor of <q,k>; absent: 1/sqrt(H)
  Mask mask{};
  ConstTensorView bias{};         // added to the scores: a tensor in the dtype of q that broadcasts to [*,N,T,S]; -inf means probability 0
  RelativeBias relative_bias{};   // a bias by distance: ALiBi, or T5's buckets. Error together with `bias`
  double softcap = 0;             // c in softcap(x) = c tanh(x/c), >= 0; 0: no softcap
  ScoreRule score_rule{};         // a function of the caller that changes scaled scores, before softcap and bias; with a rule, Precision::native has no effect
  // Sink logits (StreamingLLM, Xiao et al. 2024; learned in gpt-oss 2025; all 0: softmax off by one, Miller 2023): [N], or a view of another rank that
  // broadcasts to [*,N,T], in the dtype of q or of lse. The attention weights of a row's keys then sum to 1 - exp(sink - lse). A row without keys gives out = 0
  // and lse = sink. A sink logit of -inf means that there is no sink; NaN or +inf makes its rows NaN, except rows without keys. Error unless empty_rows is
  // zero.
  ConstTensorView sink{};
  Dropout dropout{};
  EmptyRows empty_rows = EmptyRows::zero;
  Precision precision = Precision::native;
  const Backend* backend = nullptr;   // the backend to use; Error if it cannot serve the problem. nullptr: the library chooses
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // temporary memory that calls reuse; new memory would cost a page fault per 4 KiB
};

void sdpa_forward(const SdpaForward& tensors, const SdpaOptions& options = {});
void sdpa_backward(const SdpaBackward& tensors, const SdpaOptions& options = {});  // The gradients replace what their views hold.

// Returns which backend and kernels sdpa_forward() would use, and why each backend before it in the order of preference declines the problem; one fact per
// line.
std::string explain(const SdpaForward& tensors, const SdpaOptions& options = {});

// Returns all backends, the preferred one first.
std::vector<const Backend*> backends();
std::string_view backend_name(const Backend& backend);
const Backend& find_backend(std::string_view name);  // Returns the backend with this name. Error for an unknown name; the message lists the known names.

// Writes the keep bits that dropout with this p and seed uses to `keep`, bool [*,N,T,S].
void dropout_keep_bits(double p, std::uint64_t seed, TensorView keep);

}  // namespace polyhead
#pragma GCC visibility pop
