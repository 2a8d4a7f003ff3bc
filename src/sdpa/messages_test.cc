// Tests that wrong arguments are refused, with messages that name the operation, the given sizes and the allowed sizes.
#include <gmock/gmock.h>

#include "core/text.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/compare.h"
#include "support/last_piece_first.h"

namespace polyhead::test {
namespace {

using testing::HasSubstr;

// A valid problem. Each case of the test makes one argument wrong.
struct Problem {
  Tensor q{DType::f32, {2, 4, 3, 8}}, k{DType::f32, {2, 2, 5, 8}}, v{DType::f32, {2, 2, 5, 6}}, out{DType::f32, {2, 4, 3, 6}},
      lse{DType::f32, {2, 4, 3}}, attention_weights;
  Tensor d_out = out, d_q = q, d_k = k, d_v = v, d_bias, d_sink, d_relative_bias, bias, extra;
  SdpaOptions options;
};

Tensor tensor(DType dtype, auto... extents) { return {dtype, {extents...}}; }
Tensor f32(auto... extents) { return tensor(DType::f32, extents...); }

struct Refusal {
  const char* name;
  std::function<void(Problem&)> edit;
  std::vector<const char*> words;  // texts that the message must contain
};

std::string forward_message(Problem& p) {
  return error_message([&] { sdpa_forward({.q = p.q, .k = p.k, .v = p.v, .out = p.out, .lse = p.lse, .attention_weights = p.attention_weights}, p.options); });
}

std::string backward_message(Problem& p) {
  return error_message([&] {
    sdpa_backward({.q = p.q,
                   .k = p.k,
                   .v = p.v,
                   .out = p.out,
                   .lse = p.lse,
                   .d_out = p.d_out,
                   .d_q = p.d_q,
                   .d_k = p.d_k,
                   .d_v = p.d_v,
                   .d_bias = p.d_bias,
                   .d_relative_bias = p.d_relative_bias,
                   .d_sink = p.d_sink},
                  p.options);
  });
}

TEST(Messages, ValidProblemIsAccepted) {
  Problem p;
  EXPECT_EQ(forward_message(p), "");
  EXPECT_EQ(backward_message(p), "");
}

TEST(Messages, OfForwardAndBackwardAlike) {
  const Refusal table[] = {
      {"no q", [](Problem& p) { p.q = {}; }, {"q is missing"}},
      {"no k", [](Problem& p) { p.k = {}; }, {"k is missing"}},
      {"no v", [](Problem& p) { p.v = {}; }, {"v is missing"}},
      {"no out", [](Problem& p) { p.out = {}; }, {"out is missing"}},
      {"q of rank 2", [](Problem& p) { p.q = f32(3, 8); }, {"q is [3,8]", "[*,N,T,H]"}},
      {"q of rank 16", [](Problem& p) { p.q = f32(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1); }, {"q has 16 dimensions", "at most 15"}},
      {"integer q", [](Problem& p) { p.q = Tensor(DType::i32, p.q.shape()); }, {"q is int32", "float32, float64, bfloat16 or float16"}},
      {"other width", [](Problem& p) { p.k = f32(2, 2, 5, 7); }, {"k is [2,2,5,7]", "H = 8", "q [2,4,3,8]"}},
      {"other batch", [](Problem& p) { p.k = f32(3, 2, 5, 8); }, {"k is [3,2,5,8]", "leading dimensions must be [2]"}},
      {"other rank", [](Problem& p) { p.k = f32(2, 5, 8); }, {"k is [2,5,8]", "[2]"}},
      {"heads that do not divide", [](Problem& p) { p.k = f32(2, 3, 5, 8); }, {"q has 4 heads and k has 3", "multiple"}},
      {"no key heads", [](Problem& p) { p.k = f32(2, 0, 5, 8); }, {"q has 4 heads and k has 0"}},
      {"k of another dtype", [](Problem& p) { p.k = Tensor(DType::f64, p.k.shape()); }, {"k is float64 and q is float32"}},
      {"v of another dtype", [](Problem& p) { p.v = Tensor(DType::bf16, p.v.shape()); }, {"v is bfloat16 and k is float32"}},
      {"v of another length", [](Problem& p) { p.v = f32(2, 2, 4, 6); }, {"v is [2,2,4,6]", "S = 5", "[2,2,5,8]"}},
      {"v of other heads", [](Problem& p) { p.v = f32(2, 4, 5, 6); }, {"v is [2,4,5,6]", "K = 2"}},
      {"out of another shape", [](Problem& p) { p.out = f32(2, 4, 3, 8); }, {"out is [2,4,3,8]", "[*,N,T,V] = [2,4,3,6]"}},
      {"out of another dtype", [](Problem& p) { p.out = Tensor(DType::f64, p.out.shape()); }, {"out is float64", "float32"}},
      {"lse of another shape", [](Problem& p) { p.lse = f32(2, 3, 4); }, {"lse is [2,3,4]", "[*,N,T] = [2,4,3]"}},
      {"lse of another dtype", [](Problem& p) { p.lse = Tensor(DType::f64, p.lse.shape()); }, {"lse is float64", "float32"}},
      {"scale", [](Problem& p) { p.options.scale = kNaN; }, {"scale is nan", "finite"}},
      {"softcap", [](Problem& p) { p.options.softcap = -1; }, {"softcap is -1", "not negative"}},
      {"infinite softcap", [](Problem& p) { p.options.softcap = 1 / 0.0; }, {"softcap is inf"}},
      {"dropout", [](Problem& p) { p.options.dropout.p = 1.5; }, {"dropout probability is 1.5", "[0,1]"}},
      {"dropout without a seed", [](Problem& p) { p.options.dropout.p = 0.5; }, {"dropout 0.5 needs a seed", "or the bits to keep"}},
      {"NaN dropout", [](Problem& p) { p.options.dropout.p = kNaN; }, {"dropout probability is nan"}},
      {"keep bits without dropout", [](Problem& p) { p.options.dropout.keep = p.extra = tensor(DType::boolean, 3, 5); }, {"dropout.keep is given and the dropout probability is 0"}},
      {"integer keep bits", [](Problem& p) { p.options.dropout = {.p = 0.5, .keep = p.extra = tensor(DType::u8, 3, 5)}; }, {"dropout.keep is uint8", "bool"}},
      {"bias that does not broadcast", [](Problem& p) { p.options.bias = p.bias = f32(4, 3, 4); }, {"bias is [4,3,4]", "[*,N,T,S] = [2,4,3,5]"}},
      {"bias of too many dimensions", [](Problem& p) { p.options.bias = p.bias = f32(1, 2, 4, 3, 5); }, {"bias is [1,2,4,3,5]", "[2,4,3,5]"}},
      {"bias of another dtype", [](Problem& p) { p.options.bias = p.bias = tensor(DType::f64, 3, 5); }, {"bias is float64", "float32"}},
      {"attend of another dtype", [](Problem& p) { p.options.mask.attend = p.extra = f32(3, 5); }, {"attend is float32", "bool"}},
      {"attend that does not broadcast", [](Problem& p) { p.options.mask.attend = p.extra = tensor(DType::boolean, 5, 3); }, {"attend is [5,3]", "[2,4,3,5]"}},
      {"block that does not broadcast",
       [](Problem& p) { p.options.mask.block = p.extra = tensor(DType::boolean, 2, 3, 5); },
       {"block is [2,3,5]", "[2,4,3,5]"}},
      {"attend and block",
       [](Problem& p) { p.options.mask.attend = p.options.mask.block = p.extra = tensor(DType::boolean, 3, 5); },
       {"attend and block are both given"}},
      {"key mask", [](Problem& p) { p.options.mask.attend_keys = p.extra = tensor(DType::boolean, 2, 3); }, {"attend_keys is [2,3]", "[*,S] = [2,5]"}},
      {"blocked key mask", [](Problem& p) { p.options.mask.block_keys = p.extra = tensor(DType::i64, 5); }, {"block_keys is int64", "bool"}},
      {"both key masks",
       [](Problem& p) { p.options.mask.attend_keys = p.options.mask.block_keys = p.extra = tensor(DType::boolean, 5); },
       {"attend_keys and block_keys are both given"}},
      {"lists of blocks of another dtype", [](Problem& p) { p.options.mask.blocks.lists = p.extra = f32(1, 1); }, {"blocks is float32", "integers"}},
      {"lists of too few blocks of queries",
       [](Problem& p) {
         p.options.mask.blocks = {.lists = p.extra = tensor(DType::i32, 1, 1), .size = {.queries = 2, .keys = 2}};
       },
       {"blocks is [1,1]", "[*,N,Tb,count]", "Tb = 2 blocks of 2 queries"}},
      {"lists for other heads",
       [](Problem& p) { p.options.mask.blocks.lists = p.extra = tensor(DType::i32, 3, 1, 1); },
       {"blocks is [3,1,1]", "[*,N,Tb,count] = [2,4,1,1]"}},
      {"a block beyond the keys",
       [](Problem& p) {
         p.options.mask.blocks = {.lists = p.extra = Tensor::of<std::int32_t>({1, 2}, {-1, 3}), .size = {.queries = 128, .keys = 2}};
       },
       {"blocks lists block 3", "3 blocks of 2 keys", "-1 is none"}},
      {"a negative block",
       [](Problem& p) { p.options.mask.blocks.lists = p.extra = Tensor::of<std::int64_t>({1, 1}, {-2}); },
       {"blocks lists block -2"}},
      {"blocks of no queries",
       [](Problem& p) {
         p.options.mask.blocks = {.lists = p.extra = tensor(DType::i32, 1, 1), .size = {.queries = 0, .keys = 128}};
       },
       {"the block size is 0 queries and 128 keys", "at least 1"}},
      {"lengths of another dtype", [](Problem& p) { p.options.mask.key_lengths = p.extra = f32(2); }, {"key_lengths is float32", "integers"}},
      {"boolean lengths", [](Problem& p) { p.options.mask.key_lengths = p.extra = tensor(DType::boolean, 2); }, {"key_lengths is bool", "integers"}},
      {"lengths of another shape",
       [](Problem& p) { p.options.mask.key_lengths = p.extra = tensor(DType::i32, 3); },
       {"key_lengths is [3]", "[*] = [2]", "[*,T] = [2,3]"}},
      {"length beyond S",
       [](Problem& p) {
         p.options.mask.key_lengths = p.extra = Tensor::of<std::int32_t>({2}, {5, 6});
       },
       {"key length is 6", "[0,5]"}},
      {"negative length",
       [](Problem& p) {
         p.options.mask.key_lengths = p.extra = Tensor::of<std::int8_t>({2}, {-1, 3});
       },
       {"key length is -1", "[0,5]"}},
      {"enormous length",
       [](Problem& p) {
         p.options.mask.key_lengths = p.extra = Tensor::of<std::uint64_t>({2}, {1, ~std::uint64_t{0}});
       },
       {"key length is 18446744073709551615"}},
      {"key_lengths for as many sequences as there are documents",
       [](Problem& p) {
         p.options.mask.key_lengths = p.extra = Tensor::of<std::int32_t>({2}, {5, 3});
         p.options.mask.query_offsets = p.bias = Tensor::of<std::int32_t>({3}, {0, 1, 3});
         p.options.mask.key_offsets = p.d_bias = Tensor::of<std::int32_t>({3}, {0, 2, 5});
       },
       {"key_lengths is [2] for 2 documents", "[*,T]"}},
      {"starts of another dtype", [](Problem& p) { p.options.mask.key_starts = p.extra = f32(2); }, {"key_starts is float32", "starts are integers"}},
      {"starts of another shape",
       [](Problem& p) { p.options.mask.key_starts = p.extra = tensor(DType::i32, 2, 2); },
       {"key_starts is [2,2]", "[*] = [2]", "[*,T] = [2,3]"}},
      {"negative start of a query",
       [](Problem& p) {
         p.options.mask.key_starts = p.extra = Tensor::of<std::int64_t>({2, 3}, {0, 5, 1, 2, -7, 3});
       },
       {"key start is -7", "0 or more"}},
      {"a length beyond S, with a start for each query",
       [](Problem& p) {
         p.options.mask.key_starts = p.extra = tensor(DType::i32, 2, 3);
         p.options.mask.key_lengths = p.bias = Tensor::of<std::int32_t>({2}, {5, 9});
       },
       {"key length is 9", "[0,5]"}},
      {"key_starts for as many sequences as there are documents",
       [](Problem& p) {
         p.options.mask.key_starts = p.extra = Tensor::of<std::int32_t>({2}, {1, 3});
         p.options.mask.query_offsets = p.bias = Tensor::of<std::int32_t>({3}, {0, 1, 3});
         p.options.mask.key_offsets = p.d_bias = Tensor::of<std::int32_t>({3}, {0, 2, 5});
       },
       {"key_starts is [2] for 2 documents", "give a start for each query, [*,T]"}},
      {"diagonal offsets of another dtype",
       [](Problem& p) {
         p.options.mask.causal = Causal::top_left();
         p.options.mask.diagonal_offsets = p.extra = f32(2);
       },
       {"diagonal_offsets is float32", "integers"}},
      {"diagonal offsets of another shape",
       [](Problem& p) {
         p.options.mask.causal = Causal::top_left();
         p.options.mask.diagonal_offsets = p.extra = tensor(DType::i64, 2, 3);
       },
       {"diagonal_offsets is [2,3]", "[*] = [2]"}},
      {"diagonal offsets without a diagonal",
       [](Problem& p) { p.options.mask.diagonal_offsets = p.extra = tensor(DType::i64, 2); },
       {"diagonal_offsets is given without causal, a window or a relative bias"}},
      {"diagonal_offsets and a causal diagonal that is not top_left",
       [](Problem& p) {
         p.options.mask.causal = Causal::bottom_right();
         p.options.mask.diagonal_offsets = p.extra = tensor(DType::i64, 2);
       },
       {"diagonal_offsets cannot be combined with a causal diagonal that is not top_left"}},
      {"diagonal_offsets and a window with a diagonal",
       [](Problem& p) {
         p.options.mask.window = {.left = 1, .diagonal = Diagonal::top_left()};
         p.options.mask.diagonal_offsets = p.extra = tensor(DType::i64, 2);
       },
       {"diagonal_offsets cannot be combined with a diagonal of the window"}},
      {"diagonal offsets and documents",
       [](Problem& p) {
         p.options.mask.causal = Causal::top_left();
         p.options.mask.diagonal_offsets = p.extra = tensor(DType::i64, 2);
         p.options.mask.query_offsets = p.bias = Tensor::of<std::int32_t>({2}, {0, 3});
         p.options.mask.key_offsets = p.d_bias = Tensor::of<std::int32_t>({2}, {0, 5});
       },
       {"diagonal_offsets cannot be combined with documents"}},
      {"window", [](Problem& p) { p.options.mask.window.left = -2; }, {"window.left is -2", "negative"}},
      {"window's right", [](Problem& p) { p.options.mask.window.right = -3; }, {"window.right is -3", "negative"}},
      {"two diagonals",
       [](Problem& p) {
         p.options.mask.causal = Causal::top_left();
         p.options.mask.window = {.left = 1, .diagonal = Diagonal::bottom_right()};
       },
       {"diagonal differ"}},
      {"a size of blocks that are not listed",
       [](Problem& p) { p.options.mask.blocks.size = {64, 128}; },
       {"blocks.size is 64 x 128 without blocks.lists"}},
      {"sinks of another number of heads", [](Problem& p) { p.options.sink = p.extra = f32(2); }, {"sink is [2]", "[N] = [4]"}},
      {"one sink in one dimension", [](Problem& p) { p.options.sink = p.extra = f32(1); }, {"sink is [1]", "[N] = [4]"}},
      {"sinks that do not broadcast", [](Problem& p) { p.options.sink = p.extra = f32(2, 4); }, {"sink is [2,4]", "[*,N,T] = [2,4,3]"}},
      {"sinks of another dtype", [](Problem& p) { p.options.sink = p.extra = tensor(DType::f64, 4); }, {"sink is float64", "must be float32"}},
      {"sinks beside uniform empty rows",
       [](Problem& p) {
         p.options.sink = p.extra = f32(4);
         p.options.empty_rows = EmptyRows::uniform;
       },
       {"sink cannot be combined with empty_rows uniform", "use zero"}},
      {"sinks beside unmasked empty rows",
       [](Problem& p) {
         p.options.sink = p.extra = f32(4);
         p.options.empty_rows = EmptyRows::unmasked;
       },
       {"sink cannot be combined with empty_rows unmasked", "use zero"}},
      {"a window that has only a diagonal", [](Problem& p) { p.options.mask.window.diagonal = Diagonal::top_left(); }, {"window has a diagonal and neither left nor right"}},
      {"a causal corner with a shift", [](Problem& p) { p.options.mask.causal = Diagonal{Diagonal::Corner::top_left, 5}; }, {"causal is top_left with a shift of 5", "Diagonal::offset"}},
      {"a window from a corner with a shift",
       [](Problem& p) {
         p.options.mask.window = {.left = 1, .diagonal = Diagonal{Diagonal::Corner::bottom_right, -2}};
       },
       {"window.diagonal is bottom_right with a shift of -2"}},
      {"a relative bias whose diagonal is a corner with a shift",
       [](Problem& p) {
         p.options.relative_bias = {.slopes = p.extra = f32(4), .diagonal = Diagonal{Diagonal::Corner::bottom_right, 1}};
       },
       {"relative_bias.diagonal is bottom_right with a shift of 1"}},
      {"slopes with max_distance",
       [](Problem& p) {
         p.options.relative_bias = {.slopes = p.extra = f32(4), .max_distance = 8};
       },
       {"relative_bias.max_distance is 8 without a table"}},
      {"slopes with bidirectional",
       [](Problem& p) {
         p.options.relative_bias = {.slopes = p.extra = f32(4), .bidirectional = false};
       },
       {"relative_bias.bidirectional is false without a table"}},
      {"max_distance alone", [](Problem& p) { p.options.relative_bias.max_distance = 8; }, {"relative_bias.max_distance is 8 without a table"}},
      {"a score rule of gradients alone", [](Problem& p) { p.options.score_rule.gradient_count = 3; }, {"score_rule.gradient_count is 3 and score_rule has no forward function"}},
      {"a score rule of data alone", [](Problem& p) { p.options.score_rule.data = &p; }, {"score_rule has data and no forward function"}},
      {"a relative bias of a diagonal alone", [](Problem& p) { p.options.relative_bias.diagonal = Diagonal::top_left(); }, {"relative_bias has a diagonal and neither slopes nor a table"}},
      {"slopes and a table",
       [](Problem& p) {
         p.options.relative_bias = {.slopes = p.extra = f32(4), .table = p.bias = f32(4, 32)};
       },
       {"relative_bias has slopes and a table"}},
      {"a bias and a relative bias",
       [](Problem& p) {
         p.options.bias = p.bias = f32(3, 5);
         p.options.relative_bias.slopes = p.extra = f32(4);
       },
       {"bias and relative_bias are both given"}},
      {"slopes of another dtype",
       [](Problem& p) { p.options.relative_bias.slopes = p.extra = tensor(DType::f64, 4); },
       {"relative_bias.slopes is float64", "float32 as q"}},
      {"slopes of the key heads", [](Problem& p) { p.options.relative_bias.slopes = p.extra = f32(2); }, {"relative_bias.slopes is [2]", "[N] = [4]"}},
      {"a table as PyTorch stores it",
       [](Problem& p) { p.options.relative_bias.table = p.extra = f32(32, 4); },
       {"relative_bias.table is [32,4]", "[N,buckets] = [4,buckets]"}},
      {"an odd number of buckets",
       [](Problem& p) { p.options.relative_bias.table = p.extra = f32(4, 31); },
       {"relative_bias.table has 31 buckets", "even and at least 4"}},
      {"a maximal distance below the exact ones",
       [](Problem& p) {
         p.options.relative_bias = {.table = p.extra = f32(4, 32), .bidirectional = false, .max_distance = 16};
       },
       {"relative_bias.table has max_distance 16", "larger than 16"}},
      {"a relative bias with another diagonal than the mask",
       [](Problem& p) {
         p.options.mask.causal = Causal::top_left();
         p.options.relative_bias = {.slopes = p.extra = f32(4), .diagonal = Diagonal::bottom_right()};
       },
       {"the diagonal of relative_bias and that of the mask differ"}},
      {"a window from the bottom right and a relative bias from the top left",
       [](Problem& p) {
         p.options.mask.window.left = 1;
         p.options.relative_bias = {.slopes = p.extra = f32(4), .diagonal = Diagonal::top_left()};
       },
       {"the diagonal of relative_bias and that of the mask differ"}},
      {"a window with a diagonal and without bounds, and a relative bias with another diagonal",
       [](Problem& p) {
         p.options.mask.window.diagonal = Diagonal::top_left();
         p.options.relative_bias = {.slopes = p.extra = f32(4), .diagonal = Diagonal::bottom_right()};
       },
       {"the diagonal of relative_bias and that of the mask differ"}},
      {"diagonal_offsets and a relative bias that has a diagonal",
       [](Problem& p) {
         p.options.mask.diagonal_offsets = p.bias = tensor(DType::i64, 2);
         p.options.relative_bias = {.slopes = p.extra = f32(4), .diagonal = Diagonal::bottom_right()};
       },
       {"diagonal_offsets cannot be combined with a diagonal of relative_bias"}},
      {"a relative bias whose diagonal offset is too large",
       [](Problem& p) {
         p.options.relative_bias = {.slopes = p.extra = f32(4), .diagonal = Diagonal::offset(std::numeric_limits<std::int64_t>::min())};
       },
       {"beyond 2^53"}},
  };
  for (const Refusal& refusal : table) {
    SCOPED_TRACE(refusal.name);
    Problem p;
    refusal.edit(p);
    const std::string forward = forward_message(p), backward = backward_message(p);
    EXPECT_THAT(forward, HasSubstr("sdpa_forward: "));
    EXPECT_THAT(backward, HasSubstr("sdpa_backward: "));
    for (const char* word : refusal.words) {
      EXPECT_THAT(forward, HasSubstr(word));
      EXPECT_THAT(backward, HasSubstr(word));
    }
  }
}

TEST(Messages, OfBackwardAlone) {
  const Refusal table[] = {
      {"no d_out", [](Problem& p) { p.d_out = {}; }, {"d_out is missing"}},
      {"no lse", [](Problem& p) { p.lse = {}; }, {"lse is missing"}},
      {"d_out of another shape", [](Problem& p) { p.d_out = f32(2, 4, 3, 8); }, {"d_out is [2,4,3,8]", "[2,4,3,6]"}},
      {"d_q of another shape", [](Problem& p) { p.d_q = f32(2, 4, 3, 6); }, {"d_q is [2,4,3,6]", "[2,4,3,8]"}},
      {"d_k of the query heads", [](Problem& p) { p.d_k = f32(2, 4, 5, 8); }, {"d_k is [2,4,5,8]", "[2,2,5,8]"}},
      {"d_v of another dtype", [](Problem& p) { p.d_v = Tensor(DType::f64, p.v.shape()); }, {"d_v is float64", "float32"}},
      {"d_bias without a bias", [](Problem& p) { p.d_bias = f32(3, 5); }, {"d_bias is given without a bias"}},
      {"d_bias of the broadcast shape",
       [](Problem& p) {
         p.options.bias = p.bias = f32(3, 5);
         p.d_bias = f32(2, 4, 3, 5);
       },
       {"d_bias is [2,4,3,5]", "[3,5]"}},
      {"d_relative_bias without a relative bias", [](Problem& p) { p.d_relative_bias = f32(4); }, {"d_relative_bias is given without a relative_bias"}},
      {"d_relative_bias of another shape",
       [](Problem& p) {
         p.options.relative_bias.slopes = p.bias = f32(4);
         p.d_relative_bias = f32(2, 4);
       },
       {"d_relative_bias is [2,4]", "the shape of slopes = [4]"}},
      {"d_sink without a sink", [](Problem& p) { p.d_sink = f32(4); }, {"d_sink is given without a sink"}},
      {"d_sink of the broadcast shape",
       [](Problem& p) {
         p.options.sink = p.bias = f32(4);
         p.d_sink = f32(2, 4, 3);
       },
       {"d_sink is [2,4,3]", "the shape of sink = [4]"}},
      {"d_sink of another dtype",
       [](Problem& p) {
         p.options.sink = p.bias = f32(4);
         p.d_sink = tensor(DType::f64, 4);
       },
       {"d_sink is float64", "float32"}},
  };
  for (const Refusal& refusal : table) {
    SCOPED_TRACE(refusal.name);
    Problem p;
    refusal.edit(p);
    const std::string message = backward_message(p);
    EXPECT_THAT(message, HasSubstr("sdpa_backward: "));
    for (const char* word : refusal.words) EXPECT_THAT(message, HasSubstr(word));
  }
}

TEST(Messages, OfWeightsOfTheForwardPass) {
  Problem p;
  p.attention_weights = f32(2, 4, 5, 3);
  EXPECT_THAT(forward_message(p), testing::AllOf(HasSubstr("sdpa_forward: attention_weights is [2,4,5,3]"), HasSubstr("[*,N,T,S] = [2,4,3,5]")));
  p.attention_weights = tensor(DType::f64, 2, 4, 3, 5);
  EXPECT_THAT(forward_message(p), testing::AllOf(HasSubstr("attention_weights is float64"), HasSubstr("float32")));
  p.attention_weights = f32(2, 4, 3, 5);
  EXPECT_EQ(forward_message(p), "");
}

TEST(Messages, OfDocuments) {
  struct Offsets {
    std::vector<std::int64_t> queries, keys;
    std::vector<const char*> words;
  };
  const Offsets table[] = {
      {{1, 3}, {0, 5}, {"query_offsets begins with 1", "must begin with 0"}},
      {{0, 3}, {-1, 5}, {"key_offsets begins with -1"}},
      {{0, 2, 1, 3}, {0, 1, 2, 5}, {"query_offsets falls from 2 to 1"}},
      {{0, 3}, {0, 4}, {"key_offsets ends at 4", "S = 5"}},
      {{0, 4}, {0, 5}, {"query_offsets reaches 4", "T = 3"}},
      {{0, 1, 3}, {0, 5}, {"query_offsets is [3] and key_offsets is [2]", "same number D"}},
      {{}, {0, 5}, {"key_offsets is given without query_offsets"}},
      {{0, 3}, {}, {"query_offsets is given without key_offsets", "T is 3 and S is 5"}},
  };
  for (const Offsets& row : table) {
    Problem p;
    const auto tensor = [](const std::vector<std::int64_t>& offsets) {
      if (offsets.empty()) return Tensor();
      return Tensor::of<std::int64_t>({static_cast<std::int64_t>(offsets.size())}, std::span<const std::int64_t>(offsets));
    };
    const Tensor queries = tensor(row.queries), keys = tensor(row.keys);
    p.options.mask.query_offsets = queries, p.options.mask.key_offsets = keys;
    for (const char* word : row.words) EXPECT_THAT(forward_message(p), HasSubstr(word));
  }
  Problem p;
  const Tensor floats(DType::f32, {2}), square(DType::i32, {1, 2}), none(DType::i32, {0});
  p.options.mask.query_offsets = floats;
  p.options.mask.key_offsets = square;
  EXPECT_THAT(forward_message(p), HasSubstr("query_offsets is float32; offsets are integers"));
  p.options.mask.query_offsets = square;
  EXPECT_THAT(forward_message(p), HasSubstr("query_offsets is [1,2]; it must be [D+1]"));
  p.options.mask.query_offsets = none;
  EXPECT_THAT(forward_message(p), HasSubstr("query_offsets is [0]; it must be [D+1]"));
}

TEST(Messages, OfMapsNameTheOperation) {
  Problem p;
  const MapsInput input{.q = p.q, .k = p.k};
  Tensor wrong(DType::f32, {2, 4, 3, 4}), integers(DType::i64, {2, 4, 3, 5});
  EXPECT_THAT(error_message([&] { attention_map(input, wrong); }),
              testing::AllOf(HasSubstr("attention_map: out is [2,4,3,4]"), HasSubstr("[2,4,3,5]")));
  EXPECT_THAT(error_message([&] { attention_map(input, integers); }), HasSubstr("attention_map: out is int64"));
  EXPECT_THAT(error_message([&] { attention_map(input, {}); }), HasSubstr("attention_map: out is missing"));
  EXPECT_THAT(error_message([&] { attention_map_rows(input, {}, wrong); }), HasSubstr("attention_map_rows: out is [2,4,3,4]"));
  Tensor other_heads(DType::f32, {2, 3, 3, 4});
  EXPECT_THAT(error_message([&] { attention_pooled_map(input, other_heads); }), HasSubstr("attention_pooled_map: out is [2,3,3,4]"));
  EXPECT_THAT(error_message([&] { attention_statistics(input, {.largest = wrong}); }),
              HasSubstr("attention_statistics: largest is [2,4,3,4]"));
  Tensor probability(DType::f32, {2, 4, 3, 2}), key(DType::i32, {2, 4, 3, 2});
  EXPECT_THAT(error_message([&] { attention_top_keys(input, probability, key); }),
              HasSubstr("attention_top_keys: key is int32; it must be int64"));
}

TEST(Messages, OfTheStorageOfKeysAndValues) {
  Tensor q(DType::f32, {2, 4, 3, 8}), out(DType::f32, {2, 4, 3, 8}), scale(DType::f32, {2, 2, 5}), wide(DType::f32, {2, 2, 5, 1}),
      half(DType::f16, {2, 2, 5});
  const auto stored = [](DType dtype) { return Tensor(dtype, {2, 2, 5, 8}); };
  const Tensor i8 = stored(DType::i8), f32 = stored(DType::f32), bf16 = stored(DType::bf16), f16 = stored(DType::f16),
               i16 = stored(DType::i16);
  const auto message = [&](ConstTensorView k, ConstTensorView v, ConstTensorView k_scale, ConstTensorView v_scale) {
    return error_message([&] { sdpa_forward({.q = q, .k = k, .v = v, .out = out, .k_scale = k_scale, .v_scale = v_scale}); });
  };
  EXPECT_EQ(message(bf16, bf16, {}, {}), "");
  EXPECT_EQ(message(f16, f16, {}, {}), "");
  EXPECT_EQ(message(i8, i8, scale, scale), "");
  EXPECT_EQ(message(bf16, f16, {}, {}), "sdpa_forward: v is float16 and k is bfloat16; they must agree");
  EXPECT_EQ(message(i16, i16, {}, {}),
            "sdpa_forward: k is int16 and q is float32; k and v have the dtype of q or, unless that is float64, bfloat16, float16, or int8 "
            "with scales");
  EXPECT_EQ(message(i8, i8, {}, scale),
            "sdpa_forward: k is int8 and k_scale is missing; int8 needs a scale for each token and key/value head, [*,K,S]");
  EXPECT_THAT(message(i8, i8, scale, {}), HasSubstr("v is int8 and v_scale is missing"));
  EXPECT_EQ(message(i8, i8, scale, wide), "sdpa_forward: v_scale is [2,2,5,1]; it must be [*,K,S] = [2,2,5]");
  EXPECT_EQ(message(i8, i8, half, scale), "sdpa_forward: k_scale is float16; it must be float32");
  EXPECT_EQ(message(bf16, bf16, scale, {}), "sdpa_forward: k_scale is given and k is bfloat16; only int8 has scales");
  EXPECT_THAT(message(f32, f32, {}, scale), HasSubstr("v_scale is given and v is float32"));

  const Tensor double_q(DType::f64, q.shape()), half_q(DType::bf16, q.shape());
  Tensor map(DType::f32, {2, 4, 3, 5});
  const auto map_message = [&](ConstTensorView query, ConstTensorView k, ConstTensorView k_scale) {
    return error_message([&] { attention_map({.q = query, .k = k, .k_scale = k_scale}, map); });
  };
  EXPECT_EQ(map_message(half_q, i8, scale), "");
  EXPECT_THAT(map_message(double_q, i8, scale), HasSubstr("attention_map: k is int8 and q is float64"));
  EXPECT_THAT(map_message(double_q, f32, {}), HasSubstr("k is float32 and q is float64"));
  EXPECT_THAT(map_message(half_q, f32, {}), HasSubstr("k is float32 and q is bfloat16"));
  EXPECT_THAT(map_message(q, i8, {}), HasSubstr("attention_map: k is int8 and k_scale is missing"));
  EXPECT_THAT(map_message(q, f32, scale), HasSubstr("k_scale is given and k is float32"));
  const TensorView overlapping = scale.view().expand({2, 4, 2, 2, 5}).select(2, 0).slice(2, 0, 1).expand({2, 4, 3, 5});
  EXPECT_THAT(error_message([&] { attention_map({.q = q, .k = i8, .k_scale = scale}, overlapping); }), HasSubstr("k_scale"));

  Problem p;
  p.k = Tensor(DType::bf16, p.k.shape()), p.v = Tensor(DType::bf16, p.v.shape());
  EXPECT_EQ(backward_message(p), "sdpa_backward: k and v are bfloat16 and q is float32; derivatives need one dtype");
  EXPECT_THAT(explain({.q = q, .k = i8, .v = i8, .out = out, .k_scale = scale, .v_scale = scale}),
              HasSubstr("keys and values: int8 with a scale for each token and head\n"));
  EXPECT_THAT(explain({.q = q, .k = bf16, .v = bf16, .out = out}), HasSubstr("keys and values: bfloat16\n"));
}

TEST(Messages, OfForwardModeAndTheSecondBackwardPass) {
  struct Second : Problem {
    Tensor q_tangent = q, v_tangent = v, out_tangent = out, lse_tangent = lse, d_d_out = out;
    SdpaTangents tangents{.q = q_tangent, .v = v_tangent};
  };
  const auto jvp_message = [](Second& p) {
    return error_message([&] {
      sdpa_jvp({.q = p.q, .k = p.k, .v = p.v, .out = p.out, .lse = p.lse, .tangents = p.tangents, .out_tangent = p.out_tangent, .lse_tangent = p.lse_tangent}, p.options);
    });
  };
  const auto second_message = [](Second& p) {
    return error_message([&] {
      sdpa_backward_backward({.q = p.q, .k = p.k, .v = p.v, .out = p.out, .lse = p.lse, .d_out = p.d_out, .d_gradients = p.tangents, .d_q = p.d_q, .d_k = p.d_k, .d_v = p.d_v, .d_d_out = p.d_d_out},
                             p.options);
    });
  };
  Second valid;
  EXPECT_EQ(jvp_message(valid), "");
  EXPECT_EQ(second_message(valid), "");
  const struct {
    const char* name;
    std::function<void(Second&)> edit;
    std::vector<const char*> words, of_jvp, of_second;
  } table[] = {
      {"no lse", [](Second& p) { p.lse = {}; }, {"lse is missing"}, {}, {}},
      {"no k", [](Second& p) { p.k = {}; }, {"k is missing"}, {}, {}},
      {"narrow keys", [](Second& p) { p.k = Tensor(DType::bf16, p.k.shape()), p.v = Tensor(DType::bf16, p.v.shape()); }, {"k and v are bfloat16 and q is float32", "derivatives need one dtype"}, {}, {}},
      {"tangent of another shape", [](Second& p) { p.tangents.q = p.k; }, {".q is [2,2,5,8]", "the shape of q = [2,4,3,8]"}, {"tangents.q"}, {"d_gradients.q"}},
      {"tangent of another dtype", [](Second& p) { p.tangents.v = p.extra = Tensor(DType::f64, p.v.shape()); }, {".v is float64", "float32"}, {"tangents.v"}, {"d_gradients.v"}},
      {"tangent of no bias", [](Second& p) { p.tangents.bias = p.extra = f32(3, 5); }, {".bias is given without a bias"}, {"tangents.bias"}, {"d_gradients.bias"}},
      {"tangent of no sink", [](Second& p) { p.tangents.sink = p.extra = f32(4); }, {".sink is given without a sink"}, {"tangents.sink"}, {"d_gradients.sink"}},
      {"tangent of no relative bias", [](Second& p) { p.tangents.relative_bias = p.extra = f32(4); }, {".relative_bias is given without a relative_bias"}, {}, {}},
  };
  for (const auto& [name, edit, words, of_jvp, of_second] : table) {
    SCOPED_TRACE(name);
    Second first, second;
    edit(first), edit(second);
    const std::string jvp = jvp_message(first), backward = second_message(second);
    EXPECT_THAT(jvp, HasSubstr("sdpa_jvp: "));
    EXPECT_THAT(backward, HasSubstr("sdpa_backward_backward: "));
    for (const char* word : words) {
      EXPECT_THAT(jvp, HasSubstr(word));
      EXPECT_THAT(backward, HasSubstr(word));
    }
    for (const char* word : of_jvp) EXPECT_THAT(jvp, HasSubstr(word));
    for (const char* word : of_second) EXPECT_THAT(backward, HasSubstr(word));
  }
  Second p;
  p.tangents.q = p.d_q;
  EXPECT_THAT(second_message(p), HasSubstr("d_q overlaps d_gradients.q"));
  p.options.sink = p.extra = f32(2, 4, 3);
  p.tangents.sink = p.lse_tangent;
  EXPECT_THAT(jvp_message(p), HasSubstr("lse_tangent overlaps tangents.sink"));
}

// An executor without threads is refused by every operation, even for the smallest problem, before an output is written.
TEST(Messages, OfAnExecutorWithoutThreads) {
  for (const int threads : {0, -1}) {
    for (const std::int64_t queries : {3, 700}) {
      LastPieceFirst executor(threads);
      const SdpaOptions options{.executor = &executor};
      const Tensor q(DType::f32, {2, 4, queries, 8}), offsets = Tensor::of<std::int64_t>({3}, {0, 1, queries});
      SdpaOptions packed = options, biased = options;
      packed.mask.query_offsets = offsets;
      Tensor out(DType::f32, q.shape()), lse(DType::f32, {2, 4, queries}), bias(DType::f32, {queries}), d_bias = bias, map(DType::f32, {2, 4, queries, queries});
      biased.bias = bias;
      fill(out, 7), fill(d_bias, 7);
      const auto expect = [&](const char* operation, const auto& run) {
        EXPECT_EQ(error_message(run), cat(operation, ": num_threads() of the executor is ", threads, "; it must be at least 1"));
        for (const double x : to_doubles(out.view().select(-1, 0))) EXPECT_EQ(x, 7);
      };
      expect("sdpa_forward", [&] { sdpa_forward({.q = q, .k = q, .v = q, .out = out}, options); });
      expect("sdpa_forward", [&] { sdpa_forward({.q = q, .k = q, .v = q, .out = out}, packed); });
      expect("sdpa_backward", [&] { sdpa_backward({.q = q, .k = q, .v = q, .out = q, .lse = lse, .d_out = q, .d_q = out, .d_k = {}, .d_v = {}, .d_bias = d_bias}, biased); });
      EXPECT_EQ(to_doubles(d_bias).front(), 7);
      expect("sdpa_jvp", [&] { sdpa_jvp({.q = q, .k = q, .v = q, .out = q, .lse = lse, .tangents = {.q = q, .k = {}, .v = {}}, .out_tangent = out}, options); });
      expect("sdpa_backward_backward",
             [&] { sdpa_backward_backward({.q = q, .k = q, .v = q, .out = q, .lse = lse, .d_out = q, .d_gradients = {.q = q, .k = {}, .v = {}}, .d_q = out, .d_k = {}, .d_v = {}}, options); });
      expect("attention_map", [&] { attention_map({.q = q, .k = q}, map, options); });
      expect("attention_key_sums", [&] { attention_key_sums({.q = q, .k = q}, lse, options); });
      expect("explain", [&] { (void)explain({.q = q, .k = q, .v = q, .out = out}, options); });
    }
  }
}

// A refused call must not change the outputs.
TEST(Messages, NothingIsWrittenBeforeTheChecks) {
  Problem p;
  fill(p.out, 7);
  p.options.mask.key_lengths = p.extra = Tensor::of<std::int32_t>({2}, {5, 6});
  EXPECT_NE(forward_message(p), "");
  for (const double x : to_doubles(p.out)) EXPECT_EQ(x, 7);
}

}  // namespace
}  // namespace polyhead::test
