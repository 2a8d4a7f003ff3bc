// Models read from files, with their tokenizer: the component `models` (find_package(polyhead COMPONENTS models), target polyhead::models).
#pragma once

#include "polyhead/error.h"
#include "polyhead/models/ablation.h"
#include "polyhead/models/any_text_model.h"
#include "polyhead/models/attention_layer.h"
#include "polyhead/models/bert.h"
#include "polyhead/models/byte_pair_tokenizer.h"
#include "polyhead/models/default_models.h"
#include "polyhead/models/encoder_layer.h"
#include "polyhead/models/image_classifier.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/sentence_chooser.h"
#include "polyhead/models/sentence_model.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/models/tokenizer.h"
#include "polyhead/models/translator.h"
