// Cache of packed parameters, for workspaces of Parameters::constant. Valid while the parameters do not change.
#pragma once

#include <functional>
#include <memory>

#include "polyhead/workspace.h"

namespace polyhead {

// The cached result of `make` for this parameter. `maker` is an address that tells different uses of one parameter apart. The first call
// makes the result, Workspace::clear() drops it. Threads that call at the same time may each make one. The entry keeps the parameter's
// memory alive.
std::shared_ptr<const void> kept_of(const Workspace& workspace, const Tensor& parameter, const void* maker,
                                    const std::function<std::shared_ptr<const void>()>& make);

}  // namespace polyhead
