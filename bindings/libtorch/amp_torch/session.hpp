/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp::torch::initialize: opt levels for torch::nn::Module and torch::optim::Optimizer.
 */
#ifndef AMP_TORCH_SESSION_HPP
#define AMP_TORCH_SESSION_HPP

#include "files.hpp"
#include "iteration.hpp"

#include <initializer_list>
#include <memory>

namespace amp::torch {

/* Models and optimizers under one level. Ends with amp_shutdown: the models have FP32 parameters again. Modules and
 * optimizers must live longer. */
class session {
public:
    /* None yet: assign one to it. */
    session() = default;
    session(const std::vector<::torch::nn::Module *> &modules,
            const std::vector<::torch::optim::Optimizer *> &optimizers, amp_level level, options settings = {})
        : state_(std::make_shared<detail::session_state>()) {
        state_->settings = std::move(settings);
        state_->open(modules, optimizers, level);
    }
    session(session &&) = default;
    /* The one that was here ends first. */
    session &operator=(session &&other) noexcept {
        if (this == &other) return *this;
        reset();
        state_ = std::move(other.state_);
        return *this;
    }
    ~session() { reset(); }

    /* Ends it now. Guards and brackets that are left hold on to the models until they end, and are good for nothing
     * else. */
    void reset() noexcept {
        if (state_) state_->ended = true;
        state_.reset();
    }
    /* Whether there is one. */
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /* ---- every iteration ---- */

    /* model->forward(inputs...) as the level has it: inputs and outputs cast at O0, O2, O3 and O5, ops at O1 and O4. */
    template <class M, class... Inputs> auto forward(M &&model, Inputs &&...inputs) {
        const auto state = ready();
        auto &module = detail::module_of(model);
        state->find(module);
        const detail::policy_guard guard(detail::policy{state->casts_ops ? state.get() : nullptr});
        return detail::run_forward(state->context, &static_cast<::torch::nn::Module &>(module), module,
                                   std::index_sequence_for<Inputs...>(), std::forward<Inputs>(inputs)...);
    }

    /* A bracket for the gradients of `some` (all, if none are named). */
    scaled_loss scale_loss(const at::Tensor &loss, const std::vector<::torch::optim::Optimizer *> &some = {},
                           std::uint32_t loss_id = 0, std::uint32_t flags = 0) {
        const auto state = ready();
        std::vector<detail::described_optimizer *> list;
        for (auto *optimizer : some) list.push_back(&state->find(*optimizer));
        if (some.empty())
            for (auto &entry : state->optimizers) list.push_back(entry.get());
        return scaled_loss(state, std::move(list), loss, loss_id, flags);
    }

    /* optimizer.step(), on FP32 masters where the level has them; false: it was skipped. */
    bool step(::torch::optim::Optimizer &optimizer) {
        const auto state = ready();
        return detail::step(*state, state->find(optimizer), [&] { optimizer.step(); });
    }

    /* ---- more ---- */

    /* The level's ops for code outside of a forward: losses, metrics, blocks of one's own. Forwards inside share the
     * casts of their weights; the outermost of such guards and forwards casts them anew. */
    scope_guard autocast() { return scope_guard(ready()); }

    /* What the optimizer updates: masters with their gradients where there are masters, else the parameters. Valid
     * until the next bracket or step. */
    std::vector<at::Tensor> master_params(::torch::optim::Optimizer &optimizer) {
        const auto state = ready();
        return detail::masters_of(*state, state->find(optimizer));
    }

    /* Between the bracket and the step: the norm before. */
    double clip_grad_norm(::torch::optim::Optimizer &optimizer, double max_norm) {
        const auto state = ready();
        return detail::clip_grad_norm(*state, state->find(optimizer), max_norm);
    }

