#include "io/layout_fit.h"

#include <algorithm>
#include <set>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

std::vector<Spelling> spellings(const Layout& layout) {
  if (layout.separator == '.') return {{'.', ""}};
  return {{'/', ""}, {'.', ""}, {'/', ":0"}, {'.', ":0"}};
}

// Every prefix with which the file has at least one required parameter of the layout.
std::set<std::string> prefixes(const std::vector<NamedTensor>& tensors, const Place& place) {
  std::set<std::string> found;
  for (const Parameter& parameter : *place.parameters) {
    if (parameter.group != 0) continue;
    const std::string ending = place.name_of(parameter);
    for (const NamedTensor& item : tensors) {
      if (!item.name.ends_with(ending)) continue;
      std::string prefix = item.name.substr(0, item.name.size() - ending.size());
      if (prefix.empty() || prefix.back() == '.' || prefix.back() == '/') found.insert(std::move(prefix));
    }
  }
  return found;
}

}  // namespace

TensorIndex index_of(const std::vector<NamedTensor>& tensors) {
  TensorIndex index;
  for (const NamedTensor& item : tensors) index.emplace(item.name, item.tensor.view());
  return index;
}

std::string describe(const Place& place) {
  return quote(place.layout->name) + (place.prefix.empty() ? std::string(" without a prefix") : " at " + quote(place.prefix));
}

Candidates find_candidates(const std::vector<NamedTensor>& tensors) {
  const TensorIndex index = index_of(tensors);
  Candidates result;
  for (const Layout& layout : layout_table()) {
    for (const std::vector<Parameter>* parameters : {&layout.parameters, &layout.otherwise}) {
      for (const Spelling& spelling : spellings(layout)) {
        Place place{.layout = &layout, .parameters = parameters, .spelling = spelling};
        for (const std::string& prefix : prefixes(tensors, place)) {
          place.prefix = prefix;
          Fit found = fit(index, place);
          (found.misfit.empty() ? result.fits : result.misses).push_back(std::move(found));
        }
      }
    }
  }
  std::map<std::string_view, std::size_t> position;
  for (std::size_t i = 0; i < tensors.size(); ++i) position.emplace(tensors[i].name, i);
  const auto first = [&](const Fit& one) {
    std::size_t least = tensors.size();
    for (const std::string& name : one.names) least = std::min(least, position.at(name));
    return least;
  };
  std::ranges::stable_sort(result.fits, {}, first);
  std::ranges::stable_sort(result.misses, std::greater<>(), &Fit::present);
  return result;
}

std::vector<LayoutMatch> find_attention(const std::vector<NamedTensor>& tensors) {
  std::vector<LayoutMatch> matches;
  for (Fit& found : find_candidates(tensors).fits) {
    matches.push_back({std::string(found.place.layout->name), found.place.prefix, found.place.spelling, found.counts.heads,
                       found.counts.kv_heads, std::move(found.names)});
  }
  return matches;
}

}  // namespace polyhead::io
