#include "run_page.h"

#include <utility>

namespace polyhead::app {
namespace {

viewer::Tokens tokens_of(const models::TokenizedText& tokens) { return {.pieces = tokens.pieces, .special = tokens.special, .segment = tokens.segments, .unknown = tokens.unknown}; }

}  // namespace

viewer::Text page_text(std::string text, const models::TextRun& run, std::vector<viewer::WithoutHead> without, std::int64_t left_out) {
  viewer::Text own{.text = std::move(text), .queries = tokens_of(run.tokens), .attentions = run.attentions, .without = std::move(without), .left_out = left_out};
  if (run.q) own.vectors = {.q = run.q, .k = run.k, .v = run.v, .scale = run.scale, .bias = run.bias, .attend = run.attend};
  if (!run.target) {
    own.text += run.generated.value_or("");
    return own;
  }
  own.name = "Encoder";
  const viewer::Tokens written = tokens_of(run.target->tokens);
  const viewer::Text decoder{.text = run.generated.value_or(""), .queries = written, .attentions = run.target->attentions, .name = "Decoder"};
  return {.text = own.text, .queries = written, .keys = own.queries, .attentions = run.target->cross_attentions, .name = "Cross-attention", .tabs = {own, decoder}};
}

}  // namespace polyhead::app
