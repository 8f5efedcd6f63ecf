/* Where a file's parameters are read to: buffers of the caller's, without a copy in between.
 *
 * A parameter has one buffer per layer, in the shape of parameter_shape(). One buffer is held at a time, in the file's
 * order: acquire() gives it, and release() follows every acquire() that returned STARPULLM_OK, also when reading
 * failed. */
#ifndef STARPULLM_TENSOR_DESTINATION_H
#define STARPULLM_TENSOR_DESTINATION_H

#include "model/tensors.h"

struct tensor_destination {
    void *context;
    status (*acquire)(void *context, enum starpullm_group group, enum parameter p, int layer,
                      float **values); /* NULL: not wanted, skipped */
    void (*release)(void *context, enum starpullm_group group, enum parameter p, int layer);
};

#endif
