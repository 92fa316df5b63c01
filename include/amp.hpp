/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp.h for C++17 and later, with RAII: an object ends its context, bracket, step, scope or casts in its destructor.
 * Header only, without macros except the include guard.
 *
 *     amp::context context({&model}, {&optimizer}, amp::config(AMP_O1));      once
 *
 *     amp::scale_loss(optimizer, loss, [&](const amp::scaled_loss &scaled) {   every iteration
 *         backward(scaled.loss());                                             an exception cancels the bracket
 *     });
 *     step(optimizer);                                                         the wired slot: steps or skips
 *
 * Names are those of amp.h without amp_, and have the meaning of amp.h. Structures, constants and hooks are those of C.
 * This header adds no behaviour of its own.
 *
 * Errors. amp::context and the other classes throw amp::error. Their twins in amp::nothrow return an amp_status, or an
 * amp::outcome if there is a value too. So does a function with the template argument amp::statuses, such as
 * amp::clip_grad_norm<amp::statuses>. Compiled without exceptions, all of them return statuses.
 *
 * Threads: as in amp.h.
 */
#ifndef AMP_HPP
#define AMP_HPP

#include "amp_all.h"
#include "amp_result.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/* The C++ interface of libamp. */
namespace amp {

/* ---- The context ------------------------------------------------------------------------------------------------- */

/* Owns an amp_context from amp_initialize_many to amp_shutdown. Models and optimizers must live longer. Movable. */
template <class Errors> class basic_context {
public:
    /* The return type of calls without a value. */
    using result = typename Errors::result;
    /* The return type of calls with a value. */
    template <class T> using value = typename Errors::template value<T>;

    /* Makes an object without a context: see open. */
    basic_context() noexcept = default;
    /* Calls amp_initialize_many; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    basic_context(models all_models, optimizers all_optimizers, const amp_config &settings) {
        open(all_models, all_optimizers, settings);
    }
    /* Moves the context, so that `other` has none. */
    basic_context(basic_context &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    /* Shuts down the present context and moves that of `other`. */
    basic_context &operator=(basic_context &&other) noexcept {
        basic_context old(std::exchange(handle_, std::exchange(other.handle_, nullptr)));
        return *this;
    }
    /* Calls amp_shutdown and ignores its status: call shutdown before to see it. */
    ~basic_context() {
        const amp_status ignored = amp_shutdown(handle_);
        (void)ignored;
    }

    /* Calls amp_initialize_many, after the shutdown of a present context. */
    result open(models all_models, optimizers all_optimizers, const amp_config &settings) {
        amp_status status = end();
        if (status == AMP_OK)
            status = amp_initialize_many(all_models.data(), all_models.size(), all_optimizers.data(),
                                         all_optimizers.size(), &settings, &handle_);
        return Errors::done(status);
    }
    /* Calls amp_shutdown. */
    result shutdown() { return Errors::done(end()); }
    /* Returns the context for the functions of amp.h, or NULL. */
    amp_context *get() const noexcept { return handle_; }
    /* Returns true if there is a context. */
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /* Passes the context to the caller, who must shut it down. */
    amp_context *release() noexcept { return std::exchange(handle_, nullptr); }

    /* Calls amp_op_target: returns the type for the arguments of an op (AMP_DTYPE_DEFAULT: unchanged). */
    value<amp_dtype> op_target(const char *op, span<const amp_dtype> dtypes) const {
        amp_dtype target = AMP_DTYPE_DEFAULT;
        const amp_status status = amp_op_target(handle_, op, dtypes.data(), dtypes.size(), &target);
        return Errors::give(status, target);
    }
    /* Calls amp_scale: returns the tensor of the host times the scale, which the caller releases. */
    value<void *> scale(void *tensor, std::uint32_t loss_id = 0) const {
        void *scaled = nullptr;
        const amp_status status = amp_scale(handle_, loss_id, tensor, &scaled);
        return Errors::give(status, scaled);
    }
    /* Calls amp_unscale: returns true if an element is not finite. */
    value<bool> unscale(span<void *const> tensors, std::uint32_t loss_id = 0) const {
        float found = 0.0f;
        const amp_status status = amp_unscale(handle_, loss_id, tensors.data(), tensors.size(), &found);
        return Errors::give(status, found != 0.0f);
    }
    /* Calls amp_check: the deferred error of a wrapped call. */
    result check() const { return Errors::done(amp_check(handle_)); }
    /* Calls amp_tape_done. */
    result tape_done() const { return Errors::done(amp_tape_done(handle_)); }
    /* Calls amp_cache_clear. */
    result cache_clear() const { return Errors::done(amp_cache_clear(handle_)); }
    /* Calls amp_masters_reconcile. */
    result masters_reconcile() const { return Errors::done(amp_masters_reconcile(handle_)); }
    /* Calls amp_masters_write_back. */
    result masters_write_back() const { return Errors::done(amp_masters_write_back(handle_)); }
    /* Calls amp_wrap_table: fills `copy` from `table`. */
    template <class T> result wrap_table(const T &table, T &copy) const {
        static_assert(std::is_trivially_copyable_v<T>, "a table of function pointers");
        return Errors::done(amp_wrap_table(handle_, &table, sizeof table, &copy));
    }

    /* Calls amp_gate_set. */
    result gate_set(const char *op, std::uint64_t least) const {
        return Errors::done(amp_gate_set(handle_, op, least));
    }
    /* Calls amp_gate_measure with any callable as the clock. Its result is converted to uint64_t. */
    template <class Clock> result gate_measure(Clock clock) const {
        const amp_clock call = [](void *self) { return static_cast<std::uint64_t>((*static_cast<Clock *>(self))()); };
        return Errors::done(amp_gate_measure(handle_, call, &clock));
    }

    /* Calls amp_state_save: writes a file. */
    result state_save(const char *path, amp_state_format format = AMP_STATE_SAFETENSORS) const {
        return Errors::done(amp_state_save(handle_, path, format));
    }
    /* Calls amp_state_save_memory: returns the bytes of that file. */
    value<std::vector<unsigned char>> state_save_memory(amp_state_format format = AMP_STATE_SAFETENSORS) const {
        std::vector<unsigned char> bytes;
        std::size_t size = 0;
        amp_status status = amp_state_save_memory(handle_, format, nullptr, 0, &size);
        if (status == AMP_OK) {
            bytes.resize(size);
            status = amp_state_save_memory(handle_, format, bytes.data(), bytes.size(), &size);
            bytes.resize(status == AMP_OK ? size : 0);
        }
        return Errors::give(status, std::move(bytes));
    }
    /* Calls amp_state_load: reads a file. */
    result state_load(const char *path) const { return Errors::done(amp_state_load(handle_, path)); }
    /* Calls amp_state_load_memory with any container of bytes, such as a string. */
    template <class C> result state_load_memory(const C &bytes) const {
        static_assert(sizeof *bytes.data() == 1, "bytes");
        return Errors::done(amp_state_load_memory(handle_, bytes.data(), bytes.size()));
    }

    /* Calls amp_get_record. */
    value<amp_record> record(std::uint32_t loss_id = 0) const {
        amp_record filled = AMP_RECORD_INIT;
        const amp_status status = amp_get_record(handle_, loss_id, &filled);
        return Errors::give(status, filled);
    }
    /* Calls amp_get_op_stats: returns one entry an op. */
    value<std::vector<amp_op_stats>> op_stats() const {
        std::vector<amp_op_stats> all;
        const amp_status status = fill(all, [this](amp_op_stats *entries, std::size_t capacity, std::size_t *count) {
            return amp_get_op_stats(handle_, entries, capacity, count);
        });
        return Errors::give(status, std::move(all));
    }
    /* Calls amp_explain for one op, or for all. */
    value<std::string> explain(const char *op = nullptr) const {
        return text([this, op](auto... to) { return amp_explain(handle_, op, to...); });
    }
    /* Calls amp_health. */
    value<std::string> health() const { return text([this](auto... to) { return amp_health(handle_, to...); }); }

    /* Fills a vector from a list function of amp.h: counts, allocates and fills. */
    template <class T, class Get> static amp_status fill(std::vector<T> &entries, Get get) {
        std::size_t count = 0;
        amp_status status = get(nullptr, 0, &count);
        if (status != AMP_OK || !count) return status;
        entries.assign(count, make<T>());
        status = get(entries.data(), entries.size(), &count);
        entries.resize(status == AMP_OK ? count : 0);
        return status;
    }

private:
    explicit basic_context(amp_context *handle) noexcept : handle_(handle) {}

    /* Returns the text of a function of amp.h that writes one. */
    template <class Get> static value<std::string> text(Get get) {
        std::size_t length = 0;
        amp_status status = get(nullptr, std::size_t{0}, &length);
        std::string all(status == AMP_OK ? length + 1 : 0, ' ');
        if (status == AMP_OK) status = get(&all[0], all.size(), &length);
        all.resize(status == AMP_OK ? length : 0);
        return Errors::give(status, std::move(all));
    }

    /* Ends the context, unless it is running on this thread (AMP_ERR_WRONG_STATE). */
    amp_status end() noexcept {
        const amp_status status = amp_shutdown(handle_);
        if (status != AMP_ERR_WRONG_STATE) handle_ = nullptr;
        return status;
    }

    amp_context *handle_ = nullptr;
};

/* ---- The bracket ------------------------------------------------------------------------------------------------- */

/* The bracket around backward, closed at the end of its block unless end or cancel was called. If an exception leaves
 * the block, the bracket is cancelled and gradients are as before. Movable. */
template <class Errors> class basic_scaled_loss {
public:
    /* The return type of calls without a value. */
    using result = typename Errors::result;

    /* Makes a closed bracket: see begin. */
    basic_scaled_loss() noexcept = default;
    /* Calls amp_scale_loss_begin; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_scaled_loss(amp_optimizer &optimizer, void *loss = nullptr) {
        begin(optimizer, loss);
    }
    /* Calls amp_scale_loss_begin_many; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    basic_scaled_loss(amp_context *context, optimizers some, void *loss, std::uint32_t loss_id = 0,
                      std::uint32_t flags = 0) {
        begin(context, some, loss, loss_id, flags);
    }
    /* Moves the bracket, so that `other` is closed. */
    basic_scaled_loss(basic_scaled_loss &&other) noexcept
        : scaled_(std::exchange(other.scaled_, AMP_SCALED_LOSS_INIT)), exceptions_(other.exceptions_),
          open_(std::exchange(other.open_, false)) {}
    basic_scaled_loss &operator=(basic_scaled_loss &&) = delete;
    /* Calls end, or cancel during an exception. Throws as end does, but drops a status: call end to see it. */
    ~basic_scaled_loss() noexcept(!Errors::throws) {
        if (!open_) return;
        if (std::uncaught_exceptions() > exceptions_) (void)amp_scale_loss_cancel(&scaled_);
        else (void)end();
    }

    /* Calls amp_scale_loss_begin. loss NULL: the host seeds backward. */
    result begin(amp_optimizer &optimizer, void *loss = nullptr) {
        return begun(amp_scale_loss_begin(&optimizer, loss, &scaled_));
    }
    /* Calls amp_scale_loss_begin_many. flags: AMP_DELAY_UNSCALE, AMP_DELAY_OVERFLOW_CHECK. */
    result begin(amp_context *context, optimizers some, void *loss, std::uint32_t loss_id = 0,
                 std::uint32_t flags = 0) {
        return begun(amp_scale_loss_begin_many(context, some.data(), some.size(), loss_id, flags, loss, &scaled_));
    }
    /* Calls amp_scale_loss_end and returns the action. The bracket is closed even after an error. */
    typename Errors::template value<amp_action> end() {
        open_ = false;
        const amp_status status = amp_scale_loss_end(&scaled_);
        return Errors::give(status, scaled_.action);
    }
    /* Calls amp_scale_loss_cancel. */
    result cancel() {
        open_ = false;
        return Errors::done(amp_scale_loss_cancel(&scaled_));
    }
    /* Returns true between begin and end or cancel. */
    bool is_open() const noexcept { return open_; }
    /* Returns the loss for backward, a handle of the host, or NULL in a closed bracket or one without a loss. */
    void *loss() const noexcept { return open_ ? scaled_.loss : nullptr; }
    /* Returns the factor in the gradients, if it is in host memory. AMP_ERR_WRONG_STATE: the bracket is closed. */
    typename Errors::template value<float> scale() const {
        if (open_) return Errors::give(AMP_OK, *scaled_.scale);
        return Errors::refuse(AMP_ERR_WRONG_STATE, "scale() of a bracket that is closed: it ended, or never began",
                              0.0f);
    }
    /* Returns the factor for the seed of backward: see amp_seed_factor. */
    float seed_factor() const noexcept { return amp_seed_factor(&scaled_); }
    /* Returns the action of the last end. */
    amp_action action() const noexcept { return scaled_.action; }
    /* Returns the C structure. */
    const amp_scaled_loss &raw() const noexcept { return scaled_; }

private:
    result begun(amp_status status) {
        if (status == AMP_OK) {
            open_ = true;
            exceptions_ = std::uncaught_exceptions();
        }
        return Errors::done(status);
    }

    amp_scaled_loss scaled_ = AMP_SCALED_LOSS_INIT;
    int exceptions_ = 0; /* number of exceptions in flight at begin */
    bool open_ = false;
};

/* A step of a host without a step slot, from amp_step_begin to amp_step_end. True if the optimizer must update:
 *
 *     amp::step step(optimizer);
 *     if (step) update(...);
 *     step.end(); */
template <class Errors> class basic_step {
public:
    /* The return type of calls without a value. */
    using result = typename Errors::result;

    /* Makes an object without a step: see begin. */
    basic_step() noexcept = default;
    /* Calls amp_step_begin; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_step(amp_optimizer &optimizer) { begin(optimizer); }
    /* Moves the step, so that `other` has none. */
    basic_step(basic_step &&other) noexcept
        : info_(other.info_), optimizer_(std::exchange(other.optimizer_, nullptr)) {}
    basic_step &operator=(basic_step &&) = delete;
    /* Calls amp_step_end, unless end was called. */
    ~basic_step() { (void)finish(); }

    /* Calls amp_step_begin. */
    result begin(amp_optimizer &optimizer) {
        const amp_status status = amp_step_begin(&optimizer, &info_);
        if (status == AMP_OK) optimizer_ = &optimizer;
        return Errors::done(status);
    }
    /* Calls amp_step_end: writes masters back, after a skip too. */
    result end() { return Errors::done(finish()); }
    /* Returns true if the optimizer must update. */
    explicit operator bool() const noexcept { return optimizer_ && info_.action != AMP_SKIP; }
    /* Returns the information from begin. */
    const amp_step_info &info() const noexcept { return info_; }

private:
    amp_status finish() noexcept {
        amp_optimizer *const optimizer = std::exchange(optimizer_, nullptr);
        return optimizer ? amp_step_end(optimizer) : AMP_OK;
    }

    amp_step_info info_ = AMP_STEP_INFO_INIT;
    amp_optimizer *optimizer_ = nullptr;
};

/* ---- Scopes and direct calls ------------------------------------------------------------------------------------- */

/* The scope of a context on this thread, for the life of the object. NULL: the scope of no context. */
template <class Errors> class basic_scope {
public:
    /* The return type of calls without a value. */
    using result = typename Errors::result;

    /* Makes an object without a scope: see enter. */
    basic_scope() noexcept = default;
    /* Calls amp_scope_enter; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_scope(amp_context *context) { enter(context); }
    /* Calls amp_scope_adopt with the scope of another thread; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_scope(const amp_scope &captured) { adopt(captured); }
    /* Moves the scope, on its thread, so that `other` has none. */
    basic_scope(basic_scope &&other) noexcept : scope_(other.scope_), entered_(std::exchange(other.entered_, false)) {}
    basic_scope &operator=(basic_scope &&) = delete;
    /* Calls amp_scope_leave. */
    ~basic_scope() { (void)end(); }

    /* Calls amp_scope_enter. */
    result enter(amp_context *context) {
        amp_status status = end();
        if (status == AMP_OK) entered_ = (status = amp_scope_enter(context, &scope_)) == AMP_OK;
        return Errors::done(status);
    }
    /* Calls amp_scope_adopt. */
    result adopt(const amp_scope &captured) {
        amp_status status = end();
        if (status == AMP_OK) entered_ = (status = amp_scope_adopt(&captured, &scope_)) == AMP_OK;
        return Errors::done(status);
    }
    /* Calls amp_scope_leave. */
    result leave() { return Errors::done(end()); }
    /* Calls amp_scope_capture: returns the scope of this thread for another thread to adopt. */
    static typename Errors::template value<amp_scope> capture() {
        amp_scope captured = {{0, 0, 0, 0}};
        const amp_status status = amp_scope_capture(&captured);
        return Errors::give(status, captured);
    }

private:
    amp_status end() noexcept { return std::exchange(entered_, false) ? amp_scope_leave(&scope_) : AMP_OK; }

    amp_scope scope_ = {{0, 0, 0, 0}};
    bool entered_ = false;
};

/* Casts around a direct call, from amp_cast_args to amp_cast_done. The array remains the caller's and must not move. */
template <class Errors> class basic_cast_frame {
public:
    /* The return type of calls without a value. */
    using result = typename Errors::result;

    /* Makes an object without casts: see args. */
    basic_cast_frame() noexcept = default;
    /* Calls amp_cast_args; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    basic_cast_frame(amp_context *context, const char *op, span<void *> tensors) { args(context, op, tensors); }
    /* Moves the casts, so that `other` has none. */
    basic_cast_frame(basic_cast_frame &&other) noexcept : frame_(std::exchange(other.frame_, AMP_CAST_FRAME_INIT)) {}
    basic_cast_frame &operator=(basic_cast_frame &&) = delete;
    /* Calls amp_cast_done. */
    ~basic_cast_frame() { (void)amp_cast_done(&frame_); }

    /* Calls amp_cast_args: replaces entries of `tensors` by casts. */
    result args(amp_context *context, const char *op, span<void *> tensors) {
        return Errors::done(amp_cast_args(context, op, tensors.data(), tensors.size(), &frame_));
    }
    /* Calls amp_cast_done: restores the entries. */
    result done() { return Errors::done(amp_cast_done(&frame_)); }
    /* Returns the type of the casts (AMP_DTYPE_DEFAULT: no casts). */
    amp_dtype target() const noexcept { return frame_.target; }

private:
    amp_cast_frame frame_ = AMP_CAST_FRAME_INIT;
};

/* ---- Masters ----------------------------------------------------------------------------------------------------- */

/* Calls amp_master_params: returns the tensors that the optimizer updates. */
template <class Errors = default_errors>
typename Errors::template value<std::vector<amp_master>> master_params(amp_optimizer &optimizer) {
    std::vector<amp_master> all;
    const amp_status status = basic_context<Errors>::fill(all, [&](amp_master *entries, std::size_t capacity,
                                                                   std::size_t *count) {
        return amp_master_params(&optimizer, entries, capacity, count);
    });
    return Errors::give(status, std::move(all));
}

/* Calls amp_clip_grad_norm: returns the norm before clipping. */
template <class Errors = default_errors>
typename Errors::template value<float> clip_grad_norm(amp_optimizer &optimizer, float max_norm) {
    float norm = 0.0f;
    const amp_status status = amp_clip_grad_norm(&optimizer, max_norm, &norm);
    return Errors::give(status, norm);
}

/* Calls amp_clip_grad_value. */
template <class Errors = default_errors>
typename Errors::result clip_grad_value(amp_optimizer &optimizer, float max_value) {
    return Errors::done(amp_clip_grad_value(&optimizer, max_value));
}

/* Calls amp_add_params. */
template <class Errors = default_errors>
typename Errors::result add_params(amp_optimizer &optimizer, span<const amp_param> params) {
    return Errors::done(amp_add_params(&optimizer, params.data(), params.size()));
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* See basic_context. */
using context = basic_context<default_errors>;
/* See basic_scaled_loss. */
using scaled_loss = basic_scaled_loss<default_errors>;
/* See basic_step. */
using step = basic_step<default_errors>;
/* See basic_scope. */
using scope = basic_scope<default_errors>;
/* See basic_cast_frame. */
using cast_frame = basic_cast_frame<default_errors>;

/* The classes with statuses instead of exceptions. */
namespace nothrow {
/* See basic_context. */
using context = basic_context<statuses>;
/* See basic_scaled_loss. */
using scaled_loss = basic_scaled_loss<statuses>;
/* See basic_step. */
using step = basic_step<statuses>;
/* See basic_scope. */
using scope = basic_scope<statuses>;
/* See basic_cast_frame. */
using cast_frame = basic_cast_frame<statuses>;
} // namespace nothrow

#ifdef __cpp_exceptions
/* Runs a whole bracket with backward(scaled) inside, and returns the action. An exception in backward cancels the
 * bracket and is passed on. */
template <class Backward> amp_action scale_loss(amp_optimizer &optimizer, void *loss, Backward &&backward) {
    scaled_loss scaled(optimizer, loss);
    backward(const_cast<const scaled_loss &>(scaled));
    return scaled.end();
}

/* Runs a whole bracket for several optimizers and losses: see amp_scale_loss_begin_many. */
template <class Backward>
amp_action scale_loss(amp_context *of, optimizers some, void *loss, std::uint32_t loss_id, std::uint32_t flags,
                      Backward &&backward) {
    scaled_loss scaled(of, some, loss, loss_id, flags);
    backward(const_cast<const scaled_loss &>(scaled));
    return scaled.end();
}
#endif

} // namespace amp

#endif /* AMP_HPP */
