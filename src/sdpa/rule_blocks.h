// Finds the blocks of pairs to which a score rule gives the score -infinity (ScoreRule::masks), and adds them to the mask, so that kernels skip them.
#pragma once

#include <initializer_list>

#include "problem/problem.h"

namespace polyhead {

// Does nothing if skipping could change a result: a pair with the score -infinity has the probability 0, but 0 times a NaN or an infinity in `tensors` is NaN.
// `memory` must be that of the problem's normal_form().
void skip_blocks_of_rule(const Problem& problem, std::initializer_list<ConstTensorView> tensors, ProblemMemory& memory);

}  // namespace polyhead
