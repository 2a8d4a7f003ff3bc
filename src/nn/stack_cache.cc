#include "polyhead/nn/stack_cache.h"

#include "nn/attention_shapes.h"
#include "nn/check.h"
#include "nn/sequence_copy.h"
#include "polyhead/attention_arguments.h"

namespace polyhead::nn {

namespace {

template <class Layer>
std::vector<const MultiHeadAttention*> attentions_of(const char* operation, const std::vector<Layer>& layers, MultiHeadAttention Layer::*member) {
  require(!layers.empty(), operation, ": there are no layers");
  std::vector<const MultiHeadAttention*> attentions;
  for (const Layer& layer : layers) attentions.push_back(&(layer.*member));
  return attentions;
}

}  // namespace

EncoderCache::EncoderCache(const std::vector<const MultiHeadAttention*>& layers, const EncoderCacheConfig& config) {
  for (const MultiHeadAttention* layer : layers) {
    const MultiHeadAttentionConfig& own = layer->config;
    layers_.emplace_back(KeyValueCacheConfig{.sequences = config.sequences,
                                             .kv_heads = own.kv_heads,
                                             .capacity = config.capacity,
                                             .head_width = own.head_width,
                                             .value_head_width = own.value_head_width,
                                             .dtype = config.dtype.value_or(own.dtype)});
  }
}

EncoderCache::EncoderCache(const Encoder& encoder, const EncoderCacheConfig& config)
    : EncoderCache(attentions_of("EncoderCache", encoder.layers, &EncoderLayer::attention), config) {}

std::int64_t EncoderCache::length(std::int64_t sequence) const {
  require(!layers_.empty(), "EncoderCache.length: the cache has no sequences");
  return layers_[0].length(sequence);
}

// These functions need no rollback. All layers have the same sequences, capacity and lengths, so a call that any layer refuses is refused by the first layer.
void EncoderCache::reorder(std::span<const std::int64_t> source) {
  if (layers_.empty()) return;
  const std::vector<SequenceCopy> copies = layers_[0].plan_reorder(source);
  std::int64_t bytes = 0;
  for (const KeyValueCache& layer : layers_) bytes = std::max(bytes, layer.saved_bytes(copies));
  const Tensor saved = Tensor::uninitialised(DType::u8, {bytes});
  for (KeyValueCache& layer : layers_) layer.apply(copies, saved.owner().get());
}

void EncoderCache::truncate(std::span<const std::int64_t> lengths) {
  for (KeyValueCache& layer : layers_) layer.truncate(lengths);
}

void EncoderCache::clear() {
  for (KeyValueCache& layer : layers_) layer.clear();
}

DecoderCache::DecoderCache(const Decoder& decoder, ConstTensorView memory, const DecoderCacheConfig& config, const RunOptions& options)
    : beams_(config.beams) {
  constexpr const char* kOperation = "DecoderCache";
  require(config.beams >= 1, kOperation, ": beams is ", config.beams, "; it must be at least 1");
  require(static_cast<bool>(memory), kOperation, ": memory is missing");
  require(memory.rank() == 3, kOperation, ": memory is ", memory.shape(), "; it must be [B,S,M]");
  const Shape sequences{memory.extent(0)};
  const Mask& mask = config.memory_mask;
  require(!mask.causal && !mask.window.left && !mask.window.right, kOperation,
          ": memory_mask has a diagonal; the mask of the memory must be the same for all tokens: key_lengths, attend_keys or block_keys");
  visit_given(mask, [&](std::string_view name, const ConstTensorView& view) {
    require(name == "key_lengths" || name == "attend_keys" || name == "block_keys", kOperation, ": memory_mask has ", name,
            "; the mask of the memory must be the same for all tokens: key_lengths, attend_keys or block_keys");
    if (name == "key_lengths") require_shape(kOperation, {"memory_mask.key_lengths", view}, sequences);
  });
  const auto copy_of = [](const ConstTensorView& view) { return view ? Tensor::copy_of(view) : Tensor(); };
  key_lengths_ = copy_of(mask.key_lengths), attend_keys_ = copy_of(mask.attend_keys), block_keys_ = copy_of(mask.block_keys);
  tokens_ = EncoderCache(attentions_of(kOperation, decoder.layers, &DecoderLayer::self_attention),
                         {memory.extent(0) * beams_, config.capacity, config.dtype});
  for (const DecoderLayer& layer : decoder.layers) {
    const MultiHeadAttention& attention = layer.cross_attention;
    require_rows(kOperation, {"memory", memory}, "memory_width", attention.config.key_width, attention.config.dtype);
    const auto projected = [&](const Linear& projection) {
      Tensor y(attention.config.dtype, with_width(memory.shape(), projection.out_width()));
      projection.forward(memory, y, options);
      return y;
    };
    Tensor k = projected(attention.k);
    if (attention.config.qk_norm) {
      const Tensor unnormed = std::move(k);
      k = Tensor(unnormed.dtype(), unnormed.shape());
      attention.k_norm.forward(split_heads(unnormed.view(), 1, attention.config.kv_heads), split_heads(k.view(), 1, attention.config.kv_heads), options);
    }
    memory_.push_back({std::move(k), projected(attention.v)});
  }
}

void DecoderCache::reorder(std::span<const std::int64_t> source) {
  for (std::int64_t r = 0; r < std::min<std::int64_t>(std::ssize(source), sequences()); ++r) {
    const std::int64_t from = source[static_cast<std::size_t>(r)];
    if (from < 0 || from >= sequences()) break;  // the layers' own reorder() throws an Error for this
    require(from / beams_ == r / beams_, "DecoderCache.reorder: sequence ", r, " would become sequence ", from,
            ", which reads another memory; with ", beams_, " beams the sequences of memory ", r / beams_, " are ", r / beams_ * beams_, " to ",
            r / beams_ * beams_ + beams_ - 1);
  }
  tokens_.reorder(source);
}

}  // namespace polyhead::nn
