#include "polyhead/models/model_families.h"

#include "models/encoder_families.h"
#include "models/sequence_families.h"
#include "models/vision_families.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {

std::vector<ModelFamily> model_families() {
  std::vector<ModelFamily> all;
  const auto add = [&](std::string_view kind, const auto& rows) {
    for (const auto& row : rows) all.push_back({kind, row.model_type});
  };
  add("encoder", encoder_family_rows());
  const auto refused_encoders = refused_encoder_families(), refused_sequences = refused_sequence_families();
  all.insert(all.end(), refused_encoders.begin(), refused_encoders.end());
  for (const std::string_view model_type : language_families()) all.push_back({"decoder", model_type});
  add("two sides", sequence_family_rows());
  all.insert(all.end(), refused_sequences.begin(), refused_sequences.end());
  add("images", vision_family_rows());
  add("images and texts", image_text_family_rows());
  return all;
}

}  // namespace polyhead::models
