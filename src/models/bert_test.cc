#include "polyhead/models/bert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/test_error_matcher.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using test::Random;
using testing::HasSubstr;

BertConfig tiny(DType dtype = DType::f64) {
  return {.vocabulary = 7,
          .positions = 5,
          .segments = 2,
          .width = 6,
          .layers = 2,
          .heads = 2,
          .hidden_width = 5,
          .epsilon = 1e-3,
          .dtype = dtype};
}

const Tensor kIds = Tensor::of<std::int64_t>({2, 4}, {2, 5, 5, 3, 2, 1, 3, 0});
const Tensor kSegments = Tensor::of<std::int64_t>({2, 4}, {0, 0, 1, 1, 0, 0, 1, 0});
const Tensor kAttend = Tensor::of<bool>({2, 4}, {true, true, true, true, true, true, true, false});

TEST(BertEncoder, GradientsAgreeWithCentralDifferences) {
  for (const std::uint64_t seed : {1u, 2u}) {
    SCOPED_TRACE(seed);
    Random random(seed);
    BertEncoder encoder(tiny(), 11);
    encoder.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor); });
    const BertInput input{.ids = kIds, .segments = kSegments, .attend_keys = kAttend};
    const Shape shape{2, 4, 6};
    Tensor hidden(DType::f64, shape);
    const Tensor d_hidden = random.tensor(DType::f64, shape);
    BertEncoder::Saved saved;
    encoder.forward(input, {.hidden = hidden}, {}, &saved);
    BertEncoder grads = nn::zeros_like(encoder);
    encoder.backward(saved, d_hidden, {&grads});
    const auto leaves = test::parameter_leaves(encoder, grads);
    EXPECT_EQ(leaves.size(), 3u + 2 + 2 * 16);
    test::expect_gradients(
        [&] {
          encoder.forward(input, {.hidden = hidden});
          return test::weighted_sum(hidden, d_hidden);
        },
        leaves);
  }
}

TEST(BertEncoder, WordsPositionsAndSegmentsAllChangeTheResult) {
  BertEncoder encoder(tiny(), 11);
  const auto hidden = [&](std::initializer_list<std::int64_t> ids, std::initializer_list<std::int64_t> segments) {
    const Tensor id = Tensor::of<std::int64_t>({3}, ids), segment = Tensor::of<std::int64_t>({3}, segments);
    Tensor out(DType::f64, {3, 6});
    encoder.forward({.ids = id, .segments = segment}, {.hidden = out});
    return out;
  };
  const Tensor base = hidden({1, 2, 3}, {0, 0, 0});
  EXPECT_GT(test::max_abs_difference(base, hidden({1, 2, 4}, {0, 0, 0})), 1e-3);
  EXPECT_GT(test::max_abs_difference(base, hidden({1, 2, 3}, {0, 0, 1})), 1e-3);
  const Tensor swapped = hidden({2, 1, 3}, {0, 0, 0});
  EXPECT_GT(test::max_abs_difference(base.view().select(0, 0), swapped.view().select(0, 1)), 1e-3);
}

TEST(BertEncoder, AbsentSegmentsAreZero) {
  BertEncoder encoder(tiny(), 11);
  const Tensor zero(DType::i32, {2, 4});
  Tensor a(DType::f64, {2, 4, 6}), b(DType::f64, {2, 4, 6});
  encoder.forward({.ids = kIds}, {.hidden = a});
  encoder.forward({.ids = kIds, .segments = zero}, {.hidden = b});
  EXPECT_TRUE(test::same_bits(a, b));
}

TEST(BertEncoder, PaddingDoesNotChangeTheOtherTokens) {
  BertEncoder encoder(tiny(), 11);
  const ConstTensorView short_ids = kIds.view().select(0, 1).slice(0, 0, 3), short_segments = kSegments.view().select(0, 1).slice(0, 0, 3);
  Tensor padded(DType::f64, {2, 4, 6}), alone(DType::f64, {3, 6}), padded_maps(DType::f64, {2, 2, 2, 4, 4}), maps(DType::f64, {2, 2, 3, 3});
  encoder.forward({.ids = kIds, .segments = kSegments, .attend_keys = kAttend}, {.hidden = padded, .attentions = padded_maps});
  encoder.forward({.ids = short_ids, .segments = short_segments}, {.hidden = alone, .attentions = maps});
  EXPECT_TRUE(test::near(padded.view().select(0, 1).slice(0, 0, 3), alone, 1e-13));
  const TensorView of_text = padded_maps.view().select(1, 1).slice(2, 0, 3);  // [L,N,3,4]
  EXPECT_TRUE(test::near(of_text.slice(3, 0, 3), maps, 1e-13));
  EXPECT_EQ(test::largest_magnitude(of_text.slice(3, 3, 4)), 0);
}

