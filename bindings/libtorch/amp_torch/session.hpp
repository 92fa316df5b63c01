/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp::torch::initialize: opt levels for torch::nn::Module and torch::optim::Optimizer.
 */
#ifndef AMP_TORCH_SESSION_HPP
#define AMP_TORCH_SESSION_HPP

#include "files.hpp"

#include <initializer_list>
#include <memory>

namespace amp::torch {

/* The bracket around backward: ends with its block, cancels where an exception leaves it. Moves. */
class scaled_loss {
public:
    scaled_loss(std::shared_ptr<detail::session_state> state, std::vector<detail::described_optimizer *> some,
                const at::Tensor &loss, std::uint32_t loss_id, std::uint32_t flags)
        : state_(std::move(state)), optimizers_(std::move(some)), loss_(loss) {
        if (!loss.defined()) throw error(AMP_ERR_INVALID_ARGUMENT, "scale_loss: the loss is an undefined tensor");
        std::vector<amp_optimizer *> described;
        for (auto *optimizer : optimizers_) described.push_back(&optimizer->described);
        bracket_.begin(state_->context, described, loss.unsafeGetTensorImpl(), loss_id, flags);
        if (bracket_.scale() != 1.0f) ++detail::all_brackets();
    }
    scaled_loss(scaled_loss &&) = default;
    scaled_loss &operator=(scaled_loss &&) = delete;
    /* As end or, on the way of an exception or after its session, cancel. */
    ~scaled_loss() noexcept(false) {
        if (!bracket_.is_open()) return;
        if (state_->ended || std::uncaught_exceptions() > exceptions_) bracket_.cancel();
        else (void)end();
    }

    /* Where backward starts from. */
    at::Tensor loss() const {
        check("loss()");
        return detail::borrow(bracket_.loss());
    }
    /* loss().backward(). */
    void backward(bool retain_graph = false, bool create_graph = false) {
        check("backward()");
        loss().backward({}, retain_graph, create_graph);
    }
    /* The factor that the gradients carry. */
    float scale() const {
        check("scale()");
        return bracket_.scale();
    }
    /* Ends the bracket now, and says what was decided: AMP_STEP or AMP_SKIP. */
    amp_action end() {
        check("end()");
        const amp_action action = bracket_.end();
        for (auto *optimizer : optimizers_) {
            optimizer->bracketed = true;
            if (!state_->low.empty()) optimizer->seen = detail::look_at(*optimizer);
        }
        return action;
    }
    /* As if backward had not happened. */
    void cancel() {
        check("cancel()");
        bracket_.cancel();
    }

private:
    void check(const char *what) const {
        if (!bracket_.is_open())
            throw error(AMP_ERR_WRONG_STATE, std::string(what) + " of a bracket that is closed: it ended, was "
                                                                 "cancelled, or was moved from");
        if (state_->ended)
            throw error(AMP_ERR_WRONG_STATE, std::string(what) + " of a bracket whose session has ended");
    }

    std::shared_ptr<detail::session_state> state_; /* it may outlive the session */
    std::vector<detail::described_optimizer *> optimizers_;
    at::Tensor loss_; /* the bracket borrows it */
    basic_scaled_loss<detail::errors> bracket_;
    int exceptions_ = std::uncaught_exceptions();
};

/* A policy on this thread for a stretch of code; see session::autocast and disable_casts. Moves, on its thread; guards
 * end in the reverse order of their making. */
class scope_guard {
public:
    explicit scope_guard(std::shared_ptr<detail::session_state> state)
        : state_(std::move(state)), scope_(state_ ? state_->context : nullptr),
          guard_(detail::policy{state_ && state_->casts_ops ? state_.get() : nullptr}) {}

private:
    std::shared_ptr<detail::session_state> state_; /* it may outlive the session */
    basic_scope<detail::errors> scope_;
    detail::policy_guard guard_;
};

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
        auto &entry = state->find(optimizer);
        check_bracket(entry);
        state->follow_gradients(entry);
        basic_step<detail::errors> step(entry.described);
        const bool steps = static_cast<bool>(step);
        if (steps) optimizer.step();
        step.end();
        entry.bracketed = false;
        entry.others_seen = detail::all_brackets();
        detail::weights_moved();
        return steps;
    }

    /* ---- more ---- */

    /* The level's ops for code outside of a forward: losses, metrics, blocks of one's own. Forwards inside share the
     * casts of their weights; the outermost of such guards and forwards casts them anew. */
    scope_guard autocast() { return scope_guard(ready()); }

    /* What the optimizer updates: masters with their gradients where there are masters, else the parameters. Valid
     * until the next bracket or step. */
    std::vector<at::Tensor> master_params(::torch::optim::Optimizer &optimizer) {
        const auto state = ready();
        auto &entry = state->find(optimizer);
        state->follow_gradients(entry);
        std::vector<at::Tensor> shown;
        for (const amp_master &master : amp::master_params<detail::errors>(entry.described)) {
            shown.push_back(master.is_master ? detail::show(master, master.data, master.strides)
                                             : detail::borrow(master.param));
            if (!master.is_master) continue;
            shown.back().set_requires_grad(true);
            if (master.grad) shown.back().mutable_grad() = detail::show(master, master.grad, master.grad_strides);
        }
        return shown;
    }

    /* Between the bracket and the step: the norm before. */
    double clip_grad_norm(::torch::optim::Optimizer &optimizer, double max_norm) {
        const auto state = ready();
        auto &entry = state->find(optimizer);
        state->follow_gradients(entry);
        const double norm = amp::clip_grad_norm<detail::errors>(entry.described, static_cast<float>(max_norm));
        if (!state->low.empty()) entry.seen = detail::look_at(entry);
        return norm;
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
    float loss_scale(std::uint32_t loss_id = 0) const {
        const at::Tensor one = at::ones({1}, at::kFloat);
        return detail::take(ready()->owner.scale(one.unsafeGetTensorImpl(), loss_id)).item<float>();
    }

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

    /* Gradients that another session's bracket has multiplied are nobody's to step on. */
    static void check_bracket(const detail::described_optimizer &entry) {
        if (entry.bracketed || entry.others_seen == detail::all_brackets()) return;
        for (const at::Tensor &tensor : entry.tensors)
            if (tensor.grad().defined())
                throw error(AMP_ERR_WRONG_STATE,
                            "step without a bracket of this session for this optimizer, while another bracket scaled a "
                            "loss: its gradients may carry that scale. Name the optimizer in the scale_loss of its own "
                            "session, and give models that share a loss to one initialize");
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
