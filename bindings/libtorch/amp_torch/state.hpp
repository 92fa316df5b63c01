/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a session: descriptions of modules and optimizers, hooks, context. The session, its brackets and its
 * guards share it, so that none outlives the objects that it uses. A list of live sessions detects a module or
 * optimizer in two of them.
 */
#ifndef AMP_TORCH_STATE_HPP
#define AMP_TORCH_STATE_HPP

#include "dispatch.hpp"
#include "forward.hpp"

#include <cstring>
#include <memory>

namespace amp::torch {

/* Settings of a session. Zero and empty values mean the defaults of the level. */
struct options {
    /* overrides: loss_scale, num_losses, lists, scaler, cast_model_type and others. initialize sets `level` */
    amp_config config = AMP_CONFIG_INIT;
    /* receives skips, scale changes and warnings; must not call libamp */
    detail::listener event;
    /* classes that override the lists: {"einsum", AMP_LOWER}. A name without a namespace is one of aten */
    std::vector<std::pair<std::string, amp_class>> ops;
    /* returns true for modules that count as batch norm, beside BatchNorm1d, 2d and 3d */
    std::function<bool(const ::torch::nn::Module &)> is_batch_norm;
};

namespace detail {

/* Parameters and floating buffers of a module in the order of named_modules, or tensors without a module. */
struct described_module {
    ::torch::nn::Module *module = nullptr;
    std::vector<amp_param> params;
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors; /* references for the handles */
    amp_op forward = AMP_OP_INIT;
    amp_model model = AMP_MODEL_INIT;

    void add(const at::Tensor &tensor, std::string name, bool is_norm) {
        if (!tensor.defined() || !tensor.is_floating_point()) return;
        amp_param param = AMP_PARAM_INIT;
        param.module_kind = is_norm ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
        param.tensor = tensor.unsafeGetTensorImpl();
        params.push_back(param);
        names.push_back(std::move(name));
        tensors.push_back(tensor);
    }
    void complete(const amp_host &host) {
        for (std::size_t i = 0; i < params.size(); i++) params[i].name = names[i].c_str();
        model.host = &host;
        model.params = params.data();
        model.n_params = params.size();
        if (!module) return;
        forward.name = "forward";
        forward.schema = forward_schema;
        forward.slot = &forward_slot();
        model.self = module;
        model.forward = &forward;
    }
};

struct described_optimizer {
    ::torch::optim::Optimizer *optimizer = nullptr; /* null: an optimizer of the program */
    std::vector<void *> handles;
    std::vector<at::Tensor> tensors;
    amp_optimizer described = AMP_OPTIMIZER_INIT;
    bool bracketed = false;         /* true from a bracket to the next step */
    std::uint64_t others_seen = 0;  /* number of brackets of all sessions at the last step */
    std::vector<std::uint64_t> seen; /* samples of the gradients at the end of the last bracket: see follow_gradients */

    void add(const at::Tensor &tensor) {
        handles.push_back(tensor.unsafeGetTensorImpl());
        tensors.push_back(tensor);
    }
    bool has(const at::Tensor &tensor) const {
        return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor &own) { return own.is_same(tensor); });
    }
    void complete(const amp_host &host) {
        described.host = &host;
        described.self = optimizer;
        described.params = handles.data();
        described.n_params = handles.size();
    }
};

inline bool is_batch_norm(const ::torch::nn::Module &module) {
    return dynamic_cast<const ::torch::nn::BatchNorm1dImpl *>(&module) ||
           dynamic_cast<const ::torch::nn::BatchNorm2dImpl *>(&module) ||
           dynamic_cast<const ::torch::nn::BatchNorm3dImpl *>(&module);
}

inline void describe(described_module &to, ::torch::nn::Module &root, const options &settings) {
    to.module = &root;
    const auto walk = [&](const std::string &prefix, const ::torch::nn::Module &module) {
        const std::string dot = prefix.empty() ? "" : prefix + ".";
        const bool is_norm = is_batch_norm(module) || (settings.is_batch_norm && settings.is_batch_norm(module));
        for (const auto &entry : module.named_parameters(false)) to.add(entry.value(), dot + entry.key(), is_norm);
        for (const auto &entry : module.named_buffers(false)) to.add(entry.value(), dot + entry.key(), is_norm);
    };
    walk("", root);
    for (const auto &entry : root.named_modules("", false)) walk(entry.key(), *entry.value());
}

inline void describe(described_optimizer &to, ::torch::optim::Optimizer &optimizer) {
    to.optimizer = &optimizer;
    for (const auto &group : optimizer.param_groups())
        for (const at::Tensor &tensor : group.params()) to.add(tensor);
}

