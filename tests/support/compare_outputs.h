// Compares the outputs of two calls of attention bit for bit.
#pragma once

#include "support/attention_case.h"

namespace polyhead::test {

void expect_same_bits(const AttentionOutputs& actual, const AttentionOutputs& expected);

}  // namespace polyhead::test
