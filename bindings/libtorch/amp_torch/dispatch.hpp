/* SPDX-License-Identifier: Apache-2.0 */
/*
 * O1 and O4: libtorch's dispatcher asks libamp's policy at each op. The fallback below stands on a dispatch key in the
 * place where torch's own autocast has its keys, above autograd, so that casts are recorded; on AutocastIPU, for which
 * libtorch itself has no kernels. It sees every op by its schema, asks amp_op_class, amp_class_target and amp_cast_to,
 * and knows no list.
 */
#ifndef AMP_TORCH_DISPATCH_HPP
#define AMP_TORCH_DISPATCH_HPP

#include "host.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace amp::torch::detail {

inline constexpr c10::DispatchKey policy_key = c10::DispatchKey::AutocastIPU;

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

/* Ops that libtorch calls by another name than the lists do. */
struct renamed {
    const char *name, *listed;
};
inline constexpr renamed renamed_ops[] = {
    {"aten::upsample_nearest1d", "interpolate"},         {"aten::upsample_nearest2d", "interpolate"},
    {"aten::upsample_nearest3d", "interpolate"},         {"aten::_upsample_nearest_exact1d", "interpolate"},
    {"aten::_upsample_nearest_exact2d", "interpolate"},  {"aten::_upsample_nearest_exact3d", "interpolate"},
    {"aten::upsample_linear1d", "interpolate"},          {"aten::upsample_bilinear2d", "interpolate"},
    {"aten::upsample_bicubic2d", "interpolate"},         {"aten::upsample_trilinear3d", "interpolate"},
    {"aten::_upsample_bilinear2d_aa", "interpolate"},    {"aten::_upsample_bicubic2d_aa", "interpolate"},
    {"aten::grid_sampler", "grid_sample"},               {"aten::cross_entropy_loss", "cross_entropy"},
    {"aten::nll_loss_nd", "nll_loss"},                   {"aten::nll_loss2d", "nll_loss"},
    {"aten::linalg_cross", "cross"},
};

inline amp_op direct_op(const char *name) {
    amp_op op = AMP_OP_INIT;
    op.flags = AMP_OP_DIRECT;
    op.name = name;
    return op;
}

/* `registered` must outlive amp_initialize. */
inline std::vector<amp_op> describe_ops(const std::vector<std::pair<std::string, amp_class>> &registered) {
    std::vector<amp_op> ops;
    for (const auto &[name, op_class] : registered) {
        ops.push_back(direct_op(name.c_str()));
        ops.back().op_class = op_class;
    }
    const auto add = [&](const amp_op &op) {
        for (const amp_op &known : ops)
            if (std::string(known.name) == op.name) return;
        ops.push_back(op);
    };
    for (const renamed &entry : renamed_ops) {
        amp_op op = direct_op(entry.name);
        op.aliases = entry.listed;
        add(op);
    }
    return ops;
}

/* ---- Which ops the policy knows --------------------------------------------------------------------------------- */

/* What the policy does with each op, asked once for the life of the context. Any thread. */
class known_ops {
public:
    explicit known_ops(std::vector<std::string> registered) : registered_(std::move(registered)) {}

    struct rule {
        amp_class op_class = AMP_LEAVE;
        bool is_one = false; /* one op, whatever it is made of; else it falls through to the ops that it is made of */
    };

    rule of(amp_context *context, const c10::FunctionSchema &schema) {
        {
            const std::shared_lock<std::shared_mutex> lock(mutex_);
            const auto found = rules_.find(&schema);
            if (found != rules_.end()) return found->second;
        }
        rule asked;
        errors::done(amp_op_class(context, schema.name().c_str(), &asked.op_class));
        asked.is_one = asked.op_class != AMP_LEAVE || writes_elsewhere(schema) || is_registered(schema.name());
        if (writes_elsewhere(schema)) asked.op_class = AMP_LEAVE;
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        return rules_[&schema] = asked;
    }

private:
    /* An op that writes into a tensor given for its result (out=) is left alone, with all that it is made of. */
    static bool writes_elsewhere(const c10::FunctionSchema &schema) {
        return schema.is_mutable() && schema.name().back() != '_';
    }
    /* AMP_LEAVE by the user's word holds for what the op is made of, too. */
    bool is_registered(const std::string &name) const {
        return std::find(registered_.begin(), registered_.end(), name) != registered_.end();
    }

    const std::vector<std::string> registered_;
    mutable std::shared_mutex mutex_;
    std::unordered_map<const c10::FunctionSchema *, rule> rules_;
};

/* Whose policy this thread's ops obey. */
struct policy {
    amp_context *context = nullptr;
    known_ops *known = nullptr;
    int graph_task = -1; /* the backward pass in which it was entered; -1: in none */
};

inline policy &current_policy() {
    static thread_local policy current;
    return current;
}

/* ---- The fallback ------------------------------------------------------------------------------------------------ */

/* The floating tensors among a call's arguments, lists too, in order. */
struct operands {
    c10::SmallVector<void *, 8> handles;
    c10::SmallVector<amp_dtype, 8> types;
    amp_dtype into = AMP_DTYPE_DEFAULT; /* of what the call updates in place */

