// What `attend` writes about attention weights, besides the output.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <optional>
#include <vector>

#include "polyhead/io/tensor_file.h"
#include "polyhead/maps.h"

namespace polyhead::app {

struct MapResults {
  std::optional<std::int64_t> top_keys;
  std::optional<std::array<std::int64_t, 2>> pooled;  // height, width
  bool attention_weights = false, statistics = false, key_sums = false, divergence = false;
};

void add_map_results(CLI::App& parser, MapResults* wanted);

// Appends the tensors that are wanted. shape: [*,N,T,S]. A progress bar counts rows of the maps.
void append_map_results(const MapResults& wanted, MapsInput input, const SdpaOptions& options, const Shape& shape, ConstTensorView lse,
                        std::vector<io::NamedTensor>* results);

}  // namespace polyhead::app
