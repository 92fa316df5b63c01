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

/* Models and optimizers at one level, until amp_shutdown makes the parameters FP32 again. Modules and optimizers must
 * live longer. */
class session {
public:
    /* Makes an object without a session: assign one to it. */
    session() = default;
    session(const std::vector<::torch::nn::Module *> &modules,
            const std::vector<::torch::optim::Optimizer *> &optimizers, amp_level level, options settings = {})
        : state_(std::make_shared<detail::session_state>()) {
        state_->settings = std::move(settings);
        state_->open(modules, optimizers, level);
    }
    session(session &&) = default;
    /* Ends the present session and moves that of `other`. */
    session &operator=(session &&other) noexcept {
        if (this == &other) return *this;
        reset();
        state_ = std::move(other.state_);
        return *this;
    }
    ~session() { reset(); }

    /* Ends the session. Guards and brackets still alive keep the models until they end, and have no other use. */
    void reset() noexcept {
        if (state_) state_->ended = true;
        state_.reset();
    }
    /* Returns true if there is a session. */
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /* ---- every iteration ---- */

    /* Runs model->forward(inputs...) at the level: with casts of inputs and outputs at O0, O2, O3 and O5, and of ops at
     * O1 and O4. */
    template <class M, class... Inputs> auto forward(M &&model, Inputs &&...inputs) {
        const auto state = ready();
        auto &module = detail::module_of(model);
        state->find(module);
        const detail::policy_guard guard(detail::policy{state->casts_ops ? state.get() : nullptr});
        return detail::run_forward(state->context, &static_cast<::torch::nn::Module &>(module), module,
                                   std::index_sequence_for<Inputs...>(), std::forward<Inputs>(inputs)...);
    }

    /* Opens a bracket for the gradients of the optimizers in `some` (empty: all). */
    scaled_loss scale_loss(const at::Tensor &loss, const std::vector<::torch::optim::Optimizer *> &some = {},
                           std::uint32_t loss_id = 0, std::uint32_t flags = 0) {
        const auto state = ready();
        std::vector<detail::described_optimizer *> list;
        for (auto *optimizer : some) list.push_back(&state->find(*optimizer));
        if (some.empty())
            for (auto &entry : state->optimizers) list.push_back(entry.get());
        return scaled_loss(state, std::move(list), loss, loss_id, flags);
    }

    /* Runs optimizer.step(), on FP32 masters if the level has them. Returns false if it was skipped. */
    bool step(::torch::optim::Optimizer &optimizer) {
        const auto state = ready();
        return detail::step(*state, state->find(optimizer), [&] { optimizer.step(); });
    }

    /* ---- more ---- */

    /* Returns a guard that casts ops at the level outside of forward: losses, metrics, single blocks. Forwards inside
     * share the casts of weights. The outermost guard or forward casts them anew. */
    scope_guard autocast() { return scope_guard(ready()); }

    /* Returns the tensors that the optimizer updates: masters with their gradients if there are masters, else
     * parameters. Valid until the next bracket or step. */
    std::vector<at::Tensor> master_params(::torch::optim::Optimizer &optimizer) {
        const auto state = ready();
        return detail::masters_of(*state, state->find(optimizer));
    }

    /* Clips gradients between bracket and step. Returns the norm before. */
    double clip_grad_norm(::torch::optim::Optimizer &optimizer, double max_norm) {
        const auto state = ready();
        return detail::clip_grad_norm(*state, state->find(optimizer), max_norm);
    }

    /* Runs optimizer.add_param_group(group) during training, for frozen parameters of the model or new FP32 ones. */
    void add_param_group(::torch::optim::Optimizer &optimizer, const ::torch::optim::OptimizerParamGroup &group) {
        const auto state = ready();
        auto &entry = state->find(optimizer);
        optimizer.add_param_group(group);
        try {
            state->add_params(entry, group.params());
        } catch (...) {
            optimizer.param_groups().pop_back();
            throw;
        }
    }

    /* ---- files ---- */

    /* Runs torch::save(model, arguments...) on the model in FP32, with the values of masters. Any program can read the
     * file. */
    template <class M, class... Arguments> void save(M &&model, Arguments &&...arguments) {
        const auto state = ready();
        ::torch::serialize::OutputArchive archive;
        auto &module = detail::module_of(model);
        state->find(module);
        const detail::shown_in_fp32 shown(*state);
        module.save(archive);
        archive.save_to(std::forward<Arguments>(arguments)...);
    }
    /* Runs torch::load(model, arguments...) on a file with any types. */
    template <class M, class... Arguments> void load(M &&model, Arguments &&...arguments) {
        const auto state = ready();
        ::torch::serialize::InputArchive archive;
        auto &module = detail::module_of(model);
        state->find(module);
        archive.load_from(std::forward<Arguments>(arguments)...);
        detail::load(*state, module, archive);
    }

    /* Returns scales and masters as one tensor of bytes for an archive. A checkpoint also needs the model and the
     * optimizer, and loads all three in any order. */
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

    /* Returns the present scale of a loss. */
    float loss_scale(std::uint32_t loss_id = 0) const { return detail::loss_scale(*ready(), loss_id); }

    /* Returns the context for record, explain, op_stats and other functions of amp.hpp. */
    const basic_context<detail::errors> &context() const { return ready()->owner; }
    /* Returns the context for the functions of amp.h. NULL: no session. */
    amp_context *get() const { return state_ ? state_->context : nullptr; }

private:
    /* Returns the state, shared during a call, after taking over loaded values. */
    std::shared_ptr<detail::session_state> ready() const {
        if (!state_)
            throw error(AMP_ERR_WRONG_STATE, "there is no session: this one was default-constructed, or moved from");
        state_->adopt();
        return state_;
    }

    std::shared_ptr<detail::session_state> state_;
};

/* Makes a session of one model (a module, a holder or a pointer) and its optimizer. level: AMP_O1 and so on. */
template <class M>
session initialize(M &&model, ::torch::optim::Optimizer &optimizer, amp_level level, options settings = {}) {
    return session({&detail::module_of(model)}, {&optimizer}, level, std::move(settings));
}

/* Makes a session for inference. */
template <class M> session initialize(M &&model, amp_level level, options settings = {}) {
    return session({&detail::module_of(model)}, {}, level, std::move(settings));
}

/* Makes a session of several models and optimizers in one context. */
inline session initialize(std::vector<::torch::nn::Module *> modules,
                          std::vector<::torch::optim::Optimizer *> optimizers, amp_level level, options settings = {}) {
    return session(std::move(modules), std::move(optimizers), level, std::move(settings));
}

/* Turns casts off on this thread for the life of the guard. */
inline scope_guard disable_casts() { return scope_guard(nullptr); }

} // namespace amp::torch

#endif /* AMP_TORCH_SESSION_HPP */
