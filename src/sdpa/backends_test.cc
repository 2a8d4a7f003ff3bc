// Tests how a backend is chosen, how a caller forces a backend, and what explain() says about the choice.
#include <gmock/gmock.h>

#include "sdpa/backend.h"
#include "support/compare.h"

namespace polyhead::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

int forward_calls = 0;

const Backend kNarrow{
    .name = "narrow",
    .declines = [](const Problem& problem, Operation operation) -> std::string {
      if (operation != Operation::forward) return "it has no gradient";
      return problem.keys > 4 ? "more than 4 keys" : "";
    },
    .forward =
        [](const ForwardProblem& problem) {
          ++forward_calls;
          fill(problem.out, 42);
        },
};

struct Small {
  Tensor q{DType::f32, {2, 4, 3, 8}}, k{DType::f32, {2, 2, 4, 8}}, v{DType::f32, {2, 2, 4, 6}}, out{DType::f32, {2, 4, 3, 6}},
      lse{DType::f32, {2, 4, 3}};
  SdpaForward forward() { return {.q = q, .k = k, .v = v, .out = out, .lse = lse}; }
};

TEST(Backends, ReferenceIsTheLastResort) {
  const std::vector<const Backend*> list = backends();
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(backend_name(*list.back()), "reference");
  EXPECT_EQ(&find_backend("reference"), list.back());
}

TEST(Backends, UnknownNameIsAnErrorThatListsTheNames) {
  const std::string message = error_message([] { find_backend("metal"); });
  EXPECT_THAT(message, HasSubstr("'metal'"));
  for (const Backend* backend : backends()) EXPECT_THAT(message, HasSubstr(std::string(backend_name(*backend))));
}

TEST(Backends, AForcedBackendRuns) {
  Small s;
  forward_calls = 0;
  sdpa_forward(s.forward(), {.backend = &kNarrow});
  EXPECT_EQ(forward_calls, 1);
  EXPECT_EQ(to_doubles(s.out)[0], 42);
}

TEST(Backends, IfAForcedBackendDeclinesItIsAnErrorAndNoOtherRuns) {
  Small s;
  s.k = Tensor(DType::f32, {2, 2, 5, 8}), s.v = Tensor(DType::f32, {2, 2, 5, 6});
  fill(s.out, 7);
  forward_calls = 0;
  try {
    sdpa_forward(s.forward(), {.backend = &kNarrow});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'narrow'"), HasSubstr("forward"), HasSubstr("more than 4 keys")));
  }
  EXPECT_EQ(forward_calls, 0);
  EXPECT_EQ(to_doubles(s.out)[0], 7);
  Small b;
  EXPECT_THAT(error_message([&] {
                sdpa_backward({.q = b.q, .k = b.k, .v = b.v, .out = b.out, .lse = b.lse, .d_out = during_call(Tensor(b.out))}, {.backend = &kNarrow});
              }),
              testing::AllOf(HasSubstr("backward"), HasSubstr("it has no gradient")));
}

TEST(Explain, SaysThePathTheSizesAndTheRules) {
  Small s;
  const Tensor bias(DType::f32, {4, 3, 4}), lengths = Tensor::of<std::int64_t>({2}, {1, 4}), attend(DType::boolean, {3, 4});
  const std::string text = explain(s.forward(), {.scale = 0.5,
                                                 .mask = {.causal = Causal::bottom_right(), .key_lengths = lengths, .attend = attend},
                                                 .bias = bias,
                                                 .softcap = 30,
                                                 .dropout = {.p = 0.25, .seed = 1}});
  for (const char* fact :
       {"backend: ", "float32", "B 2", "N 4", "K 2", "T 3", "S 4", "H 8", "V 6", "scale: 0.5", "softcap 30", "key lengths per sequence",
        "dense booleans [3,4]", "keys [0, t+2)", "bias: [4,3,4]", "dropout: 0.25, bits drawn per pair", "threads: "}) {
    EXPECT_THAT(text, HasSubstr(fact));
  }
}

TEST(Explain, ShowsOnlyTheBoundsThatExcludeKeys) {
  Small s;  // 3 queries and 4 keys
  const auto mask = [&](Mask rule) { return explain(s.forward(), {.mask = rule}); };
  EXPECT_THAT(mask({.causal = Causal::offset(0)}), HasSubstr("mask: keys [0, t+1) of each row"));
  EXPECT_THAT(mask({.causal = Causal::offset(-1)}), HasSubstr("mask: keys [0, t) of each row"));
  EXPECT_THAT(mask({.causal = Causal::offset(3)}), HasSubstr("mask: keys [0, S) of each row"));
  EXPECT_THAT(mask({.window = {.left = 1, .diagonal = Diagonal::top_left()}}), HasSubstr("mask: keys [t-1, S) of each row"));
  EXPECT_THAT(mask({.window = {.left = 1, .right = 1}}), HasSubstr("mask: keys [t, t+3) of each row"));
}

TEST(Explain, NamesAForcedBackendAndWhyItWouldDecline) {
  Small s;
  EXPECT_THAT(explain(s.forward(), {.backend = &kNarrow}), AllOf(HasSubstr("backend: narrow (asked for)"), HasSubstr("derivatives: narrow declines backward: it has no gradient; ")));
  s.k = Tensor(DType::f32, {2, 2, 5, 8}), s.v = Tensor(DType::f32, {2, 2, 5, 6});
  EXPECT_THAT(error_message([&] { explain(s.forward(), {.backend = &kNarrow}); }), HasSubstr("more than 4 keys"));
}

TEST(Explain, CachesOfAnotherDtypeHaveNoDerivatives) {
  Small s;
  s.k = Tensor(DType::bf16, s.k.shape()), s.v = Tensor(DType::bf16, s.v.shape());
  EXPECT_THAT(explain(s.forward()), HasSubstr("derivatives: none: k and v are bfloat16 and q is float32\n"));
}

TEST(Explain, WithoutRulesSaysNone) {
  Small s;
  const std::string text = explain(s.forward());
  for (const char* fact : {"mask: none", "bias: none", "dropout: none"}) EXPECT_THAT(text, HasSubstr(fact));
  EXPECT_THAT(error_message([&] { explain({.q = s.q}); }), HasSubstr("explain: "));
}

}  // namespace
}  // namespace polyhead::test
