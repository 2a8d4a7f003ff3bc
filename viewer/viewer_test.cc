#include "polyhead/viewer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "polyhead/error.h"
#include "polyhead/tensor.h"
#include "viewer/encoding.h"

namespace polyhead::viewer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Random attention maps whose rows sum to 1.
Tensor random_maps(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor maps(DType::f32, shape);
  const std::int64_t columns = shape[-1];
  for (std::int64_t row = 0; row < (columns ? maps.numel() / columns : 0); ++row) {
    float sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) {
      const float weight = std::exp(static_cast<float>(random()) / 1e9F);
      maps.data<float>()[row * columns + i] = weight;
      sum += weight;
    }
    for (std::int64_t i = 0; i < columns; ++i) maps.data<float>()[row * columns + i] /= sum;
  }
  return maps;
}

Tokens words(std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.pieces.push_back("w" + std::to_string(i));
  return tokens;
}

Page page_of(Text text) { return {.title = "title", .model = "model", .texts = {std::move(text)}}; }

// Returns the page's data element as a browser reads it: everything from its start tag to the first "</script".
json data_of(const std::string& html) {
  const std::string tag = R"(<script type="application/json" id="data">)";
  const std::size_t begin = html.find(tag) + tag.size();
  return json::parse(html.substr(begin, html.find("</script", begin) - begin));
}

std::string message_of(const Page& page) {
  try {
    render(page);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::uint8_t> bytes_of(const std::string& base64) {
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : base64) {
    if (c == '=') break;
    const auto upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z', digit = c >= '0' && c <= '9';
    const int value = upper ? c - 'A' : lower ? c - 'a' + 26 : digit ? c - '0' + 52 : c == '+' ? 62 : 63;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    held += 6;
    if (held >= 8) bytes.push_back(static_cast<std::uint8_t>(bits >> (held -= 8)));
  }
  return bytes;
}

TEST(Viewer, PageHoldsEveryWeightOfAStridedViewWithinTheStatedError) {
  constexpr unsigned kSeed = 20;
  SCOPED_TRACE(kSeed);
  const Tensor maps = random_maps({4, 3, 5, 7}, kSeed);
  // The view has the shape [3,2,5,7]: the axis of heads comes before the axis of layers, and every second layer is left out.
  const ConstTensorView swapped = maps.view().transpose(0, 1).slice(1, 0, 4, 2);
  const json text = data_of(render(page_of({.text = "", .queries = words(5), .keys = words(7), .attentions = swapped})))["texts"][0];
  ASSERT_EQ(text["weights"].size(), 3U);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    ASSERT_EQ(text["weights"][layer].size(), 2U);
    for (std::size_t head = 0; head < 2; ++head) {
      const auto bytes = bytes_of(text["weights"][layer][head]);
      ASSERT_EQ(bytes.size(), 5U * 7U * 2U);
      for (std::size_t i = 0; i < 35; ++i) {
        const double stored = ((bytes[2 * i] | bytes[2 * i + 1] << 8) - 1) / 65533.0;
        EXPECT_NEAR(stored, maps.data<float>()[(2 * head * 3 + layer) * 35 + i], 7.7e-6);
      }
    }
  }
}

TEST(Viewer, SixteenBitsAreOffByAtMostTheStatedError) {
  EXPECT_EQ(linear16(0), 0);
  EXPECT_EQ(linear16(1e-9F), 1);
  EXPECT_EQ(linear16(1), 65534);
  EXPECT_EQ(linear16(1.0005F), 65534);
  EXPECT_EQ(linear16(-0.0005F), 1);
  EXPECT_EQ(linear16(kNaN), 65535);
  for (int i = 1; i <= 100003; ++i) {
    const float weight = static_cast<float>(i) / 100003.0F;
    ASSERT_NEAR((linear16(weight) - 1) / 65533.0, weight, 7.7e-6);
  }
}

TEST(Viewer, EightBitsAreOffByAtMostTheStatedShare) {
  EXPECT_EQ(logarithmic8(0), 0);
  EXPECT_EQ(logarithmic8(1), 254);
  EXPECT_EQ(logarithmic8(1.0005F), 254);
  EXPECT_EQ(logarithmic8(1e-9F), 1);
  EXPECT_EQ(logarithmic8(std::numeric_limits<float>::denorm_min()), 1);
  EXPECT_EQ(logarithmic8(kNaN), 255);
  for (float weight = 3.8e-6F; weight <= 1; weight *= 1.0007F) {
    const double stored = std::exp2((logarithmic8(weight) - 254) / 14.0);
    ASSERT_NEAR(stored / weight, 1, 0.026) << weight;
  }
}

