/* What a runtime's options must satisfy on this machine, and with this build of StarPU. */
#ifndef STARPULLM_RUNTIME_CHECK_H
#define STARPULLM_RUNTIME_CHECK_H

#include "runtime/topology.h"

status check_runtime_options(const struct starpullm_runtime_options *options, const struct topology *topology);

#endif
