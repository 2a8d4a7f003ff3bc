// `polyhead view` for images. The patches of an image are the tokens.
#pragma once

#include "view_options.h"

namespace polyhead::app {

// A model with encoders of images and of texts shows the text, of which there is at most one, beside the images.
void view_images(const ViewOptions& given);

}  // namespace polyhead::app
