// kAddressSanitizer is true when the library is built with AddressSanitizer.
#pragma once

namespace polyhead {

// If kAddressSanitizer is true, allocators allocate exactly the requested bytes and never reuse memory, so that AddressSanitizer finds reads past the end and
// reads after free.
#if defined(__SANITIZE_ADDRESS__)  // GCC defines this macro
inline constexpr bool kAddressSanitizer = true;
// This is the test for Clang. The #if below is nested, because other compilers cannot parse __has_feature(...).
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace polyhead
