#include "digits.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "command.h"
#include "core/text.h"
#include "digit_image.h"
#include "format.h"
#include "heatmap.h"
#include "json.h"
#include "parser.h"
#include "polyhead/error.h"
#include "polyhead/io/image_file.h"
#include "polyhead/models/default_models.h"
#include "terminal.h"
#include "text_layout.h"
#include "training/digits.h"
#include "view_head.h"

namespace polyhead::app {
namespace {

training::Images built_in_images() { return training::read_images(models::default_model("digits") / "examples.safetensors"); }

// Reads a file of several images; the Error for a file of another kind says that PNG and JPEG images are read too.
training::Images images_of(const std::string& path) {
  try {
    return training::read_images(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::format && error.code() != ErrorCode::unsupported) throw;
    fail(error.code(), error.what(), "; an image of a digit is a PNG or JPEG file");
  }
}

// The image as shaded blocks for the terminal, two columns for each pixel.
std::string drawn(const Tensor& pixels, double white, std::size_t width) {
  static constexpr std::array kShades{"  ", "\u2591\u2591", "\u2592\u2592", "\u2593\u2593", "\u2588\u2588"};
  const std::int64_t rows = pixels.extent(0), columns = pixels.extent(1);
  if (static_cast<std::size_t>(2 * columns + 2) > width) return "";
  std::string text;
  for (std::int64_t y = 0; y < rows; ++y) {
    std::string line = "  ";
    for (std::int64_t x = 0; x < columns; ++x) append(line, kShades[static_cast<std::size_t>(std::clamp(static_cast<double>(pixels.data<float>()[y * columns + x]) / white * 4 + 0.5, 0.0, 4.0))]);
    append(text, trimmed(line) + "\n");
  }
  return text;
}

// A heatmap of the class token's attention to each patch: the mean over the heads of the last layer.
std::string patches_read(const models::ImageClassifierConfig& c, const models::ClassifiedImage& answer, std::size_t width) {
  const HeadChoice choice = choose_head(c.layers - 1, std::nullopt, true, c.layers, c.heads);
  const Tensor map = chosen_map(answer.attentions, {}, choice);
  const std::int64_t rows = c.height / c.patch, columns = c.width / c.patch;
  const Tensor patches = Tensor::copy_of(map.view().select(0, 0).slice(0, 1, 1 + c.patches()).unflatten(0, {rows, columns}));
  return cat(wrap(cat(choice.description(), "; what the class token reads in each patch, in percent"), width), "\n", render({.weights = patches, .rows = numbers_to(rows), .columns = numbers_to(columns)}, width, colour_of_stdout()));
}

}  // namespace

GivenDigit read_digit(const std::string& input, std::optional<std::int64_t> number) {
  if (io::is_image(input)) {
    if (number) throw UsageError(cat("--number chooses one of several images; '", input, "' is one image"));
    return {.pixels = io::read_image(input), .name = cat("'", input, "'")};
  }
  const training::Images images = input.empty() ? built_in_images() : images_of(input);
  const std::int64_t count = std::ssize(images.labels), chosen = number.value_or(0);
  if (chosen >= count) throw UsageError(cat("--number: there is no image ", chosen, "; ", input.empty() ? "polyhead" : "the file", " has the images 0 to ", count - 1));
  return {.pixels = Tensor::copy_of(images.pixels.view().select(0, chosen)), .name = input, .label = images.labels[static_cast<std::size_t>(chosen)], .labelled_by = input.empty() ? "the data set" : "the file"};
}

void explain_digit(const models::ImageClassifier& model, const GivenDigit& digit, PageFile page, bool as_json) {
  const models::ImageClassifierConfig& c = model.config;
  const Tensor pixels = digit.pixels.dtype() == DType::u8 ? digit_of_image(digit.pixels, c.height, c.width, c.white, digit.name) : digit.pixels;
  const models::ClassifiedImage answer = models::classify(model, pixels);
  page.answer = best_class(answer);
  if (digit.label) page.answer += cat("; ", digit.labelled_by, " says ", *digit.label);
  if (!page.path.empty()) write_page(page, model, pixels, answer);
  if (as_json) {
    Json json{{"class", answer.best}, {"probabilities", answer.probabilities}, {"attentions", number_json(answer.attentions)}};
    if (digit.label) json["label"] = *digit.label;
    return print_json(json);
  }
  const std::size_t width = terminal_width(Stream::out);
  print(cat(page.answer, "\n\n", drawn(pixels, c.white, width), "\n", patches_read(c, answer, width)));
}

void score_digits(const models::ImageClassifier& model, const std::string& data, bool as_json) {
  const training::Images images = data == kBuiltInDigits ? built_in_images() : training::read_images(data);
  std::vector<std::int64_t> all(images.labels.size());
  std::iota(all.begin(), all.end(), 0);
  const std::int64_t right = training::count_right(model, images, all);
  const double accuracy = static_cast<double>(right) / static_cast<double>(all.size());
  if (as_json) return print_json({{"accuracy", accuracy}, {"right", right}, {"images", all.size()}});
  print(cat("accuracy ", fixed(accuracy, 4), " (", right, " of ", counted(all.size(), "image"), ")\n"));
}

}  // namespace polyhead::app