TEST(Viewer, HostileWordsCannotLeaveTheDataElement) {
  const std::vector<std::string> hostile{
      "</script><script>alert(1)</script>", "<!--<script>", "{{style}}", "\"}]\\", "\u2028", "</SCRIPT", "##ing"};
  const Tensor maps = random_maps({1, 1, 7, 7}, 1);
  const Page page{.title = "</title><b>&{{data}}",
                  .model = "<!--",
                  .texts = {{.text = "</script>", .queries = {.pieces = hostile}, .attentions = maps}}};
  const std::string html = render(page);
  const json data = data_of(html);
  EXPECT_EQ(data["texts"][0]["queries"]["pieces"], json(hostile));
  EXPECT_EQ(data["texts"][0]["text"], "</script>");
  EXPECT_EQ(data["model"], "<!--");
  EXPECT_EQ(data["title"], page.title);
  EXPECT_THAT(html, HasSubstr("<title>&lt;/title&gt;&lt;b&gt;&amp;{{data}}</title>"));
  EXPECT_EQ(html.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(html.find("<!--"), std::string::npos);
}

TEST(Viewer, AnImageHasItsPixelsAndAPatchForEachTokenThatIsNotSpecial) {
  const Tensor maps = random_maps({1, 1, 7, 7}, 5);
  std::array<double, 12> greys{};
  for (std::size_t i = 0; i < greys.size(); ++i) greys[i] = static_cast<double>(i) / 11;
  const ConstTensorView turned = ConstTensorView(greys.data(), {4, 3}).transpose(0, 1);  // [3, 4]
  Text text{.text = "", .queries = words(7), .attentions = maps, .image = Image{.pixels = turned, .rows = 3, .columns = 2}};
  text.queries.special = {false, true, false, false, false, false, false};
  const json image = data_of(render(page_of(text)))["texts"][0]["image"];
  std::vector<std::uint8_t> wanted;
  for (const int i : {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}) wanted.push_back(static_cast<std::uint8_t>(std::lround(255.0 * i / 11)));
  EXPECT_EQ(bytes_of(image["pixels"]), wanted);
  EXPECT_EQ(image["height"], 3);
  EXPECT_EQ(image["width"], 4);
  EXPECT_EQ(image["channels"], 1);
  text.image->pixels = ConstTensorView(greys.data(), {3, 2, 2, 1}).expand({3, 2, 2, 3}).reshape({3, 4, 3});
  const json coloured = data_of(render(page_of(text)))["texts"][0]["image"];
  std::vector<std::uint8_t> repeated;
  for (int i = 0; i < 36; ++i) repeated.push_back(static_cast<std::uint8_t>(std::lround(255.0 * (i / 3) / 11)));
  EXPECT_EQ(bytes_of(coloured["pixels"]), repeated);
  EXPECT_EQ(coloured["channels"], 3);
  text.image->pixels = turned;
  greys[5] = kNaN;
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("the pixel nan"));
  greys[5] = 1.5;
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("the pixel 1.5"));
  text.queries.special = {};
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("7 tokens, 0 of them special, for 3 x 2 patches"));
  text.image->columns = 3;
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("3 x 3 patches do not divide"));
}

TEST(Viewer, BytesThatAreNotUtf8AreReplaced) {
  const Tensor maps = random_maps({1, 1, 2, 2}, 1);
  const Page page{.title = "caf\xE9", .texts = {{.text = "a\xFFz", .queries = {.pieces = {"\xC3", "\xED\xA0\x80"}}, .attentions = maps}}};
  const std::string html = render(page);
  EXPECT_EQ(data_of(html)["texts"][0]["text"], "a\uFFFDz");
  EXPECT_THAT(data_of(html)["texts"][0]["queries"]["pieces"][0], "\uFFFD");
  EXPECT_THAT(html, HasSubstr("<title>caf\uFFFD</title>"));
}

