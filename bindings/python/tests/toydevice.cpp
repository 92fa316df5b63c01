// SPDX-License-Identifier: Apache-2.0
// A device for torch, registered through PrivateUse1, whose memory is the CPU's. Ops run on CPU tensors over the same
// memory, by a boxed fallback; torch believes in a device that is neither the CPU nor CUDA. How often a host would have
// waited for it, and which ops it ran, is counted.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <set>

namespace {

constexpr auto TOY = c10::DeviceType::PrivateUse1;
const c10::Device device(TOY, 0);
std::atomic<int64_t> waits{0}, ops{0};

// ---- what a device needs ----

c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device); }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<TOY> {
    c10::Device exchangeDevice(c10::Device) const override { return device; }
    c10::Device getDevice() const override { return device; }
    c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
    c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t n) override {
        void *const memory = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
        return {memory, memory, std::free, device};
    }
    c10::DeleterFnPtr raw_deleter() const override { return std::free; }
    void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
};
Allocator allocator;
REGISTER_ALLOCATOR(TOY, &allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    at::Device getDeviceFromPtr(void *) const override { return device; }
};

// ---- tensors of the one device over the memory of the other ----

void drop(void *storage) { delete static_cast<c10::Storage *>(storage); }

// A tensor on `to` whose memory is t's, which lives as long.
at::Tensor over(const at::Tensor &t, c10::Device to) {
    if (!t.defined() || t.device().type() == to.type() || !t.has_storage()) return t;
    auto *const owner = new c10::Storage(t.storage());
    c10::DataPtr data(owner->mutable_data(), owner, drop, to);
    const bool cpu = to.is_cpu();
    c10::Storage storage(c10::Storage::use_byte_size_t(), owner->nbytes(), std::move(data),
                         cpu ? c10::GetCPUAllocator() : &allocator, true);
    const auto key = cpu ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), t.dtype());
    made.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
}

using Pairs = std::vector<std::pair<at::Tensor, at::Tensor>>; // the device's, the CPU's

c10::IValue to_cpu(const c10::IValue &value, Pairs &pairs) {
    const auto one = [&](const at::Tensor &t) {
        TORCH_CHECK(!t.defined() || !t.is_cpu() || t.dim() == 0 || value.isOptionalTensorList(),
                    "Expected all tensors to be on the same device, toy, and one is on cpu");
        auto made = over(t, c10::kCPU);
        if (t.defined() && !made.is_same(t)) pairs.emplace_back(t, made);
        return made;
    };
    if (value.isTensor()) return one(value.toTensor());
    if (value.isDevice()) return value.toDevice().type() == TOY ? c10::Device(c10::kCPU) : value.toDevice();
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor &t : value.toTensorVector()) list.push_back(one(t));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor> &t : value.toOptionalTensorVector())
            list.push_back(t ? std::optional<at::Tensor>(one(*t)) : t);
        return list;
    }
    return value;
}

at::Tensor from_cpu(const at::Tensor &t, const Pairs &pairs) {
    for (const auto &[mine, its] : pairs)
        if (its.is_same(t)) return mine;
    return over(t, device);
}

// An op may have resized what it wrote.
void take_sizes(const Pairs &pairs) {
    for (const auto &[mine, its] : pairs) {
        const bool same_sizes = its.sizes() == mine.sizes() && its.strides() == mine.strides();
        if (same_sizes && its.data_ptr() == mine.data_ptr()) continue;
        const auto there = over(its, device);
        mine.unsafeGetTensorImpl()->set_storage_keep_dtype(there.storage());
        mine.unsafeGetTensorImpl()->set_sizes_and_strides(its.sizes(), its.strides());
    }
}

void run_on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    static const std::set<std::string> waiting = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero",
                                                  "aten::nonzero", "aten::masked_select", "aten::_unique2"};
    Pairs pairs;
    ops++;
    waits += waiting.count(op.schema().name());
    const size_t first = stack->size() - op.schema().arguments().size();
    for (size_t i = first; i < stack->size(); i++) (*stack)[i] = to_cpu((*stack)[i], pairs);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    take_sizes(pairs);
    for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
        c10::IValue &value = (*stack)[i];
        if (value.isTensor()) {
            value = from_cpu(value.toTensor(), pairs);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor &t : value.toTensorVector()) list.push_back(from_cpu(t, pairs));
            value = list;
        }
    }
}

// ---- what no fallback does ----

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
    const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> type,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
    const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
    return at::detail::empty_strided_generic(size, stride, &allocator, keys, c10::dtype_or_default(type));
}

at::Tensor copy_from(const at::Tensor &of, const at::Tensor &to, bool) {
    waits += to.is_cpu();
    over(to, c10::kCPU).copy_(over(of, c10::kCPU));
    return to;
}

at::Tensor &set_storage(at::Tensor &self, c10::Storage storage) {
    const auto elements = static_cast<int64_t>(storage.nbytes() / self.element_size());
    return at::native::set_storage_cpu_(self, std::move(storage), 0, elements);
}

} // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("_copy_from", copy_from);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("set_.source_Storage", set_storage);
    m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
    m.impl("view", at::native::view);
    m.impl("_reshape_alias", at::native::_reshape_alias);
}

TORCH_LIBRARY(libamp_toy, m) {
    m.def("start() -> ()", [] {
        static Hooks hooks;
        at::RegisterPrivateUse1HooksInterface(&hooks);
    });
    m.def("waits() -> int", [] { return waits.load(); });
    m.def("ops() -> int", [] { return ops.load(); });
}
