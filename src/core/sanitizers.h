// Whether a sanitizer looks on.
#pragma once

namespace polyhead {

// AddressSanitizer is to see each byte beyond a block, and each read after its end.
#if defined(__SANITIZE_ADDRESS__)  // GCC
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)  // Clang; an #if of its own, as others need not know the words
#if __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace polyhead
