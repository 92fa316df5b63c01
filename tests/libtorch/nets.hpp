/* SPDX-License-Identifier: Apache-2.0 */
/* A small model and an iteration of it at a level, for tests of sessions and of their files. */
#ifndef NETS_HPP
#define NETS_HPP

#include "../support/levels.h"
#include "tap.hpp"

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;

inline const amp_level all_levels[] = {EACH_LEVEL};
inline const amp_level low_levels[] = {AMP_O2, AMP_O3, AMP_O5};

inline std::string named(const char *what, amp_level level) {
    return std::string(what) + ", O" + std::to_string(level - AMP_O0);
}

inline nn::Sequential net_of(std::int64_t width = 4) {
    return nn::Sequential(nn::Linear(width, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Linear(8, 2));
}

inline bool finite(const nn::Sequential &net) {
    for (const at::Tensor &param : net->parameters())
        if (!param.isfinite().all().item<bool>()) return false;
    return true;
}

inline void iterate(amp::torch::session &amp, nn::Sequential &net, optim::Optimizer &optimizer, const at::Tensor &x) {
    optimizer.zero_grad();
    auto scaled = amp.scale_loss(amp.forward(net, x).to(at::kFloat).pow(2).mean(), {&optimizer});
    scaled.backward();
}

template <class Call> inline bool refused(amp_status status, const char *words, Call &&call) {
    try {
        call();
        std::printf("# nothing was thrown\n");
        return false;
    } catch (const amp::error &error) {
        if (error.status() == status && std::string(error.what()).find(words) != std::string::npos) return true;
        std::printf("# %s\n", error.what());
        return false;
    }
}

#endif
