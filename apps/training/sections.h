// The parts of an abstract that three heads of the summary model are trained to read.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/tensor.h"

namespace polyhead::training {

// The number of a section is the number of the head that reads it.
enum class Section : std::int64_t { background, method, result };
inline constexpr std::array kSectionNames{"background", "method", "result"};

// The names of the sections that the first heads of layer 0 are trained to read, one section for each head. `heads`: the number of heads; there are at most three sections.
std::vector<std::string> sections_of_heads(std::int64_t heads);

// A section for each sentence of an abstract, by its words. Authors first tell what is known, and then speak of themselves ("we", "our", "this paper"): sentences
// before the first such sentence are background. Of the others, a sentence with a word such as "results" or "outperforms" is a result, any other is
// method. Empty if no sentence speaks of the authors.
std::vector<Section> sections_of(std::span<const std::string> sentences);

// Returns weight * mean over texts b of (sum over sections h of (mean over rows t of -log(sum of p[b,h,t,s] over the sentences s of section h))). A section adds no
// term for a text that lacks it or consists of it alone. p [B,sections,S,S] float32: the attention weights of the guided heads. sections: for each text those of its
// sentences; empty if they are not known. Adds the gradient by p to d_p, which has the shape of p.
double section_loss(const Tensor& p, std::span<const std::vector<Section>> sections, double weight, Tensor& d_p);

}  // namespace polyhead::training