/* Returns a tensor on memory of libamp, valid as long as amp_master_params says. */
inline at::Tensor show(const amp_master &master, void *data, const std::int64_t *strides) {
    const at::Tensor param = borrow(master.param);
    const auto settings = param.options().dtype(to_torch(master.dtype)).requires_grad(false);
    if (!strides) return at::from_blob(data, param.sizes(), settings);
    return at::from_blob(data, param.sizes(), at::IntArrayRef(strides, static_cast<std::size_t>(param.dim())),
                         settings);
}

/* ---- One session ------------------------------------------------------------------------------------------------- */

/* Counts the brackets of all sessions that multiplied a loss. */
inline std::atomic<std::uint64_t> &all_brackets() {
    static std::atomic<std::uint64_t> count{0};
    return count;
}

struct session_state : policy_state {
    torch::options settings;
    amp_host host = AMP_HOST_INIT;
    std::vector<std::unique_ptr<described_module>> modules;
    std::vector<std::unique_ptr<described_optimizer>> optimizers;
    bool casts_ops = false;
    amp_config resolved = AMP_CONFIG_INIT; /* properties of the level with overrides */
    struct retyped {
        at::Tensor tensor;
        at::ScalarType type;
        std::size_t bytes; /* bytes of the 16-bit storage */

        explicit retyped(const at::Tensor &low_tensor)
            : tensor(low_tensor), type(low_tensor.scalar_type()), bytes(low_tensor.storage().nbytes()) {}
        /* Returns the FP32 values that torch::load put under the tensor, if any: with set_, which leaves the old type,
         * or with set_data if the file was on another device. */
        at::Tensor loaded() const {
            const std::size_t now = tensor.storage().nbytes();
            const std::size_t as_fp32 = sizeof(float) * static_cast<std::size_t>(tensor.numel());
            const bool is_read_as_low = tensor.scalar_type() == type && now != bytes && now == as_fp32 &&
                                        tensor.storage_offset() == 0 && tensor.numel() > 0;
            if (is_read_as_low)
                return at::empty({0}, tensor.options().dtype(at::kFloat).requires_grad(false))
                    .set_(tensor.storage(), 0, tensor.sizes(), tensor.strides());
            return tensor.scalar_type() == type ? at::Tensor() : tensor.detach().to(at::kFloat);
        }
    };
    std::vector<retyped> low;       /* parameters and buffers that are 16-bit during the session */
    basic_context<errors> owner;    /* the context, destroyed first */

    session_state() = default;
    session_state(const session_state &) = delete;
    session_state &operator=(const session_state &) = delete;
    ~session_state();

    /* Describes modules and optimizers, then calls start. */
    void open(const std::vector<::torch::nn::Module *> &all_modules,
              const std::vector<::torch::optim::Optimizer *> &all_optimizers, amp_level level);
    /* Starts the context of `modules` and `optimizers`. */
    void start(amp_level level);
    /* Tensors for an optimizer during training. */
    void add_params(described_optimizer &optimizer, const std::vector<at::Tensor> &added);

    described_optimizer &find(::torch::optim::Optimizer &optimizer) {
        for (auto &entry : optimizers)
            if (entry->optimizer == &optimizer) return *entry;
        throw error(AMP_ERR_INVALID_ARGUMENT, "this optimizer was not given to amp::torch::initialize");
    }
    const described_module &find(const ::torch::nn::Module &module) const {
        for (const auto &entry : modules)
            if (entry->module == &module) return *entry;
        throw error(AMP_ERR_INVALID_ARGUMENT,
                    "this module was not given to amp::torch::initialize: inside a model, or beside "
                    "one, use autocast()");
    }
    bool made_low(const at::Tensor &tensor) const {
        return std::any_of(low.begin(), low.end(), [&](const retyped &entry) { return entry.tensor.is_same(tensor); });
    }
    bool has(const at::Tensor &tensor) const {
        return std::any_of(modules.begin(), modules.end(), [&](const auto &module) {
            return std::any_of(module->tensors.begin(), module->tensors.end(),
                               [&](const at::Tensor &known) { return known.is_same(tensor); });
        });
    }
    void set_values(const at::Tensor &tensor, const at::Tensor &exact);
    void adopt();
    void follow_gradients(described_optimizer &optimizer);

private:
    void check() const;
};

/* ---- Those alive ------------------------------------------------------------------------------------------------- */

struct sessions {
    std::mutex mutex;
    std::vector<session_state *> alive;
};
inline sessions &all_sessions() {
    static auto *const all = new sessions; /* never destroyed, since static sessions may end later */
    return *all;
}

/* Drops the casts of weights in all sessions after a step. */
inline void weights_moved() {
    sessions &all = all_sessions();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (session_state *state : all.alive) state->drop_casts();
}

