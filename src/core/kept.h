// What layers make of a parameter once, for workspaces whose parameters are constant.
#pragma once

#include <functional>
#include <memory>

#include "polyhead/workspace.h"

namespace polyhead {

// What `make` gave for this parameter and maker when it was first asked for, until the workspace is cleared. Threads that ask at once may each
// make it. The parameter's memory is kept alive meanwhile.
std::shared_ptr<const void> kept_of(const Workspace& workspace, const Tensor& parameter, const void* maker,
                                    const std::function<std::shared_ptr<const void>()>& make);

}  // namespace polyhead