TEST(Viewer, PageLoadsNothingFromTheNetwork) {
  const Tensor maps = random_maps({2, 2, 3, 3}, 1);
  std::string html = render(page_of({.text = "", .queries = words(3), .attentions = maps}));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  // This url() loads nothing from the network: "#zero" is the name of a pattern in a figure that the page draws.
  const std::string own = "url(#zero)";
  const std::size_t named = html.find(own);
  ASSERT_NE(named, std::string::npos);
  html.erase(named, own.size());
  for (const char* outside : {"http:", "https:", "src=", "@import", "url(", "fetch(", "import("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
}

TEST(Viewer, SpecialTokensAndSegmentsReachThePage) {
  const Tensor maps = random_maps({1, 1, 3, 3}, 1);
  Tokens tokens = words(3);
  tokens.special = {true, false, true};
  tokens.segment = {0, 0, 1};
  const json text = data_of(render(page_of({.text = "", .queries = tokens, .attentions = maps})))["texts"][0];
  EXPECT_EQ(text["queries"]["special"], json({0, 2}));
  EXPECT_EQ(text["queries"]["segment"], json({0, 0, 1}));
  EXPECT_FALSE(text.contains("keys"));
}

TEST(Viewer, UnknownTokensReachThePageWithTheirCharacters) {
  const Tensor maps = random_maps({1, 1, 3, 3}, 1);
  Tokens tokens = words(3);
  tokens.unknown = {{1, "京"}, {2, "<"}};
  const std::string html = render(page_of({.text = "", .queries = tokens, .attentions = maps}));
  EXPECT_EQ(data_of(html)["texts"][0]["queries"]["unknown"], json::parse(R"([[1,"京"],[2,"<"]])"));
  tokens.unknown = {{3, "x"}};
  EXPECT_THAT(message_of(page_of({.text = "", .queries = tokens, .attentions = maps})), HasSubstr("the unknown token 3 is not among the 3 query tokens"));
}

TEST(Viewer, SizesThatDisagreeAreRefusedByName) {
  const Tensor maps = random_maps({1, 1, 3, 4}, 1);
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(3), .attentions = maps})),
              HasSubstr("3 query tokens for attentions [1,1,3,4]"));
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(2), .keys = words(4), .attentions = maps})),
              HasSubstr("they must be T = 3"));
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(3), .keys = words(5), .attentions = maps})), HasSubstr("5 key tokens"));
  EXPECT_EQ(message_of(page_of({.text = "", .queries = words(3), .keys = words(4), .attentions = maps})), "no error");
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(3), .attentions = maps.view().select(0, 0)})), HasSubstr("[1,3,4]"));
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(3), .attentions = {}})), HasSubstr("[layers,heads,T,S]"));
  const Tensor whole(DType::i32, {1, 1, 3, 3});
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(3), .attentions = whole})), HasSubstr("int32"));
  Tokens tokens = words(3);
  tokens.special = {true};
  EXPECT_THAT(message_of(page_of({.text = "", .queries = tokens, .keys = words(4), .attentions = maps})),
              HasSubstr("1 special flags for 3 query"));
  tokens.special = {};
  tokens.segment = {0, 1, 1, 1};
  EXPECT_THAT(message_of(page_of({.text = "", .queries = tokens, .keys = words(4), .attentions = maps})),
              HasSubstr("4 segments for 3 query"));
}

TEST(Viewer, WeightsThatAreNotProbabilitiesAreRefusedAndNaNIsKept) {
  Tensor maps = random_maps({2, 2, 2, 2}, 1);
  maps.data<float>()[13] = kNaN;
  const json weights = data_of(render(page_of({.text = "", .queries = words(2), .attentions = maps})))["texts"][0]["weights"];
  const auto bytes = bytes_of(weights[1][1]);
  EXPECT_EQ(bytes[2] | bytes[3] << 8, 65535);
  maps.data<float>()[13] = 1.5F;
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(2), .attentions = maps})),
              HasSubstr("layer 1, head 1 has the attention weight 1.5"));
  maps.data<float>()[13] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(2), .attentions = maps})), HasSubstr("attention weights must be in [0, 1]"));
}

TEST(Viewer, LongTextsAreStoredInEightBitsAndLongerOnesRefused) {
  EXPECT_EQ(choose_encoding(kMaxLinear16), Encoding::linear16);
  EXPECT_EQ(choose_encoding(kMaxLinear16 + 1), Encoding::logarithmic8);
  const float even = 1.0F / 2048;
  const ConstTensorView one(&even, {1, 1, 1, 1});
  const ConstTensorView spread = one.expand({2, 1, 2048, 2049});
  const json data = data_of(render(page_of({.text = "", .queries = words(2048), .keys = words(2049), .attentions = spread})));
  EXPECT_EQ(data["encoding"], "logarithmic8");
  EXPECT_EQ(bytes_of(data["texts"][0]["weights"][1][0]).size(), 2048U * 2049U);
  const Text longer{.text = "", .queries = words(2048), .attentions = one.expand({4, 5, 2048, 2048})};
  EXPECT_THAT(message_of(page_of(longer)), HasSubstr("more than 67108864 attention weights"));
}

// Two pages are no larger than docs/viewer.md promises: an empty page, and a page of 12 layers of 12 heads with 128 tokens.
TEST(Viewer, PagesAreSmall) {
  // Of these bytes, 26 kB are for the steps of one head with their drawings and texts, 8 kB for norm-weighted maps, 5 kB for all keys of a row by feature,
  // 1 kB for the names of the tabs of captured models, and 4 kB for the input line of live pages with its texts. The measures over texts take 25 kB: 12 for
  // their scatter, 5 for their formulas, 8 for names and texts in Chinese.
  EXPECT_LT(render({.title = ""}).size(), 305'000U) << "an empty page has the script, the style and the texts of both languages";
  const Tensor maps = random_maps({12, 12, 128, 128}, 1);
  EXPECT_LT(render(page_of({.text = "", .queries = words(128), .attentions = maps})).size(), 3'500'000U);
}

TEST(Viewer, ChangesWithoutAHeadNameTheirMeasure) {
  const Tensor maps = random_maps({1, 2, 2, 2}, 3);
  Page page = page_of({.text = "", .queries = words(2), .attentions = maps, .without = {{.layer = 0, .head = 1, .change = -0.5}}});
  EXPECT_FALSE(data_of(render(page)).contains("without_measure"));
  page.without_measure = {.name = "loss added", .measured_in = "nats"};
  const json data = data_of(render(page));
  EXPECT_EQ(data["without_measure"], json({{"name", "loss added"}, {"unit", "nats"}}));
  EXPECT_EQ(data["texts"][0]["without"], json::parse("[[0,1,-0.5]]"));
  page.texts[0].without[0].change = kNaN;
  EXPECT_THAT(message_of(page), HasSubstr("without head 0.1 the change is nan"));
  page.texts[0].without[0] = {.layer = 0, .head = 2};
  EXPECT_THAT(message_of(page), HasSubstr("the head 0.2"));
}

// Decodes the 16-bit codes of one map to the numbers that the page shows.
std::vector<double> decoded(const json& codes) {
  const std::vector<std::uint8_t> bytes = bytes_of(codes.get<std::string>());
  std::vector<double> weights;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int code = bytes[i] | bytes[i + 1] << 8;
    weights.push_back(code == 0 ? 0 : (code - 1) / 65533.0);
  }
  return weights;
}

