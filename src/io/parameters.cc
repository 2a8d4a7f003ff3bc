#include "polyhead/io/parameters.h"

#include <algorithm>

#include "core/text.h"

namespace polyhead::io::detail {

Metadata load_into(const std::vector<std::pair<std::string, Tensor*>>& list, const std::filesystem::path& path, std::string_view skipped) {
  const TensorFile file = open_tensors(path);
  const auto require_fits = [&](bool holds, const auto&... parts) {
    if (!holds) fail(ErrorCode::format, "load_parameters: ", path.string(), ": ", parts...);
  };
  for (const auto& [name, tensor] : list) {
    const Tensor* const found = file.find(name);
    require_fits(found != nullptr, "there is no tensor ", name);
    require_fits(found->shape() == tensor->shape() && found->dtype() == tensor->dtype(), name, " is ", found->dtype(), " ", found->shape(),
                 "; it must be ", tensor->dtype(), " ", tensor->shape());
  }
  for (const NamedTensor& named : file.tensors) {
    if (!skipped.empty() && named.name.starts_with(skipped)) continue;
    require_fits(std::ranges::find(list, named.name, &std::pair<std::string, Tensor*>::first) != list.end(), "there is a tensor ", named.name,
                 ", which is no parameter");
  }
  for (const auto& [name, tensor] : list) copy(file.at(name), *tensor);
  return file.metadata;
}

}  // namespace polyhead::io::detail
