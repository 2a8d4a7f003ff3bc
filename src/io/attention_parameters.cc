#include "polyhead/io/attention_parameters.h"

#include <algorithm>
#include <set>

#include "core/join.h"
#include "io/candidates.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

bool same_prefix(const std::optional<std::string>& asked, const std::string& found) {
  return !asked || *asked == found || (!asked->empty() && found.size() == asked->size() + 1 && found.starts_with(*asked));
}

std::string listed(const std::vector<Candidate>& fits) {
  return join(fits, &Candidate::description, ", ", 12);
}

// Describes the candidates that come closest to a layout, at most one for each of three layouts, and how their names or shapes differ from the layout.
template <class Wanted>
std::string nearest(const std::vector<Candidate>& misses, const Wanted& wanted) {
  constexpr std::size_t kMost = 3;
  std::vector<const Candidate*> shown;
  for (const Candidate& miss : misses) {
    const bool again = std::ranges::any_of(shown, [&](const Candidate* other) { return other->layout == miss.layout; });
    if (wanted(miss) && !again && shown.size() < kMost) shown.push_back(&miss);
  }
  if (shown.empty()) return "";
  const auto told = [](const Candidate* miss) { return miss->description() + ", but " + miss->reason; };
  return cat(shown.size() == 1 ? "; the nearest is " : "; the nearest are ", join(shown, told, "; "));
}

std::string listed_names(const TensorFile& file) {
  if (file.tensors.empty()) return "no tensors";
  return join(file.tensors, [](const NamedTensor& tensor) { return quote(tensor.name); }, ", ", 8);
}

Candidate choose(const TensorFile& file, Candidates candidates, const LoadAttention& options) {
  const auto wanted = [&](const Candidate& one) {
    return (options.layout.empty() || options.layout == one.layout->name) && same_prefix(options.prefix, one.prefix);
  };
  std::vector<Candidate> fits;
  std::ranges::copy_if(candidates.fits, std::back_inserter(fits), wanted);
  if (fits.size() == 1) return std::move(fits[0]);
  if (fits.size() > 1) {
    fail(ErrorCode::format, file.path.string(), ": ", fits.size(), " attention layers fit: ", listed(fits),
         "; name the layout and the prefix of one of them");
  }
  std::string asked;
  if (!options.layout.empty()) asked += " in the layout " + quote(options.layout);
  if (options.prefix) asked += options.prefix->empty() ? " without a prefix" : " at " + quote(*options.prefix);
  if (asked.empty()) asked = " in any known layout (" + layout_names() + ")";
  std::string hint = nearest(candidates.misses, wanted);
  if (hint.empty() && candidates.fits.empty()) hint = cat("; no tensor has a name that such a layer requires; the file has ", listed_names(file));
  if (!candidates.fits.empty()) hint += "; the layers that fit are " + listed(candidates.fits);
  fail(ErrorCode::format, file.path.string(), ": there is no attention layer", asked, hint);
}

void check_heads(const TensorFile& file, const Candidate& chosen, std::int64_t heads) {
  const std::string where = file.path.string() + ": the layer " + chosen.description();
  if (chosen.counts.heads != 0 && chosen.counts.heads != heads)
    fail(ErrorCode::invalid_argument, where, " has ", chosen.counts.heads, " heads, not ", heads);
  for (const char* name : {"q.weight", "v.weight"}) {
    require(heads % chosen.group == 0, where, " has ", chosen.group, " query heads for each key/value head; ", heads, " heads are not a multiple of that");
    const std::int64_t rows = chosen.tensors.at(name).extent(0), parts = name[0] == 'q' ? heads : heads / chosen.group;
    require(rows % parts == 0, where, " has ", rows, " rows in ", name, ", which do not divide into ", parts, " heads");
  }
}

}  // namespace

AttentionParameters load_attention(TensorFile& file, const LoadAttention& options) {
  if (!options.layout.empty()) find_layout(options.layout, "load_attention");
  require(options.heads >= 0, "load_attention: heads is ", options.heads, "; it must be positive, or 0 for the number of heads in the file");
  const Candidate chosen = choose(file, find_candidates(file.tensors), options);
  const Layout& layout = *chosen.layout;
  AttentionParameters parameters{.layout = std::string(layout.name),
                                 .prefix = chosen.prefix,
                                 .spelling = chosen.spelling,
                                 .heads = chosen.counts.heads,
                                 .kv_heads = chosen.counts.kv_heads,
                                 .scale = layout.scale,
                                 .causal = layout.causal,
                                 .rotary = layout.rotary,
                                 .empty_rows = layout.empty_rows,
                                 .global_query = chosen.global_query};
  if (options.heads != 0) {
    check_heads(file, chosen, options.heads);
    parameters.heads = options.heads;
    if (parameters.kv_heads == 0) parameters.kv_heads = options.heads / chosen.group;
  }
  for (const Parameter& parameter : *chosen.parameters) {
    Tensor* stored = file.find(chosen.name_of(parameter));
    if (stored == nullptr) continue;
    HeadCounts counts;
    std::string reason;  // stays empty, because choose() has checked the shapes
    for (const auto& [name, view] : to_canonical(parameter, stored->view(), counts, reason)) {
      parameters.tensors.emplace(name, Tensor::share(view, stored->owner()));
    }
  }
  if (layout.zero_key_bias) {
    const Tensor& k = parameters.tensors.at("k.weight");
    parameters.tensors.emplace("k.bias", Tensor(k.dtype(), {k.extent(0)}));
  }
  return parameters;
}

