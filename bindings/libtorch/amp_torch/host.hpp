/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of libtorch as handles of libamp (c10::TensorImpl *), and the hooks for them.
 */
#ifndef AMP_TORCH_HOST_HPP
#define AMP_TORCH_HOST_HPP

#include <amp.hpp>
#include <torch/torch.h>

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <unordered_set>

namespace amp::torch::detail {

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* Holds the last exception of a hook on this thread. libamp returns a status, and the caller rethrows the exception. */
inline std::exception_ptr &thrown() {
    static thread_local std::exception_ptr pointer;
    return pointer;
}

/* The error policy of amp.hpp for libtorch: throws the exception of the hook if there is one, else amp::error. */
struct errors : throwing {
    static void done(amp_status status) {
        const std::exception_ptr pending = std::exchange(thrown(), nullptr);
        if (status == AMP_ERR_HOST_FAILED && pending) std::rethrow_exception(pending);
        throwing::done(status);
    }
    template <class T> static T give(amp_status status, T got) {
        done(status);
        return got;
    }
};

/* Runs the work of a hook. No exception passes through C. */
template <class Work> amp_status guarded(Work &&work) noexcept {
    try {
        work();
        return AMP_OK;
    } catch (...) {
        thrown() = std::current_exception();
        return AMP_ERR_HOST_FAILED;
    }
}

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/* Returns a new reference to the tensor of the handle, or an undefined tensor. */
inline at::Tensor borrow(void *handle) {
    if (handle == nullptr) return {};
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
        static_cast<c10::TensorImpl *>(handle)));
}

/* Takes the reference of the handle, which "moves" in the sense of amp.h. */
inline at::Tensor take(void *handle) {
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
        static_cast<c10::TensorImpl *>(handle)));
}

/* Passes the reference to the receiver of the handle. */
inline void *give(at::Tensor tensor) { return tensor.defined() ? tensor.unsafeReleaseTensorImpl() : nullptr; }

inline amp_dtype to_amp(at::ScalarType type) {
    switch (type) {
    case at::kFloat: return AMP_FLOAT32;
    case at::kHalf: return AMP_FLOAT16;
    case at::kBFloat16: return AMP_BFLOAT16;
    case at::kDouble: return AMP_FLOAT64;
    default: return AMP_DTYPE_OTHER;
    }
}

inline at::ScalarType to_torch(amp_dtype type) {
    switch (type) {
    case AMP_FLOAT32: return at::kFloat;
    case AMP_FLOAT16: return at::kHalf;
    case AMP_BFLOAT16: return at::kBFloat16;
    case AMP_FLOAT64: return at::kDouble;
    default: throw error(AMP_ERR_UNSUPPORTED, "a type that libtorch and libamp do not share");
    }
}

/* Converts a device to the numbers of DLPack. */
inline amp_device to_amp(at::Device device) {
    if (device.is_cpu()) return {1, 0};
    if (device.is_cuda()) return {2, device.has_index() ? device.index() : 0};
    throw error(AMP_ERR_UNSUPPORTED, "libamp works on tensors of CPUs and CUDA devices, not on " + device.str());
}

inline at::Device to_torch(amp_device device) {
    return device.type == 2 ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device.id)) : at::Device(at::kCPU);
}

/* ---- Cached casts ------------------------------------------------------------------------------------------------ */

/* Receives skips, scale changes and warnings. Must not call libamp. */
using listener = std::function<void(const amp_event &)>;

inline const c10::StorageImpl *storage_of(const c10::TensorImpl *tensor) {
    return tensor->has_storage() ? tensor->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

/* `self` of the hooks. A write through another tensor on the memory of a weight (w.data()) does not change the version
 * of the weight. So the memory of cast weights is recorded here, for callers that see such a write. */
class host_self {
public:
    const listener *listening = nullptr;

    void watch(const at::Tensor &tensor) {
        const std::lock_guard<std::mutex> lock(mutex_);
        watched_.insert(tensor.unsafeGetTensorImpl());
    }
    void note_cast(const c10::TensorImpl *tensor) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (watched_.count(tensor)) memory_.insert(storage_of(tensor));
        any_ = !memory_.empty();
    }
    /* Returns true if a weight on the memory of this tensor was cast since the last forget. */
    bool was_cast(const c10::TensorImpl *tensor) {
        if (!any_) return false;
        const std::lock_guard<std::mutex> lock(mutex_);
        return memory_.count(storage_of(tensor)) != 0;
    }
    void forget_casts() {
        if (!any_) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        memory_.clear();
        any_ = false;
    }

private:
    std::mutex mutex_;
    std::unordered_set<const c10::TensorImpl *> watched_;
    std::unordered_set<const c10::StorageImpl *> memory_;
    std::atomic<bool> any_{false};
};

/* ---- Hooks ------------------------------------------------------------------------------------------------------- */