TEST(BertEncoder, AskingForMoreOutputsDoesNotChangeTheOtherOutputs) {
  BertEncoder encoder(tiny(DType::f32), 11);
  Tensor a(DType::f32, {2, 4, 6}), b(DType::f32, {2, 4, 6}), all(DType::f32, {3, 2, 4, 6}), maps(DType::f32, {2, 2, 2, 4, 4});
  BertEncoder::Saved saved;
  encoder.forward({.ids = kIds}, {.hidden = a});
  encoder.forward({.ids = kIds}, {.hidden = b, .all_hidden = all, .attentions = maps}, {}, &saved);
  EXPECT_TRUE(test::same_bits(a, b));
  EXPECT_TRUE(test::same_bits(all.view().select(0, 2), a));
  for (int layer = 0; layer < 2; ++layer)
    EXPECT_TRUE(test::same_bits(all.view().select(0, layer), saved.hidden[static_cast<std::size_t>(layer)]));
}

TEST(BertEncoder, EveryRowOfAMapSumsToOne) {
  BertEncoder encoder(tiny(), 11);
  Tensor maps(DType::f64, {2, 2, 2, 4, 4});
  encoder.forward({.ids = kIds, .attend_keys = kAttend}, {.attentions = maps});
  const auto p = test::to_doubles(maps);
  for (std::size_t row = 0; row < p.size(); row += 4) EXPECT_NEAR(p[row] + p[row + 1] + p[row + 2] + p[row + 3], 1, 1e-12) << row / 4;
}

TEST(BertEncoder, PooledMapsAreBlocksOfTheMaps) {
  BertEncoder encoder(tiny(), 11);
  Tensor maps(DType::f64, {2, 2, 2, 4, 4}), means(DType::f64, {2, 2, 2, 2, 1}), largest(DType::f64, {2, 2, 2, 2, 1});
  encoder.forward({.ids = kIds, .attend_keys = kAttend}, {.attentions = maps, .pooled = largest});
  encoder.forward({.ids = kIds, .attend_keys = kAttend}, {.pooled = means, .pooling = Pooling::mean});
  const auto p = test::to_doubles(maps), of_means = test::to_doubles(means), of_largest = test::to_doubles(largest);
  for (std::size_t block = 0; block < of_largest.size(); ++block) {  // a block is two rows of four keys
    EXPECT_NEAR(of_largest[block], *std::max_element(p.begin() + static_cast<std::ptrdiff_t>(8 * block), p.begin() + static_cast<std::ptrdiff_t>(8 * block + 8)), 1e-15) << block;
    EXPECT_NEAR(of_means[block], 2.0 / 8, 1e-12) << block;
  }
  Tensor wrong(DType::f64, {2, 2, 3, 2, 1});
  EXPECT_ERROR(encoder.forward({.ids = kIds}, {.pooled = wrong}), invalid_argument, HasSubstr("pooled is [2,2,3,2,1]; it must be [2,2,2,2,1]"));
}

TEST(BertEncoder, HeadVectorsAreTheProjectionsOfEachLayersInputAndGiveItsMaps) {
  BertEncoder encoder(tiny(), 11);
  constexpr std::int64_t kLayers = 2, kBatch = 2, kHeads = 2, kTokens = 4, kWidth = 6, kHead = 3;
  const Shape heads{kLayers, kBatch, kHeads, kTokens, kHead};
  Tensor all(DType::f64, {3, kBatch, kTokens, kWidth}), maps(DType::f64, {kLayers, kBatch, kHeads, kTokens, kTokens}), q(DType::f64, heads), k(DType::f64, heads), v(DType::f64, heads);
  encoder.forward({.ids = kIds}, {.all_hidden = all, .attentions = maps, .q = q, .k = k, .v = v});
  const auto at = [](const Tensor& tensor, std::initializer_list<std::int64_t> index) {
    ConstTensorView view = tensor.view();
    for (const std::int64_t i : index) view = view.select(0, i);
    return view.data<double>()[0];
  };
  for (std::int64_t l = 0; l < kLayers; ++l) {
    const nn::MultiHeadAttention& layer = encoder.layers[static_cast<std::size_t>(l)].attention;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t n = 0; n < kHeads; ++n) {
        for (std::int64_t t = 0; t < kTokens; ++t) {
          for (std::int64_t i = 0; i < kHead; ++i) {
            const auto projected = [&](const nn::Linear& linear) {
              double sum = at(linear.bias, {n * kHead + i});
              for (std::int64_t e = 0; e < kWidth; ++e) sum += at(linear.weight, {n * kHead + i, e}) * at(all, {l, b, t, e});
              return sum;
            };
            EXPECT_NEAR(at(q, {l, b, n, t, i}), projected(layer.q), 1e-13);
            EXPECT_NEAR(at(k, {l, b, n, t, i}), projected(layer.k), 1e-13);
            EXPECT_NEAR(at(v, {l, b, n, t, i}), projected(layer.v), 1e-13);
          }
          double sum = 0, row[kTokens];
          for (std::int64_t s = 0; s < kTokens; ++s) {
            double dot = 0;
            for (std::int64_t i = 0; i < kHead; ++i) dot += at(q, {l, b, n, t, i}) * at(k, {l, b, n, s, i});
            sum += row[s] = std::exp(dot / std::sqrt(3.0));
          }
          for (std::int64_t s = 0; s < kTokens; ++s) EXPECT_NEAR(at(maps, {l, b, n, t, s}), row[s] / sum, 1e-12);
        }
      }
    }
  }
}

