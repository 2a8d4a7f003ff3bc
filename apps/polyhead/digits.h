// Output of `polyhead try digits`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "polyhead/models/image_classifier.h"
#include "try_page.h"

namespace polyhead::app {

inline constexpr const char* kBuiltInDigits = "examples";  // value of --score for the images that are part of polyhead

struct GivenDigit {
  Tensor pixels;                        // [height,width] float32 as the model reads them, or the pixels [H,W,3] uint8 of a PNG or JPEG image
  std::string name;                     // names the input in messages
  std::optional<std::int64_t> label{};  // the true class; absent if it is not known
  const char* labelled_by = "";
};
// input: a PNG or JPEG image, or a file of several images; empty: the images that are part of polyhead. number: which of several images; absent: the first.
// UsageError if the file has no image of this number, or if `number` is given for a PNG or JPEG image.
GivenDigit read_digit(const std::string& input, std::optional<std::int64_t> number);

// Prints the class of an image, the image, and what the class token reads in each patch. Also writes the page, if `page` has a path.
void explain_digit(const models::ImageClassifier& model, const GivenDigit& digit, PageFile page, bool as_json);

// Prints how many images of `data` the model classifies correctly. data: a file of images with labels, or kBuiltInDigits.
void score_digits(const models::ImageClassifier& model, const std::string& data, bool as_json);

}  // namespace polyhead::app
