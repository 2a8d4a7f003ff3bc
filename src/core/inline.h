// For functions in headers that kernel sources include: an inline function compiled for AVX-512 may not be shared with other objects
// (tests/layering/objects.py), so each call is expanded.
#pragma once

#define POLYHEAD_INLINE inline __attribute__((always_inline))
