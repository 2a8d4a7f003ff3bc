// Task 5: a Vision Transformer on small images of digits.
#pragma once

#include "polyhead/models/image_classifier.h"
#include "training/task.h"

namespace polyhead::training {

struct Images {
  Tensor pixels;                     // [n,height,width] float32
  std::vector<std::int64_t> labels;  // class numbers, counted from 0
  double white = 1;                  // the largest pixel of all images
  std::int64_t classes = 0;
};

// Reads a file with the tensors `images` [n,height,width] and `labels` [n]: an npz or safetensors file.
Images read_images(const std::filesystem::path& path);

// True for every fifth image: it does not train a model, it validates the model.
constexpr bool validates(std::int64_t image) { return image % 5 == 4; }

std::unique_ptr<Task> digits_task(const TaskOptions& options);

// Returns the number of images that the model classifies correctly.
std::int64_t count_right(const models::ImageClassifier& model, const Images& images, const std::vector<std::int64_t>& which);

}  // namespace polyhead::training
