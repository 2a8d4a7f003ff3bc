#include "io/formats.h"

#include "io/npy.h"

namespace polyhead::io {

std::span<const Format> format_table() {
  static constexpr Format kFormats[] = {
      {"npy", ".npy", &is_npy, &read_npy, &write_npy},
#ifdef POLYHEAD_NPZ
      {"npz", ".npz", &is_npz, &read_npz, &write_npz},
#endif
      {"safetensors", ".safetensors", &is_safetensors, &read_safetensors, &write_safetensors},
      {"safetensors index", ".safetensors.index.json", &is_shard_index, &read_shards, nullptr},
  };
  return kFormats;
}

}  // namespace polyhead::io
