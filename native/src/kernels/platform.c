/* The kernels with an elementary function, but with the platform's libm instead of kernels/elementary: the source of
 * kernels/ref, for comparison with what was built as usual. */
#include <math.h>

#include "kernels/level.h"
#include "kernels/ref/ref.h"

#define cr_coshf coshf
#define cr_expf expf
#define cr_logf logf
#define cr_powf powf
#define cr_tanhf tanhf
#define adamw_update_ref adamw_update_platform
#define attention_backward_ref attention_backward_platform
#define attention_forward_ref attention_forward_platform
#define crossentropy_forward_ref crossentropy_forward_platform
#define crossentropy_softmax_backward_ref crossentropy_softmax_backward_platform
#define gelu_backward_ref gelu_backward_platform
#define gelu_forward_ref gelu_forward_platform
#define mean_loss_ref mean_loss_platform
#define softmax_forward_ref softmax_forward_platform

#include "kernels/ref/adamw.c"
#include "kernels/ref/attention.c"
#include "kernels/ref/crossentropy.c"
#include "kernels/ref/gelu.c"
#include "kernels/ref/softmax.c"

void kernels_override_platform(struct kernels *kernels)
{
    kernels->adamw_update = adamw_update_platform;
    kernels->attention_forward = attention_forward_platform;
    kernels->crossentropy_forward = crossentropy_forward_platform;
    kernels->gelu_backward = gelu_backward_platform;
    kernels->gelu_forward = gelu_forward_platform;
    kernels->softmax_forward = softmax_forward_platform;
}