/* Returns the live session with a tensor of this module (`low`: with one that it made 16-bit), or NULL. */
inline session_state *session_of(const ::torch::nn::Module &module, bool low) {
    sessions &all = all_sessions();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.alive.empty()) return nullptr;
    std::vector<at::Tensor> tensors = module.parameters();
    for (at::Tensor &buffer : module.buffers()) tensors.push_back(std::move(buffer));
    for (session_state *state : all.alive)
        for (const at::Tensor &tensor : tensors)
            if (tensor.defined() && (low ? state->made_low(tensor) : state->has(tensor))) return state;
    return nullptr;
}

inline session_state::~session_state() {
    sessions &all = all_sessions();
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.alive.erase(std::remove(all.alive.begin(), all.alive.end(), this), all.alive.end());
    }
    try {
        if (owner) adopt();
    } catch (...) { /* loaded values cannot be taken over: masters are restored */
    }
}

inline void refuse_lbfgs(const ::torch::optim::Optimizer &optimizer, const std::string &which) {
    if (dynamic_cast<const ::torch::optim::LBFGS *>(&optimizer))
        throw error(AMP_ERR_UNSUPPORTED,
                    which + " is LBFGS, which evaluates the model inside of its step, where gradients are neither "
                            "scaled nor checked: initialize(model, AMP_O4) without it, and step it with its closure");
}

/* Checks the arguments before anything changes. */
inline void session_state::check() const {
    const auto described = [&](const at::Tensor &tensor) { return has(tensor); };
    for (std::size_t i = 0; i < optimizers.size(); i++) {
        const std::string which = "optimizer " + std::to_string(i);
        if (optimizers[i]->optimizer) refuse_lbfgs(*optimizers[i]->optimizer, which);
        const auto &tensors = optimizers[i]->tensors;
        if (!modules.empty() && std::none_of(tensors.begin(), tensors.end(), described))
            throw error(AMP_ERR_INVALID_ARGUMENT,
                        which + " has no parameter of the models given: it was made for another model, or from copies "
                                "of the parameters; make it from model->parameters() of these");
    }
    sessions &all = all_sessions();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const session_state *other : all.alive) {
        for (const auto &optimizer : optimizers)
            for (const auto &entry : other->optimizers)
                if (entry->optimizer && entry->optimizer == optimizer->optimizer)
                    throw error(AMP_ERR_WRONG_STATE, "an optimizer is in another session already: end that one first, "
                                                     "or give both models to one initialize");
        for (const auto &module : modules)
            for (const at::Tensor &tensor : module->tensors)
                if (other->made_low(tensor))
                    throw error(AMP_ERR_WRONG_STATE,
                                "a model is 16-bit in another session already: end that one first");
    }
}

inline void session_state::open(const std::vector<::torch::nn::Module *> &all_modules,
                                const std::vector<::torch::optim::Optimizer *> &all_optimizers, amp_level level) {
    for (auto *module : all_modules) {
        modules.push_back(std::make_unique<described_module>());
        describe(*modules.back(), *module, settings);
    }
    for (auto *optimizer : all_optimizers) {
        optimizers.push_back(std::make_unique<described_optimizer>());
        describe(*optimizers.back(), *optimizer);
    }
    start(level);
}

inline void session_state::start(amp_level level) {
    host = hooks(static_cast<host_self *>(this));
    listening = &settings.event;
    settings.config.level = level;
    for (auto &entry : settings.ops)
        if (entry.first.find("::") == std::string::npos) entry.first = "aten::" + entry.first;
    std::vector<amp_op> ops = describe_ops(settings.ops);
    std::vector<amp_model *> models;
    std::vector<amp_optimizer *> described;
    for (auto &module : modules) {
        module->complete(host);
        models.push_back(&module->model);
    }
    if (!models.empty()) {
        models[0]->ops = ops.data();
        models[0]->n_ops = ops.size();
    }
    for (auto &optimizer : optimizers) {
        optimizer->complete(host);
        optimizer->others_seen = all_brackets();
        described.push_back(&optimizer->described);
    }
    check();
    std::vector<at::ScalarType> before;
    for (const auto &module : modules)
        for (const at::Tensor &tensor : module->tensors) before.push_back(tensor.scalar_type());
    owner.open(models, described, settings.config);
    context = owner.get();
    std::size_t i = 0;
    for (const auto &module : modules)
        for (const at::Tensor &tensor : module->tensors) {
            watch(tensor);
            if (tensor.scalar_type() != before[i++]) low.emplace_back(tensor);
        }
    for (const auto &optimizer : optimizers)
        for (const at::Tensor &tensor : optimizer->tensors) watch(tensor);
    errors::done(amp_config_resolve(&settings.config, &resolved));
    casts_ops = resolved.patch_ops == AMP_ON;
    if (casts_ops) {
        for (const auto &entry : settings.ops) registered.push_back(entry.first);
        register_fallback(registered);
    }
    sessions &all = all_sessions();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.alive.push_back(this);
}

