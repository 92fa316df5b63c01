/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's forward as an op of libamp: torch::nn::Module has no virtual forward, so there is one slot for all, through
 * which amp::torch::session::forward calls. libamp casts what goes in and what comes out.
 */
#ifndef AMP_TORCH_FORWARD_HPP
#define AMP_TORCH_FORWARD_HPP

#include "host.hpp"

#include <optional>
#include <tuple>
#include <vector>

namespace amp::torch::detail {

inline constexpr const char *forward_schema = "forward(pointer self, Tensor[] inputs, int32 n) -> Tensor";

/* ---- Tensors among inputs and outputs ---------------------------------------------------------------------------- */

template <class Visit> void visit_tensors(at::Tensor &tensor, Visit &visit) {
    if (tensor.defined()) visit(tensor);
}
template <class T, class Visit> void visit_tensors(std::vector<T> &list, Visit &visit);
template <class T, class Visit> void visit_tensors(std::optional<T> &value, Visit &visit);
template <class A, class B, class Visit> void visit_tensors(std::pair<A, B> &pair, Visit &visit);
template <class... T, class Visit> void visit_tensors(std::tuple<T...> &tuple, Visit &visit);
/* Whatever else: numbers, sizes, structs of one's own. */
template <class T, class Visit> void visit_tensors(T &, Visit &) {}

template <class T, class Visit> void visit_tensors(std::vector<T> &list, Visit &visit) {
    if constexpr (!std::is_same_v<T, bool>)
        for (T &entry : list) visit_tensors(entry, visit);
}
template <class T, class Visit> void visit_tensors(std::optional<T> &value, Visit &visit) {
    if (value) visit_tensors(*value, visit);
}
template <class A, class B, class Visit> void visit_tensors(std::pair<A, B> &pair, Visit &visit) {
    visit_tensors(pair.first, visit);
    visit_tensors(pair.second, visit);
}
template <class... T, class Visit> void visit_tensors(std::tuple<T...> &tuple, Visit &visit) {
    std::apply([&](T &...entries) { (visit_tensors(entries, visit), ...); }, tuple);
}

/* ---- The slot ---------------------------------------------------------------------------------------------------- */

/* A forward on its way through the slot. */
struct forward_call {
    std::function<void()> run;         /* inputs are in place: forward */
    std::vector<at::Tensor *> inputs;  /* that the caller gave */
    std::vector<at::Tensor *> outputs; /* that forward made */
    std::size_t asked = 0;             /* of the outputs: the one that this call hands out */
    std::exception_ptr thrown;
};

inline forward_call *&current_forward() {
    static thread_local forward_call *call = nullptr;
    return call;
}

/* With inputs: runs. Each call hands out one output, which libamp casts on the way. */
inline void *forward_entry(void *, void **inputs, std::int32_t n) {
    forward_call *call = std::exchange(current_forward(), nullptr);
    try {
        for (std::int32_t i = 0; i < n; i++) *call->inputs[static_cast<std::size_t>(i)] = borrow(inputs[i]);
        if (call->run) std::exchange(call->run, nullptr)();
        return call->asked < call->outputs.size() ? give(*call->outputs[call->asked]) : nullptr;
    } catch (...) {
        call->thrown = std::current_exception();
        return nullptr;
    }
}

inline amp_fn &forward_slot() {
    static amp_fn slot = reinterpret_cast<amp_fn>(&forward_entry);
    return slot;
}

inline void *call_slot(forward_call &call, void *self, std::vector<void *> &handles) {
    current_forward() = &call;
    const auto forward = reinterpret_cast<void *(*)(void *, void **, std::int32_t)>(forward_slot());
    void *output = forward(self, handles.data(), static_cast<std::int32_t>(handles.size()));
    current_forward() = nullptr;
    return output;
}

/* forward(inputs...) with everything cast that the level casts. Forward gets copies of what is not a tensor. */
template <class Forward, class... Inputs>
auto run_forward(amp_context *context, void *self, Forward forward, Inputs &&...inputs) {
    std::tuple<std::decay_t<Inputs>...> args(std::forward<Inputs>(inputs)...);
    using result_type = std::decay_t<decltype(std::apply(forward, args))>;
    std::optional<result_type> result;
    forward_call call;
    std::vector<void *> handles;
    auto note_input = [&](at::Tensor &tensor) {
        call.inputs.push_back(&tensor);
        handles.push_back(tensor.unsafeGetTensorImpl());
    };
    auto note_output = [&](at::Tensor &tensor) { call.outputs.push_back(&tensor); };
    std::apply([&](auto &...each) { (visit_tensors(each, note_input), ...); }, args);
    const std::vector<at::Tensor> keep = [&] {
        std::vector<at::Tensor> all;
        for (at::Tensor *tensor : call.inputs) all.push_back(*tensor);
        return all;
    }();
    call.run = [&] {
        result.emplace(std::apply(forward, args));
        visit_tensors(*result, note_output);
    };
    std::size_t i = 0;
    do {
        call.asked = i;
        void *output = call_slot(call, self, handles);
        if (output) *call.outputs[i] = take(output);
        if (call.thrown) std::rethrow_exception(call.thrown);
        errors::done(amp_check(context)); /* a cast that failed */
        handles.clear();
    } while (++i < call.outputs.size());
    if (!result) throw error(AMP_ERR_WRONG_STATE, "forward was not called");
    return std::move(*result);
}

/* What initialize and forward take: a module, a holder, a shared_ptr. */
template <class M> auto &module_of(M &model) {
    if constexpr (std::is_base_of_v<::torch::nn::Module, M>) return model;
    else return *model;
}

} // namespace amp::torch::detail

#endif /* AMP_TORCH_FORWARD_HPP */
