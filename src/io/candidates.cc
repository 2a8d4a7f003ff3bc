#include "io/candidates.h"

#include <algorithm>
#include <set>

#include "core/join.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

std::string spelled(std::string_view dotted, const Spelling& spelling) {
  std::string name(dotted);
  std::ranges::replace(name, '.', spelling.separator);
  return name + spelling.suffix;
}

// Returns why the tensors' names do not fit, or "". They fit if every required parameter is present, every group of optional parameters is complete or absent,
// and the layer's modules hold no other tensor: ignoring a tensor, such as a bias or an adapter's matrix, would give wrong results.
std::string check_names(const TensorIndex& index, Candidate& candidate) {
  std::string reason;
  std::map<char, std::pair<std::string, std::string>> groups;  // for each group of parameters: one name that the file has, and one name that it lacks
  std::vector<std::string> known;
  std::size_t required = 0, present = 0;
  for (const Parameter& parameter : *candidate.parameters) {
    std::string name = candidate.name_of(parameter);
    const bool found = index.contains(name);
    if (parameter.group == 0) {
      ++required;
      present += found;
      if (!found) candidate.missing.push_back(name);
    } else {
      auto& [one, other] = groups[parameter.group];
      (found ? one : other) = name;
    }
    if (found) candidate.names.push_back(name);
    known.push_back(std::move(name));
  }
  candidate.present = static_cast<double>(present) / static_cast<double>(required);
  if (!candidate.missing.empty()) return cat("there is no ", join(candidate.missing, [](const std::string& name) { return quote(name); }));
  for (const auto& [group, names] : groups) {
    if (!names.first.empty() && !names.second.empty()) return cat("there is ", quote(names.first), ", but no ", quote(names.second));
  }
  for (const std::string_view buffer : candidate.layout->buffers) known.push_back(candidate.prefix + spelled(buffer, candidate.spelling));
  const auto first_inside = [&](std::string_view module) -> std::string {
    std::string folder = candidate.prefix + spelled(module, {candidate.spelling.separator, ""});
    if (!module.empty()) folder += candidate.spelling.separator;
    for (auto at = index.lower_bound(folder); at != index.end() && at->first.starts_with(folder); ++at) {
      if (std::ranges::find(known, at->first) == known.end()) return at->first;
    }
    return "";
  };
  const auto check_module = [&](std::string_view module) {
    const std::string foreign = first_inside(module);
    if (reason.empty() && !foreign.empty()) reason = cat("there is ", quote(foreign), ", which this layout does not have");
  };
  for (const Parameter& parameter : *candidate.parameters) {
    if (const std::size_t dot = parameter.name.rfind('.'); dot != std::string_view::npos) check_module(parameter.name.substr(0, dot));
  }
  for (const std::string_view module : candidate.layout->closed) {
    if (!module.empty() || !candidate.prefix.empty()) check_module(module);
  }
  for (const std::string_view name : candidate.layout->refuses) {
    if (name.ends_with('.')) {
      check_module(name.substr(0, name.size() - 1));
      continue;
    }
    const std::string tensor = candidate.prefix + spelled(name, candidate.spelling);
    if (reason.empty() && index.contains(tensor)) reason = cat("there is ", quote(tensor), ", which this layout does not have");
  }
  return reason;
}

// Checks that the shapes of the canonical tensors agree. AttentionParameters lists the shapes.
class Shapes {
 public:
  explicit Shapes(Candidate& candidate) : candidate_(candidate) {}

  std::string check() {
    rank("q.weight", 2), rank("k.weight", 2), rank("v.weight", 2), rank("output.weight", 2), rank("gate.weight", 2);
    if (!reason_.empty()) return reason_;
    q_rows_ = extent("q.weight", 0), k_rows_ = extent("k.weight", 0), v_rows_ = extent("v.weight", 0);
    if (candidate_.layout->heads != 0) candidate_.counts.heads = candidate_.layout->heads;
    key_heads();
    const std::int64_t group = candidate_.group;
    std::int64_t merged = 0;  // N*V, the width of the merged heads
    if (__builtin_mul_overflow(v_rows_, group, &merged))
      bad("v.weight has ", v_rows_, " rows for each of ", group, " query heads: too many");
    exactly("q.bias", {q_rows_}), exactly("k.bias", {k_rows_}), exactly("v.bias", {v_rows_});
    if (has("output.weight")) exactly("output.weight", {extent("output.weight", 0), merged});
    if (has("output.bias")) exactly("output.bias", {extent("output.weight", 0)});
    exactly("gate.weight", {merged, extent("q.weight", 1)}), exactly("gate.bias", {merged});
    if (has("sink")) rank("sink", 1);
    exactly("bias_k", {1, 1, k_rows_}), exactly("bias_v", {1, 1, v_rows_});
    return reason_;
  }

 private:
  bool has(const char* name) const { return candidate_.tensors.contains(name); }
  std::int64_t extent(const char* name, int axis) const { return candidate_.tensors.at(name).extent(axis); }
  template <class... Parts>
  void bad(const Parts&... parts) {
    if (reason_.empty()) reason_ = cat(parts...);
  }
  void rank(const char* name, int wanted) {
    if (has(name) && candidate_.tensors.at(name).rank() != wanted)
      bad(name, " is ", candidate_.tensors.at(name).shape(), "; it must have ", wanted, " extents");
  }
  void exactly(const char* name, const Shape& wanted) {
    if (has(name) && candidate_.tensors.at(name).shape() != wanted)
      bad(name, " is ", candidate_.tensors.at(name).shape(), "; with the shapes of the other tensors it must be ", wanted);
  }

