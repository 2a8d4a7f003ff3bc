// Attention over several processes: the component `distributed`, built with -DPOLYHEAD_BUILD_DISTRIBUTED=ON. The component `mpi`
// (polyhead/distributed/mpi.h) has the communicator over MPI.
#pragma once

#include "polyhead/distributed/attention.h"
#include "polyhead/distributed/collectives.h"
#include "polyhead/distributed/communicator.h"
#include "polyhead/distributed/layers.h"
#include "polyhead/distributed/plan.h"
#include "polyhead/distributed/slices.h"
