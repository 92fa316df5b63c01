/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp::torch::initialize: opt levels for torch::nn::Module and torch::optim::Optimizer.
 */
#ifndef AMP_TORCH_SESSION_HPP
#define AMP_TORCH_SESSION_HPP

#include "dispatch.hpp"
#include "forward.hpp"

#include <initializer_list>
#include <memory>

namespace amp::torch {

/* The libamp of a training script. Zero and empty mean the level's defaults. */
struct options {
    /* Overrides: loss_scale, num_losses, lists, scaler, cast_model_type, ... `level` is set by initialize. */
    amp_config config = AMP_CONFIG_INIT;
    /* Told of skips, scale changes and warnings. Must not call libamp. */
    detail::listener event;
    /* Ops whose class is not the lists': {"einsum", AMP_LOWER}; names without a namespace are aten's. */
    std::vector<std::pair<std::string, amp_class>> ops;
    /* Modules of one's own that count as batch norm. BatchNorm1d, 2d and 3d do anyway. */
    std::function<bool(const ::torch::nn::Module &)> is_batch_norm;
};

namespace detail {

/* Parameters and floating buffers of a module, in the order of named_modules. */
struct described_module {
    ::torch::nn::Module *module = nullptr;
    std::vector<amp_param> params;
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors; /* keeps the handles */
    amp_op forward = AMP_OP_INIT;
    amp_model model = AMP_MODEL_INIT;
};

struct described_optimizer {
    ::torch::optim::Optimizer *optimizer = nullptr;
    std::vector<void *> handles;
    std::vector<at::Tensor> tensors;
    amp_optimizer described = AMP_OPTIMIZER_INIT;
};

inline bool is_batch_norm(const ::torch::nn::Module &module) {
    return dynamic_cast<const ::torch::nn::BatchNorm1dImpl *>(&module) ||
           dynamic_cast<const ::torch::nn::BatchNorm2dImpl *>(&module) ||
           dynamic_cast<const ::torch::nn::BatchNorm3dImpl *>(&module);
}

inline void describe(described_module &to, ::torch::nn::Module &root, const options &options, const amp_host *host,
                     std::vector<amp_op> &ops) {
    const auto add = [&](const ::torch::nn::Module &owner, const std::string &name, const at::Tensor &tensor) {
        if (!tensor.defined() || !tensor.is_floating_point()) return;
        amp_param param = AMP_PARAM_INIT;
        param.module_kind = is_batch_norm(owner) || (options.is_batch_norm && options.is_batch_norm(owner))
                                ? AMP_MODULE_BATCH_NORM
                                : AMP_MODULE_OTHER;
        param.tensor = tensor.unsafeGetTensorImpl();
        to.params.push_back(param);
        to.names.push_back(name);
        to.tensors.push_back(tensor);
    };
    to.module = &root;
    const auto walk = [&](const std::string &prefix, const ::torch::nn::Module &module) {
        const std::string dot = prefix.empty() ? "" : prefix + ".";
        for (const auto &entry : module.named_parameters(false)) add(module, dot + entry.key(), entry.value());
        for (const auto &entry : module.named_buffers(false)) add(module, dot + entry.key(), entry.value());
    };
    walk("", root);
    for (const auto &entry : root.named_modules("", false)) walk(entry.key(), *entry.value());
    for (std::size_t i = 0; i < to.params.size(); i++) to.params[i].name = to.names[i].c_str();
    to.forward.name = "forward";
    to.forward.schema = forward_schema;
    to.forward.slot = &forward_slot();
    to.model.host = host;
    to.model.self = &root;
    to.model.params = to.params.data();
    to.model.n_params = to.params.size();
    to.model.forward = &to.forward;
    to.model.ops = ops.data();
    to.model.n_ops = ops.size();
}

inline void describe(described_optimizer &to, ::torch::optim::Optimizer &optimizer, const amp_host *host) {
    to.optimizer = &optimizer;
    for (const auto &group : optimizer.param_groups())
        for (const at::Tensor &tensor : group.params()) {
            to.handles.push_back(tensor.unsafeGetTensorImpl());
            to.tensors.push_back(tensor);
        }
    to.described.host = host;
    to.described.self = &optimizer;
    to.described.params = to.handles.data();
    to.described.n_params = to.handles.size();
}

/* A tensor that shows what libamp lends: valid as long as amp_master_params says. */
inline at::Tensor show(const amp_master &master, void *data, const std::int64_t *strides) {
    const at::Tensor param = borrow(master.param);
    const auto options = param.options().dtype(to_torch(master.dtype)).requires_grad(false);
    if (!strides) return at::from_blob(data, param.sizes(), options);
    return at::from_blob(data, param.sizes(), at::IntArrayRef(strides, static_cast<std::size_t>(param.dim())), options);
}

} // namespace detail

/* The bracket around backward: ends with its block, cancels where an exception leaves it. */
class scaled_loss {
public:
    scaled_loss(amp_context *context, optimizers some, const at::Tensor &loss, std::uint32_t loss_id,
                std::uint32_t flags)
        : loss_(loss), bracket_(context, some, loss.unsafeGetTensorImpl(), loss_id, flags) {}
    /* Where backward starts from. */
    at::Tensor loss() const { return detail::borrow(bracket_.loss()); }
    /* loss().backward(). */
    void backward(bool retain_graph = false, bool create_graph = false) {
        loss().backward({}, retain_graph, create_graph);
    }
    /* The factor that the gradients carry. */
    float scale() const { return bracket_.scale(); }
    /* Ends the bracket now, and says what was decided: AMP_STEP or AMP_SKIP. */
    amp_action end() { return bracket_.end(); }
    /* As if backward had not happened. */
    void cancel() { bracket_.cancel(); }

private:
    at::Tensor loss_; /* the bracket borrows it */
    basic_scaled_loss<detail::errors> bracket_;
};

/* A policy on this thread for a stretch of code; see session::autocast and disable_casts. */
class scope_guard {
public:
    scope_guard(amp_context *context, detail::policy policy) : scope_(context), guard_(policy) {}

private:
    basic_scope<detail::errors> scope_;
    detail::policy_guard guard_;
};

/* Models and optimizers under one level. Ends with amp_shutdown: the models have FP32 parameters again. Modules and
 * optimizers must live longer. */
class session {
public:
    session(std::vector<::torch::nn::Module *> modules, std::vector<::torch::optim::Optimizer *> optimizers,
            amp_level level, options options = {})
        : options_(std::make_unique<torch::options>(std::move(options))) {
        host_ = std::make_unique<amp_host>(detail::hooks(&options_->event));
        amp_config &config = options_->config;
        config.level = level;
        for (auto &[name, op_class] : options_->ops) {
            (void)op_class;
            if (name.find("::") == std::string::npos) name = "aten::" + name;
        }
        std::vector<amp_op> ops = detail::describe_ops(options_->ops), none;
        std::vector<amp_model *> models;
        std::vector<amp_optimizer *> described;
        for (auto *module : modules) {
            modules_.push_back(std::make_unique<detail::described_module>());
            detail::describe(*modules_.back(), *module, *options_, host_.get(), modules_.size() == 1 ? ops : none);
            models.push_back(&modules_.back()->model);
        }
        for (auto *optimizer : optimizers) {
            optimizers_.push_back(std::make_unique<detail::described_optimizer>());
            detail::describe(*optimizers_.back(), *optimizer, host_.get());
            described.push_back(&optimizers_.back()->described);
        }
        context_.open(models, described, config);
        casts_ops_ = config.enabled != AMP_OFF && config.patch_ops != AMP_OFF && (level == AMP_O1 || level == AMP_O4);
        if (casts_ops_) watch_ops();
    }

