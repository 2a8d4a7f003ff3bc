// Attention over several processes: part of polyhead::polyhead where that was built with POLYHEAD_BUILD_DISTRIBUTED. The component `mpi`
// (polyhead/distributed/mpi.h) has the communicator over MPI.
#pragma once

#include "polyhead/distributed/attention.h"
#include "polyhead/distributed/collectives.h"
#include "polyhead/distributed/communicator.h"
#include "polyhead/distributed/layers.h"
#include "polyhead/distributed/plan.h"
#include "polyhead/distributed/slices.h"
