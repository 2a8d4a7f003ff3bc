#include "polyhead/nn/initialisation.h"

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "nn/initialiser.h"

namespace polyhead::nn {
namespace {

bool adds_to_residual(const std::string& name, const Tensor&) {
  return name.ends_with("attention.output.weight") || name.ends_with("feed_forward.output.weight");
}

// Returns true for the bias of an attention layer's gate, and false for that of a feed-forward network's gate.
bool is_attention_gate(const std::string& name, const NamedParameters& list) {
  constexpr std::string_view kBias = "gate.bias";
  if (!name.ends_with(kBias)) return false;
  const std::string query = name.substr(0, name.size() - kBias.size()) + "q.weight";
  return std::ranges::any_of(list, [&](const auto& item) { return item.first == query; });
}

}  // namespace

void initialise_normal(const NamedParameters& list, const NormalInitialisation& options) {
  constexpr const char* kOperation = "initialise_normal";
  require(options.deviation >= 0 && std::isfinite(options.deviation) && options.residual_layers >= 0, kOperation, ": deviation is ",
          options.deviation, " and residual_layers ", options.residual_layers, "; neither may be negative or infinite");
  std::vector<double> deviations;
  bool residual = false;
  for (const auto& [name, tensor] : list) {
    const bool scaled = options.residual_layers > 0 && tensor->shape().size() >= 2 &&
                        (options.adds_to_residual ? options.adds_to_residual : adds_to_residual)(name, *tensor);
    deviations.push_back(scaled ? options.deviation / std::sqrt(2 * static_cast<double>(options.residual_layers)) : options.deviation);
    residual = residual || scaled;
  }
  require(residual || options.residual_layers == 0, kOperation, ": residual_layers is ", options.residual_layers,
          ", but adds_to_residual is true for no matrix");
  Initialiser initialiser(options.seed);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [name, tensor] = list[i];
    if (tensor->shape().size() >= 2) {
      initialiser.normal(*tensor, 0, deviations[i]);
    } else if (name.ends_with("bias") && !is_attention_gate(name, list)) {
      fill(*tensor, 0);
    }
  }
}

}  // namespace polyhead::nn
