/* SPDX-License-Identifier: Apache-2.0 */
/*
 * O1 and O4: the dispatcher of libtorch asks the policy of libamp at each op. The fallback below is on a dispatch key
 * at the position of the keys of torch's own autocast, above autograd, so that casts are recorded. The key is
 * AutocastIPU, for which libtorch has no kernels. The fallback sees every op by its schema, calls amp_op_class,
 * amp_class_target and amp_cast_to, and has no list. Ops in no list do not come here.
 */
#ifndef AMP_TORCH_DISPATCH_HPP
#define AMP_TORCH_DISPATCH_HPP

#include "host.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace amp::torch::detail {

inline constexpr c10::DispatchKey policy_key = c10::DispatchKey::AutocastIPU;

/* ---- Descriptions ------------------------------------------------------------------------------------------------ */

/* Ops with other names in libtorch than in the lists. */
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

/* Describes ops for amp_initialize. `classes` must live until it returns. */
inline std::vector<amp_op> describe_ops(const std::vector<std::pair<std::string, amp_class>> &classes) {
    std::vector<amp_op> ops;
    for (const auto &[name, op_class] : classes) {
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

/* ---- Ops of the policy ------------------------------------------------------------------------------------------- */

/* The ruling of the policy for an op. */
struct rule {
    amp_class op_class = AMP_LEAVE;
    bool is_one = false;       /* handled as one op; false: handled as the ops inside it */
    bool is_mutable = false;
    std::uint64_t written = 0; /* bit i: the op writes to argument i, up to 64 */
};

/* The policy for the ops of a session. */
class policy_state : public host_self {
public:
    amp_context *context = nullptr;
    std::atomic<bool> ended{false};      /* the session has ended, but a guard is alive */
    std::vector<std::string> registered; /* names of ops with a class from the user */

    /* Returns the ruling for an op, computed once for the life of the context. Any thread. */
    rule of(const c10::FunctionSchema &schema) {
        struct remembered {
            std::uint64_t state;
            const c10::FunctionSchema *schema;
            rule known;
        };
        static thread_local std::array<remembered, 64> recent{};
        remembered &entry = recent[(reinterpret_cast<std::uintptr_t>(&schema) >> 6) % recent.size()];
        if (entry.state != serial_ || entry.schema != &schema) entry = {serial_, &schema, look_up(schema)};
        return entry.known;
    }

    /* Drops cached casts, since weights may change unnoticed, or have changed. Any thread. */
    void drop_casts() noexcept {
        forget_casts();
        if (context) (void)amp_cache_clear(context);
    }

private:
    rule look_up(const c10::FunctionSchema &schema) {
        {
            const std::shared_lock<std::shared_mutex> lock(mutex_);
            const auto found = rules_.find(&schema);
            if (found != rules_.end()) return found->second;
        }
        rule asked;
        errors::done(amp_op_class(context, schema.name().c_str(), &asked.op_class));
        asked.is_mutable = schema.is_mutable();
        for (std::size_t i = 0; i < schema.arguments().size() && i < 64; i++) {
            const c10::AliasInfo *alias = schema.arguments()[i].alias_info();
            if (alias && alias->isWrite()) asked.written |= std::uint64_t{1} << i;
        }
        /* An op with out= is not cast, with all ops inside it, and neither is one that the user gave AMP_LEAVE. */
        const bool elsewhere = asked.is_mutable && schema.name().back() != '_';
        const bool left = std::find(registered.begin(), registered.end(), schema.name()) != registered.end();
        asked.is_one = asked.op_class != AMP_LEAVE || elsewhere || left;
        if (elsewhere) asked.op_class = AMP_LEAVE;
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        return rules_[&schema] = asked;
    }
    static std::uint64_t next_serial() {
        static std::atomic<std::uint64_t> last{0};
        return ++last;
    }

    const std::uint64_t serial_ = next_serial();
    mutable std::shared_mutex mutex_;
    std::unordered_map<const c10::FunctionSchema *, rule> rules_;
};

/* The policy for the ops of this thread. */
struct policy {
    policy_state *state = nullptr;
    int graph_task = -1; /* backward pass in which the guard was entered; -1: none */
};

inline policy &current_policy() {
    static thread_local policy current;
    return current;
}

/* ---- The fallback ------------------------------------------------------------------------------------------------ */

/* The floating tensors among the arguments of a call, lists included, in order. */
struct operands {
    c10::SmallVector<void *, 8> handles;
    c10::SmallVector<amp_dtype, 8> types;
    amp_dtype into = AMP_DTYPE_DEFAULT; /* type of the tensor that the call updates in place */

    void add(const at::Tensor &tensor) {
        if (!tensor.defined()) return;
        handles.push_back(tensor.unsafeGetTensorImpl());
        types.push_back(dtype(nullptr, handles.back()));
    }
};

/* Returns the floating tensors of a call, or only those in lists if the class is about lists. */
inline operands operands_of(const c10::FunctionSchema &schema, const rule &known,
                            const std::vector<c10::IValue> &stack) {
    const std::size_t n = schema.arguments().size(), first = stack.size() - n;
    operands found;
    for (std::size_t i = first; i < stack.size(); i++) {
        if (stack[i].isTensorList())
            for (const at::Tensor &tensor : stack[i].toTensorVector()) found.add(tensor);
        else if (stack[i].isTensor() && known.op_class != AMP_PROMOTE_SEQUENCE) found.add(stack[i].toTensor());
    }
    if (known.is_mutable && n && stack[first].isTensor() && stack[first].toTensor().is_floating_point())
        found.into = dtype(nullptr, stack[first].toTensor().unsafeGetTensorImpl());
    return found;
}

/* Replaces arguments by their casts. */
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

inline void cast_arguments(amp_context *context, const c10::FunctionSchema &schema, const rule &known,
                           std::vector<c10::IValue> &stack) {
    operands found = operands_of(schema, known, stack);
    amp_dtype target = AMP_DTYPE_DEFAULT;
    errors::done(amp_class_target(context, schema.name().c_str(), known.op_class, found.into, found.types.data(),
                                  found.types.size(), &target));
    if (target == AMP_DTYPE_DEFAULT) return;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    void **handles = found.handles.data();
    const std::size_t n = found.handles.size();
    errors::done(known.is_mutable ? amp_cast_to(context, target, handles, n, &frame)
                                  : amp_cast_args(context, schema.name().c_str(), handles, n, &frame));
    substitute(stack, stack.size() - schema.arguments().size(), known.op_class == AMP_PROMOTE_SEQUENCE, found);
    errors::done(amp_cast_done(&frame)); /* the stack has its own references */
}

/* Returns true if the call writes to memory of a weight with a cached cast. */
inline bool writes_to_weights(policy_state &state, const rule &known, const std::vector<c10::IValue> &stack,
                              std::size_t n) {
    const auto is_weight = [&](const at::Tensor &tensor) {
        return tensor.defined() && state.was_cast(tensor.unsafeGetTensorImpl());
    };
    for (std::size_t i = 0; i < n && i < 64; i++) {
        if (!(known.written >> i & 1)) continue;
        const c10::IValue &value = stack[stack.size() - n + i];
        if (value.isTensor() && is_weight(value.toTensor())) return true;
        if (!value.isTensorList()) continue;
        for (const at::Tensor &tensor : value.toTensorVector())
            if (is_weight(tensor)) return true;
    }
    return false;
}

inline void fallback(const c10::OperatorHandle &op, c10::DispatchKeySet keys, std::vector<c10::IValue> *stack) {
    const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, policy_key);
    const policy &current = current_policy();
    if (!current.state || current.graph_task != ::torch::autograd::get_current_graph_task_id()) {
        op.redispatchBoxed(below, stack); /* backward: the casts are on the tape */
        return;
    }
    policy_state &state = *current.state;
    if (state.ended)
        throw error(AMP_ERR_WRONG_STATE, op.schema().name() + " under the autocast() of a session that has ended: end "
                                         "the guard first, or keep the session");
    const rule known = state.of(op.schema());
    const bool drops = known.written && writes_to_weights(state, known, *stack, op.schema().arguments().size());
    if (!known.is_one) {
        op.redispatchBoxed(below, stack);
    } else {
        const c10::impl::ExcludeDispatchKeyGuard inside(policy_key);
        if (known.op_class != AMP_LEAVE) cast_arguments(state.context, op.schema(), known, *stack);
        op.redispatchBoxed(below, stack);
    }
    if (drops) state.drop_casts();
}

/* ---- Ops in no list ---------------------------------------------------------------------------------------------- */

/* The fallback receives boxed arguments, which cost an op without casts more than all other work. So an op outside the
 * lists gets a kernel that falls through, and dispatch does not see the key. Ops that write to tensors keep the
 * fallback, which must see writes to weights. */
class plain_ops {
public:
    plain_ops() {
        std::unordered_set<std::string> listed;
        for (std::int32_t lists : {AMP_LISTS_APEX, AMP_LISTS_TORCH}) {
            std::size_t n = 0;
            errors::done(amp_get_list_ops(lists, nullptr, 0, &n));
            std::vector<amp_list_op> ops(n, AMP_LIST_OP_INIT);
            errors::done(amp_get_list_ops(lists, ops.data(), n, &n));
            for (const amp_list_op &op : ops) listed.insert(std::string("aten::") + op.name);
        }
        for (const renamed &entry : renamed_ops) listed.insert(entry.name);
        c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
        for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
            if (name.name.compare(0, 6, "aten::") || listed.count(name.name)) continue;
            const auto op = dispatcher.findSchema(name);
            if (!op || op->schema().is_mutable() || op->hasKernelForDispatchKey(policy_key)) continue;
            kept_[name.name].push_back(dispatcher.registerImpl(
                name, policy_key, c10::KernelFunction::makeFallthrough(), std::nullopt, nullptr, "libamp: in no list"));
        }
    }
    /* Sends an op to the fallback from now on. */
    void watch(const std::string &name) {
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_.erase(name);
    }

private:
    std::mutex mutex_;
    std::unordered_map<std::string, std::vector<c10::RegistrationHandleRAII>> kept_;
};

