/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_shim.h"

#include "tap.hpp"

using at::Tensor;

static Tensor *given(Tensor tensor) { return new Tensor(std::move(tensor)); }

static std::vector<int64_t> shape_of(int64_t rows, int64_t columns) {
    return columns ? std::vector<int64_t>{rows, columns} : std::vector<int64_t>{rows};
}

static std::vector<Tensor> list_of(const amp_torch_tensor *tensors, size_t n) {
    std::vector<Tensor> list;
    for (size_t i = 0; i < n; i++) list.push_back(*tensors[i]);
    return list;
}

void torch_seed(uint64_t seed) { torch::manual_seed(seed); }

amp_torch_tensor torch_floats(const float *values, int64_t rows, int64_t columns) {
    return given(at::from_blob(const_cast<float *>(values), shape_of(rows, columns), at::kFloat).clone());
}
amp_torch_tensor torch_integers(const int64_t *values, int64_t n) {
    return given(at::from_blob(const_cast<int64_t *>(values), {n}, at::kLong).clone());
}
amp_torch_tensor torch_full(int64_t rows, int64_t columns, double value) {
    return given(at::full(shape_of(rows, columns), value, at::kFloat));
}
amp_torch_tensor torch_undefined(void) { return given(Tensor()); }
amp_torch_tensor torch_param(int64_t rows, int64_t columns, double bound) {
    return given(at::empty(shape_of(rows, columns), at::kFloat).uniform_(-bound, bound).set_requires_grad(true));
}
void torch_require_grad(amp_torch_tensor tensor) { tensor->set_requires_grad(true); }
void torch_free(amp_torch_tensor tensor) { delete tensor; }

amp_torch_tensor torch_rows(amp_torch_tensor tensor, const int64_t *rows, int64_t n) {
    return given(tensor->index_select(0, at::from_blob(const_cast<int64_t *>(rows), {n}, at::kLong)));
}
amp_torch_tensor torch_linear(amp_torch_tensor x, amp_torch_tensor weight, amp_torch_tensor bias) {
    return given(at::linear(*x, *weight, *bias));
}
amp_torch_tensor torch_batch_norm(amp_torch_tensor x, const amp_torch_tensor four[4], int32_t training) {
    return given(at::batch_norm(*x, *four[0], *four[1], *four[2], *four[3], training != 0, 0.1, 1e-5, false));
}
amp_torch_tensor torch_relu(amp_torch_tensor x) { return given(x->relu()); }
amp_torch_tensor torch_cross_entropy(amp_torch_tensor x, amp_torch_tensor labels) {
    return given(at::cross_entropy_loss(*x, *labels));
}
amp_torch_tensor torch_sum_of(amp_torch_tensor x, double factor) { return given((*x * factor).sum()); }
int64_t torch_correct(amp_torch_tensor logits, amp_torch_tensor labels) {
    return logits->argmax(1).eq(*labels).sum().item<int64_t>();
}

void torch_backward(amp_torch_tensor loss) { loss->backward(); }
amp_torch_tensor torch_grad(amp_torch_tensor param) { return param->grad().defined() ? given(param->grad()) : nullptr; }
void torch_clear_grad(amp_torch_tensor param) { param->mutable_grad() = Tensor(); }
void torch_fill_grad(amp_torch_tensor param, double value) {
    param->mutable_grad() = at::full_like(*param, value, param->options().requires_grad(false));
}

void torch_scale_(amp_torch_tensor tensor, double factor) {
    const torch::NoGradGuard no_grad;
    tensor->mul_(factor);
}
void torch_add_(amp_torch_tensor tensor, amp_torch_tensor other, double factor) {
    const torch::NoGradGuard no_grad;
    tensor->add_(*other, factor);
}

double torch_value(amp_torch_tensor tensor, int64_t i) {
    return tensor->detach().reshape({-1})[i].to(at::kDouble).item<double>();
}
int64_t torch_numel(amp_torch_tensor tensor) { return tensor->numel(); }
amp_dtype torch_type(amp_torch_tensor tensor) { return amp::torch::detail::to_amp(tensor->scalar_type()); }
int32_t torch_same(amp_torch_tensor a, amp_torch_tensor b) { return tap::same(*a, *b); }

amp_torch_optimizer torch_sgd(const amp_torch_tensor *params, size_t n, double rate, double momentum) {
    return new torch::optim::SGD(list_of(params, n), torch::optim::SGDOptions(rate).momentum(momentum));
}
void torch_optimizer_add(amp_torch_optimizer optimizer, amp_torch_tensor tensor, size_t group) {
    auto &groups = optimizer->param_groups();
    while (groups.size() <= group) {
        groups.push_back(torch::optim::OptimizerParamGroup({}, optimizer->defaults().clone()));
    }
    groups[group].params().push_back(*tensor);
}
void torch_optimizer_zero_grad(amp_torch_optimizer optimizer) { optimizer->zero_grad(); }
void torch_sgd_set_rate(amp_torch_optimizer optimizer, double rate) {
    for (auto &group : optimizer->param_groups()) group.options().set_lr(rate);
}
amp_torch_tensor torch_shallow_clone(amp_torch_tensor tensor) { return new torch::Tensor(*tensor); }
amp_torch_optimizer torch_lbfgs(const amp_torch_tensor *params, size_t n) {
    return new torch::optim::LBFGS(list_of(params, n));
}
void torch_optimizer_free(amp_torch_optimizer optimizer) { delete optimizer; }

int32_t torch_throw(void *self) {
    if (self) TORCH_CHECK(false, "torch broke");
    throw std::runtime_error("the update broke");
}
