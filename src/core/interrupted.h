// Whether the operation is to end early. Kernel sources include this header, so it defines nothing.
#pragma once

#pragma GCC visibility push(default)  // components call it
namespace polyhead::inline internal {

// True once the InterruptWatch (core/interrupt.h) of the calling operation wants its end. A kernel then returns; what it has written means nothing.
bool interrupted();

}  // namespace polyhead::inline internal
#pragma GCC visibility pop
