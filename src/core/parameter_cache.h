// Cache of packed parameters, for workspaces of Parameters::constant. Valid while the parameters do not change.
#pragma once

#include <functional>
#include <memory>

#include "polyhead/workspace.h"

namespace polyhead {

// The cached result of `make` for this parameter. `use` is any address, one per kind of result. The first call makes the result,
// Workspace::clear() drops it. Threads that call at the same time may each make one. The entry keeps the parameter's memory alive.
std::shared_ptr<const void> cached_parameter(const Workspace& workspace, const Tensor& parameter, const void* use,
                                             const std::function<std::shared_ptr<const void>()>& make);

}  // namespace polyhead
