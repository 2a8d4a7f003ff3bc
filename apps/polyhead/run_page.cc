#include "run_page.h"

#include <utility>

#include "core/text.h"

namespace polyhead::app {
namespace {

viewer::Tokens tokens_of(const models::TokenizedText& tokens) { return {.pieces = tokens.pieces, .special = tokens.special, .segment = tokens.segments, .unknown = tokens.unknown}; }

}  // namespace

std::vector<std::int64_t> pooled_sides(const models::AnyTextModel::Sizes& sizes, std::span<const std::int64_t> tokens, std::int64_t generate, std::int64_t most_numbers) {
  if (sizes.kind != models::TextModelKind::two_sides) {
    std::vector<std::int64_t> lengths(tokens.begin(), tokens.end());
    for (std::int64_t& length : lengths) length += generate;
    return viewer::pooled_sides(lengths, sizes.layers * sizes.heads, most_numbers);
  }
  std::int64_t weights = 0;
  for (const std::int64_t count : tokens) {
    if (__builtin_add_overflow(weights, sizes.attention_weights(count, generate), &weights) || weights > viewer::kMaxAttentionWeights)
      fail(ErrorCode::invalid_argument, "a page holds at most ", viewer::kMaxAttentionWeights, " attention weights, and maps of an encoder-decoder are not pooled; these texts have more attention weights: give fewer or shorter texts");
  }
  return std::vector<std::int64_t>(tokens.size());
}

viewer::Text page_text(std::string text, const models::TextRun& run, std::vector<viewer::WithoutHead> without, std::int64_t left_out) {
  viewer::Text own{.text = std::move(text), .queries = tokens_of(run.tokens), .attentions = run.attentions, .without = std::move(without), .value_norms = run.value_norms, .width = run.hidden.extent(-1), .left_out = left_out};
  if (run.pooled) own.attentions = run.pooled, own.pooled = Pooling::largest, own.value_norms = {};
  if (run.q) own.vectors = {.q = run.q, .k = run.k, .v = run.v, .scale = run.scale, .bias = run.bias, .attend = run.attend};
  if (run.q && run.rotations) own.vectors->rotary_cos = run.rotations->cos, own.vectors->rotary_sin = run.rotations->sin, own.vectors->rotary_neighbours = run.rotations->order == nn::RotaryOrder::pairs;
  if (!run.target) {
    own.text += run.generated.value_or("");
    return own;
  }
  own.name = "Encoder";
  const viewer::Tokens written = tokens_of(run.target->tokens);
  const viewer::Text decoder{.text = run.generated.value_or(""), .queries = written, .attentions = run.target->attentions, .name = "Decoder"};
  return {.text = own.text, .queries = written, .keys = own.queries, .attentions = run.target->cross_attentions, .name = "Cross-attention", .tabs = {own, decoder}};
}

std::string address(std::string first, bool by_norms) {
  if (by_norms) first += first.empty() ? "#weighting=norm" : "&weighting=norm";
  return first;
}

}  // namespace polyhead::app
