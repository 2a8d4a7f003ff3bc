// The measures of a model's heads over many texts, for `polyhead view --texts`: as lines of the terminal, and as JSON.
#pragma once

#include <cstddef>
#include <string>

#include "json.h"
#include "polyhead/head_measures.h"

namespace polyhead::app {

// For each measure the heads with the largest means, and the heads that it names.
std::string describe(const viewer::MeasuredTexts& measured, std::size_t width);

// {texts, tokens: [shortest, longest], values: {measure: [[layer][head] {mean, spread, texts, held, named}]}}
Json to_json(const viewer::MeasuredTexts& measured);

}  // namespace polyhead::app