    session(session &&) = default;
    session &operator=(session &&) = delete;

    /* ---- every iteration ---- */

    /* model->forward(inputs...) as the level has it: inputs and outputs cast at O0, O2, O3 and O5, ops at O1 and O4. */
    template <class M, class... Inputs> auto forward(M &&model, Inputs &&...inputs) {
        auto &module = detail::module_of(model);
        check_module(module);
        const detail::policy_guard guard(policy());
        return detail::run_forward(
            context_.get(), &static_cast<::torch::nn::Module &>(module),
            [&](auto &...args) { return module.forward(args...); }, std::forward<Inputs>(inputs)...);
    }

    /* A bracket for the gradients of `some` (all, if none are named). */
    scaled_loss scale_loss(const at::Tensor &loss, std::vector<::torch::optim::Optimizer *> some = {},
                           std::uint32_t loss_id = 0, std::uint32_t flags = 0) {
        std::vector<amp_optimizer *> list;
        for (auto *optimizer : some) list.push_back(&find(*optimizer).described);
        if (some.empty())
            for (auto &entry : optimizers_) list.push_back(&entry->described);
        return scaled_loss(context_.get(), list, loss, loss_id, flags);
    }

    /* optimizer.step(), on FP32 masters where the level has them; false: it was skipped. */
    bool step(::torch::optim::Optimizer &optimizer) {
        basic_step<detail::errors> step(find(optimizer).described);
        const bool steps = static_cast<bool>(step);
        if (steps) optimizer.step();
        step.end();
        return steps;
    }

    /* ---- more ---- */

    /* The level's ops for code outside of a forward: losses, metrics, blocks of one's own. */
    scope_guard autocast() { return scope_guard(context_.get(), policy()); }

