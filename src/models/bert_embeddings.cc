#include "models/bert_embeddings.h"

#include <numeric>
#include <string_view>

#include "core/text.h"

namespace polyhead::models {
namespace {

constexpr std::string_view kOperation = "BertEncoder.forward";

void require_fits(std::int64_t tokens, const BertConfig& config) {
  require(tokens <= config.longest(), kOperation, ": the text has ", tokens, " tokens; the model has positions for ", config.longest());
}

}  // namespace

Tensor position_ids(const BertConfig& config, ConstTensorView ids) {
  const std::int64_t length = ids.extent(-1);
  if (!config.padding_token) {
    require_fits(length, config);
    Tensor places(DType::i64, {length});
    std::iota(places.data<std::int64_t>(), places.data<std::int64_t>() + length, 0);
    return places;
  }
  const Tensor given = Tensor::copy_of(ids, DType::i64);
  Tensor places(DType::i64, ids.shape());
  const std::int64_t padding = *config.padding_token;
  for (std::int64_t first = 0; first < given.numel(); first += length) {
    std::int64_t count = 0;
    for (std::int64_t i = first; i < first + length; ++i) places.data<std::int64_t>()[i] = padding + (given.data<std::int64_t>()[i] != padding ? ++count : 0);
    require_fits(count, config);
  }
  return places;
}

Tensor word_scales(const BertConfig& config, const BertInput& input) {
  constexpr double kKept = 1 - 0.15 * 0.8;  // ESM's training masks 15 % of the tokens, and shows a mask token in 80 % of these
  const Tensor ids = Tensor::copy_of(input.ids, DType::i64);
  const Tensor attend = input.attend_keys ? Tensor::copy_of(input.attend_keys) : Tensor();
  const std::int64_t length = input.ids.extent(-1);
  Tensor scales(accumulation_dtype(config.dtype), input.ids.shape());
  const auto write = [&](auto* out) {
    using T = std::remove_reference_t<decltype(*out)>;
    for (std::int64_t first = 0; first < ids.numel(); first += length) {
      const auto is_masked = [&](std::int64_t i) { return ids.data<std::int64_t>()[first + i] == *config.mask_token; };
      std::int64_t masked = 0, tokens = 0;
      for (std::int64_t i = 0; i < length; ++i) masked += is_masked(i), tokens += !attend || attend.data<bool>()[first + i];
      if (tokens == 0) continue;  // the text is all padding, whose embeddings are 0
      require(masked < tokens, kOperation, ": a text of ", tokens, " tokens has ", masked, " mask tokens (id ", *config.mask_token,
              "); this model scales all other tokens by 1 / (1 - share of mask tokens), so a text needs at least one other token");
      const double scale = kKept / (1 - static_cast<double>(masked) / static_cast<double>(tokens));
      for (std::int64_t i = 0; i < length; ++i) out[first + i] = is_masked(i) ? T{0} : static_cast<T>(scale);
    }
  };
  scales.dtype() == DType::f64 ? write(scales.data<double>()) : write(scales.data<float>());
  return scales;
}

}  // namespace polyhead::models