/* Registers the fallback once in a process. The library object must live as long as ops run. */
inline void register_fallback(const std::vector<std::string> &watched) {
    static ::torch::Library *library = [] {
        auto *made = new ::torch::Library(::torch::Library::IMPL, "_", policy_key, __FILE__, __LINE__);
        made->fallback(::torch::CppFunction::makeFromBoxedFunction<&fallback>());
        return made;
    }();
    static auto *const plain = new plain_ops;
    (void)library;
    for (const std::string &name : watched) plain->watch(name);
}

/* Sets the policy of this thread for the life of the object (null: no casts). The outermost guard casts weights anew:
 * torch::optim writes through data(), which does not change versions. */
class policy_guard {
public:
    explicit policy_guard(policy entered) : previous_(current_policy()) {
        entered.graph_task = ::torch::autograd::get_current_graph_task_id();
        if (entered.state && entered.state != previous_.state) outermost_ = entered.state;
        if (outermost_) outermost_->drop_casts();
        included_ = c10::impl::tls_is_dispatch_key_included(policy_key);
        excluded_ = c10::impl::tls_is_dispatch_key_excluded(policy_key);
        current_policy() = entered;
        c10::impl::tls_set_dispatch_key_included(policy_key, entered.state != nullptr);
        c10::impl::tls_set_dispatch_key_excluded(policy_key, entered.state == nullptr);
    }
    policy_guard(policy_guard &&other) noexcept
        : previous_(other.previous_), outermost_(std::exchange(other.outermost_, nullptr)), included_(other.included_),
          excluded_(other.excluded_), holds_(std::exchange(other.holds_, false)) {}
    policy_guard &operator=(policy_guard &&) = delete;
    ~policy_guard() {
        if (!holds_) return;
        c10::impl::tls_set_dispatch_key_excluded(policy_key, excluded_);
        c10::impl::tls_set_dispatch_key_included(policy_key, included_);
        current_policy() = previous_;
        if (outermost_) outermost_->drop_casts();
    }

private:
    policy previous_;
    policy_state *outermost_ = nullptr;
    bool included_ = false, excluded_ = false, holds_ = true;
};

} // namespace amp::torch::detail

#endif /* AMP_TORCH_DISPATCH_HPP */