AttentionParameters load_attention(const std::filesystem::path& path, const LoadAttention& options) {
  TensorFile file = open_tensors(path);
  return load_attention(file, options);
}

namespace {

bool is_zero(const Tensor& tensor) {
  const Tensor copy = Tensor::copy_of(tensor, DType::f64);
  return std::all_of(copy.data<double>(), copy.data<double>() + copy.numel(), [](double x) { return x == 0; });
}

std::vector<NamedTensor> store_as(const AttentionParameters& parameters, const Candidate& target) {
  std::vector<NamedTensor> result;
  std::set<std::string> placed;
  for (const Parameter& parameter : *target.parameters) {
    const std::vector<std::string> names = canonical_names(parameter);
    const auto there = std::ranges::count_if(names, [&](const std::string& name) { return parameters.tensors.contains(name); });
    if (there == 0 && parameter.group != 0) continue;
    const auto absent = std::ranges::find_if(names, [&](const std::string& name) { return !parameters.tensors.contains(name); });
    require(absent == names.end(), "store_attention: ", parameter.name, " of the layout ", quote(target.layout->name), " needs ",
            absent == names.end() ? "" : *absent, ", which the layer does not have");
    placed.insert(names.begin(), names.end());
    const HeadCounts counts{parameters.heads, parameters.kv_heads != 0 ? parameters.kv_heads : parameters.heads};
    result.push_back({target.name_of(parameter), from_canonical(parameter, parameters.tensors, counts)});
  }
  for (const auto& [name, tensor] : parameters.tensors) {
    if (name == "k.bias" && target.layout->zero_key_bias && is_zero(tensor)) continue;
    require(placed.contains(name), "store_attention: the layout ", quote(target.layout->name), " has no place for ", name, " ",
            tensor.shape());
  }
  // Check that load_attention would find the same layer in the result.
  const Candidate stored = checked(index_of(result), target);
  require(stored.reason.empty(), "store_attention: the layer does not fit the layout ", quote(target.layout->name), ": ", stored.reason);
  const auto agree = [](std::int64_t a, std::int64_t b) { return a == 0 || b == 0 || a == b; };
  require(agree(stored.counts.heads, parameters.heads) && agree(stored.counts.kv_heads, parameters.kv_heads), "store_attention: the layer has ",
          parameters.heads, " heads and ", parameters.kv_heads, " key/value heads; the layout ", quote(target.layout->name), " would say ",
          stored.counts.heads, " and ", stored.counts.kv_heads);
  require(stored.global_query == parameters.global_query, "store_attention: the layout ", quote(target.layout->name),
          parameters.global_query ? " has no global query" : " would make the query global");
  return result;
}

}  // namespace

std::vector<NamedTensor> store_attention(const AttentionParameters& parameters, std::string_view layout, std::string_view prefix) {
  const Layout& row = find_layout(layout, "store_attention");
  require(row.scale == parameters.scale, "store_attention: the layer's scale is ", parameters.scale ? cat(*parameters.scale) : "1/sqrt(H)",
          ", but a layer in the layout ", quote(layout), " has ", row.scale ? cat(*row.scale) : "1/sqrt(H)");
  Candidate target{.layout = &row, .parameters = &row.parameters, .prefix = std::string(prefix), .spelling = {row.separator, ""}};
  if (layout == parameters.layout) target.spelling = parameters.spelling;
  if (!prefix.empty() && prefix.back() != '.' && prefix.back() != '/') target.prefix += target.spelling.separator;
  const auto input_width = [&](const char* name) {
    const auto found = parameters.tensors.find(name);
    return found == parameters.tensors.end() || found->second.shape().size() != 2 ? 0 : found->second.extent(1);
  };
  const bool one_width = input_width("q.weight") == input_width("k.weight") && input_width("q.weight") == input_width("v.weight");
  if (!row.otherwise.empty() && !one_width) target.parameters = &row.otherwise;
  return store_as(parameters, target);
}

}  // namespace polyhead::io
