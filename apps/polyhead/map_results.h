// What `attend` and `maps` write about attention weights.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "command.h"
#include "index_list.h"
#include "input_tensors.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/maps.h"

namespace polyhead::app {

struct MapResults {
  std::optional<std::int64_t> top_keys;
  std::optional<std::array<std::int64_t, 2>> pooled, window;  // height, width; first, last
  std::optional<std::vector<IndexList>> key_mass;             // no sets: those of the tensor key_sets
  std::optional<IndexList> rows, keys;                        // of the attention weights
  Pooling pooling = Pooling::mean;
  bool attention_weights = false, statistics = false, key_sums = false, divergence = false;

  bool any() const { return top_keys || pooled || window || key_mass || attention_weights || statistics || key_sums || divergence; }
};

void add_map_results(Parser& parser, MapResults* wanted, bool beside_output);

// A progress bar of `what`, as a function for MapsInput::progress. It is drawn from the first call to the one with done = total.
std::function<void(std::int64_t, std::int64_t)> progress_bar(std::string_view what);

// Appends the tensors that are wanted. shape: [*,N,T,S]; of `in` it takes key_sets; lse may be absent. A progress bar counts rows of the maps.
void append_map_results(const MapResults& wanted, MapsInput input, const SdpaOptions& options, const Shape& shape, ConstTensorView lse, InputTensors* in,
                        std::vector<io::NamedTensor>* results);

}  // namespace polyhead::app
