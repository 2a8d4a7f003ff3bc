// Cache of packed parameters in a workspace of Parameters::constant. Entries are valid while the parameters do not change.
#pragma once

#include <functional>
#include <memory>

#include "polyhead/workspace.h"

namespace polyhead {

// Returns the cached result of `make` for this parameter. `use` is an address that identifies the kind of result. The first call computes the result,
// and Workspace::clear() drops it. Threads that call at the same time may each compute the result. The cache entry keeps the parameter's memory alive.
std::shared_ptr<const void> cached_parameter(const Workspace& workspace, const Tensor& parameter, const void* use,
                                             const std::function<std::shared_ptr<const void>()>& make);

}  // namespace polyhead
