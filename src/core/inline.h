// Marks functions in headers that kernel sources include. The linker keeps one copy of an inline function; if it kept the copy that was
// compiled for AVX-512, other processors would crash. So each call is expanded (tests/layering/objects.py checks it).
#pragma once

#define POLYHEAD_INLINE inline __attribute__((always_inline))