    /* What the optimizer updates: masters with their gradients where there are masters, else the parameters. Valid
     * until the next bracket or step. */
    std::vector<at::Tensor> master_params(::torch::optim::Optimizer &optimizer) {
        std::vector<at::Tensor> shown;
        for (const amp_master &master : amp::master_params<detail::errors>(find(optimizer).described)) {
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
        return amp::clip_grad_norm<detail::errors>(find(optimizer).described, static_cast<float>(max_norm));
    }

    /* optimizer.add_param_group(group), mid-run: parameters of the model that were frozen, or new ones in FP32. */
    void add_param_group(::torch::optim::Optimizer &optimizer, const ::torch::optim::OptimizerParamGroup &group) {
        auto &entry = find(optimizer);
        std::vector<amp_param> params;
        optimizer.add_param_group(group);
        for (const at::Tensor &tensor : group.params()) {
            params.push_back(AMP_PARAM_INIT);
            params.back().tensor = tensor.unsafeGetTensorImpl();
            entry.tensors.push_back(tensor);
        }
        try {
            amp::add_params<detail::errors>(entry.described, params);
        } catch (...) {
            optimizer.param_groups().pop_back();
            throw;
        }
    }

    /* Scales and masters, for a checkpoint beside the model's and the optimizer's: one tensor of bytes, which an
     * archive takes. Load them in any order. */
    at::Tensor state() const {
        const std::vector<unsigned char> bytes = context_.state_save_memory();
        at::Tensor copy = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
        std::copy(bytes.begin(), bytes.end(), copy.mutable_data_ptr<std::uint8_t>());
        return copy;
    }
    void load_state(const at::Tensor &state) {
        const at::Tensor bytes = state.to(at::kCPU).contiguous();
        context_.state_load_memory(
            span<const std::uint8_t>(bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())));
    }

    /* The present scale of a loss. */
    float loss_scale(std::uint32_t loss_id = 0) const {
        const at::Tensor one = at::ones({1}, at::kFloat);
        return detail::take(context_.scale(one.unsafeGetTensorImpl(), loss_id)).item<float>();
    }

    /* The context: record, explain, op_stats and the rest of amp.hpp. */
    const basic_context<detail::errors> &context() const { return context_; }
    /* The context, for amp.h's functions. */
    amp_context *get() const { return context_.get(); }

private:
    detail::policy policy() const {
        return casts_ops_ ? detail::policy{context_.get(), known_.get()} : detail::policy{};
    }

    void watch_ops() {
        std::vector<std::string> registered;
        for (const auto &entry : options_->ops) registered.push_back(entry.first);
        known_ = std::make_unique<detail::known_ops>(std::move(registered));
        detail::register_fallback();
    }

    void check_module(const ::torch::nn::Module &module) const {
        for (const auto &entry : modules_)
            if (entry->module == &module) return;
        throw error(AMP_ERR_INVALID_ARGUMENT,
                    "this module was not given to amp::torch::initialize: inside a model, or beside "
                    "one, use autocast()");
    }

    detail::described_optimizer &find(::torch::optim::Optimizer &optimizer) {
        for (auto &entry : optimizers_)
            if (entry->optimizer == &optimizer) return *entry;
        throw error(AMP_ERR_INVALID_ARGUMENT, "this optimizer was not given to amp::torch::initialize");
    }

    /* The order of destruction: the context first. */
    std::unique_ptr<torch::options> options_;
    std::unique_ptr<amp_host> host_;
    std::vector<std::unique_ptr<detail::described_module>> modules_;
    std::vector<std::unique_ptr<detail::described_optimizer>> optimizers_;
    std::unique_ptr<detail::known_ops> known_;
    bool casts_ops_ = false;
    basic_context<detail::errors> context_;
};

/* A module, a holder of one or a pointer to one, and its optimizer; `level` as AMP_O1. */
template <class M>
session initialize(M &&model, ::torch::optim::Optimizer &optimizer, amp_level level, options options = {}) {
    return session({&detail::module_of(model)}, {&optimizer}, level, std::move(options));
}

/* For inference. */
template <class M> session initialize(M &&model, amp_level level, options options = {}) {
    return session({&detail::module_of(model)}, {}, level, std::move(options));
}

/* Several under one context. */
inline session initialize(std::vector<::torch::nn::Module *> modules,
                          std::vector<::torch::optim::Optimizer *> optimizers, amp_level level, options options = {}) {
    return session(std::move(modules), std::move(optimizers), level, std::move(options));
}

/* No policy's casts for a while, on this thread. */
inline scope_guard disable_casts() { return scope_guard(nullptr, detail::policy{}); }

} // namespace amp::torch

#endif /* AMP_TORCH_SESSION_HPP */
