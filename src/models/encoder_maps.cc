#include "models/encoder_maps.h"

#include "polyhead/maps.h"

namespace polyhead::models {

Tensor encoder_maps(const nn::Encoder::Saved& saved) {
  const ConstTensorView q = saved.layers.at(0).attention.q_heads;  // [B,N,T,H]
  Tensor maps(q.dtype(), {std::ssize(saved.layers), q.extent(0), q.extent(1), q.extent(2), q.extent(2)});
  for (std::size_t i = 0; i < saved.layers.size(); ++i) {
    const nn::MultiHeadAttention::Saved& attention = saved.layers[i].attention;
    attention_map(attention.maps(), maps.view().select(0, static_cast<std::int64_t>(i)), attention.sdpa);
  }
  return maps;
}

}  // namespace polyhead::models