  void key_heads() {
    HeadCounts& counts = candidate_.counts;
    const auto rows = [&](const auto& rule) { bad("q.weight has ", q_rows_, " rows, k.weight ", k_rows_, "; ", rule); };
    switch (candidate_.layout->key_heads) {
      case KeyHeads::or_global:
        if (k_rows_ < q_rows_ && k_rows_ > 0) {
          if (q_rows_ % k_rows_ != 0) return rows("they must be equal, or the first a multiple of the second (a global layer)");
          counts = {q_rows_ / k_rows_, 1};
          candidate_.global_query = true;
          candidate_.group = counts.heads;
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
        candidate_.group = counts.heads / counts.kv_heads;
        break;
      case KeyHeads::divides:
        if (k_rows_ == 0 || q_rows_ % k_rows_ != 0) return rows("the first must be a multiple of the second");
        candidate_.group = q_rows_ / k_rows_;
        if (counts.heads % candidate_.group != 0)
          return bad(counts.heads, " query heads do not divide among groups of ", candidate_.group, ", as the rows of q.weight and k.weight say");
        counts.kv_heads = counts.heads / candidate_.group;
        break;
    }
    if (counts.heads > 0 && (q_rows_ % counts.heads != 0 || v_rows_ % counts.kv_heads != 0)) {
      bad("the ", q_rows_, " rows of q.weight and ", v_rows_, " of v.weight do not divide into ", counts.heads, " heads");
    }
  }

  Candidate& candidate_;
  std::string reason_;
  std::int64_t q_rows_ = 0, k_rows_ = 0, v_rows_ = 0;
};

std::vector<Spelling> spellings(const Layout& layout) {
  if (layout.separator == '.') return {{'.', ""}};
  return {{'/', ""}, {'.', ""}, {'/', ":0"}, {'.', ":0"}};
}

// Returns every prefix at which the file has at least one required parameter of the layout.
std::set<std::string> prefixes(const std::vector<NamedTensor>& tensors, const Candidate& candidate) {
  std::set<std::string> found;
  for (const Parameter& parameter : *candidate.parameters) {
    if (parameter.group != 0) continue;
    const std::string ending = candidate.name_of(parameter);
    for (const NamedTensor& item : tensors) {
      if (!item.name.ends_with(ending)) continue;
      std::string prefix = item.name.substr(0, item.name.size() - ending.size());
      if (prefix.empty() || prefix.back() == '.' || prefix.back() == '/') found.insert(std::move(prefix));
    }
  }
  return found;
}

}  // namespace

std::string Candidate::name_of(const Parameter& parameter) const { return prefix + spelled(parameter.name, spelling); }

std::string Candidate::description() const {
  return quote(layout->name) + (prefix.empty() ? std::string(" without a prefix") : " at " + quote(prefix));
}

TensorIndex index_of(const std::vector<NamedTensor>& tensors) {
  TensorIndex index;
  for (const NamedTensor& item : tensors) index.emplace(item.name, item.tensor.view());
  return index;
}

Candidate checked(const TensorIndex& index, Candidate candidate) {
  candidate.reason = check_names(index, candidate);
  if (!candidate.reason.empty()) return candidate;
  for (const Parameter& parameter : *candidate.parameters) {
    const auto stored = index.find(candidate.name_of(parameter));
    if (stored == index.end()) continue;
    for (auto& [canonical, view] : to_canonical(parameter, stored->second, candidate.counts, candidate.reason))
      candidate.tensors.emplace(canonical, view);
    if (!candidate.reason.empty()) {
      candidate.reason = quote(stored->first) + " " + candidate.reason;
      return candidate;
    }
  }
  candidate.reason = Shapes(candidate).check();
  return candidate;
}

Candidates find_candidates(const std::vector<NamedTensor>& tensors) {
  const TensorIndex index = index_of(tensors);
  Candidates result;
  for (const Layout& layout : layout_table()) {
    for (const std::vector<Parameter>* parameters : {&layout.parameters, &layout.otherwise}) {
      for (const Spelling& spelling : spellings(layout)) {
        Candidate candidate{.layout = &layout, .parameters = parameters, .spelling = spelling};
        for (const std::string& prefix : prefixes(tensors, candidate)) {
          candidate.prefix = prefix;
          Candidate found = checked(index, candidate);
          (found.reason.empty() ? result.fits : result.misses).push_back(std::move(found));
        }
      }
    }
  }
  std::map<std::string_view, std::size_t> position;
  for (std::size_t i = 0; i < tensors.size(); ++i) position.emplace(tensors[i].name, i);
  const auto first = [&](const Candidate& one) {
    std::size_t least = tensors.size();
    for (const std::string& name : one.names) least = std::min(least, position.at(name));
    return least;
  };
  std::ranges::stable_sort(result.fits, {}, first);
  std::ranges::stable_sort(result.misses, std::greater<>(), &Candidate::present);
  return result;
}

std::vector<LayoutMatch> find_attention(const std::vector<NamedTensor>& tensors) {
  std::vector<LayoutMatch> matches;
  for (Candidate& found : find_candidates(tensors).fits) {
    matches.push_back(
        {std::string(found.layout->name), found.prefix, found.spelling, found.counts.heads, found.counts.kv_heads, std::move(found.names)});
  }
  return matches;
}

}  // namespace polyhead::io
