#include <array>

#include "core/text.h"
#include "cpu/sdpa/sdpa.h"
#include "polyhead/sdpa.h"
#include "reference/reference.h"
#include "sdpa/backend.h"

namespace polyhead {
namespace {

std::string serves_all(const Problem&, Operation) { return {}; }
std::string cpu_declines(const Problem& problem, Operation) { return cpu::declines(problem); }

// In order of preference; the last one serves everything.
constexpr std::array kBackends{
    Backend{"cpu", cpu_declines, cpu::sdpa_forward, cpu::sdpa_backward, cpu::sdpa_jvp, cpu::sdpa_backward_backward, cpu::map_rows, cpu::write_maps, cpu::mixed_entropy, cpu::facts_of_forward},
    Backend{"reference", serves_all, reference::forward, reference::backward, reference::jvp, reference::backward_backward, reference::map_rows, nullptr, reference::mixed_entropy, nullptr},
};

}  // namespace

std::vector<const Backend*> backends() {
  std::vector<const Backend*> list;
  for (const Backend& backend : kBackends) list.push_back(&backend);
  return list;
}

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::jvp: return "jvp";
    case Operation::backward_backward: return "backward_backward";
    default: return "maps";
  }
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
  if (forced) {
    const std::string reason = forced->declines(problem, operation);
    if (!reason.empty()) {
      fail(ErrorCode::unsupported, "the backend '", forced->name, "' was asked for and declines ", name_of(operation), ": ", reason);
    }
    return *forced;
  }
  for (const Backend& backend : kBackends) {
    if (backend.declines(problem, operation).empty()) return backend;
  }
  fail(ErrorCode::unsupported, "no backend serves this problem");
}

}  // namespace polyhead
