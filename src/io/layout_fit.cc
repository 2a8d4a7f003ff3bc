#include "io/layout_fit.h"

#include <algorithm>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

std::string spelled(std::string_view dotted, const Spelling& spelling) {
  std::string name(dotted);
  std::ranges::replace(name, '.', spelling.separator);
  return name + spelling.suffix;
}

// Returns why the tensors' names do not fit, or "". They fit if every required parameter is present, every group is complete or absent, and
// the layer's modules hold no other tensor: ignoring a tensor, such as a bias or an adapter's matrix, would give wrong results.
std::string check_names(const TensorIndex& index, Fit& fit) {
  const Place& place = fit.place;
  std::string misfit;
  std::map<char, std::pair<std::string, std::string>> groups;  // of each group: a name that was found, a name that was not
  std::vector<std::string> known;
  std::size_t required = 0, present = 0;
  for (const Parameter& parameter : *place.parameters) {
    std::string name = place.name_of(parameter);
    const bool found = index.contains(name);
    if (parameter.group == 0) {
      ++required;
      present += found;
      if (!found && misfit.empty()) misfit = cat("there is no ", quote(name));
    } else {
      auto& [one, other] = groups[parameter.group];
      (found ? one : other) = name;
    }
    if (found) fit.names.push_back(name);
    known.push_back(std::move(name));
  }
  fit.present = static_cast<double>(present) / static_cast<double>(required);
  if (!misfit.empty()) return misfit;
  for (const auto& [group, names] : groups) {
    if (!names.first.empty() && !names.second.empty()) return cat("there is ", quote(names.first), ", but no ", quote(names.second));
  }
  const auto first_inside = [&](std::string_view module) -> std::string {
    const std::string folder = place.prefix + spelled(module, {place.spelling.separator, ""}) + place.spelling.separator;
    for (auto at = index.lower_bound(folder); at != index.end() && at->first.starts_with(folder); ++at) {
      if (std::ranges::find(known, at->first) == known.end()) return at->first;
    }
    return "";
  };
  const auto check_module = [&](std::string_view module) {
    const std::string foreign = first_inside(module);
    if (misfit.empty() && !foreign.empty()) misfit = cat("there is ", quote(foreign), ", which it does not have");
  };
  for (const Parameter& parameter : *place.parameters) {
    if (const std::size_t dot = parameter.name.rfind('.'); dot != std::string_view::npos) check_module(parameter.name.substr(0, dot));
  }
  for (const std::string_view module : place.layout->refuses) check_module(module);
  return misfit;
}

// Checks that the shapes of the canonical tensors agree. AttentionParameters lists the shapes.
class Shapes {
 public:
  explicit Shapes(Fit& fit) : fit_(fit) {}

  std::string check() {
    rank("q.weight", 2), rank("k.weight", 2), rank("v.weight", 2), rank("output.weight", 2), rank("gate.weight", 2);
    if (!misfit_.empty()) return misfit_;
    q_rows_ = extent("q.weight", 0), k_rows_ = extent("k.weight", 0), v_rows_ = extent("v.weight", 0);
    if (fit_.place.layout->heads != 0) fit_.counts.heads = fit_.place.layout->heads;
    key_heads();
    const std::int64_t group = fit_.counts.kv_heads > 0 ? fit_.counts.heads / fit_.counts.kv_heads : 1;
    std::int64_t merged = 0;  // N*V, the width of the merged heads
    if (__builtin_mul_overflow(v_rows_, group, &merged))
      bad("v.weight has ", v_rows_, " rows for each of ", group, " query heads: too many");
    exactly("q.bias", {q_rows_}), exactly("k.bias", {k_rows_}), exactly("v.bias", {v_rows_});
    if (has("output.weight")) exactly("output.weight", {extent("output.weight", 0), merged});
    if (has("output.bias")) exactly("output.bias", {extent("output.weight", 0)});
    exactly("gate.weight", {merged, extent("q.weight", 1)}), exactly("gate.bias", {merged});
    exactly("bias_k", {1, 1, k_rows_}), exactly("bias_v", {1, 1, v_rows_});
    return misfit_;
  }

 private:
  bool has(const char* name) const { return fit_.tensors.contains(name); }
  std::int64_t extent(const char* name, int axis) const { return fit_.tensors.at(name).extent(axis); }
  template <class... Parts>
  void bad(const Parts&... parts) {
    if (misfit_.empty()) misfit_ = cat(parts...);
  }
  void rank(const char* name, int wanted) {
    if (has(name) && fit_.tensors.at(name).rank() != wanted)
      bad(name, " is ", fit_.tensors.at(name).shape(), "; it must have ", wanted, " extents");
  }
  void exactly(const char* name, const Shape& wanted) {
    if (has(name) && fit_.tensors.at(name).shape() != wanted)
      bad(name, " is ", fit_.tensors.at(name).shape(), "; beside the others it must be ", wanted);
  }

  void key_heads() {
    HeadCounts& counts = fit_.counts;
    const auto rows = [&](const auto& rule) { bad("q.weight has ", q_rows_, " rows, k.weight ", k_rows_, "; ", rule); };
    switch (fit_.place.layout->key_heads) {
      case KeyHeads::or_global:
        if (k_rows_ < q_rows_ && k_rows_ > 0) {
          if (q_rows_ % k_rows_ != 0) return rows("they must be equal, or the first a multiple of the second (a global layer)");
          counts = {q_rows_ / k_rows_, 1};
          fit_.global_query = true;
          return;
        }
        [[fallthrough]];
      case KeyHeads::as_query:
        if (q_rows_ != k_rows_) return rows("they must be equal");
        counts.kv_heads = counts.heads;
        break;
      case KeyHeads::grouped:
        if (counts.heads % counts.kv_heads != 0)
          return bad(counts.heads, " query heads do not divide among ", counts.kv_heads, " key/value heads");
        if (q_rows_ / counts.heads != k_rows_ / counts.kv_heads) {
          return bad("a query head is ", q_rows_ / counts.heads, " wide, a key head ", k_rows_ / counts.kv_heads, "; they must be equal");
        }
        break;
    }
    if (counts.heads > 0 && (q_rows_ % counts.heads != 0 || v_rows_ % counts.kv_heads != 0)) {
      bad("the ", q_rows_, " rows of q.weight and ", v_rows_, " of v.weight do not divide into ", counts.heads, " heads");
    }
  }

  Fit& fit_;
  std::string misfit_;
  std::int64_t q_rows_ = 0, k_rows_ = 0, v_rows_ = 0;
};

}  // namespace

std::string Place::name_of(const Parameter& parameter) const { return prefix + spelled(parameter.name, spelling); }

Fit fit(const TensorIndex& index, Place place) {
  Fit result{.place = std::move(place)};
  result.misfit = check_names(index, result);
  if (!result.misfit.empty()) return result;
  for (const Parameter& parameter : *result.place.parameters) {
    const auto stored = index.find(result.place.name_of(parameter));
    if (stored == index.end()) continue;
    for (auto& [canonical, view] : to_canonical(parameter, stored->second, result.counts, result.misfit))
      result.tensors.emplace(canonical, view);
    if (!result.misfit.empty()) {
      result.misfit = quote(stored->first) + " " + result.misfit;
      return result;
    }
  }
  result.misfit = Shapes(result).check();
  return result;
}

}  // namespace polyhead::io
