// Attention by the kernels of this folder. README.md has the mathematics and the figures.
#pragma once

#include <string>

#include "problem/problem.h"

namespace polyhead::cpu {

// Why the kernels cannot serve the problem; empty: they can.
std::string declines_forward(const Problem& problem);
std::string declines_backward(const Problem& problem);

void sdpa_forward(const ForwardProblem& problem);
void sdpa_backward(const BackwardProblem& problem);

// What explain() adds: "name: value" lines.
std::string facts_of_forward(const ForwardProblem& problem);

}  // namespace polyhead::cpu
