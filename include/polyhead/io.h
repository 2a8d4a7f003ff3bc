// Tensors and attention parameters in files: the component `io` (find_package(polyhead COMPONENTS io), target polyhead::io).
#pragma once

#include "polyhead/error.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/attention_parameters.h"
#include "polyhead/io/parameters.h"
#include "polyhead/io/image_file.h"
#include "polyhead/io/tensor_file.h"
