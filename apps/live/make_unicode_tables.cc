// Writes, as tables, the properties of characters that src/models/unicode.cc takes from utf8proc. The module of live pages is compiled for a machine without
// utf8proc; with these tables it gives the same answers as the library. Runs on the building machine: make_unicode_tables > unicode_tables.inc
#include <utf8proc.h>

#include <array>
#include <cstdio>
#include <tuple>
#include <vector>

namespace {

constexpr utf8proc_int32_t kEnd = 0x110000;
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);

}  // namespace

int main() {
  std::printf("constexpr Run kRuns[] = {\n");
  for (utf8proc_int32_t code = 0, category = -1, order = -1; code < kEnd; ++code) {
    const auto* property = utf8proc_get_property(code);
    if (property->category == category && property->combining_class == order) continue;
    category = property->category, order = property->combining_class;
    std::printf("{%d,%d,%d},\n", code, category, order);
  }
  std::printf("};\nconstexpr Pair kLowercase[] = {\n");
  for (utf8proc_int32_t code = 0; code < kEnd; ++code)
    if (utf8proc_tolower(code) != code) std::printf("{%d,%d},\n", code, utf8proc_tolower(code));
  std::vector<std::array<utf8proc_int32_t, 3>> composed;
  std::printf("};\nconstexpr Parts kDecomposed[] = {\n");
  for (utf8proc_int32_t code = 0; code < kEnd; ++code) {
    if (code >= 0xAC00 && code < 0xAC00 + 11172) continue;  // Hangul syllables have no entry, because they are computed
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(code, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    if (count < 1 || (count == 1 && parts[0] == code)) continue;
    if (count > 4) return std::fprintf(stderr, "U+%04X has more than 4 parts\n", static_cast<unsigned>(code)), 1;
    std::printf("{%d,{%d,%d,%d,%d}},\n", code, parts[0], parts[1], parts[2], parts[3]);
    // Find the pair of characters that composes to `code`: its second character is the last part, its first is the composition of all parts before it.
    std::array<utf8proc_int32_t, 32> pair = parts;
    auto left = utf8proc_normalize_utf32(pair.data(), count - 1, kCompose);
    if (count < 2 || left != 1) continue;
    const utf8proc_int32_t first = pair[0], second = parts[static_cast<std::size_t>(count - 1)];
    pair[1] = second;
    if (utf8proc_normalize_utf32(pair.data(), 2, kCompose) == 1 && pair[0] == code) composed.push_back({first, second, code});
  }
  std::vector<utf8proc_int32_t> all_parts;
  std::printf("};\nconstexpr CompatibleParts kCompatible[] = {\n");
  for (utf8proc_int32_t code = 0; code < kEnd; ++code) {
    if (code >= 0xAC00 && code < 0xAC00 + 11172) continue;
    std::array<utf8proc_int32_t, 32> parts{}, canonical{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(code, parts.data(), parts.size(), static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT), &boundary);
    const auto own = utf8proc_decompose_char(code, canonical.data(), canonical.size(), UTF8PROC_DECOMPOSE, &boundary);
    if (count < 1 || (count == own && parts == canonical)) continue;
    std::printf("{%d,%zu,%d},\n", code, all_parts.size(), static_cast<int>(count));
    all_parts.insert(all_parts.end(), parts.begin(), parts.begin() + count);
  }
  std::printf("};\nconstexpr Code kCompatibleParts[] = {\n");
  for (const utf8proc_int32_t part : all_parts) std::printf("%d,\n", part);
  std::printf("};\nconstexpr Composition kComposed[] = {\n");
  for (const auto& [first, second, code] : composed) std::printf("{%d,%d,%d},\n", first, second, code);
  std::printf("};\n");
}
