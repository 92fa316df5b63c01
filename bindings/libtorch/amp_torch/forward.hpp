/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward of a model as an op of libamp. torch::nn::Module has no virtual forward, so one slot serves all models,
 * called by amp::torch::session::forward. libamp casts its inputs and outputs.
 */
#ifndef AMP_TORCH_FORWARD_HPP
#define AMP_TORCH_FORWARD_HPP

#include "host.hpp"

#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace amp::torch::detail {

inline constexpr const char *forward_schema = "forward(pointer self, Tensor[] inputs, int32 n) -> Tensor";

/* ---- Tensors among inputs and outputs ---------------------------------------------------------------------------- */

/* Visits the tensors of types of torch. The data of a PackedSequence is behind a const accessor, but the object belongs
 * to the caller and is not const. */
template <class Visit> void amp_visit_tensors(::torch::nn::utils::rnn::PackedSequence &packed, Visit &&visit) {
    visit(const_cast<at::Tensor &>(packed.data()));
}
template <class Visit> void amp_visit_tensors(::torch::nn::ASMoutput &out, Visit &&visit) {
    visit(out.output);
}
template <class D, class Visit>
void amp_visit_tensors(::torch::data::Example<D, ::torch::data::example::NoTarget> &example, Visit &&visit) {
    visit(example.data);
}
template <class D, class T, class Visit>
void amp_visit_tensors(::torch::data::Example<D, T> &example, Visit &&visit) {
    visit(example.data);
    visit(example.target);
}
template <class K, class V, class Visit>
void amp_visit_tensors(::torch::OrderedDict<K, V> &dict, Visit &&visit) {
    for (auto &item : dict) visit(item.value());
}

struct any_visit {
    template <class T> void operator()(T &) const {}
};
template <class T, class = void> constexpr bool has_visit = false;
template <class T>
constexpr bool
    has_visit<T, std::void_t<decltype(amp_visit_tensors(std::declval<T &>(), std::declval<const any_visit &>()))>> =
        true;
template <class T, class = void> constexpr bool is_tuple = false;
template <class T> constexpr bool is_tuple<T, std::void_t<decltype(std::tuple_size<T>::value)>> = true;
template <class T, class = void> constexpr bool is_map = false;
template <class T> constexpr bool is_map<T, std::void_t<typename T::mapped_type>> = true;
template <class T, class = void> constexpr bool is_range = false;
template <class T>
constexpr bool is_range<T, std::void_t<decltype(*std::begin(std::declval<T &>()), std::end(std::declval<T &>()))>> =
    std::is_lvalue_reference_v<decltype(*std::begin(std::declval<T &>()))>;
template <class T> constexpr bool is_optional = false;
template <class T> constexpr bool is_optional<std::optional<T>> = true;
template <class T> constexpr bool is_variant = false;
template <class... T> constexpr bool is_variant<std::variant<T...>> = true;

/* Visits every defined tensor in `value`. A program can add its own structs with a function beside them:
 *
 *     template <class Visit> void amp_visit_tensors(Outputs &outputs, Visit &&visit) {
 *         visit(outputs.logits);
 *         visit(outputs.hidden);                 what is visited may be a list, a tuple, another such struct
 *     }
 *
 * Other values are left alone: numbers, sizes, const tensors. */
template <class T, class Visit> void visit_tensors(T &value, Visit &visit) {
    const auto each = [&](auto &part) { visit_tensors(part, visit); };
    if constexpr (std::is_const_v<T>) return;
    else if constexpr (std::is_same_v<T, at::Tensor>) {
        if (value.defined()) visit(value);
    } else if constexpr (has_visit<T>) {
        amp_visit_tensors(value, each);
    } else if constexpr (is_optional<T>) {
        if (value) each(*value);
    } else if constexpr (is_variant<T>) {
        std::visit(each, value);
    } else if constexpr (is_tuple<T>) {
        std::apply([&](auto &...parts) { (each(parts), ...); }, value);
    } else if constexpr (is_map<T>) {
        for (auto &entry : value) each(entry.second);
    } else if constexpr (is_range<T>) {
        for (auto &entry : value) each(entry);
    }
}

/* ---- The slot ---------------------------------------------------------------------------------------------------- */

/* A forward during its call through the slot. */
struct forward_call {
    std::function<void()> run;         /* runs forward on the inputs in place */
    std::vector<at::Tensor *> inputs;  /* tensors of the caller */
    std::vector<at::Tensor *> outputs; /* tensors made by forward */
    std::size_t asked = 0;             /* index of the output to return */
    std::exception_ptr thrown;
};