TEST(BertEncoder, ExtentsMayBeZeroOrOne) {
  BertEncoder encoder(tiny(), 11);
  for (const Shape& ids : {Shape{0}, Shape{1}, Shape{0, 3}, Shape{3, 0}, Shape{1, 1}, Shape{2, 1, 3}}) {
    SCOPED_TRACE(to_string(ids));
    const Tensor id(DType::i64, ids);
    Shape shape = ids, maps = ids.first(ids.size() - 1);
    shape.push_back(6);
    maps.insert(0, 2);
    for (const std::int64_t extent : {std::int64_t{2}, ids[-1], ids[-1]}) maps.push_back(extent);
    Tensor hidden(DType::f64, shape), attentions(DType::f64, maps);
    BertEncoder::Saved saved;
    encoder.forward({.ids = id}, {.hidden = hidden, .attentions = attentions}, {}, &saved);
    BertEncoder grads = nn::zeros_like(encoder);
    encoder.backward(saved, hidden, {&grads});
  }
}

TEST(BertEncoder, RefusesInputThatDoesNotFit) {
  BertEncoder encoder(tiny(), 11);
  Tensor hidden(DType::f64, {6, 6});
  const Tensor six(DType::i64, {6}), outside = Tensor::of<std::int64_t>({2}, {0, 7}), floats(DType::f32, {2});
  Tensor small(DType::f64, {2, 6});
  EXPECT_ERROR(encoder.forward({.ids = six}, {.hidden = hidden}), invalid_argument,
               AllOf(HasSubstr("6 tokens"), HasSubstr("positions for 5")));
  EXPECT_ERROR(encoder.forward({.ids = outside}, {.hidden = small}), invalid_argument, HasSubstr("7"));
  EXPECT_ERROR(encoder.forward({.ids = floats}, {.hidden = small}), invalid_argument, HasSubstr("float32"));
  EXPECT_ERROR(encoder.forward({}, {.hidden = small}), invalid_argument, HasSubstr("ids are missing"));
  const Tensor ids(DType::i64, {2});
  EXPECT_ERROR(encoder.forward({.ids = ids, .segments = six}, {.hidden = small}), invalid_argument,
               HasSubstr("segments is [6]; it must be [2]"));
  EXPECT_ERROR(encoder.forward({.ids = ids, .segments = outside}, {.hidden = small}), invalid_argument, HasSubstr("7"));
  EXPECT_ERROR(encoder.forward({.ids = ids, .attend_keys = ids}, {.hidden = small}), invalid_argument, HasSubstr("attend_keys is int64"));
  EXPECT_ERROR(encoder.forward({.ids = ids}, {.hidden = hidden}), invalid_argument, HasSubstr("hidden is [6,6]; it must be [2,6]"));
  EXPECT_ERROR(encoder.forward({.ids = ids}, {.attentions = small}), invalid_argument,
               HasSubstr("attentions is [2,6]; it must be [2,2,2,2]"));
  EXPECT_ERROR(encoder.forward({.ids = ids}, {.k = small}), invalid_argument, HasSubstr("k is [2,6]; it must be [2,2,2,3]"));
  EXPECT_ERROR(BertEncoder({.vocabulary = 0}, 3), invalid_argument, HasSubstr("vocabulary is 0"));
}

TEST(BertEncoder, OutputsThatOverlapEachOtherOrParametersAreRefused) {
  BertEncoder encoder(tiny(), 11);
  Tensor all(DType::f64, {3, 2, 4, 6});
  const BertInput input{.ids = kIds};
  EXPECT_ERROR(encoder.forward(input, {.hidden = all.view().select(0, 2), .all_hidden = all}), invalid_argument,
               HasSubstr("BertEncoder.forward: all_hidden overlaps hidden"));
  EXPECT_ERROR(encoder.forward({.ids = kIds.view().slice(1, 0, 3).select(0, 0)}, {.hidden = encoder.words.weight.view().slice(0, 0, 3)}),
               invalid_argument, HasSubstr("hidden overlaps the parameter words.weight"));
  Tensor integers(DType::i64, {2, 2, 2, 4, 4});
  EXPECT_ERROR(encoder.forward(input, {.attentions = integers}), invalid_argument, HasSubstr("attentions is int64; it must be floating"));
}

}  // namespace
}  // namespace polyhead::models
