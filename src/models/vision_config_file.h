// Reads config.json of an image encoder.
#pragma once

#include <array>
#include <utility>

#include "models/config_file.h"
#include "models/vision_families.h"
#include "polyhead/models/image_processor.h"

namespace polyhead::models {

constexpr std::int64_t kMostPixels = 1 << 16;  // maximum height and width of an image
// Reads a number, or a list of height and width.
std::pair<std::int64_t, std::int64_t> read_sides(ConfigFile& file, std::string_view key, std::int64_t otherwise);
constexpr std::int64_t kMostChannels = 1 << 10;

// Returns the family that a config.json names: an image encoder, or a model with an image and a text encoder. If it is not known, the Error lists the known
// families.
const VisionFamily& vision_family_of(ConfigFile& file);
VisionConfig read_vision_config(ConfigFile& file);
// Returns whether timm wrote the file.
bool is_timm(ConfigFile& file);
VisionConfig read_timm_config(ConfigFile& file);
ImageProcessor read_timm_processor(ConfigFile& file);
// Reads three numbers, for red, green and blue.
std::array<double, 3> read_colours(ConfigFile& file, std::string_view key, const std::array<double, 3>& otherwise, bool positive);
// Returns the object "vision_config" or "text_config".
ConfigFile side_of(ConfigFile& file, std::string_view key);
const TextSideFamily& text_side_family_of(ConfigFile& file);
TextSideConfig read_text_side_config(ConfigFile& file);
// Error if config.json of a model with an image and a text encoder has an unknown key at its root.
void require_pair_read(ConfigFile& file);
// Returns the names of the classes in the order of their numbers; empty if id2label does not give them in this form.
std::vector<std::string> read_labels(const ConfigFile& file);

}  // namespace polyhead::models