inline forward_call *&current_forward() {
    static thread_local forward_call *call = nullptr;
    return call;
}

/* Runs forward if there are inputs. Each call returns one output, which libamp casts on the way. */
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

template <class M, class... Args>
auto calls_forward(int) -> decltype(std::declval<M &>().forward(std::declval<Args>()...), std::true_type());
template <class, class...> std::false_type calls_forward(...);

/* True if forward takes its I-th argument as a reference to write to, such as `State &`. Templates take anything. */
template <std::size_t I, class M, class... T, std::size_t... J>
constexpr bool takes_reference(std::index_sequence<J...>) {
    return decltype(calls_forward<M, T &...>(0))::value &&
           !decltype(calls_forward<M, std::conditional_t<I == J, const T, T> &...>(0))::value;
}

/* Passes a copy of an argument that forward only reads, and the object of the caller if it writes to it. */
template <bool Writes, class Input>
using held = std::conditional_t<Writes && std::is_lvalue_reference_v<Input> &&
                                    !std::is_const_v<std::remove_reference_t<Input>>,
                                std::decay_t<Input> &, std::decay_t<Input>>;

/* The tensors of an object that forward may write to. Those it left alone are restored, new ones are outputs. */
class written_back {
public:
    explicit written_back(const std::vector<at::Tensor> &originals) : originals_(originals) {}
    void casts_are(const forward_call &call) {
        for (at::Tensor *tensor : call.inputs) casts_.push_back(*tensor);
    }
    /* Restores a tensor. Returns true if it is an output. */
    bool restore(at::Tensor &tensor) const {
        for (std::size_t i = 0; i < casts_.size(); i++)
            if (tensor.is_same(casts_[i])) {
                tensor = originals_[i];
                return false;
            }
        return true;
    }

private:
    const std::vector<at::Tensor> &originals_;
    std::vector<at::Tensor> casts_;
};

/* Runs module.forward(inputs...) with the casts of the level. */
template <class M, std::size_t... I, class... Inputs>
auto run_forward(amp_context *context, void *self, M &module, std::index_sequence<I...>, Inputs &&...inputs) {
    std::tuple<held<takes_reference<I, M, std::decay_t<Inputs>...>(std::index_sequence<I...>()), Inputs>...>
        args(
        std::forward<Inputs>(inputs)...);
    const auto forward = [&](auto &...each) { return module.forward(each...); };
    using returned = decltype(std::apply(forward, args));
    constexpr bool is_void = std::is_void_v<returned>;
    std::optional<std::conditional_t<is_void, bool, std::decay_t<returned>>> result;
    forward_call call;
    std::vector<void *> handles;
    std::vector<at::Tensor> originals;
    written_back own(originals);
    auto note_input = [&](at::Tensor &tensor) {
        call.inputs.push_back(&tensor);
        handles.push_back(tensor.unsafeGetTensorImpl());
        originals.push_back(tensor);
    };
    auto note_output = [&](at::Tensor &tensor) { call.outputs.push_back(&tensor); };
    auto note_own = [&](at::Tensor &tensor) {
        if (own.restore(tensor)) note_output(tensor);
    };
    const auto visit_own = [&] {
        (
            [&] {
                if constexpr (std::is_reference_v<std::tuple_element_t<I, decltype(args)>>)
                    visit_tensors(std::get<I>(args), note_own);
            }(),
            ...);
    };
    (visit_tensors(std::get<I>(args), note_input), ...);
    call.run = [&] {
        own.casts_are(call);
        if constexpr (is_void) std::apply(forward, args), result.emplace();
        else result.emplace(std::apply(forward, args));
        if constexpr (!is_void) visit_tensors(*result, note_output);
        visit_own();
    };
    std::size_t i = 0;
    do {
        call.asked = i;
        void *output = call_slot(call, self, handles);
        if (output) *call.outputs[i] = take(output);
        if (call.thrown) {
            if (!result) visit_own();
            std::rethrow_exception(call.thrown);
        }
        errors::done(amp_check(context)); /* error of a failed cast */
        handles.clear();
    } while (++i < call.outputs.size());
    if (!result) throw error(AMP_ERR_WRONG_STATE, "forward was not called");
    if constexpr (!is_void) return std::move(*result);
}

/* Returns the module behind an argument of initialize or forward: a module, a holder or a shared_ptr. */
template <class M> auto &module_of(M &model) {
    if constexpr (std::is_base_of_v<::torch::nn::Module, M>) return model;
    else return *model;
}

} // namespace amp::torch::detail

#endif /* AMP_TORCH_FORWARD_HPP */
