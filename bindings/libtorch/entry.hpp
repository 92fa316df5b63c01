/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions for the functions of amp_torch.h: tensors, lists, returned tensors, and exceptions to statuses. Not
 * installed.
 */
#ifndef AMP_TORCH_ENTRY_HPP
#define AMP_TORCH_ENTRY_HPP

#include "amp_torch.h"

#include <amp.hpp>
#include <torch/torch.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <unordered_map>

using at::Tensor;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

inline thread_local char last_error[2048];

inline amp_status fail(const char *function, amp_status status, const char *words) noexcept {
    std::snprintf(last_error, sizeof last_error, "%s: %s", function, words);
    return status;
}

/* Runs the work of a function. Returns the status of its exception. */
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

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/* The object behind a handle. */
struct object {
    std::recursive_mutex busy; /* held during a call (recursive for callbacks) */
    bool freed = false;        /* guarded by busy */
};

/* An object locked by this call. */
template <class Object> struct held {
    std::shared_ptr<Object> object;
    std::unique_lock<std::recursive_mutex> lock; /* released first */
    Object *operator->() const { return object.get(); }
    Object &operator*() const { return *object; }
};

/* Returns a number for a new handle, unique over all kinds. */
inline uintptr_t next_handle() {
    static std::atomic<uintptr_t> last{0};
    return 16 * ++last;
}

/* The live objects. A handle is a number in the type of a pointer. A freed one is unknown for ever, even if others are
 * made: finalizers free twice, and late. The table is never destroyed, since finalizers run after static destructors
 * too. */
template <class Handle, class Object> class handles {
  public:
    explicit handles(const char *kind, const char *ends) : kind_(kind), ends_(ends) {}

    Handle *give(std::shared_ptr<Object> object) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const uintptr_t number = next_handle();
        all_.emplace(number, std::move(object));
        return reinterpret_cast<Handle *>(number);
    }

    std::shared_ptr<Object> find(const Handle *handle) {
        if (!handle) refuse(AMP_ERR_INVALID_ARGUMENT, std::string(kind_) + " is NULL");
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = all_.find(reinterpret_cast<uintptr_t>(handle));
        if (found == all_.end()) refuse_freed();
        return found->second;
    }

    held<Object> use(const Handle *handle) {
        std::shared_ptr<Object> object = find(handle);
        std::unique_lock<std::recursive_mutex> lock(object->busy, std::try_to_lock);
        if (!lock)
            refuse(AMP_ERR_WRONG_STATE, std::string("another thread is in a call on this ") + kind_ +
                                            ": it is one thread's at a time");
        if (object->freed) refuse_freed(); /* between find and lock */
        return {std::move(object), std::move(lock)};
    }

    /* Marks the object as freed. The last call with the object frees its memory. */
    void forget(const Handle *handle, held<Object> &object) {
        const std::lock_guard<std::mutex> lock(mutex_);
        object->freed = true;
        all_.erase(reinterpret_cast<uintptr_t>(handle));
    }

  private:
    [[noreturn]] void refuse_freed() const {
        refuse(AMP_ERR_INVALID_ARGUMENT, std::string("this is no ") + kind_ + ", or no longer one: it ends with " +
                                             ends_ + ", once, and is not used behind it");
    }

    const char *kind_, *ends_;
    std::mutex mutex_;
    std::unordered_map<uintptr_t, std::shared_ptr<Object>> all_;
};

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

inline const Tensor &tensor_of(amp_torch_tensor tensor, const std::string &what) {
    if (!tensor || !tensor->defined())
        refuse(AMP_ERR_INVALID_ARGUMENT, what + (tensor ? " is an undefined tensor" : " is NULL"));
    return *tensor;
}

inline amp_torch_tensor given(Tensor tensor) { return new Tensor(std::move(tensor)); }

/* Passes all tensors to the caller, or none. */
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
