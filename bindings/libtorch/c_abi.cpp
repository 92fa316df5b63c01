/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_torch.h over amp_torch.hpp: the methods of a session on tensors without modules, with a status for each
 * exception.
 */
#include "amp_torch.hpp"
#include "entry.hpp"

#include <map>

using amp::torch::GradScaler;
using amp::torch::GradScalerState;
using amp::torch::scaled_loss;
using amp::torch::scope_guard;
namespace core = amp::torch::detail;

struct session : object {
    std::shared_ptr<core::session_state> state = std::make_shared<core::session_state>();
    std::map<uint32_t, scaled_loss> brackets;     /* open brackets by loss */
    std::map<uint32_t, core::running_step> steps; /* steps begun without a callback, by optimizer */
    int callbacks = 0;                            /* number of running callbacks */
};

struct scaler : object {
    GradScaler ticks;
    int callbacks = 0; /* number of running callbacks */
};

static auto &sessions = *new handles<amp_torch_session, session>("session", "amp_torch_close");
static auto &scalers = *new handles<amp_torch_scaler, scaler>("scaler", "amp_torch_scaler_free");

/* ---- What is the same for all ----------------------------------------------------------------------------------- */

const char *amp_torch_last_error(void) { return last_error; }

void amp_torch_tensor_free(amp_torch_tensor tensor) { delete tensor; }

/* ---- The session ------------------------------------------------------------------------------------------------- */

static bool is_stepping(const session &s) { return s.callbacks || !s.steps.empty(); }

/* Returns the state after taking over loaded values, as amp::torch::session does. Not in a step, where tensors are FP32
 * without a load. */
static core::session_state &ready(const held<session> &s) {
    if (!is_stepping(*s)) s->state->adopt();
    return *s->state;
}

static core::described_optimizer &optimizer_of(core::session_state &state, uint32_t number) {
    if (number < state.optimizers.size()) return *state.optimizers[number];
    refuse(AMP_ERR_INVALID_ARGUMENT, "there is no optimizer " + std::to_string(number) + ": the session has " +
                                         std::to_string(state.optimizers.size()));
}

static amp_config config_of(const amp_config *given) {
    amp_config config = AMP_CONFIG_INIT;
    if (!given) return config;
    const uint32_t size = given->struct_size;
    if (size < sizeof size || size > sizeof config)
        refuse(AMP_ERR_ABI_MISMATCH, "config.struct_size is " + std::to_string(size) + " where this library has " +
                                         std::to_string(sizeof config) + ": start from AMP_CONFIG_INIT");
    std::memcpy(&config, given, size);
    config.struct_size = sizeof config;
    return config;
}

/* Returns the optimizer number of the i-th tensor, or AMP_TORCH_NOBODY. */
static uint32_t updater_of(const Tensor &tensor, const uint32_t *optimizers, size_t i) {
    const uint32_t number = optimizers ? optimizers[i] : tensor.requires_grad() ? 0 : AMP_TORCH_NOBODY;
    if (number != AMP_TORCH_NOBODY && !tensor.is_floating_point())
        refuse(AMP_ERR_INVALID_ARGUMENT, "tensors[" + std::to_string(i) + "] is no floating tensor, and optimizers[" +
                                             std::to_string(i) + "] is not AMP_TORCH_NOBODY");
    return number;
}

static void describe(core::session_state &state, const amp_torch_tensor *tensors, const char *const *names,
                     const uint8_t *is_norm, const uint32_t *optimizers, size_t n) {
    auto module = std::make_unique<core::described_module>();
    std::map<uint32_t, std::unique_ptr<core::described_optimizer>> described;
    for (size_t i = 0; i < n; i++) {
        const Tensor &tensor = tensor_of(tensors[i], "tensors[" + std::to_string(i) + "]");
        const bool named = names && names[i];
        module->add(tensor, named ? names[i] : "param." + std::to_string(i), is_norm && is_norm[i]);
        const uint32_t number = updater_of(tensor, optimizers, i);
        if (number == AMP_TORCH_NOBODY) continue;
        if (!described[number]) described[number] = std::make_unique<core::described_optimizer>();
        if (!described[number]->has(tensor)) described[number]->add(tensor); /* or else a tied weight */
    }
    for (auto &[number, optimizer] : described) {
        if (number != state.optimizers.size())
            refuse(AMP_ERR_INVALID_ARGUMENT, "optimizers: no tensor has optimizer " +
                                                 std::to_string(state.optimizers.size()) + ", and one has " +
                                                 std::to_string(number) + ": number them from 0");
        state.optimizers.push_back(std::move(optimizer));
    }
    state.modules.push_back(std::move(module));
}