TEST(Viewer, PooledMapsReachThePageAsLargestWeightsOrShares) {
  // 5 queries are pooled to blocks of 2 and 3, and 7 keys to blocks of 2, 2 and 3. The expected numbers are computed from the whole map.
  const Tensor whole = random_maps({1, 1, 5, 7}, 21);
  const std::array<std::int64_t, 3> rows{0, 2, 5};
  const std::array<std::int64_t, 4> columns{0, 2, 4, 7};
  Tensor largest(DType::f32, {1, 1, 2, 3}), sum(DType::f32, {1, 1, 2, 3}), mean(DType::f32, {1, 1, 2, 3});
  std::vector<double> shares;
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      double total = 0, most = 0;
      for (std::int64_t t = rows[i]; t < rows[i + 1]; ++t)
        for (std::int64_t s = columns[j]; s < columns[j + 1]; ++s) {
          const double weight = whole.data<float>()[t * 7 + s];
          total += weight, most = std::max(most, weight);
        }
      const auto queries = static_cast<double>(rows[i + 1] - rows[i]), keys = static_cast<double>(columns[j + 1] - columns[j]);
      largest.data<float>()[i * 3 + j] = static_cast<float>(most);
      sum.data<float>()[i * 3 + j] = static_cast<float>(total);
      mean.data<float>()[i * 3 + j] = static_cast<float>(total / queries / keys);
      shares.push_back(total / queries);
    }
  }
  const auto shown = [&](const Tensor& maps, Pooling pooling) {
    return data_of(render(page_of({.queries = words(5), .keys = words(7), .attentions = maps, .pooled = pooling})))["texts"][0];
  };
  const json of_largest = shown(largest, Pooling::largest);
  EXPECT_EQ(of_largest["pooled"], "largest");
  EXPECT_EQ(of_largest["blocks"], json({2, 3}));
  EXPECT_EQ(of_largest["keys"]["pieces"].size(), 7U);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(decoded(of_largest["weights"][0][0])[i], largest.data<float>()[i], 7.7e-6);
  for (const auto& [maps, pooling] : {std::pair{&sum, Pooling::sum}, std::pair{&mean, Pooling::mean}}) {
    const json of_shares = shown(*maps, pooling);
    EXPECT_EQ(of_shares["pooled"], "share");
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(decoded(of_shares["weights"][0][0])[i], shares[i], 7.8e-6);
  }
}

TEST(Viewer, DataOfSingleTokensIsRefusedWithPooledMaps) {
  const Tensor maps = random_maps({1, 1, 2, 2}, 22);
  const auto pooled = [&](std::int64_t tokens) { return Text{.queries = words(tokens), .attentions = maps, .pooled = Pooling::largest}; };
  EXPECT_EQ(message_of(page_of(pooled(9))), "no error");
  EXPECT_THAT(message_of(page_of(pooled(1))), HasSubstr("1 query tokens for 2 blocks of pooled maps [1,1,2,2]"));
  const auto refused = [&](std::string_view name, auto change) {
    Text text = pooled(9);
    change(text);
    EXPECT_THAT(message_of(page_of(text)), HasSubstr(std::string(name) + " of pooled maps"));
  };
  refused("links", [](Text& text) { text.links = Links{}; });
  refused("gate", [&](Text& text) { text.gate = maps; });
  refused("pair_bias", [&](Text& text) { text.pair_bias = maps; });
  refused("block_keys", [](Text& text) { text.block_keys = {true, false}; });
  refused("vectors", [&](Text& text) { text.vectors = HeadVectors{.q = maps, .k = maps}; });
  refused("value_norms", [&](Text& text) { text.value_norms = maps; });
}

TEST(Viewer, TheLanguageIsWrittenIfChosen) {
  const auto language_of = [](Language language) { return data_of(render({.title = "", .language = language})).value("language", ""); };
  EXPECT_EQ(language_of(Language::readers), "");
  EXPECT_EQ(language_of(Language::english), "en");
  EXPECT_EQ(language_of(Language::chinese), "zh");
}