    void add(const at::Tensor &tensor) {
        if (!tensor.defined()) return;
        handles.push_back(tensor.unsafeGetTensorImpl());
        types.push_back(dtype(nullptr, handles.back()));
    }
};

/* The tensors of lists alone, where the class is about those. */
inline operands operands_of(const c10::FunctionSchema &schema, amp_class op_class,
                            const std::vector<c10::IValue> &stack) {
    const std::size_t n = schema.arguments().size(), first = stack.size() - n;
    operands found;
    for (std::size_t i = first; i < stack.size(); i++) {
        if (stack[i].isTensorList())
            for (const at::Tensor &tensor : stack[i].toTensorVector()) found.add(tensor);
        else if (stack[i].isTensor() && op_class != AMP_PROMOTE_SEQUENCE) found.add(stack[i].toTensor());
    }
    if (schema.is_mutable() && n && stack[first].isTensor() && stack[first].toTensor().is_floating_point())
        found.into = dtype(nullptr, stack[first].toTensor().unsafeGetTensorImpl());
    return found;
}

/* Casts in the place of what was there. */
inline void substitute(std::vector<c10::IValue> &stack, std::size_t first, bool lists_only, const operands &cast) {
    std::size_t next = 0;
    const auto replace = [&](const at::Tensor &tensor) -> at::Tensor {
        if (!tensor.defined()) return tensor;
        void *handle = cast.handles[next++];
        return handle == tensor.unsafeGetTensorImpl() ? tensor : borrow(handle);
    };
    for (std::size_t i = first; i < stack.size(); i++) {
        if (stack[i].isTensor() && !lists_only) {
            stack[i] = replace(stack[i].toTensor());
        } else if (stack[i].isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor &tensor : stack[i].toTensorVector()) list.push_back(replace(tensor));
            stack[i] = std::move(list);
        }
    }
}

inline void cast_arguments(const policy &policy, const c10::FunctionSchema &schema, amp_class op_class,
                           std::vector<c10::IValue> &stack) {
    operands found = operands_of(schema, op_class, stack);
    amp_dtype target = AMP_DTYPE_DEFAULT;
    errors::done(amp_class_target(policy.context, schema.name().c_str(), op_class, found.into, found.types.data(),
                                  found.types.size(), &target));
    if (target == AMP_DTYPE_DEFAULT) return;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    void **handles = found.handles.data();
    const std::size_t n = found.handles.size();
    errors::done(schema.is_mutable() ? amp_cast_to(policy.context, target, handles, n, &frame)
                                     : amp_cast_args(policy.context, schema.name().c_str(), handles, n, &frame));
    substitute(stack, stack.size() - schema.arguments().size(), op_class == AMP_PROMOTE_SEQUENCE, found);
    errors::done(amp_cast_done(&frame)); /* the stack has references of its own */
}

inline void fallback(const c10::OperatorHandle &op, c10::DispatchKeySet keys, std::vector<c10::IValue> *stack) {
    const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, policy_key);
    const policy &policy = current_policy();
    if (!policy.context || policy.graph_task != ::torch::autograd::get_current_graph_task_id()) {
        op.redispatchBoxed(below, stack); /* backward: the casts are on the tape */
        return;
    }
    const known_ops::rule rule = policy.known->of(policy.context, op.schema());
    if (!rule.is_one) {
        op.redispatchBoxed(below, stack);
        return;
    }
    const c10::impl::ExcludeDispatchKeyGuard inside(policy_key);
    if (rule.op_class != AMP_LEAVE) cast_arguments(policy, op.schema(), rule.op_class, *stack);
    op.redispatchBoxed(below, stack);
}

/* Once in a process. The library object must live as long as ops run. */
inline void register_fallback() {
    static ::torch::Library *library = [] {
        auto *made = new ::torch::Library(::torch::Library::IMPL, "_", policy_key, __FILE__, __LINE__);
        made->fallback(::torch::CppFunction::makeFromBoxedFunction<&fallback>());
        return made;
    }();
    (void)library;
}

/* The policy holds on this thread while the object lives; none: ops run as they come. */
class policy_guard {
public:
    explicit policy_guard(policy entered) : previous_(current_policy()) {
        entered.graph_task = ::torch::autograd::get_current_graph_task_id();
        current_policy() = entered;
        included_ = c10::impl::tls_is_dispatch_key_included(policy_key);
        excluded_ = c10::impl::tls_is_dispatch_key_excluded(policy_key);
        c10::impl::tls_set_dispatch_key_included(policy_key, entered.context != nullptr);
        c10::impl::tls_set_dispatch_key_excluded(policy_key, entered.context == nullptr);
    }
    policy_guard(const policy_guard &) = delete;
    policy_guard &operator=(const policy_guard &) = delete;
    ~policy_guard() {
        c10::impl::tls_set_dispatch_key_excluded(policy_key, excluded_);
        c10::impl::tls_set_dispatch_key_included(policy_key, included_);
        current_policy() = previous_;
    }

private:
    policy previous_;
    bool included_, excluded_;
};

} // namespace amp::torch::detail

#endif /* AMP_TORCH_DISPATCH_HPP */
