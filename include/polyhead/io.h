// Includes all headers of the component `io`, which reads and writes files of tensors and of attention parameters
// (find_package(polyhead COMPONENTS io), target polyhead::io).
#pragma once

#include "polyhead/error.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/attention_parameters.h"
#include "polyhead/io/parameters.h"
#include "polyhead/io/image_file.h"
#include "polyhead/io/tensor_file.h"
