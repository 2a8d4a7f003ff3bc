#include "viewer/pooled.h"

#include <array>
#include <string_view>
#include <utility>

#include "core/text.h"

namespace polyhead::viewer {
namespace {

// Tokens of block `at` of `blocks`, as attention_pooled_map() cuts them.
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
  const std::array<std::pair<bool, std::string_view>, 5> token_by_token{{{set.links.has_value(), "links"}, {bool(set.gate), "gate"}, {bool(set.pair_bias), "pair_bias"},
                                                                         {!set.block_keys.empty(), "block_keys"}, {set.vectors.has_value(), "vectors"}}};
  for (const auto& [given, name] : token_by_token)
    require(!given, "viewer::render: ", name, " of pooled maps; a cell is a block of tokens, and ", name, " are of single tokens");
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
