#include "utf8proc_tables.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

namespace polyhead::live {
namespace {

constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);

TEST(UnicodeTables, EqualUtf8procForEachCharacter) {
  for (utf8proc_int32_t code = 0; code < 0x110000; ++code) {
    ASSERT_EQ(tables::category(code), utf8proc_category(code)) << code;
    ASSERT_EQ(tables::get_property(code)->combining_class, utf8proc_get_property(code)->combining_class) << code;
    ASSERT_EQ(tables::tolower(code), utf8proc_tolower(code)) << code;
    std::array<utf8proc_int32_t, 32> own{}, wanted{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(code, wanted.data(), 32, UTF8PROC_DECOMPOSE, &boundary);
    if (count < 1) continue;
    ASSERT_EQ(tables::decompose_char(code, own.data(), 32, UTF8PROC_DECOMPOSE, nullptr), count) << code;
    if (own != wanted) FAIL() << code;
    constexpr auto kCompatible = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    own = wanted = {};
    ASSERT_EQ(tables::decompose_char(code, own.data(), 32, kCompatible, nullptr), utf8proc_decompose_char(code, wanted.data(), 32, kCompatible, &boundary)) << code;
    if (own != wanted) FAIL() << code;
    if (!utf8proc_codepoint_valid(code)) continue;
    std::array<utf8proc_uint8_t, 4> bytes{}, right{};
    ASSERT_EQ(tables::encode_char(code, bytes.data()), utf8proc_encode_char(code, right.data())) << code;
    if (bytes != right) FAIL() << code;
  }
}

// Composes pairs of the parts of all characters that have parts, each first part with each second part. U+11A7 is left out, because some versions of utf8proc
// drop it.
TEST(UnicodeTables, ComposePairsAsUtf8procDoes) {
  std::vector<utf8proc_int32_t> firsts, seconds{0x11A8, 0x11C2, 0x1161, 0x1175};
  for (const tables::Parts& one : tables::kDecomposed) firsts.push_back(one.code), firsts.push_back(one.parts[0]), seconds.push_back(one.parts[1]);
  for (const utf8proc_int32_t hangul : {0x1100, 0x1112, 0xAC00, 0xAC01, 0xD788}) firsts.push_back(hangul);
  std::ranges::sort(seconds);
  seconds.erase(std::unique(seconds.begin(), seconds.end()), seconds.end());
  for (const utf8proc_int32_t first : firsts) {
    for (const utf8proc_int32_t second : seconds) {
      if (second < 0x300) continue;
      std::array<utf8proc_int32_t, 2> own{first, second}, wanted = own;
      const auto count = utf8proc_normalize_utf32(wanted.data(), 2, kCompose);
      ASSERT_EQ(tables::normalize_utf32(own.data(), 2, kCompose), count) << first << ' ' << second;
      ASSERT_EQ(own[0], wanted[0]) << first << ' ' << second;
    }
  }
}

TEST(UnicodeTables, ReadBytesAsUtf8procDoes) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    for (auto& byte : bytes) byte = static_cast<utf8proc_uint8_t>(random() % 3 == 0 ? random() % 0x100 : 0x80 + random() % 0x40);
    bytes[0] = static_cast<utf8proc_uint8_t>(0xC0 + random() % 0x38);
    const auto size = static_cast<utf8proc_ssize_t>(1 + random() % 4);
    utf8proc_int32_t own = 0, wanted = 0;
    const auto count = utf8proc_iterate(bytes.data(), size, &wanted), read = tables::iterate(bytes.data(), size, &own);
    ASSERT_EQ(read > 0, count > 0) << i;
    if (count < 1) continue;
    ASSERT_EQ(own, wanted) << i;
  }
}

}  // namespace
}  // namespace polyhead::live