static void add_class(core::session_state &state, const amp_torch_op &op, size_t i) {
    const std::string where = "ops[" + std::to_string(i) + "]";
    const std::string name = &deref(op.name, (where + ".name").c_str());
    if (op.op_class < AMP_LOWER || op.op_class > AMP_LEAVE)
        refuse(AMP_ERR_INVALID_ARGUMENT, where + ": " + name + ": " + std::to_string(op.op_class) + " is no class");
    for (const auto &known : state.settings.ops)
        if (known.first == name) refuse(AMP_ERR_INVALID_ARGUMENT, where + ": " + name + " is there already");
    state.settings.ops.emplace_back(name, op.op_class);
}

static void open(amp_level level, const amp_config *config, const amp_torch_op *ops, size_t n_ops,
                 const amp_torch_tensor *tensors, const char *const *names, const uint8_t *is_norm,
                 const uint32_t *optimizers, size_t n, amp_torch_session **handle) {
    deref(handle, "session");
    check_list(tensors, n, "tensors");
    check_list(ops, n_ops, "ops");
    auto made = std::make_shared<session>();
    made->state->settings.config = config_of(config);
    for (size_t i = 0; i < n_ops; i++) add_class(*made->state, ops[i], i);
    describe(*made->state, tensors, names, is_norm, optimizers, n);
    made->state->start(level);
    *handle = sessions.give(std::move(made));
}

amp_status amp_torch_open(amp_level level, const amp_config *config, const amp_torch_tensor *tensors,
                          const char *const *names, const uint8_t *is_norm, const uint32_t *optimizers, size_t n,
                          amp_torch_session **handle) {
    return entry("amp_torch_open",
                 [&] { open(level, config, nullptr, 0, tensors, names, is_norm, optimizers, n, handle); });
}

amp_status amp_torch_open_with_ops(amp_level level, const amp_config *config, const amp_torch_op *ops, size_t n_ops,
                                   const amp_torch_tensor *tensors, const char *const *names, const uint8_t *is_norm,
                                   const uint32_t *optimizers, size_t n, amp_torch_session **handle) {
    return entry("amp_torch_open_with_ops",
                 [&] { open(level, config, ops, n_ops, tensors, names, is_norm, optimizers, n, handle); });
}

amp_status amp_torch_add_params(amp_torch_session *handle, uint32_t optimizer, const amp_torch_tensor *tensors,
                                size_t n) {
    return entry("amp_torch_add_params", [&] {
        const held<session> s = sessions.use(handle);
        core::session_state &state = ready(s);
        core::described_optimizer &described = optimizer_of(state, optimizer);
        std::vector<Tensor> added;
        check_list(tensors, n, "tensors");
        if (is_stepping(*s) || !s->brackets.empty())
            refuse(AMP_ERR_WRONG_STATE, "a bracket or a step is open: add tensors between a step and the next bracket");
        for (size_t i = 0; i < n; i++)
            added.push_back(tensor_of(tensors[i], "tensors[" + std::to_string(i) + "]"));
        state.add_params(described, added);
    });
}

amp_status amp_torch_close(amp_torch_session *handle) {
    return entry("amp_torch_close", [&] {
        if (!handle) return;
        held<session> s = sessions.use(handle);
        if (is_stepping(*s)) refuse(AMP_ERR_WRONG_STATE, "a step has begun and not ended");
        sessions.forget(handle, s);
        for (auto &bracket : s->brackets) (void)entry("cancel", [&] { bracket.second.cancel(); });
        s->state->ended = true; /* for guards still entered */
    });
}

