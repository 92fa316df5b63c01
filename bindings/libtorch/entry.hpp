/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the functions of amp_torch.h take tensors and lists, give tensors, and tell of what was thrown. Not installed.
 */
#ifndef AMP_TORCH_ENTRY_HPP
#define AMP_TORCH_ENTRY_HPP

#include "amp_torch.h"

#include <amp.hpp>
#include <torch/torch.h>

#include <cstdio>
#include <memory>

using at::Tensor;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

inline thread_local char last_error[2048];

inline amp_status fail(const char *function, amp_status status, const char *words) noexcept {
    std::snprintf(last_error, sizeof last_error, "%s: %s", function, words);
    return status;
}

/* What every function is: its work, and the status of what that threw. */
template <class Work> amp_status entry(const char *function, Work &&work) noexcept {
    try {
        work();
        return AMP_OK;
    } catch (const amp::error &error) {
        return fail(function, error.status(), error.what());
    } catch (const c10::Error &error) {
        return fail(function, AMP_ERR_HOST_FAILED, error.what_without_backtrace());
    } catch (const std::bad_alloc &) {
        return fail(function, AMP_ERR_NO_MEMORY, amp_status_text(AMP_ERR_NO_MEMORY));
    } catch (const std::exception &error) {
        return fail(function, AMP_ERR_HOST_FAILED, error.what());
    } catch (...) {
        return fail(function, AMP_ERR_HOST_FAILED, "an exception that is not C++'s");
    }
}

[[noreturn]] inline void refuse(amp_status status, const std::string &words) { throw amp::error(status, words); }

template <class T> T &deref(T *pointer, const char *what) {
    if (!pointer) refuse(AMP_ERR_INVALID_ARGUMENT, std::string(what) + " is NULL");
    return *pointer;
}

template <class T> void check_list(const T *list, size_t n, const char *what) {
    if (n) deref(list, what);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

inline const Tensor &tensor_of(amp_torch_tensor tensor, const std::string &what) {
    if (!tensor || !tensor->defined())
        refuse(AMP_ERR_INVALID_ARGUMENT, what + (tensor ? " is an undefined tensor" : " is NULL"));
    return *tensor;
}

inline amp_torch_tensor given(Tensor tensor) { return new Tensor(std::move(tensor)); }

/* To the caller all of them, or none. */
inline void give_all(const std::vector<Tensor> &tensors, amp_torch_tensor *out) {
    std::vector<std::unique_ptr<Tensor>> made;
    for (const Tensor &tensor : tensors) made.push_back(tensor.defined() ? std::make_unique<Tensor>(tensor) : nullptr);
    for (size_t i = 0; i < made.size(); i++) out[i] = made[i].release();
}

inline std::vector<Tensor> list_of(const amp_torch_tensor *tensors, size_t n, const char *what) {
    std::vector<Tensor> list;
    check_list(tensors, n, what);
    for (size_t i = 0; i < n; i++) list.push_back(tensors[i] ? *tensors[i] : Tensor());
    return list;
}

#endif /* AMP_TORCH_ENTRY_HPP */
