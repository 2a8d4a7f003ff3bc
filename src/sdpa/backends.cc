#include "core/text.h"
#include "polyhead/sdpa.h"
#include "sdpa/backend_rows.h"

namespace polyhead {
namespace {

constexpr auto kBackends = of_each_backend([]<class Row> {
  return Backend{Row::name, Row::declines, Row::forward, Row::backward, Row::jvp, Row::backward_backward, Row::map_rows, Row::write_maps, Row::entropy_of_mean, Row::facts};
});

}  // namespace

std::vector<const Backend*> backends() {
  std::vector<const Backend*> list;
  for (const Backend& backend : kBackends) list.push_back(&backend);
  return list;
}

std::string_view backend_name(const Backend& backend) { return backend.name; }

const Backend& find_backend(std::string_view name) {
  std::string names;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return backend;
    append(names, names.empty() ? "" : ", ");
    append(names, backend.name);
  }
  fail(ErrorCode::invalid_argument, "there is no backend '", name, "'; there are: ", names);
}

const Backend& select_backend(const Problem& problem, Operation operation, const Backend* forced) {
  if (forced) return require_serves(*forced, problem, operation);
  for (const Backend& backend : kBackends) {
    if (backend.declines(problem, operation).empty()) return backend;
  }
  fail_unserved();
}

}  // namespace polyhead