inline void session_state::add_params(described_optimizer &optimizer, const std::vector<at::Tensor> &added) {
    std::vector<amp_param> params;
    std::vector<at::ScalarType> before;
    for (const at::Tensor &tensor : added) {
        params.push_back(AMP_PARAM_INIT);
        params.back().tensor = tensor.unsafeGetTensorImpl();
        before.push_back(tensor.scalar_type());
    }
    amp::add_params<errors>(optimizer.described, params);
    for (std::size_t i = 0; i < added.size(); i++) {
        watch(added[i]);
        optimizer.tensors.push_back(added[i]);
        if (added[i].scalar_type() != before[i]) low.emplace_back(added[i]);
    }
}

/* ---- Gradients that were changed after the bracket --------------------------------------------------------------- */

/* With a master the optimizer steps on an FP32 gradient beside the 16-bit one of the parameter. libamp notices changes
 * of the 16-bit one by its version, but torch::nn::utils::clip_grad_norm_ writes through data(). So some elements are
 * sampled at the end of a bracket, or all if the samples are zero. */
inline std::vector<std::uint64_t> look_at(const described_optimizer &optimizer) {
    std::vector<std::uint64_t> seen(optimizer.tensors.size(), 0);
    std::vector<at::Tensor> pieces;
    std::vector<std::size_t> owners;
    const ::torch::NoGradGuard no_grad;
    const policy_guard off{policy{}};
    for (std::size_t i = 0; i < optimizer.tensors.size(); i++) {
        const at::Tensor &gradient = optimizer.tensors[i].grad();
        if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.element_size() != 2) continue;
        const std::int64_t n = gradient.numel(), step = std::max<std::int64_t>(n / 16, 1);
        if (!gradient.is_cpu() || !gradient.is_contiguous()) {
            pieces.push_back(gradient.reshape({-1}).slice(0, 0, n, step).to(at::kFloat));
            owners.insert(owners.end(), static_cast<std::size_t>(pieces.back().numel()), i);
            continue;
        }
        const auto *bits = static_cast<const std::uint16_t *>(gradient.const_data_ptr());
        const auto add = [&](std::int64_t by) {
            for (std::int64_t j = 0; j < n; j += by)
                if (bits[j] & 0x7fff) seen[i] = (seen[i] ^ bits[j]) * UINT64_C(0x100000001b3) + 1;
        };
        add(step);
        if (!seen[i]) add(1);
    }
    if (pieces.empty()) return seen;
    const at::Tensor all = at::cat(pieces).cpu(); /* on a device: one wait for all tensors */
    for (std::size_t j = 0; j < owners.size(); j++) {
        std::uint32_t bits;
        std::memcpy(&bits, all.const_data_ptr<float>() + j, sizeof bits);
        seen[owners[j]] = (seen[owners[j]] ^ bits) * UINT64_C(0x100000001b3) + 1;
    }
    return seen;
}

inline void session_state::follow_gradients(described_optimizer &optimizer) {
    if (low.empty() || !optimizer.bracketed) return;
    std::vector<std::uint64_t> now = look_at(optimizer);
    for (std::size_t i = 0; i < now.size() && i < optimizer.seen.size(); i++)
        if (now[i] != optimizer.seen[i] && optimizer.tensors[i].grad().defined())
            optimizer.tensors[i].grad().unsafeGetTensorImpl()->bump_version();
    optimizer.seen = std::move(now);
}

/* ---- Values that came from outside ------------------------------------------------------------------------------- */

/* Writes values to a tensor, and `exact` to its master, if it has one. */
inline void session_state::set_values(const at::Tensor &tensor, const at::Tensor &exact) {
    for (auto &entry : optimizers)
        for (const amp_master &master : amp::master_params<errors>(entry->described))
            if (master.is_master && master.param == tensor.unsafeGetTensorImpl())
                show(master, master.data, master.strides).copy_(exact);
}

/* Makes loaded tensors 16-bit again and gives their masters the loaded values. */
inline void session_state::adopt() {
    std::vector<std::pair<at::Tensor, at::Tensor>> all;
    const ::torch::NoGradGuard no_grad;
    for (const retyped &entry : low) {
        const at::Tensor exact = entry.loaded();
        if (!exact.defined()) continue;
        const policy_guard off{policy{}};
        at::Tensor tensor = entry.tensor;
        tensor.set_data(exact.to(entry.type));
        all.emplace_back(tensor, exact);
    }
    if (all.empty()) return;
    const policy_guard off{policy{}};
    owner.masters_reconcile();
    for (const auto &[tensor, exact] : all) set_values(tensor, exact);
    owner.masters_write_back();
}

} // namespace detail
} // namespace amp::torch

#endif /* AMP_TORCH_STATE_HPP */
