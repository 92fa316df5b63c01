/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp for PyTorch's C++ front end: opt levels and a GradScaler. docs/start/libtorch.md has the guide.
 *
 *     auto amp = amp::torch::initialize(model, optimizer, AMP_O2);             once
 *
 *     at::Tensor loss = criterion(amp.forward(model, images), labels);         every iteration
 *     optimizer.zero_grad();
 *     {
 *         auto scaled = amp.scale_loss(loss);
 *         scaled.backward();
 *     }
 *     amp.step(optimizer);                                                     false: it was skipped
 */
#ifndef AMP_TORCH_HPP
#define AMP_TORCH_HPP

#include "amp_torch/grad_scaler.hpp"
#include "amp_torch/session.hpp"

#endif /* AMP_TORCH_HPP */