// q, k and v of 2 layers of 2 heads with a bias and a mask, and their attention weights by the formula in viewer.h.
struct Worked {
  Tensor q{DType::f32, {2, 2, 3, 4}}, k{DType::f32, {2, 1, 5, 4}}, v{DType::f32, {2, 1, 5, 2}}, bias{DType::f32, {2, 3, 5}}, attend{DType::boolean, {3, 5}}, maps{DType::f32, {2, 2, 3, 5}};
  HeadVectors vectors{.q = q, .k = k, .v = v, .scale = 0.3, .bias = bias, .attend = attend};

  explicit Worked(unsigned seed) {
    std::mt19937 random(seed);
    for (Tensor* tensor : {&q, &k, &v, &bias})
      for (std::int64_t i = 0; i < tensor->numel(); ++i) tensor->data<float>()[i] = static_cast<float>(random()) / 1e9F - 2;
    // Key 1 is masked for all queries. For query 2 all keys are masked.
    for (std::int64_t i = 0; i < 15; ++i) attend.data<bool>()[i] = i % 5 != 1 && i < 10;
    float* weight = maps.data<float>();
    for (std::int64_t l = 0; l < 2; ++l) {
      for (std::int64_t n = 0; n < 2; ++n) {
        for (std::int64_t t = 0; t < 3; ++t, weight += 5) {
          double sum = 0, row[5];
          for (std::int64_t s = 0; s < 5; ++s) {
            double dot = 0;
            for (std::int64_t i = 0; i < 4; ++i) dot += static_cast<double>(q.data<float>()[((l * 2 + n) * 3 + t) * 4 + i]) * k.data<float>()[(l * 5 + s) * 4 + i];
            row[s] = attend.data<bool>()[t * 5 + s] ? std::exp(0.3 * dot + bias.data<float>()[(n * 3 + t) * 5 + s]) : 0;
            sum += row[s];
          }
          for (std::int64_t s = 0; s < 5; ++s) weight[s] = sum == 0 ? 0 : static_cast<float>(row[s] / sum);
        }
      }
    }
  }

  Page page() const { return page_of({.text = "", .queries = words(3), .keys = words(5), .attentions = maps, .vectors = vectors}); }
};

std::vector<float> floats_of(const json& base64) {
  const auto bytes = bytes_of(base64);
  std::vector<float> numbers;
  for (std::size_t i = 0; i < bytes.size(); i += 4)
    numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16) | static_cast<std::uint32_t>(bytes[i + 3]) << 24));
  return numbers;
}

TEST(Viewer, VectorsFromWhichTheWeightsFollowReachThePageBitForBit) {
  constexpr unsigned kSeed = 4;
  SCOPED_TRACE(kSeed);
  const Worked worked(kSeed);
  const json vectors = data_of(render(worked.page()))["texts"][0]["vectors"];
  EXPECT_EQ(vectors["scale"], 0.3);
  EXPECT_EQ(vectors["root"], false);
  const float* q = worked.q.data<float>();
  EXPECT_EQ(floats_of(vectors["q"][1][0]), std::vector<float>(q + 24, q + 36));
  EXPECT_EQ(vectors["k"][1].size(), 1U);  // the page stores k once, because all heads share it
  const float *k = worked.k.data<float>(), *v = worked.v.data<float>();
  EXPECT_EQ(floats_of(vectors["k"][1][0]), std::vector<float>(k + 20, k + 40));
  EXPECT_EQ(floats_of(vectors["v"][0][0]), std::vector<float>(v, v + 10));
  EXPECT_EQ(vectors["bias"].size(), 1U);  // the page stores the bias once, because all layers share it
  EXPECT_EQ(floats_of(vectors["bias"][0][1])[1], worked.bias.data<float>()[16]);
  EXPECT_EQ(floats_of(vectors["attend"][0][0])[1], 0);
  EXPECT_EQ(floats_of(vectors["attend"][0][0])[2], 1);
}

