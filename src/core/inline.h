// POLYHEAD_INLINE marks functions in headers that kernel sources include. The compiler expands every call of such a function, so object files contain no copy
// of it. Otherwise the linker could keep the copy compiled for AVX-512, and other processors would crash. tests/layering/objects.py checks the object files.
#pragma once

#define POLYHEAD_INLINE inline __attribute__((always_inline))
