/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scaler alone, without a framework:
 *
 *     cc scaler.c $(pkg-config --cflags --libs libamp)
 */
#include <amp_raw.h>
#include <stdio.h>
int main(void) {
    float weight = 0.0f, gradient = 0.0f;
    amp_buffer grad = AMP_BUFFER_INIT, param = AMP_BUFFER_INIT;
    grad.data = &gradient, param.data = &weight, param.grad = &grad, grad.size = param.size = 1;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
    optimizer.host = amp_buffer_host(), optimizer.params = (void *[]){ &param }, optimizer.n_params = 1;
    if (amp_initialize(NULL, &optimizer, AMP_O1)) return puts(amp_last_error()), 1;
    for (int i = 0; i < 100; i++, gradient = 0.0f) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        amp_step_info info = AMP_STEP_INFO_INIT;
        if (amp_scale_loss_begin(&optimizer, NULL, &scaled)) return puts(amp_last_error()), 1;
        gradient += 2.0f * (weight - 3.0f) * amp_seed_factor(&scaled); /* backward of the loss times its scale */
        if (amp_scale_loss_end(&scaled) || amp_step_begin(&optimizer, &info)) return puts(amp_last_error()), 1;
        if (info.action == AMP_STEP) weight -= 0.1f * gradient; /* otherwise an overflow: the step is skipped */
        if (amp_step_end(&optimizer)) return puts(amp_last_error()), 1;
    }
    return amp_shutdown(optimizer.amp) || printf("weight %.3f\n", weight) < 0;
}
