/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of an iteration of a session: bracket, step, masters, and the casts on a thread.
 */
#ifndef AMP_TORCH_ITERATION_HPP
#define AMP_TORCH_ITERATION_HPP

#include "state.hpp"

#include <memory>

namespace amp::torch {

namespace detail {

/* Refuses a step on gradients that a bracket of another session has multiplied. */
inline void check_bracket(const described_optimizer &optimizer) {
    if (optimizer.bracketed || optimizer.others_seen == all_brackets()) return;
    for (const at::Tensor &tensor : optimizer.tensors)
        if (tensor.grad().defined())
            throw error(AMP_ERR_WRONG_STATE,
                        "step without a bracket of this session for this optimizer, while another bracket scaled a "
                        "loss: its gradients may carry that scale. Name the optimizer in the scale_loss of its own "
                        "session, and give models that share a loss to one initialize");
}

/* A running step, true if the optimizer must update. It also ends if the update throws. */
class running_step {
public:
    running_step(session_state &state, described_optimizer &optimizer) : optimizer_(optimizer) {
        check_bracket(optimizer);
        state.follow_gradients(optimizer);
        step_.begin(optimizer.described);
    }
    explicit operator bool() const { return static_cast<bool>(step_); }
    void end() {
        step_.end();
        optimizer_.bracketed = false;
        optimizer_.others_seen = all_brackets();
        weights_moved();
    }

private:
    described_optimizer &optimizer_;
    basic_step<errors> step_;
};

/* Returns true if `update` was called. */
template <class Update> bool step(session_state &state, described_optimizer &optimizer, Update &&update) {
    running_step step(state, optimizer);
    const bool steps = static_cast<bool>(step);
    if (steps) update();
    step.end();
    return steps;
}

inline std::vector<at::Tensor> masters_of(session_state &state, described_optimizer &optimizer) {
    std::vector<at::Tensor> shown;
    state.follow_gradients(optimizer);
    for (const amp_master &master : amp::master_params<errors>(optimizer.described)) {
        shown.push_back(master.is_master ? show(master, master.data, master.strides) : borrow(master.param));
        if (!master.is_master) continue;
        shown.back().set_requires_grad(true);
        if (master.grad) shown.back().mutable_grad() = show(master, master.grad, master.grad_strides);
    }
    return shown;
}

inline double clip_grad_norm(session_state &state, described_optimizer &optimizer, double max_norm) {
    state.follow_gradients(optimizer);
    const double norm = amp::clip_grad_norm<errors>(optimizer.described, static_cast<float>(max_norm));
    if (!state.low.empty()) optimizer.seen = look_at(optimizer);
    return norm;
}

inline float loss_scale(const session_state &state, std::uint32_t loss_id) {
    const at::Tensor one = at::ones({1}, at::kFloat);
    return take(state.owner.scale(one.unsafeGetTensorImpl(), loss_id)).item<float>();
}

} // namespace detail

/* The bracket around backward, closed at the end of its block and cancelled by an exception. Movable. */
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
    /* Calls end, or cancel during an exception or after the end of the session. */
    ~scaled_loss() noexcept(false) {
        if (!bracket_.is_open()) return;
        if (state_->ended || std::uncaught_exceptions() > exceptions_) bracket_.cancel();
        else (void)end();
    }

    /* Returns the loss for backward. */
    at::Tensor loss() const {
        check("loss()");
        return detail::borrow(bracket_.loss());
    }
    /* Runs loss().backward(). */
    void backward(bool retain_graph = false, bool create_graph = false) {
        check("backward()");
        loss().backward({}, retain_graph, create_graph);
    }
    /* Returns the factor in the gradients. */
    float scale() const {
        check("scale()");
        return bracket_.scale();
    }
    /* Closes the bracket now and returns the action: AMP_STEP or AMP_SKIP. */
    amp_action end() {
        check("end()");
        const amp_action action = bracket_.end();
        for (auto *optimizer : optimizers_) {
            optimizer->bracketed = true;
            if (!state_->low.empty()) optimizer->seen = detail::look_at(*optimizer);
        }
        return action;
    }
    /* Closes the bracket and undoes its backward. */
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

    std::shared_ptr<detail::session_state> state_; /* may outlive the session */
    std::vector<detail::described_optimizer *> optimizers_;
    at::Tensor loss_; /* borrowed by the bracket */
    basic_scaled_loss<detail::errors> bracket_;
    int exceptions_ = std::uncaught_exceptions();
};

/* Casts, or no casts, on this thread for the life of the object: see session::autocast and disable_casts. Movable on
 * its thread. Guards end in the reverse order of their construction. */
class scope_guard {
public:
    explicit scope_guard(std::shared_ptr<detail::session_state> state)
        : state_(std::move(state)), scope_(state_ ? state_->context : nullptr),
          guard_(detail::policy{state_ && state_->casts_ops ? state_.get() : nullptr}) {}

private:
    std::shared_ptr<detail::session_state> state_; /* may outlive the session */
    basic_scope<detail::errors> scope_;
    detail::policy_guard guard_;
};

} // namespace amp::torch

#endif /* AMP_TORCH_ITERATION_HPP */
