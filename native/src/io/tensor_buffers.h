/* Where a file's tensors are read to or written from: buffers of the caller's, without a copy in between. A tensor has
 * one buffer per layer, in the shape of parameter_shape(); one buffer is held at a time, in the file's order. */
#pragma once

#include "model/tensors.h"

struct tensor_buffers {
    void *context;
    status (*acquire)(void *context, enum starpullm_group group, enum parameter p, int layer,
                      float **values); /* NULL: not wanted, skipped and not released */
    void (*release)(void *context, enum starpullm_group group, enum parameter p, int layer); /* also after a failure */
};
