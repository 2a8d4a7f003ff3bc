// Compares layers and collectives over several ranks with one rank.
#include <gmock/gmock.h>

#include "support/distributed_case.h"

namespace polyhead::test {
namespace {

using namespace distributed;
using testing::HasSubstr;

Tensor drawn(std::uint64_t seed, const Shape& shape, DType dtype = DType::f64) {
  Random random(seed);
  return random.tensor(dtype, shape, -1, 1);
}

TEST(Collectives, GatherPutsTheRowsOfTheRanksInOrder) {
  const Tensor whole = drawn(1, {3, 7, 2});
  const std::vector<std::int64_t> bounds{0, 2, 2, 7};  // rank 1 has no rows
  const auto errors = run_ranks(3, [&](Communicator& communicator) {
    const auto r = static_cast<std::size_t>(communicator.rank());
    Tensor all(DType::f64, whole.shape());
    all_gather(communicator, whole.view().slice(1, bounds[r], bounds[r + 1]), 1, all);
    EXPECT_TRUE(same_bits(all, whole));
    Tensor own(DType::f64, {3, bounds[r + 1] - bounds[r], 2});
    reduce_scatter(communicator, whole, -2, own);  // all three ranks contribute the same tensor
    EXPECT_TRUE(near(own, [&] {
      Tensor wanted = Tensor::copy_of(whole.view().slice(1, bounds[r], bounds[r + 1]));
      for (std::int64_t i = 0; i < wanted.numel(); ++i) wanted.data<double>()[i] *= 3;
      return wanted;
    }(), 1e-15));
  });
  expect_no_errors(errors);
}

TEST(Collectives, AllToAllCutsAlongAnotherAxis) {
  const Tensor whole = drawn(2, {5, 6, 2});
  const std::vector<std::int64_t> rows{0, 1, 5, 5}, columns{0, 3, 4, 6};
  const auto errors = run_ranks(3, [&](Communicator& communicator) {
    const auto r = static_cast<std::size_t>(communicator.rank());
    Tensor other(DType::f64, {5, columns[r + 1] - columns[r], 2});
    all_to_all(communicator, whole.view().slice(0, rows[r], rows[r + 1]), 0, 1, other);
    EXPECT_TRUE(same_bits(other, whole.view().slice(1, columns[r], columns[r + 1])));
    Tensor back(DType::f64, {rows[r + 1] - rows[r], 6, 2});
    all_to_all(communicator, other, 1, 0, back);
    EXPECT_TRUE(same_bits(back, whole.view().slice(0, rows[r], rows[r + 1])));
  });
  expect_no_errors(errors);
}

TEST(Collectives, SumsHaveTheSameBitsOnAllRanks) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Tensor> sums(4);
    const auto errors = run_ranks(4, [&](Communicator& communicator) {
      Tensor x = drawn(static_cast<std::uint64_t>(communicator.rank()), {7, 3}, dtype);
      distributed::all_reduce(communicator, x);
      sums[static_cast<std::size_t>(communicator.rank())] = std::move(x);
    });
    expect_no_errors(errors);
    for (const Tensor& sum : sums) EXPECT_TRUE(same_bits(sum, sums[0]));
    std::vector<double> wanted(21);
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      const std::vector<double> part = to_doubles(drawn(rank, {7, 3}, dtype));
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += part[i];
    }
    // The tolerance is one rounding: 2^-8 of the sum for bfloat16.
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(to_doubles(sums[0])[i], wanted[i], dtype == DType::bf16 ? std::abs(wanted[i]) * 0x1.01p-8 + 1e-6 : 1e-6);
  }
}

