/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp.h for C++17 and later: what must be ended ends with its owner. Header only; no macro but the guard.
 *
 *     amp::context context({&model}, {&optimizer}, amp::config(AMP_O1));      once
 *
 *     amp::scale_loss(optimizer, loss, [&](const amp::scaled_loss &scaled) {   every iteration
 *         backward(scaled.loss());                                             an exception cancels the bracket
 *     });
 *     step(optimizer);                                                         the wired slot: steps or skips
 *
 * Names are those of amp.h without amp_, and mean what amp.h says: structures, constants and hooks are C's. Nothing
 * here decides anything.
 *
 * Errors by choice. amp::context and its like throw amp::error. Their twins in amp::nothrow return an amp_status, or an
 * amp::outcome where there is a value too; so does a function given amp::statuses, as
 * amp::clip_grad_norm<amp::statuses>. Compiled without exceptions, all of them do.
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

/* The C++ side of libamp. */
namespace amp {

/* ---- The context ------------------------------------------------------------------------------------------------- */

/* Owns an amp_context: initialize here, amp_shutdown at the end. Models and optimizers must live longer. Moves. */
template <class Errors> class basic_context {
public:
    /* What calls without a value return. */
    using result = typename Errors::result;
    /* What calls with a value return. */
    template <class T> using value = typename Errors::template value<T>;

    /* None yet: see open. */
    basic_context() noexcept = default;
    /* amp_initialize_many; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    basic_context(models all_models, optimizers all_optimizers, const amp_config &settings) {
        open(all_models, all_optimizers, settings);
    }
    /* The other has none then. */
    basic_context(basic_context &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    /* Ends the one that was here. */
    basic_context &operator=(basic_context &&other) noexcept {
        basic_context old(std::exchange(handle_, std::exchange(other.handle_, nullptr)));
        return *this;
    }
    /* amp_shutdown; a caller who wants its status calls shutdown before. */
    ~basic_context() {
        const amp_status ignored = amp_shutdown(handle_);
        (void)ignored;
    }

    /* amp_initialize_many. An object that has a context already ends that one first. */
    result open(models all_models, optimizers all_optimizers, const amp_config &settings) {
        amp_status status = end();
        if (status == AMP_OK)
            status = amp_initialize_many(all_models.data(), all_models.size(), all_optimizers.data(),
                                         all_optimizers.size(), &settings, &handle_);
        return Errors::done(status);
    }
    /* amp_shutdown. */
    result shutdown() { return Errors::done(end()); }
    /* The context, for amp.h's functions; NULL: none. */
    amp_context *get() const noexcept { return handle_; }
    /* Whether there is one. */
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /* Gives it to the caller, who shuts it down. */
    amp_context *release() noexcept { return std::exchange(handle_, nullptr); }

    /* amp_op_target: the type that an op's arguments are to have; AMP_DTYPE_DEFAULT: as they are. */
    value<amp_dtype> op_target(const char *op, span<const amp_dtype> dtypes) const {
        amp_dtype target = AMP_DTYPE_DEFAULT;
        const amp_status status = amp_op_target(handle_, op, dtypes.data(), dtypes.size(), &target);
        return Errors::give(status, target);
    }
    /* amp_scale: the host's tensor times the scale; the caller ends it. */
    value<void *> scale(void *tensor, std::uint32_t loss_id = 0) const {
        void *scaled = nullptr;
        const amp_status status = amp_scale(handle_, loss_id, tensor, &scaled);
        return Errors::give(status, scaled);
    }
    /* amp_unscale: true if an element is not finite. */
    value<bool> unscale(span<void *const> tensors, std::uint32_t loss_id = 0) const {
        float found = 0.0f;
        const amp_status status = amp_unscale(handle_, loss_id, tensors.data(), tensors.size(), &found);
        return Errors::give(status, found != 0.0f);
    }
    /* amp_check: the error that a wrapped call kept. */
    result check() const { return Errors::done(amp_check(handle_)); }
    /* amp_tape_done. */
    result tape_done() const { return Errors::done(amp_tape_done(handle_)); }
    /* amp_cache_clear. */
    result cache_clear() const { return Errors::done(amp_cache_clear(handle_)); }
    /* amp_masters_reconcile. */
    result masters_reconcile() const { return Errors::done(amp_masters_reconcile(handle_)); }
    /* amp_masters_write_back. */
    result masters_write_back() const { return Errors::done(amp_masters_write_back(handle_)); }
    /* amp_wrap_table: fills `copy` from `table`. */
    template <class T> result wrap_table(const T &table, T &copy) const {
        static_assert(std::is_trivially_copyable_v<T>, "a table of function pointers");
        return Errors::done(amp_wrap_table(handle_, &table, sizeof table, &copy));
    }

    /* amp_gate_set. */
    result gate_set(const char *op, std::uint64_t least) const {
        return Errors::done(amp_gate_set(handle_, op, least));
    }
    /* amp_gate_measure with any callable as the clock; what it returns becomes a uint64_t. */
    template <class Clock> result gate_measure(Clock clock) const {
        const amp_clock call = [](void *self) { return static_cast<std::uint64_t>((*static_cast<Clock *>(self))()); };
        return Errors::done(amp_gate_measure(handle_, call, &clock));
    }

    /* amp_state_save: a file. */
    result state_save(const char *path, amp_state_format format = AMP_STATE_SAFETENSORS) const {
        return Errors::done(amp_state_save(handle_, path, format));
    }
    /* amp_state_save_memory: the same bytes. */
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
    /* amp_state_load: a file. */
    result state_load(const char *path) const { return Errors::done(amp_state_load(handle_, path)); }
    /* amp_state_load_memory: bytes of any kind, a string too. */
    template <class C> result state_load_memory(const C &bytes) const {
        static_assert(sizeof *bytes.data() == 1, "bytes");
        return Errors::done(amp_state_load_memory(handle_, bytes.data(), bytes.size()));
    }

    /* amp_get_record. */
    value<amp_record> record(std::uint32_t loss_id = 0) const {
        amp_record filled = AMP_RECORD_INIT;
        const amp_status status = amp_get_record(handle_, loss_id, &filled);
        return Errors::give(status, filled);
    }
    /* amp_get_op_stats: one entry an op. */
    value<std::vector<amp_op_stats>> op_stats() const {
        std::vector<amp_op_stats> all;
        const amp_status status = fill(all, [this](amp_op_stats *entries, std::size_t capacity, std::size_t *count) {
            return amp_get_op_stats(handle_, entries, capacity, count);
        });
        return Errors::give(status, std::move(all));
    }
    /* amp_explain: of one op, or of everything. */
    value<std::string> explain(const char *op = nullptr) const {
        std::string text;
        std::size_t length = 0;
        amp_status status = amp_explain(handle_, op, nullptr, 0, &length);
        if (status == AMP_OK) {
            text.resize(length + 1);
            status = amp_explain(handle_, op, &text[0], text.size(), &length);
            text.resize(status == AMP_OK ? length : 0);
        }
        return Errors::give(status, std::move(text));
    }

    /* Counts, makes room and fills: how lists come out of amp.h. */
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

    /* A context that is running on this thread stays; with any other status it is gone. */
    amp_status end() noexcept {
        const amp_status status = amp_shutdown(handle_);
        if (status != AMP_ERR_WRONG_STATE) handle_ = nullptr;
        return status;
    }

    amp_context *handle_ = nullptr;
};

/* ---- The bracket ------------------------------------------------------------------------------------------------- */

/* The bracket around backward. It ends with its block, unless end or cancel was called; where an exception leaves the
 * block, it is cancelled, and gradients are as they were. Moves. */
template <class Errors> class basic_scaled_loss {
public:
    /* What calls without a value return. */
    using result = typename Errors::result;

    /* Not open yet: see begin. */
    basic_scaled_loss() noexcept = default;
    /* amp_scale_loss_begin; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_scaled_loss(amp_optimizer &optimizer, void *loss = nullptr) {
        begin(optimizer, loss);
    }
    /* amp_scale_loss_begin_many; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    basic_scaled_loss(amp_context *context, optimizers some, void *loss, std::uint32_t loss_id = 0,
                      std::uint32_t flags = 0) {
        begin(context, some, loss, loss_id, flags);
    }
    /* The other is closed then. */
    basic_scaled_loss(basic_scaled_loss &&other) noexcept
        : scaled_(std::exchange(other.scaled_, AMP_SCALED_LOSS_INIT)), exceptions_(other.exceptions_),
          open_(std::exchange(other.open_, false)) {}
    basic_scaled_loss &operator=(basic_scaled_loss &&) = delete;
    /* What end or, on the way of an exception, cancel does. Throws what end throws; a status is lost: call end. */
    ~basic_scaled_loss() noexcept(!Errors::throws) {
        if (!open_) return;
        if (std::uncaught_exceptions() > exceptions_) (void)amp_scale_loss_cancel(&scaled_);
        else (void)end();
    }

    /* amp_scale_loss_begin; loss NULL: the host seeds backward itself. */
    result begin(amp_optimizer &optimizer, void *loss = nullptr) {
        return begun(amp_scale_loss_begin(&optimizer, loss, &scaled_));
    }
    /* amp_scale_loss_begin_many; flags: AMP_DELAY_UNSCALE, AMP_DELAY_OVERFLOW_CHECK. */
    result begin(amp_context *context, optimizers some, void *loss, std::uint32_t loss_id = 0,
                 std::uint32_t flags = 0) {
        return begun(amp_scale_loss_begin_many(context, some.data(), some.size(), loss_id, flags, loss, &scaled_));
    }
    /* amp_scale_loss_end: what was decided. The bracket is closed whatever comes of it. */
    typename Errors::template value<amp_action> end() {
        open_ = false;
        const amp_status status = amp_scale_loss_end(&scaled_);
        return Errors::give(status, scaled_.action);
    }
    /* amp_scale_loss_cancel. */
    result cancel() {
        open_ = false;
        return Errors::done(amp_scale_loss_cancel(&scaled_));
    }
    /* Whether it was begun and neither ended nor cancelled. */
    bool is_open() const noexcept { return open_; }
    /* Where backward starts from, the host's handle; NULL in a bracket without a loss, and in one that is closed. */
    void *loss() const noexcept { return open_ ? scaled_.loss : nullptr; }
    /* The factor that the gradients carry, where it is in host memory. AMP_ERR_WRONG_STATE in a closed bracket. */
    typename Errors::template value<float> scale() const {
        if (open_) return Errors::give(AMP_OK, *scaled_.scale);
        return Errors::refuse(AMP_ERR_WRONG_STATE, "scale() of a bracket that is closed: it ended, or never began",
                              0.0f);
    }
    /* What the host must multiply its seed with. */
    float seed_factor() const noexcept { return amp_seed_factor(&scaled_); }
    /* What end decided. */
    amp_action action() const noexcept { return scaled_.action; }
    /* The structure itself. */
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
    int exceptions_ = 0; /* on their way when it was begun */
    bool open_ = false;
};

/* A step of a host without a step slot: amp_step_begin here, amp_step_end at the end. True if the optimizer is to
 * update:
 *
 *     amp::step step(optimizer);
 *     if (step) update(...);
 *     step.end();
 */
template <class Errors> class basic_step {
public:
    /* What calls without a value return. */
    using result = typename Errors::result;

    /* Not begun yet: see begin. */
    basic_step() noexcept = default;
    /* amp_step_begin; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_step(amp_optimizer &optimizer) { begin(optimizer); }
    /* The other is over then. */
    basic_step(basic_step &&other) noexcept
        : info_(other.info_), optimizer_(std::exchange(other.optimizer_, nullptr)) {}
    basic_step &operator=(basic_step &&) = delete;
    /* amp_step_end, unless end was called. */
    ~basic_step() { (void)finish(); }

    /* amp_step_begin. */
    result begin(amp_optimizer &optimizer) {
        const amp_status status = amp_step_begin(&optimizer, &info_);
        if (status == AMP_OK) optimizer_ = &optimizer;
        return Errors::done(status);
    }
    /* amp_step_end: masters are written back, whether the optimizer stepped or not. */
    result end() { return Errors::done(finish()); }
    /* Whether the optimizer is to update. */
    explicit operator bool() const noexcept { return optimizer_ && info_.action != AMP_SKIP; }
    /* What begin told. */
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

/* Whose policy holds on this thread, for the life of the object. NULL: nobody's. */
template <class Errors> class basic_scope {
public:
    /* What calls without a value return. */
    using result = typename Errors::result;

    /* Not entered yet: see enter. */
    basic_scope() noexcept = default;
    /* amp_scope_enter; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_scope(amp_context *context) { enter(context); }
    /* amp_scope_adopt: another thread's scope; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    explicit basic_scope(const amp_scope &captured) { adopt(captured); }
    /* The other has left then. On one thread. */
    basic_scope(basic_scope &&other) noexcept : scope_(other.scope_), entered_(std::exchange(other.entered_, false)) {}
    basic_scope &operator=(basic_scope &&) = delete;
    /* amp_scope_leave. */
    ~basic_scope() { (void)end(); }

    /* amp_scope_enter. */
    result enter(amp_context *context) {
        amp_status status = end();
        if (status == AMP_OK) entered_ = (status = amp_scope_enter(context, &scope_)) == AMP_OK;
        return Errors::done(status);
    }
    /* amp_scope_adopt. */
    result adopt(const amp_scope &captured) {
        amp_status status = end();
        if (status == AMP_OK) entered_ = (status = amp_scope_adopt(&captured, &scope_)) == AMP_OK;
        return Errors::done(status);
    }
    /* amp_scope_leave. */
    result leave() { return Errors::done(end()); }
    /* amp_scope_capture: this thread's scope, for another to adopt. */
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

/* Casts around a call that the host makes itself: amp_cast_args here, amp_cast_done at the end. The tensors stay the
 * caller's, and stay where they are. */
template <class Errors> class basic_cast_frame {
public:
    /* What calls without a value return. */
    using result = typename Errors::result;

    /* Nothing cast yet: see args. */
    basic_cast_frame() noexcept = default;
    /* amp_cast_args; throws. */
    template <class E = Errors, class = std::enable_if_t<E::throws>>
    basic_cast_frame(amp_context *context, const char *op, span<void *> tensors) { args(context, op, tensors); }
    /* The other is done then. */
    basic_cast_frame(basic_cast_frame &&other) noexcept : frame_(std::exchange(other.frame_, AMP_CAST_FRAME_INIT)) {}
    basic_cast_frame &operator=(basic_cast_frame &&) = delete;
    /* amp_cast_done. */
    ~basic_cast_frame() { (void)amp_cast_done(&frame_); }

    /* amp_cast_args: entries of `tensors` are replaced by casts. */
    result args(amp_context *context, const char *op, span<void *> tensors) {
        return Errors::done(amp_cast_args(context, op, tensors.data(), tensors.size(), &frame_));
    }
    /* amp_cast_done: the entries are the originals again. */
    result done() { return Errors::done(amp_cast_done(&frame_)); }
    /* The type that the arguments were given; AMP_DTYPE_DEFAULT: untouched. */
    amp_dtype target() const noexcept { return frame_.target; }

private:
    amp_cast_frame frame_ = AMP_CAST_FRAME_INIT;
};

/* ---- Masters ----------------------------------------------------------------------------------------------------- */

/* amp_master_params: what the optimizer updates. */
template <class Errors = default_errors>
typename Errors::template value<std::vector<amp_master>> master_params(amp_optimizer &optimizer) {
    std::vector<amp_master> all;
    const amp_status status = basic_context<Errors>::fill(all, [&](amp_master *entries, std::size_t capacity,
                                                                   std::size_t *count) {
        return amp_master_params(&optimizer, entries, capacity, count);
    });
    return Errors::give(status, std::move(all));
}

/* amp_clip_grad_norm: the norm before. */
template <class Errors = default_errors>
typename Errors::template value<float> clip_grad_norm(amp_optimizer &optimizer, float max_norm) {
    float norm = 0.0f;
    const amp_status status = amp_clip_grad_norm(&optimizer, max_norm, &norm);
    return Errors::give(status, norm);
}

/* amp_clip_grad_value. */
template <class Errors = default_errors>
typename Errors::result clip_grad_value(amp_optimizer &optimizer, float max_value) {
    return Errors::done(amp_clip_grad_value(&optimizer, max_value));
}

/* amp_add_params. */
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

/* The same with statuses. */
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
/* A whole bracket: backward(scaled) runs inside, what it throws cancels the bracket and goes on. The decision. */
template <class Backward> amp_action scale_loss(amp_optimizer &optimizer, void *loss, Backward &&backward) {
    scaled_loss scaled(optimizer, loss);
    backward(const_cast<const scaled_loss &>(scaled));
    return scaled.end();
}

/* The same for several optimizers and losses: see amp_scale_loss_begin_many. */
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
