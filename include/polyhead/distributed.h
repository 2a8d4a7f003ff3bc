// Includes all headers of the component `distributed`, which computes attention over several processes. CMake builds the component with
// -DPOLYHEAD_BUILD_DISTRIBUTED=ON. A communicator over MPI is in the component `mpi` (polyhead/distributed/mpi.h).
#pragma once

#include "polyhead/distributed/attention.h"
#include "polyhead/distributed/collectives.h"
#include "polyhead/distributed/communicator.h"
#include "polyhead/distributed/layers.h"
#include "polyhead/distributed/plan.h"
#include "polyhead/distributed/slices.h"