TEST(Collectives, TensorsThatDoNotFitAreRefusedOnAllRanks) {
  const auto errors = run_ranks(2, [&](Communicator& communicator) {
    const Tensor own(DType::f32, {2, communicator.rank() == 0 ? 3 : 4});
    Tensor all(DType::f32, {4, own.extent(1)});
    all_gather(communicator, own, 0, all);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("all_gather: an extent that is not cut differs: 3 on rank 0 and 4 on rank 1"));
  const auto axes = run_ranks(2, [&](Communicator& communicator) {
    const int axis = communicator.rank();
    const Tensor own(DType::f32, axis == 0 ? Shape{2, 4} : Shape{4, 2});
    Tensor all(DType::f32, {4, 4});
    all_gather(communicator, own, axis, all);
  });
  for (const std::string& error : axes) EXPECT_THAT(error, HasSubstr("all_gather: the axis differs: 0 on rank 0 and 1 on rank 1"));
  const auto short_of = run_ranks(2, [&](Communicator& communicator) {
    const Tensor own(DType::f32, {2, 3});
    Tensor all(DType::f32, {5, 3});
    all_gather(communicator, own, 0, all);
  });
  for (const std::string& error : short_of) EXPECT_THAT(error, HasSubstr("all_gather: the ranks have 4 rows in total, but the tensor all has 5"));
}

nn::MultiHeadAttention attention_layer(nn::Gate gate, bool extras) {
  nn::MultiHeadAttention layer({.query_width = 6, .heads = 8, .kv_heads = 4, .head_width = 3, .value_head_width = 2, .gate = gate, .add_bias_kv = extras, .add_zero_attn = extras, .sink = extras, .dtype = DType::f64, .seed = 5});
  std::uint64_t seed = 100;
  layer.visit([&](const std::string&, Tensor& tensor) { tensor = drawn(seed++, tensor.shape()); });
  return layer;
}

TEST(TensorParallel, AttentionEqualsTheLayerOnOneRank) {
  for (const bool extras : {false, true}) {
    const nn::MultiHeadAttention layer = attention_layer(nn::Gate::sigmoid, extras);
    const Tensor x = drawn(7, {2, 5, 6}), d_out = drawn(8, {2, 5, 6}), bias = drawn(9, {1, 8, 5, 5});
    nn::MultiHeadAttention::Saved saved;
    Tensor out(DType::f64, x.shape()), d_x(DType::f64, x.shape()), d_bias(DType::f64, bias.shape());
    nn::MultiHeadAttention d_layer = zeros_like(layer);
    layer.forward({.query = x}, out, {.bias = bias, .mode = nn::Mode::training}, &saved);
    layer.backward(saved, d_out, {.query = d_x, .bias = d_bias, .parameters = &d_layer});
    for (const int ranks : {1, 2, 4}) {
      const auto errors = run_ranks(ranks, [&](Communicator& communicator) {
        const TensorParallelAttention parallel(communicator, layer);
        nn::MultiHeadAttention::Saved own_saved;
        Tensor own_out(DType::f64, x.shape()), own_d_x(DType::f64, x.shape()), own_d_bias(DType::f64, bias.shape());
        nn::MultiHeadAttention d_part = zeros_like(parallel.part);
        parallel.forward({.query = x}, own_out, {.bias = bias, .mode = nn::Mode::training}, &own_saved);
        parallel.backward(own_saved, d_out, {.query = own_d_x, .bias = own_d_bias, .parameters = &d_part});
        EXPECT_TRUE(near_relative(own_out, out, 1e-13));
        EXPECT_TRUE(near_relative(own_d_x, d_x, 1e-13));
        EXPECT_TRUE(near_relative(own_d_bias, d_bias, 1e-13));
        const nn::MultiHeadAttention wanted = part_of(d_layer, communicator.rank(), ranks);
        const auto expected = nn::parameters(wanted);
        const auto actual = nn::parameters(std::as_const(d_part));
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(near_relative(*actual[i].second, *expected[i].second, 1e-12)) << actual[i].first;
      });
      expect_no_errors(errors);
    }
  }
  EXPECT_THAT(error_message([] { part_of(attention_layer(nn::Gate::none, false), 0, 3); }), HasSubstr("4 key/value heads do not divide among 3 ranks"));
}

TEST(TensorParallel, FeedForwardEqualsTheLayerOnOneRank) {
  for (const bool gated : {false, true}) {
    const nn::FeedForward layer({.width = 6, .hidden_width = 11, .gated = gated, .dtype = DType::f64, .seed = 3});
    const Tensor x = drawn(1, {4, 6}), d_y = drawn(2, {4, 6});
    Tensor y(DType::f64, x.shape()), d_x(DType::f64, x.shape());
    nn::FeedForward::Saved saved;
    nn::FeedForward d_layer = zeros_like(layer);
    layer.forward(x, y, {}, &saved);
    layer.backward(saved, d_y, {.x = d_x, .parameters = &d_layer});
    const auto errors = run_ranks(3, [&](Communicator& communicator) {
      const TensorParallelFeedForward parallel(communicator, layer);
      Tensor own_y(DType::f64, x.shape()), own_d_x(DType::f64, x.shape());
      nn::FeedForward::Saved own_saved;
      nn::FeedForward d_part = zeros_like(parallel.part);
      parallel.forward(x, own_y, {}, &own_saved);
      parallel.backward(own_saved, d_y, {.x = own_d_x, .parameters = &d_part});
      EXPECT_TRUE(near_relative(own_y, y, 1e-13));
      EXPECT_TRUE(near_relative(own_d_x, d_x, 1e-13));
      const nn::FeedForward wanted = part_of(d_layer, communicator.rank(), 3);
      EXPECT_TRUE(near_relative(d_part.hidden.weight, wanted.hidden.weight, 1e-12));
      EXPECT_TRUE(near_relative(d_part.output.weight, wanted.output.weight, 1e-12));
      if (communicator.rank() == 0) {
        EXPECT_TRUE(near_relative(d_part.output.bias, wanted.output.bias, 1e-12));
      }
    });
    expect_no_errors(errors);
  }
}

// Row attention on a pair tensor, then column attention on the result, as in an Evoformer block.
TEST(PairAttention, OfRowsAndColumnsEqualsOneRank) {
  constexpr std::int64_t kResidues = 7, kWidth = 6;
  const nn::MultiHeadAttention layer({.query_width = kWidth, .heads = 2, .head_width = 4, .bias = false, .gate = nn::Gate::sigmoid, .dtype = DType::f64, .seed = 4});
  nn::MultiHeadAttention drawn_layer = layer;
  std::uint64_t seed = 50;
  drawn_layer.visit([&](const std::string&, Tensor& tensor) { tensor = drawn(seed++, tensor.shape()); });
  const nn::Linear bias(drawn(60, {2, kWidth}), {});
  const Tensor z = drawn(61, {kResidues, kResidues, kWidth}), d_out = drawn(62, z.shape());
  const std::vector<std::int64_t> bounds{0, 3, 3, 7};

  struct Result {
    Tensor out{DType::f64, {kResidues, kResidues, kWidth}}, d_z{DType::f64, {kResidues, kResidues, kWidth}};
    nn::MultiHeadAttention d_attention;
    nn::Linear d_bias;
  };
  const auto run = [&](Communicator& communicator, std::int64_t first, std::int64_t last, Result& result) {
    const PairAttention rows(communicator, drawn_layer, bias, PairAxis::rows), columns(communicator, drawn_layer, bias, PairAxis::columns);
    PairAttention::Saved of_rows, of_columns;
    const Shape shape{last - first, kResidues, kWidth};
    Tensor middle(DType::f64, shape), d_middle(DType::f64, shape);
    nn::MultiHeadAttention d_attention = zeros_like(drawn_layer);
    nn::Linear d_bias = zeros_like(bias);
    rows.forward(z.view().slice(0, first, last), middle, {}, &of_rows);
    columns.forward(middle, result.out.view().slice(0, first, last), {}, &of_columns);
    columns.backward(of_columns, d_out.view().slice(0, first, last), {.z = d_middle, .attention = &d_attention, .bias = &d_bias});
    rows.backward(of_rows, d_middle, {.z = result.d_z.view().slice(0, first, last)});
    d_attention.visit([&](const std::string&, Tensor& tensor) { distributed::all_reduce(communicator, tensor); });
    distributed::all_reduce(communicator, d_bias.weight);
    if (communicator.rank() == 0) result.d_attention = std::move(d_attention), result.d_bias = std::move(d_bias);
  };
  Result one, several;
  expect_no_errors(run_ranks(1, [&](Communicator& communicator) { run(communicator, 0, kResidues, one); }));
  expect_no_errors(run_ranks(3, [&](Communicator& communicator) {
    const auto r = static_cast<std::size_t>(communicator.rank());
    run(communicator, bounds[r], bounds[r + 1], several);
  }));
  EXPECT_TRUE(near_relative(several.out, one.out, 1e-13));
  EXPECT_TRUE(near_relative(several.d_z, one.d_z, 1e-12));
  EXPECT_TRUE(near_relative(several.d_bias.weight, one.d_bias.weight, 1e-12));
  const auto expected = nn::parameters(std::as_const(one.d_attention)), actual = nn::parameters(std::as_const(several.d_attention));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(near_relative(*actual[i].second, *expected[i].second, 1e-12)) << expected[i].first;

  // Compares one rank with algorithm 14 of AlphaFold: attention along each column of z, where the bias for query i and key j is computed from z[j,i].
  Tensor transposed = Tensor::copy_of(z.view().transpose(0, 1)), pair_bias(DType::f64, {kResidues, kResidues, 2}), wanted(DType::f64, z.shape()), actual_columns(DType::f64, z.shape());
  bias.forward(transposed, pair_bias);
  drawn_layer.forward({.query = transposed}, wanted, {.bias = pair_bias.view().move_axis(2, 0).unsqueeze(0)});
  expect_no_errors(run_ranks(1, [&](Communicator& communicator) { PairAttention(communicator, drawn_layer, bias, PairAxis::columns).forward(z, actual_columns); }));
  EXPECT_TRUE(near_relative(actual_columns, Tensor::copy_of(wanted.view().transpose(0, 1)), 1e-13));
}

}  // namespace
}  // namespace polyhead::test