TEST(Viewer, ValueNormsReachThePageAndWrongOnesAreRefused) {
  const Tensor maps = Tensor::of<float>({1, 2, 1, 3}, {0.5F, 0.25F, 0.25F, 1, 0, 0});
  Tensor norms = Tensor::of<float>({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const auto page = [&](ConstTensorView given) { return page_of({.text = "", .queries = words(1), .keys = words(3), .attentions = maps, .value_norms = given, .width = 384}); };
  const json text = data_of(render(page(norms)))["texts"][0];
  EXPECT_EQ(floats_of(text["value_norms"][0][1]), (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(text["width"], 384);
  EXPECT_EQ(text["largest_weighted"], 4) << "of 0.5, 0.5, 0.75 and 4, 0, 0";
  EXPECT_FALSE(data_of(render(page({})))["texts"][0].contains("value_norms"));
  EXPECT_THAT(message_of(page(norms.view().slice(2, 0, 2))), HasSubstr("value_norms is float32 [1,2,2] for attentions [1,2,1,3] [layers,heads,T,S]; it must be floating and [layers,heads,S]"));
  const Tensor gate = Tensor::of<float>({1, 2, 1, 1}, {0.5F, 1});
  EXPECT_THAT(message_of(page_of({.text = "", .queries = words(1), .keys = words(3), .attentions = maps, .gate = gate, .value_norms = norms})), HasSubstr("gate and value_norms are given together"));
  norms.data<float>()[1] = -2;
  EXPECT_THAT(message_of(page(norms)), HasSubstr("value_norms has -2; a norm is not negative"));
}

TEST(Viewer, MeasuresOverTextsAreOfTheFirstSetOfSelfAttention) {
  const Tensor cross = random_maps({1, 2, 2, 3}, 3), own = random_maps({1, 2, 3, 3}, 4), other = random_maps({2, 2, 3, 3}, 5);
  MeasuredTexts measured;
  measured.add(own, {.pieces = words(3).pieces, .special = {}});
  const Text encoder{.text = "", .queries = words(3), .attentions = own, .name = "Encoder"}, decoder{.text = "", .queries = words(3), .attentions = own, .name = "Decoder"};
  Page page = page_of({.text = "", .queries = words(2), .keys = words(3), .attentions = cross, .name = "Cross-attention", .tabs = {encoder, decoder}});
  page.measured = measured;
  EXPECT_EQ(data_of(render(page))["measured"]["name"], "Encoder");
  page.texts[0].tabs[0].attentions = other;
  EXPECT_THAT(message_of(page), HasSubstr("measures of 1 layers of 2 heads; the first set of maps of self attention of the page's first text is [2,2,3,3] [layers,heads,T,S]"));
  page.texts[0].tabs.clear();
  EXPECT_THAT(message_of(page), HasSubstr("need self attention, but no set of maps of the page's first text is self attention"));
}

TEST(Viewer, LearnedQueriesReachThePage) {
  const Tensor maps = random_maps({1, 1, 2, 2}, 3);
  Text text{.text = "", .queries = words(2), .attentions = maps};
  EXPECT_FALSE(data_of(render(page_of(text)))["texts"][0].contains("learned_queries"));
  text.learned_queries = true;
  EXPECT_EQ(data_of(render(page_of(text)))["texts"][0]["learned_queries"], true);
}

TEST(Viewer, RotationsReachThePageAndWrongOnesAreRefused) {
  Worked worked(4);
  const Tensor table = Tensor::of<float>({1, 3, 2}, {1, 2, 3, 4, 5, 6});
  worked.vectors.rotary_cos = table, worked.vectors.rotary_sin = table;
  EXPECT_THAT(message_of(worked.page()), HasSubstr("rotary_cos is float32 [1,3,2] for q [2,2,3,4] and attentions [2,2,3,5]; rotary_cos and rotary_sin must be floating and [layers or 1,T,R/2] with R <= H and T = S"));
  const Tensor q = Tensor::of<float>({1, 1, 2, 2}, {0, 0, 0, 0}), maps = Tensor::of<float>({1, 1, 2, 2}, {0.5F, 0.5F, 0.5F, 0.5F}), cos = Tensor::of<float>({1, 2, 1}, {1, 0.5F}), sin = Tensor::of<float>({1, 2, 1}, {0, 0.25F});
  Text text{.text = "", .queries = words(2), .attentions = maps, .vectors = HeadVectors{.q = q, .k = q, .rotary_cos = cos, .rotary_sin = sin, .rotary_neighbours = true}};
  const json rotary = data_of(render(page_of(text)))["texts"][0]["vectors"]["rotary"];
  EXPECT_EQ(floats_of(rotary["cos"][0][0]), (std::vector<float>{1, 0.5F}));
  EXPECT_EQ(floats_of(rotary["sin"][0][0]), (std::vector<float>{0, 0.25F}));
  EXPECT_EQ(rotary["neighbours"], true);
  text.vectors->rotary_sin = {};
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("rotary_sin is"));
}

TEST(Viewer, VectorsFromWhichTheWeightsDoNotFollowAreRefused) {
  for (const auto& spoil : std::vector<void (*)(HeadVectors&)>{[](HeadVectors& of) { of.scale = std::nullopt; }, [](HeadVectors& of) { of.bias = {}; },
                                                               [](HeadVectors& of) { of.attend = {}; }, [](HeadVectors& of) { of.q = of.q.select(0, 1).select(0, 0).expand(of.q.shape()); }}) {
    Worked worked(4);
    spoil(worked.vectors);
    EXPECT_THAT(message_of(worked.page()), HasSubstr("they must belong to the map, with its scale, bias and mask"));
  }
}

TEST(Viewer, VectorsOfOtherShapesAreRefusedByName) {
  const auto refused = [](auto spoil) {
    Worked worked(4);
    spoil(worked.vectors);
    return message_of(worked.page());
  };
  EXPECT_THAT(refused([](HeadVectors& of) { of.q = of.q.slice(2, 0, 2); }), HasSubstr("q is float32 [2,2,2,4] for attentions [2,2,3,5] [layers,heads,T,S]; it must be floating and [layers,heads,T,H]"));
  EXPECT_THAT(refused([](HeadVectors& of) { of.k = of.k.slice(3, 0, 3); }), HasSubstr("k is float32 [2,1,5,3]"));
  EXPECT_THAT(refused([](HeadVectors& of) { of.k = of.k.expand({2, 3, 5, 4}); }), HasSubstr("its heads must divide the 2 heads of q"));
  EXPECT_THAT(refused([](HeadVectors& of) { of.v = of.v.expand({2, 2, 5, 2}); }), HasSubstr("v is [2,2,5,2]; it must have the 1 heads of k"));
  EXPECT_THAT(refused([](HeadVectors& of) { of.bias = of.bias.slice(1, 0, 2); }), HasSubstr("bias is float32 [2,2,5]"));
  EXPECT_THAT(refused([](HeadVectors& of) { of.attend = of.bias; }), HasSubstr("it must be bool and broadcast to them"));
  EXPECT_THAT(refused([](HeadVectors& of) { of.q = of.q.select(0, 0); }), HasSubstr("q is float32 [2,3,4]"));
}

TEST(Viewer, VectorsBeyondTheBudgetAreLeftOutAndThePageHasTheirSize) {
  const Worked worked(4);
  Page page = worked.page();
  page.texts.push_back(page.texts[0]);
  const double needed = (48 + 40 + 20 + 30 + 15) * 4 * 4 / 3.0 / 1e6;
  page.vector_megabytes = 1.5 * needed;
  json data = data_of(render(page));
  EXPECT_EQ(data["limit"], 1.5 * needed);
  EXPECT_TRUE(data["texts"][0].contains("vectors"));
  EXPECT_FALSE(data["texts"][0].contains("left_out"));
  EXPECT_FALSE(data["texts"][1].contains("vectors"));
  EXPECT_NEAR(data["texts"][1]["left_out"], needed, 1e-12);
  page.texts[1].vectors = std::nullopt;
  page.texts[1].left_out = 153;
  EXPECT_EQ(data_of(render(page))["texts"][1]["left_out"], data["texts"][1]["left_out"]);
  VectorBudget budget(1.001 * needed);  // the budget has room for 153 float32 numbers
  EXPECT_FALSE(budget.take(154));
  EXPECT_TRUE(budget.take(100));
  EXPECT_FALSE(budget.take(54));
  EXPECT_TRUE(budget.take(53));
}

TEST(Viewer, NoTokensLayersOrHeadsStillMakeAPage) {
  for (const Shape& shape : {Shape{2, 2, 0, 0}, Shape{0, 2, 3, 3}, Shape{2, 0, 3, 3}}) {
    const Tensor maps(DType::f32, shape);
    EXPECT_EQ(data_of(render(page_of({.text = "", .queries = words(shape[2]), .attentions = maps})))["texts"].size(), 1U)
        << to_string(shape);
  }
  EXPECT_EQ(data_of(render({.title = "nothing"}))["texts"].size(), 0U);
}

TEST(Viewer, TabsFollowTheirTextAndShareItsGroup) {
  const Tensor self = random_maps({1, 2, 3, 3}, 1), cross = random_maps({2, 1, 2, 3}, 2);
  Text text{.text = "a", .queries = words(3), .attentions = self, .name = "Encoder"};
  text.tabs.push_back({.queries = words(2), .keys = words(3), .attentions = cross, .name = "Cross-attention"});
  Page page = page_of(text);
  page.texts.push_back({.text = "b", .queries = words(3), .attentions = self});
  const json texts = data_of(render(page))["texts"];
  ASSERT_EQ(texts.size(), 3U);
  EXPECT_EQ(texts[1]["name"], "Cross-attention");
  EXPECT_EQ(texts[1]["layers"], 2);
  EXPECT_EQ(texts[1]["keys"]["pieces"].size(), 3U);
  EXPECT_EQ((std::vector<int>{texts[0]["group"], texts[1]["group"], texts[2]["group"]}), (std::vector<int>{0, 0, 1}));
  page.texts[0].tabs[0].tabs.push_back(page.texts[1]);
  EXPECT_THAT(message_of(page), HasSubstr("the tab 'Cross-attention' has tabs; only a text has tabs"));
}

TEST(Viewer, AnnotationsOfAMapReachThePageAndWrongOnesAreRefused) {
  const Tensor maps = random_maps({1, 1, 2, 3}, 3), gate = Tensor::of<float>({1, 1, 2, 1}, {0.25F, 1});
  Text text{.text = "", .queries = words(2), .keys = words(3), .attentions = maps, .query_axis = "residue", .key_axis = "column",
            .block_keys = {false, false, true}, .links = Links{.sure = {{0, 1}}, .possible = {{1, 2}}}, .gate = gate};
  const json shown = data_of(render(page_of(text)))["texts"][0];
  EXPECT_EQ(shown["axes"], json({"residue", "column"}));
  EXPECT_EQ(shown["blocked"], json::array({2}));
  EXPECT_EQ(shown["links"], json({{"sure", {{0, 1}}}, {"possible", {{1, 2}}}}));
  const auto bytes = bytes_of(shown["gate"][0][0]);
  ASSERT_EQ(bytes.size(), 4U);
  EXPECT_NEAR(((bytes[0] | bytes[1] << 8) - 1) / 65533.0, 0.25, 7.7e-6);
  const auto refused = [&](auto change, const char* words) {
    Text wrong = text;
    change(wrong);
    EXPECT_THAT(message_of(page_of(wrong)), HasSubstr(words));
  };
  refused([](Text& wrong) { wrong.block_keys.pop_back(); }, "block_keys has 2 flags for attentions [1,1,2,3] [layers,heads,T,S]; it must have S = 3");
  refused([](Text& wrong) { wrong.links->sure = {{2, 0}}; }, "the sure link (2, 0) is outside of attentions [1,1,2,3]");
  refused([](Text& wrong) { wrong.links->possible = {{0, 3}}; }, "the possible link (0, 3)");
  refused([](Text& wrong) { wrong.gate = wrong.attentions; wrong.attentions = wrong.attentions.slice(2, 0, 1); wrong.queries = words(1); wrong.links = {}; }, "gate is float32 [1,1,2,3]");
  const Tensor high = Tensor::of<float>({1, 1, 2, 1}, {0.5F, 1.5F});
  refused([&](Text& wrong) { wrong.gate = high; }, "layer 0, head 0 has the gate 1.5");
}

// The scores of the two keys differ by log 3 without the bias, and by log 3 - 1 with the bias.
TEST(Viewer, WeightsWithoutAPairBiasAreThoseOfTheScoresAlone) {
  const float z = 3 / std::exp(1.0F) + 1;
  const Tensor maps = Tensor::of<float>({1, 1, 2, 3}, {1 - 1 / z, 1 / z, 0, 0, 0, 0});
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor bias = Tensor::of<float>({1, 1, 2, 3}, {-1, 0, -inf, 0, 0, 0});
  Text text{.text = "", .queries = words(2), .keys = words(3), .attentions = maps, .pair_bias = bias};
  const json texts = data_of(render(page_of(text)))["texts"];
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts[0]["bias"], "with");
  EXPECT_EQ(texts[1]["bias"], "without");
  EXPECT_EQ(texts[1]["group"], 0);
  const auto bytes = bytes_of(texts[1]["weights"][0][0]);
  const auto code = [&](std::size_t i) { return bytes[2 * i] | bytes[2 * i + 1] << 8; };
  EXPECT_NEAR((code(0) - 1) / 65533.0, 0.75, 1e-5);
  EXPECT_NEAR((code(1) - 1) / 65533.0, 0.25, 1e-5);
  for (std::size_t i = 2; i < 6; ++i) EXPECT_EQ(code(i), 0);
  const Tensor strong = Tensor::of<float>({1, 1, 2, 3}, {0, 0, -110, 0, 0, 0});
  text.pair_bias = strong;
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("layer 0, head 0, query 0, key 2 has the attention weight 0 at the pair bias -110: too small for its dtype"));
  const Tensor half = Tensor::of<float>({1, 1, 2, 3}, {0.5F, 0.25F, 0, 0, 0, 0});
  text.attentions = half;
  EXPECT_THAT(message_of(page_of(text)), HasSubstr("sums to 0.75; with a pair bias, rows of attention weights must sum to 1"));
}

TEST(PooledSides, PoolTheLargestTextsUntilThePageHasRoom) {
  const auto sides = [](std::vector<std::int64_t> tokens, std::int64_t heads, std::int64_t most = kMaxAttentionWeights) { return pooled_sides(tokens, heads, most); };
  using Sides = std::vector<std::int64_t>;
  EXPECT_EQ(sides({}, 1), Sides());
  // A page has room for 2^26 pairs of tokens. These texts have one pair more, so the maps of the longest text are pooled.
  EXPECT_EQ(sides({0, 1, 8192}, 1), (Sides{0, 0, 512}));
  EXPECT_EQ(sides({8192}, 1), Sides{0});
  EXPECT_EQ(sides({8193}, 1), Sides{512});
  EXPECT_EQ(sides({5000, 6000, 5500}, 1), (Sides{0, 512, 0}));
  EXPECT_EQ(sides({1000}, 144), Sides{241});  // 241 is the largest side with 144 * side^2 <= 2^23
  EXPECT_EQ(sides({100, 90}, 1, 9000), (Sides{100, 0}));
  EXPECT_EQ(sides({1 << 30}, 1), Sides{512});
  EXPECT_THROW(sides({std::int64_t{1} << 32}, 1), Error);
  EXPECT_THROW(sides(std::vector<std::int64_t>(10000, 100), 1), Error);  // the texts have too many pairs, and none is long enough for pooled maps
}

}  // namespace
}  // namespace polyhead::viewer
