// What the page of a training run's snapshots shows at each step: the answers of the saved models to a few texts or images, with their attention maps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/viewer.h"

namespace polyhead::app {

class ShownSnapshots {
 public:
  ShownSnapshots() = default;
  ShownSnapshots(const ShownSnapshots&) = delete;
  ShownSnapshots& operator=(const ShownSnapshots&) = delete;
  virtual ~ShownSnapshots() = default;

  virtual std::vector<std::string> names() const = 0;  // of the texts or images
  // The number of attention weights of one snapshot, or an estimate. `model`: the folder of a snapshot. Error if its model cannot read one of the texts.
  virtual std::int64_t weights(const std::filesystem::path& model) const = 0;
  virtual bool estimates() const { return false; }
  // Called before add(). `model`: the folder of the last snapshot.
  virtual void begin([[maybe_unused]] const std::filesystem::path& model) {}
  // Adds the texts of one snapshot to the page, whose views point into this object.
  virtual void add(viewer::Page& page, std::int64_t step, const std::filesystem::path& model) = 0;
};

// task: classify, digits, summarise or translate. texts: what the models read; if empty, an example. For the task digits instead: numbers of images in the file `data`; if empty, the first images that only
// validate. guided: whether the translator's training guides a head. Error for an image that the file does not have, and for a text to summarise that has fewer than two sentences.
std::unique_ptr<ShownSnapshots> show_snapshots(const std::string& task, std::vector<std::string> texts, const std::vector<std::int64_t>& numbers, const std::filesystem::path& data, bool guided = true);

}  // namespace polyhead::app
