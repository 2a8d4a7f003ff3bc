#include "viewer/pooled.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "core/text.h"

namespace polyhead::viewer {
namespace {

// The number of tokens in block number `at`, if attention_pooled_map() divides the tokens into `blocks` blocks.
std::int64_t block_size(std::int64_t at, std::int64_t tokens, std::int64_t blocks) { return (at + 1) * tokens / blocks - at * tokens / blocks; }

std::int64_t queries_of(const Text& set) { return std::ssize(set.queries.pieces); }
std::int64_t keys_of(const Text& set) { return std::ssize((set.keys ? *set.keys : set.queries).pieces); }

}  // namespace

void check_pooled(const Text& set) {
  if (!set.pooled) return;
  const Shape& shape = set.attentions.shape();
  const auto check_side = [&](std::int64_t tokens, std::int64_t blocks, std::string_view side) {
    require(blocks <= tokens && (blocks > 0 || tokens == 0), "viewer::render: ", tokens, " ", side, " tokens for ", blocks, " blocks of pooled maps ", shape,
            " [layers,heads,height,width]; a block has at least one token");
  };
  check_side(queries_of(set), shape[2], "query");
  check_side(keys_of(set), shape[3], set.keys ? "key" : "query");
  const std::array<std::pair<bool, std::string_view>, 6> token_by_token{{{set.links.has_value(), "links"}, {bool(set.gate), "gate"}, {bool(set.pair_bias), "pair_bias"},
                                                                         {!set.block_keys.empty(), "block_keys"}, {set.vectors.has_value(), "vectors"}, {bool(set.value_norms), "value_norms"}}};
  for (const auto& [given, name] : token_by_token)
    require(!given, "viewer::render: ", name, " of pooled maps; a cell is a block of tokens, and ", name, " are of single tokens");
}

std::vector<std::int64_t> pooled_sides(std::span<const std::int64_t> tokens, std::int64_t heads, std::int64_t most_numbers) {
  constexpr double kCells = 1 << 23;  // a text's maps, of all heads together, have at most this many cells, which are 11 MB of HTML
  require(heads >= 1, "viewer::pooled_sides: heads is ", heads, "; it must be at least 1");
  const auto most_blocks = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::sqrt(kCells / static_cast<double>(heads))), 1, 512);
  const std::int64_t limit = std::min(most_numbers, kMaxAttentionWeights);
  std::vector<std::int64_t> sides(tokens.size()), pairs;
  for (const std::int64_t count : tokens) pairs.push_back(numel({heads, count, count}));  // numel() throws Error beyond 2^63
  const auto cells = [&](std::size_t i) { return sides[i] != 0 ? heads * sides[i] * sides[i] : pairs[i]; };
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (pairs[i] > limit) sides[i] = std::min(most_blocks, tokens[i]);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (__builtin_add_overflow(total, cells(i), &total)) fail(ErrorCode::invalid_argument, "viewer::pooled_sides: ", tokens.size(), " texts are too many for a page");
  while (total > kMaxAttentionWeights) {
    std::optional<std::size_t> largest;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (sides[i] == 0 && tokens[i] > most_blocks && (!largest || pairs[i] > pairs[*largest])) largest = i;
    if (!largest)
      fail(ErrorCode::invalid_argument, "a page holds at most ", kMaxAttentionWeights, " attention weights and these ", tokens.size(), tokens.size() == 1 ? " text has " : " texts have ", total,
           ", with pooled maps of those that are long; give fewer texts");
    total -= pairs[*largest];
    sides[*largest] = most_blocks;
    total += cells(*largest);
  }
  return sides;
}

void add_pooled(nlohmann::json& json, const Text& set) {
  if (!set.pooled) return;
  json["pooled"] = *set.pooled == Pooling::largest ? "largest" : "share";
  json["blocks"] = {set.attentions.extent(2), set.attentions.extent(3)};
}

void make_shares(std::span<float> map, const Text& set) {
  if (!set.pooled || *set.pooled == Pooling::largest) return;
  const std::int64_t height = set.attentions.extent(2), width = set.attentions.extent(3);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < height; ++i) {
    const auto queries = static_cast<float>(block_size(i, queries_of(set), height));
    for (std::int64_t j = 0; j < width; ++j) {
      float& cell = map[at++];
      cell = *set.pooled == Pooling::mean ? cell * static_cast<float>(block_size(j, keys_of(set), width)) : cell / queries;
    }
  }
}

}  // namespace polyhead::viewer