inline amp_status view(void *, void *handle, amp_tensor_view *view) {
    return guarded([&] {
        auto *tensor = static_cast<c10::TensorImpl *>(handle);
        if (tensor->layout() != at::kStrided)
            throw error(AMP_ERR_UNSUPPORTED, "a sparse tensor has no plain elements: make it dense");
        const at::ScalarType type = c10::typeMetaToScalarType(tensor->dtype());
        view->data = tensor->mutable_data();
        view->device = to_amp(tensor->device());
        view->ndim = static_cast<std::int32_t>(tensor->dim());
        view->dtype.code = to_amp(type) == AMP_DTYPE_OTHER ? 0 : type == at::kBFloat16 ? 4 : 2;
        view->dtype.bits = static_cast<std::uint8_t>(8 * tensor->itemsize());
        view->dtype.lanes = 1;
        view->shape = const_cast<std::int64_t *>(tensor->sizes().data());
        view->strides = const_cast<std::int64_t *>(tensor->strides().data());
    });
}

inline amp_dtype dtype(void *, void *handle) {
    return to_amp(c10::typeMetaToScalarType(static_cast<c10::TensorImpl *>(handle)->dtype()));
}

/* Casts on the tape of autograd: backward returns a gradient in the type of the source. */
inline amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    return guarded([&] {
        if (self) static_cast<host_self *>(self)->note_cast(static_cast<c10::TensorImpl *>(handle));
        *out = give(borrow(handle).to(to_torch(to)));
    });
}

inline void release(void *, void *handle) { take(handle); }

/* Returns the version. It includes requires_grad, since a cast of a frozen weight has no path to it, and the memory,
 * which set_data and torch::load replace without counting. */
inline std::uint64_t version(void *, void *handle) {
    auto *tensor = static_cast<c10::TensorImpl *>(handle);
    if (tensor->is_inference()) return 0;
    const std::uint64_t memory = reinterpret_cast<std::uintptr_t>(storage_of(tensor)) * UINT64_C(0x9e3779b97f4a7c15);
    return memory + 2 * static_cast<std::uint64_t>(tensor->version_counter().current_version()) +
           tensor->requires_grad();
}

inline std::int32_t grad_enabled(void *) { return c10::GradMode::is_enabled(); }

inline amp_status grad(void *, void *handle, void **out) {
    return guarded([&] {
        const at::Tensor &found = borrow(handle).mutable_grad();
        *out = found.defined() ? found.unsafeGetTensorImpl() : nullptr;
    });
}

/* Replaces the gradient. Both references move. */
inline amp_status set_grad(void *, void *handle, void *fresh) {
    return guarded([&] {
        at::Tensor &slot = borrow(handle).mutable_grad();
        at::Tensor old = std::exchange(slot, fresh ? take(fresh) : at::Tensor());
        give(std::move(old));
    });
}

/* Exchanges the storage. A block is a c10::StorageImpl with one reference owned by libamp. */
inline amp_status swap_data(void *, void *handle, amp_storage *storage) {
    return guarded([&] {
        const ::torch::NoGradGuard no_grad;
        at::Tensor tensor = borrow(handle);
        c10::Storage old = tensor.storage();
        const amp_storage shown = {tensor.mutable_data_ptr(), nullptr, tensor.storage().nbytes(),
                                   to_amp(tensor.scalar_type()), 0};
        c10::Storage fresh(
            c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl *>(storage->owner)));
        at::Tensor filled = at::empty({0}, tensor.options().dtype(to_torch(storage->dtype)).requires_grad(false));
        const auto offset = static_cast<const char *>(storage->data) - static_cast<const char *>(fresh.data());
        filled.set_(fresh, offset / static_cast<std::int64_t>(filled.itemsize()), tensor.sizes(), tensor.strides());
        tensor.set_data(filled);
        *storage = shown;
        storage->owner = old.unsafeReleaseStorageImpl();
    });
}

inline amp_status scale(void *, void *loss, float factor, void **out) {
    return guarded([&] { *out = give(borrow(loss).mul(static_cast<double>(factor))); });
}

inline amp_status alloc(void *, std::uint64_t bytes, amp_device device, amp_purpose, amp_storage *storage) {
    return guarded([&] {
        const auto options = at::TensorOptions().dtype(at::kByte).device(to_torch(device));
        c10::Storage block = at::empty({static_cast<std::int64_t>(bytes)}, options).storage();
        storage->data = block.mutable_data();
        storage->bytes = block.nbytes();
        storage->owner = block.unsafeReleaseStorageImpl();
    });
}

inline void free(void *, amp_storage *storage) {
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl *>(storage->owner));
}

inline void event(void *self, const amp_event *what) {
    const listener *told = self ? static_cast<const host_self *>(self)->listening : nullptr;
    if (!told || !*told) return;
    try {
        (*told)(*what);
    } catch (...) { /* exceptions of a listener are dropped */
    }
}

/* Returns all hooks. `self` may be null, and must live as long as the context. */
inline amp_host hooks(host_self *self) {
    amp_host host = AMP_HOST_INIT;
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS | AMP_HOST_VERSION_MISSES_WRITES; /* because of w.data() */
    host.self = self;
    host.view = view;
    host.dtype = dtype;
    host.cast = cast;
    host.release = release;
    host.version = version;
    host.grad_enabled = grad_enabled;
    host.grad = grad;
    host.set_grad = set_grad;
    host.swap_data = swap_data;
    host.scale = scale;
    host.alloc = alloc;
    host.free = free;
    host.event = event;
    return host;
}

} // namespace amp::torch::detail

#endif /* AMP_TORCH_HOST_HPP */
