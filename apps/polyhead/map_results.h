// The results about attention weights that `attend` and `maps` can write.
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
  // pooled: {height, width} of the pooled map. window: {first, last} distance of a key from its query.
  std::optional<std::array<std::int64_t, 2>> pooled, window;
  std::optional<std::vector<IndexList>> key_mass;             // key sets of --key-mass; an empty list: read them from the tensor key_sets of the file
  std::optional<IndexList> rows, keys;                        // the rows (queries) and columns (keys) of the attention weights that are written
  Pooling pooling = Pooling::mean;
  bool by_norms = false;  // write norm-weighted maps in place of attention weights
  bool attention_weights = false, statistics = false, key_sums = false, divergence = false;

  bool any() const { return top_keys || pooled || window || key_mass || attention_weights || statistics || key_sums || divergence; }
};

// Throws UsageError if an option that needs --attention-weights is given without it.
void check_map_results(const MapResults& wanted);

void add_map_results(Parser& parser, MapResults* wanted, bool beside_output);

// Returns a function for MapsInput::progress that draws a progress bar labelled `what`. The bar is removed when done = total.
std::function<void(std::int64_t, std::int64_t)> progress_bar(std::string_view what);

// Describes the tensor output_weight in the message that it is missing.
inline constexpr std::string_view kOutputWeight = "weight of the output projection, [E,N*V]; --weighting norm needs it and v";

// The norms [*,N,S] of the transformed value vectors: each vector of v [*,K,S,V] is multiplied by its head's slice of output_weight [E,N*V]. q [*,N,T,H] gives
// the number of heads. All tensors have the same dtype.
Tensor norms_of_values(const Tensor& v, const Tensor& output_weight, const Shape& q);

// Computes the wanted tensors and appends them to the results. `shape` is [*,N,T,S]; key_sets is read from `in`; lse may be absent. norms: [*,N,S], those of
// the transformed values; absent unless norm-weighted maps are wanted. A progress bar counts the rows of the maps.
void append_map_results(const MapResults& wanted, MapsInput input, const SdpaOptions& options, const Shape& shape, ConstTensorView lse, ConstTensorView norms, InputTensors* in,
                        std::vector<io::NamedTensor>* results);

}  // namespace polyhead::app
