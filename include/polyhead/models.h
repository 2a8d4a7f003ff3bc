// Models read from files, with their tokenizer: the component `models` (find_package(polyhead COMPONENTS models), target polyhead::models).
#pragma once

#include "polyhead/error.h"
#include "polyhead/models/ablation.h"
#include "polyhead/models/attention_layer.h"
#include "polyhead/models/bert.h"
#include "polyhead/models/encoder_layer.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/sentence_model.h"
#include "polyhead/models/tokenizer.h"
