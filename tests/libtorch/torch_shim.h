/* SPDX-License-Identifier: Apache-2.0 */
/* As much of libtorch in C as the tests of amp_torch.h need, in the way of the bindings: a tensor is a torch::Tensor *,
 * what is returned is the caller's, who ends it with torch_free. Errors end the program. */
#ifndef TORCH_SHIM_H
#define TORCH_SHIM_H

#include <amp_torch.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHIM AMP_API

SHIM void torch_seed(uint64_t seed);

SHIM amp_torch_tensor torch_floats(const float *values, int64_t rows, int64_t columns);
SHIM amp_torch_tensor torch_integers(const int64_t *values, int64_t n);
SHIM amp_torch_tensor torch_full(int64_t rows, int64_t columns, double value); /* columns 0: of one dimension */
SHIM amp_torch_tensor torch_undefined(void);
SHIM amp_torch_tensor torch_param(int64_t rows, int64_t columns, double bound); /* random, and requires a gradient */
SHIM void torch_require_grad(amp_torch_tensor tensor);
/* Another handle of the same tensor. */
SHIM amp_torch_tensor torch_shallow_clone(amp_torch_tensor tensor);
SHIM void torch_free(amp_torch_tensor tensor);

SHIM amp_torch_tensor torch_rows(amp_torch_tensor tensor, const int64_t *rows, int64_t n);
SHIM amp_torch_tensor torch_linear(amp_torch_tensor x, amp_torch_tensor weight, amp_torch_tensor bias);
SHIM amp_torch_tensor torch_batch_norm(amp_torch_tensor x, const amp_torch_tensor four[4], int32_t training);
SHIM amp_torch_tensor torch_relu(amp_torch_tensor x);
SHIM amp_torch_tensor torch_cross_entropy(amp_torch_tensor x, amp_torch_tensor labels);
SHIM amp_torch_tensor torch_sum_of(amp_torch_tensor x, double factor); /* of x * factor */
SHIM int64_t torch_correct(amp_torch_tensor logits, amp_torch_tensor labels);

SHIM void torch_backward(amp_torch_tensor loss);
SHIM amp_torch_tensor torch_grad(amp_torch_tensor param); /* NULL: none */
SHIM void torch_clear_grad(amp_torch_tensor param);
SHIM void torch_fill_grad(amp_torch_tensor param, double value);

/* Without the tape. */
SHIM void torch_scale_(amp_torch_tensor tensor, double factor);
SHIM void torch_add_(amp_torch_tensor tensor, amp_torch_tensor other, double factor);

SHIM double torch_value(amp_torch_tensor tensor, int64_t i);
SHIM int64_t torch_numel(amp_torch_tensor tensor);
SHIM amp_dtype torch_type(amp_torch_tensor tensor);
SHIM int32_t torch_same(amp_torch_tensor a, amp_torch_tensor b); /* to the bit */

SHIM amp_torch_optimizer torch_sgd(const amp_torch_tensor *params, size_t n, double rate, double momentum);
/* As ato_add_parameters of tch-rs: one tensor, to a group, with those before it. */
SHIM void torch_optimizer_add(amp_torch_optimizer optimizer, amp_torch_tensor tensor, size_t group);
SHIM void torch_optimizer_zero_grad(amp_torch_optimizer optimizer);
SHIM void torch_sgd_set_rate(amp_torch_optimizer optimizer, double rate);
SHIM amp_torch_optimizer torch_lbfgs(const amp_torch_tensor *params, size_t n);
SHIM void torch_optimizer_free(amp_torch_optimizer optimizer);

/* An update that throws a std::runtime_error, "the update broke", or with self a torch error, "torch broke". */
SHIM int32_t torch_throw(void *self);

#ifdef __cplusplus
}
#endif

#endif