    /* optimizer.add_param_group(group), mid-run: parameters of the model that were frozen, or new ones in FP32. */
    void add_param_group(::torch::optim::Optimizer &optimizer, const ::torch::optim::OptimizerParamGroup &group) {
        const auto state = ready();
        auto &entry = state->find(optimizer);
        std::vector<amp_param> params;
        optimizer.add_param_group(group);
        for (const at::Tensor &tensor : group.params()) {
            params.push_back(AMP_PARAM_INIT);
            params.back().tensor = tensor.unsafeGetTensorImpl();
        }
        std::vector<at::ScalarType> before;
        for (const at::Tensor &tensor : group.params()) before.push_back(tensor.scalar_type());
        try {
            amp::add_params<detail::errors>(entry.described, params);
        } catch (...) {
            optimizer.param_groups().pop_back();
            throw;
        }
        for (std::size_t i = 0; i < before.size(); i++) {
            const at::Tensor &tensor = group.params()[i];
            state->watch(tensor);
            entry.tensors.push_back(tensor);
            if (tensor.scalar_type() != before[i]) state->low.emplace_back(tensor);
        }
    }

    /* ---- files ---- */

    /* torch::save(model, arguments...) of the model in FP32: masters where there are masters. Any program reads it. */
    template <class M, class... Arguments> void save(M &&model, Arguments &&...arguments) {
        const auto state = ready();
        ::torch::serialize::OutputArchive archive;
        auto &module = detail::module_of(model);
        state->find(module);
        const detail::shown_in_fp32 shown(*state);
        module.save(archive);
        archive.save_to(std::forward<Arguments>(arguments)...);
    }
    /* torch::load(model, arguments...) of a file in whatever type. */
    template <class M, class... Arguments> void load(M &&model, Arguments &&...arguments) {
        const auto state = ready();
        ::torch::serialize::InputArchive archive;
        auto &module = detail::module_of(model);
        state->find(module);
        archive.load_from(std::forward<Arguments>(arguments)...);
        detail::load(*state, module, archive);
    }

    /* Scales and masters, for a checkpoint beside the model's and the optimizer's: one tensor of bytes, which an
     * archive takes. Load them in any order. */
    at::Tensor state() const {
        const std::vector<unsigned char> bytes = ready()->owner.state_save_memory();
        at::Tensor copy = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
        std::copy(bytes.begin(), bytes.end(), copy.mutable_data_ptr<std::uint8_t>());
        return copy;
    }
    void load_state(const at::Tensor &saved) {
        const at::Tensor bytes = saved.to(at::kCPU).contiguous();
        ready()->owner.state_load_memory(
            span<const std::uint8_t>(bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())));
    }

    /* ---- looking ---- */

    /* The present scale of a loss. */
    float loss_scale(std::uint32_t loss_id = 0) const { return detail::loss_scale(*ready(), loss_id); }

    /* The context: record, explain, op_stats and the rest of amp.hpp. */
    const basic_context<detail::errors> &context() const { return ready()->owner; }
    /* The context, for amp.h's functions; NULL: there is no session. */
    amp_context *get() const { return state_ ? state_->context : nullptr; }

private:
    /* Shared for the time of a call, with what was loaded in its place. */
    std::shared_ptr<detail::session_state> ready() const {
        if (!state_)
            throw error(AMP_ERR_WRONG_STATE, "there is no session: this one was default-constructed, or moved from");
        state_->adopt();
        return state_;
    }

    std::shared_ptr<detail::session_state> state_;
};

/* A module, a holder of one or a pointer to one, and its optimizer; `level` as AMP_O1. */
template <class M>
session initialize(M &&model, ::torch::optim::Optimizer &optimizer, amp_level level, options settings = {}) {
    return session({&detail::module_of(model)}, {&optimizer}, level, std::move(settings));
}

/* For inference. */
template <class M> session initialize(M &&model, amp_level level, options settings = {}) {
    return session({&detail::module_of(model)}, {}, level, std::move(settings));
}

/* Several under one context. */
inline session initialize(std::vector<::torch::nn::Module *> modules,
                          std::vector<::torch::optim::Optimizer *> optimizers, amp_level level, options settings = {}) {
    return session(std::move(modules), std::move(optimizers), level, std::move(settings));
}

/* No policy's casts for a while, on this thread. */
inline scope_guard disable_casts() { return scope_guard(nullptr); }

} // namespace amp::torch

#endif /* AMP_TORCH_SESSION_HPP */
