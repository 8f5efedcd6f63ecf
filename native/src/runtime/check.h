/* What a runtime's options must satisfy on this machine, and with this build of StarPU. */
#pragma once

#include "runtime/topology.h"

status check_runtime_options(const struct starpullm_runtime_options *options, const struct topology *topology);