amp_context *amp_torch_context(const amp_torch_session *handle) {
    amp_context *context = nullptr;
    (void)entry("amp_torch_context", [&] { context = handle ? sessions.find(handle)->state->context : nullptr; });
    return context;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* The guards entered on this thread, the innermost last. */
struct entered {
    amp_torch_guard number;
    scope_guard guard;
};
struct entered_guards : std::vector<entered> {
    ~entered_guards() {
        while (!empty()) pop_back();
    }
};
static thread_local entered_guards guards;

/* Any thread, while another one is in a call, which takes over loaded values. */
static std::shared_ptr<core::session_state> entered_state(const amp_torch_session *handle) {
    if (!handle) return nullptr;
    const std::shared_ptr<session> s = sessions.find(handle);
    held<session> own{s, std::unique_lock<std::recursive_mutex>(s->busy, std::try_to_lock)};
    if (own.lock) ready(own);
    return s->state;
}

amp_status amp_torch_enter(amp_torch_session *handle, amp_torch_guard *guard) {
    return entry("amp_torch_enter", [&] {
        static std::atomic<amp_torch_guard> last{0}; /* shared by all threads, so that no thread leaves the guard of
                                                        another */
        deref(guard, "guard");
        std::shared_ptr<core::session_state> state = entered_state(handle);
        const amp_torch_guard number = ++last;
        guards.push_back({number, scope_guard(std::move(state))});
        *guard = number;
    });
}

amp_status amp_torch_leave(amp_torch_guard guard) {
    return entry("amp_torch_leave", [&] {
        const auto is_it = [&](const entered &one) { return one.number == guard; };
        if (std::none_of(guards.begin(), guards.end(), is_it))
            refuse(AMP_ERR_WRONG_STATE, "this thread has not entered guard " + std::to_string(guard) +
                                            ", or has left it: leave each once, where it was entered");
        if (guards.back().number != guard)
            refuse(AMP_ERR_WRONG_STATE, "guard " + std::to_string(guards.back().number) +
                                            " was entered inside of this one: leave it first");
        guards.pop_back();
    });
}

/* Casts floating tensors to this type (AMP_DTYPE_UNCHANGED: none). */
static void cast_all(amp_torch_session *handle, amp_dtype amp_config::*type, const amp_torch_tensor *tensors, size_t n,
                     amp_torch_tensor *cast) {
    const held<session> s = sessions.use(handle);
    const amp_dtype to = ready(s).resolved.*type;
    std::vector<Tensor> list = list_of(tensors, n, "tensors");
    check_list(cast, n, "cast");
    const core::policy_guard off{core::policy{}};
    for (Tensor &tensor : list)
        if (tensor.defined() && to != AMP_DTYPE_UNCHANGED && tensor.is_floating_point())
            tensor = tensor.to(core::to_torch(to));
    give_all(list, cast);
}

amp_status amp_torch_cast_inputs(amp_torch_session *handle, const amp_torch_tensor *tensors, size_t n,
                                 amp_torch_tensor *cast) {
    return entry("amp_torch_cast_inputs",
                 [&] { cast_all(handle, &amp_config::cast_model_type, tensors, n, cast); });
}

amp_status amp_torch_cast_outputs(amp_torch_session *handle, const amp_torch_tensor *tensors, size_t n,
                                  amp_torch_tensor *cast) {
    return entry("amp_torch_cast_outputs",
                 [&] { cast_all(handle, &amp_config::cast_model_outputs, tensors, n, cast); });
}

amp_status amp_torch_cache_clear(amp_torch_session *handle) {
    return entry("amp_torch_cache_clear", [&] { ready(sessions.use(handle)).owner.cache_clear(); });
}

/* ---- The bracket ------------------------------------------------------------------------------------------------- */

amp_status amp_torch_begin(amp_torch_session *handle, amp_torch_tensor loss, uint32_t loss_id,
                           const uint32_t *optimizers, size_t n, uint32_t flags, amp_torch_tensor *scaled) {
    return entry("amp_torch_begin", [&] {
        const held<session> s = sessions.use(handle);
        core::session_state &state = ready(s);
        deref(scaled, "scaled");
        check_list(optimizers, n, "optimizers");
        if (s->brackets.count(loss_id))
            refuse(AMP_ERR_WRONG_STATE, "the bracket of loss " + std::to_string(loss_id) +
                                            " is open: end or cancel it first");
        std::vector<core::described_optimizer *> some;
        for (size_t i = 0; i < n; i++) some.push_back(&optimizer_of(state, optimizers[i]));
        if (!n)
            for (auto &each : state.optimizers) some.push_back(each.get());
        scaled_loss bracket(s->state, std::move(some), tensor_of(loss, "loss"), loss_id, flags);
        auto from = std::make_unique<Tensor>(bracket.loss());
        s->brackets.emplace(loss_id, std::move(bracket));
        *scaled = from.release();
    });
}

/* Removes the bracket from the session, so that it is closed with any status. */
static scaled_loss take_bracket(const held<session> &s, uint32_t loss_id) {
    ready(s);
    auto found = s->brackets.extract(loss_id);
    if (!found)
        refuse(AMP_ERR_WRONG_STATE, "no bracket of loss " + std::to_string(loss_id) +
                                        " is open: it was not begun, or has ended or been cancelled");
    return std::move(found.mapped());
}

amp_status amp_torch_end(amp_torch_session *handle, uint32_t loss_id, amp_action *action) {
    return entry("amp_torch_end", [&] {
        const held<session> s = sessions.use(handle);
        const amp_action decided = take_bracket(s, loss_id).end();
        if (action) *action = decided;
    });
}

amp_status amp_torch_cancel(amp_torch_session *handle, uint32_t loss_id) {
    return entry("amp_torch_cancel", [&] {
        const held<session> s = sessions.use(handle);
        take_bracket(s, loss_id).cancel();
    });
}

amp_status amp_torch_scale(amp_torch_session *handle, uint32_t loss_id, float *scale) {
    return entry("amp_torch_scale",
                 [&] { deref(scale, "scale") = core::loss_scale(ready(sessions.use(handle)), loss_id); });
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

amp_status amp_torch_masters(amp_torch_session *handle, uint32_t optimizer, amp_torch_tensor *masters,
                             size_t capacity, size_t *count) {
    return entry("amp_torch_masters", [&] {
        const held<session> s = sessions.use(handle);
        core::session_state &state = ready(s);
        deref(count, "count");
        check_list(masters, capacity, "masters");
        std::vector<Tensor> all = core::masters_of(state, optimizer_of(state, optimizer));
        const size_t n = all.size();
        all.resize(std::min(n, capacity));
        give_all(all, masters);
        *count = n;
    });
}

amp_status amp_torch_clip_grad_norm(amp_torch_session *handle, uint32_t optimizer, double max_norm, double *norm) {
    return entry("amp_torch_clip_grad_norm", [&] {
        const held<session> s = sessions.use(handle);
        core::session_state &state = ready(s);
        const double before = core::clip_grad_norm(state, optimizer_of(state, optimizer), max_norm);
        if (norm) *norm = before;
    });
}

static void call(amp_torch_update update, void *self) {
    if (const int32_t failed = update(self))
        refuse(AMP_ERR_HOST_FAILED, "update returned " + std::to_string(failed));
}

static std::exception_ptr thrown_now() {
    const std::exception_ptr thrown = std::current_exception();
    return thrown ? thrown : std::make_exception_ptr(amp::error(AMP_ERR_HOST_FAILED, "update threw what is not C++'s"));
}

/* Ends the step after a failed update too, and reports the failure. */
template <class Update>
static void step(const held<session> &s, uint32_t optimizer, int32_t *stepped, Update &&update) {
    core::session_state &state = ready(s);
    std::exception_ptr failed;
    const bool steps = core::step(state, optimizer_of(state, optimizer), [&] {
        s->callbacks++;
        try {
            update();
        } catch (...) {
            failed = thrown_now();
        }
        s->callbacks--;
    });
    if (failed) std::rethrow_exception(failed);
    if (stepped) *stepped = steps;
}

amp_status amp_torch_step(amp_torch_session *handle, uint32_t optimizer, amp_torch_update update, void *self,
                          int32_t *stepped) {
    return entry("amp_torch_step", [&] {
        const held<session> s = sessions.use(handle);
        deref(update, "update");
        step(s, optimizer, stepped, [&] { call(update, self); });
    });
}

/* Returns true if both have the same parameters. */
static void check_torch_optimizer(torch::optim::Optimizer &optimizer, const core::described_optimizer &described) {
    size_t n = 0, known = 0;
    core::refuse_lbfgs(optimizer, "torch_optimizer");
    for (const auto &group : optimizer.param_groups())
        for (const Tensor &param : group.params()) {
            n++;
            known += described.has(param);
        }
    if (known != n || n != described.tensors.size())
        refuse(AMP_ERR_INVALID_ARGUMENT, "torch_optimizer has " + std::to_string(n) + " parameters, of which " +
                                             std::to_string(known) + " are of the " +
                                             std::to_string(described.tensors.size()) +
                                             " that amp_torch_open was told of: make it from the same tensors");
}

amp_status amp_torch_step_optimizer(amp_torch_session *handle, uint32_t optimizer,
                                    amp_torch_optimizer torch_optimizer, int32_t *stepped) {
    return entry("amp_torch_step_optimizer", [&] {
        const held<session> s = sessions.use(handle);
        core::session_state &state = ready(s);
        check_torch_optimizer(deref(torch_optimizer, "torch_optimizer"), optimizer_of(state, optimizer));
        step(s, optimizer, stepped, [&] { torch_optimizer->step(); });
    });
}

amp_status amp_torch_step_begin(amp_torch_session *handle, uint32_t optimizer, int32_t *steps) {
    return entry("amp_torch_step_begin", [&] {
        const held<session> s = sessions.use(handle);
        core::session_state &state = ready(s);
        deref(steps, "steps");
        if (s->steps.count(optimizer))
            refuse(AMP_ERR_WRONG_STATE, "the step of optimizer " + std::to_string(optimizer) +
                                            " has begun: end it first");
        const auto begun = s->steps.try_emplace(optimizer, state, optimizer_of(state, optimizer));
        *steps = static_cast<bool>(begun.first->second);
    });
}

amp_status amp_torch_step_end(amp_torch_session *handle, uint32_t optimizer) {
    return entry("amp_torch_step_end", [&] {
        const held<session> s = sessions.use(handle);
        auto found = s->steps.extract(optimizer);
        if (!found)
            refuse(AMP_ERR_WRONG_STATE, "the step of optimizer " + std::to_string(optimizer) +
                                            " has not begun, or has ended");
        found.mapped().end();
    });
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

amp_status amp_torch_state_save(amp_torch_session *handle, void *data, size_t capacity, size_t *size) {
    return entry("amp_torch_state_save", [&] {
        core::errors::done(
            amp_state_save_memory(ready(sessions.use(handle)).context, AMP_STATE_SAFETENSORS, data, capacity, size));
    });
}

amp_status amp_torch_state_load(amp_torch_session *handle, const void *data, size_t size) {
    return entry("amp_torch_state_load",
                 [&] { core::errors::done(amp_state_load_memory(ready(sessions.use(handle)).context, data, size)); });
}

/* ---- GradScaler -------------------------------------------------------------------------------------------------- */

static GradScalerState state_of(const amp_torch_scaler_state &state) {
    return {state.scale, state.growth_factor, state.backoff_factor, state.growth_interval, state.growth_tracker};
}

amp_status amp_torch_scaler_new(const amp_torch_scaler_state *state, amp_torch_scaler **handle) {
    return entry("amp_torch_scaler_new", [&] {
        deref(handle, "scaler");
        auto made = std::make_shared<scaler>();
        if (state) made->ticks.load_state_dict(state_of(*state));
        *handle = scalers.give(std::move(made));
    });
}

amp_status amp_torch_scaler_free(amp_torch_scaler *handle) {
    return entry("amp_torch_scaler_free", [&] {
        if (!handle) return;
        held<scaler> s = scalers.use(handle);
        if (s->callbacks) refuse(AMP_ERR_WRONG_STATE, "its step is running");
        scalers.forget(handle, s);
    });
}

amp_status amp_torch_scaler_scale(amp_torch_scaler *handle, amp_torch_tensor tensor, amp_torch_tensor *scaled) {
    return entry("amp_torch_scaler_scale", [&] {
        deref(scaled, "scaled");
        *scaled = given(scalers.use(handle)->ticks.scale(tensor_of(tensor, "tensor")));
    });
}

amp_status amp_torch_scaler_unscale(amp_torch_scaler *handle, uint64_t optimizer, const amp_torch_tensor *gradients,
                                    size_t n, int32_t *found_inf) {
    return entry("amp_torch_scaler_unscale", [&] {
        const auto list = [&] { return list_of(gradients, n, "gradients"); };
        const bool found = scalers.use(handle)->ticks.unscale(optimizer, list);
        if (found_inf) *found_inf = found;
    });
}

amp_status amp_torch_scaler_step(amp_torch_scaler *handle, uint64_t optimizer, const amp_torch_tensor *gradients,
                                 size_t n, amp_torch_update update, void *self, int32_t *stepped) {
    return entry("amp_torch_scaler_step", [&] {
        const auto list = [&] { return list_of(gradients, n, "gradients"); };
        deref(update, "update");
        const held<scaler> s = scalers.use(handle);
        s->callbacks++;
        const std::unique_ptr<int, void (*)(int *)> over(&s->callbacks, [](int *callbacks) { --*callbacks; });
        const bool steps = s->ticks.step(optimizer, list, [&] { call(update, self); });
        if (stepped) *stepped = steps;
    });
}

amp_status amp_torch_scaler_update(amp_torch_scaler *handle, double new_scale) {
    return entry("amp_torch_scaler_update", [&] {
        scalers.use(handle)->ticks.update(new_scale == 0.0 ? std::nullopt : std::optional(new_scale));
    });
}

amp_status amp_torch_scaler_get_state(amp_torch_scaler *handle, amp_torch_scaler_state *state) {
    return entry("amp_torch_scaler_get_state", [&] {
        const GradScalerState now = scalers.use(handle)->ticks.state_dict();
        deref(state, "state") = {now.scale, now.growth_factor, now.backoff_factor, now.growth_interval,
                                 now.growth_tracker};
    });
}

amp_status amp_torch_scaler_set_state(amp_torch_scaler *handle, const amp_torch_scaler_state *state) {
    return entry("amp_torch_scaler_set_state", [&] {
        scalers.use(handle)->ticks.load_state_dict(state_of(deref(state, "state")));
    });
}
