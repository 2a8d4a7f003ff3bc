// Tells kernels whether the operation must end early. Kernel sources include this header, so it has no definitions.
#pragma once

#pragma GCC visibility push(default)  // exported: the libraries of other components call it
namespace polyhead::inline internal {

// True once the InterruptWatch (core/interrupt.h) of the calling operation requests its end. A kernel then returns, and its outputs are invalid.
bool interrupted();

}  // namespace polyhead::inline internal
#pragma GCC visibility pop
