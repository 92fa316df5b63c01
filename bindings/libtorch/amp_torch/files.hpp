/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of the models of a session: FP32, whatever the types in memory are, and read by the types in the file.
 */
#ifndef AMP_TORCH_FILES_HPP
#define AMP_TORCH_FILES_HPP

#include "state.hpp"

namespace amp::torch {
namespace detail {

/* Shows the 16-bit tensors of a session as FP32 for the life of the object. */
class shown_in_fp32 {
public:
    explicit shown_in_fp32(session_state &state) {
        const ::torch::NoGradGuard no_grad;
        const policy_guard off{policy{}};
        state.owner.masters_reconcile();
        std::unordered_map<void *, at::Tensor> masters;
        for (auto &entry : state.optimizers)
            for (const amp_master &master : amp::master_params<errors>(entry->described))
                if (master.is_master) masters[master.param] = show(master, master.data, master.strides);
        for (const session_state::retyped &entry : state.low) {
            const auto master = masters.find(entry.tensor.unsafeGetTensorImpl());
            low_.push_back(entry.tensor.detach());
            at::Tensor tensor = entry.tensor;
            shown_.push_back(tensor);
            tensor.set_data((master != masters.end() ? master->second : tensor.detach()).to(at::kFloat, false, true));
        }
    }
    shown_in_fp32(const shown_in_fp32 &) = delete;
    shown_in_fp32 &operator=(const shown_in_fp32 &) = delete;
    ~shown_in_fp32() {
        for (std::size_t i = 0; i < shown_.size(); i++) shown_[i].set_data(low_[i]);
    }
    /* Leaves the tensors FP32, for adopt to take over their values. */
    void keep() { shown_.clear(); }

private:
    std::vector<at::Tensor> shown_, low_;
};

/* Converts the tensors of the archive to the types of the module. torch puts the memory of a file under a tensor
 * without changing the type of the tensor. */
inline void fit_types(const ::torch::nn::Module &module, ::torch::serialize::InputArchive &archive) {
    const auto fit = [&](const auto &named) {
        for (const auto &entry : named) {
            c10::IValue found;
            if (!entry.value().defined() || !archive.try_read(entry.key(), found) || !found.isTensor()) continue;
            at::Tensor in_file = found.toTensor(); /* the tensor in the archive, not a copy */
            in_file.set_data(in_file.detach().to(entry.value().device(), entry.value().scalar_type()));
        }
    };
    fit(module.named_parameters(false));
    fit(module.named_buffers(false));
    for (const auto &child : module.named_children()) {
        ::torch::serialize::InputArchive inner;
        if (archive.try_read(child.key(), inner)) fit_types(*child.value(), inner);
    }
}

/* Loads a file with any types. 16-bit tensors are FP32 meanwhile, so that masters get every bit of an FP32 file. */
inline void load(session_state &state, ::torch::nn::Module &module, ::torch::serialize::InputArchive &archive) {
    {
        const ::torch::NoGradGuard no_grad;
        const policy_guard off{policy{}};
        shown_in_fp32 shown(state);
        fit_types(module, archive);
        module.load(archive);
        shown.keep();
    }
    state.drop_casts();
    state.adopt();
}

} // namespace detail
} // namespace amp::torch

/* torch::save(model, file) would write 16 bits, which no FP32 program reads, and torch::load(model, file) would
 * reinterpret the bits of a file of another type. These overloads are found before those of torch. */
namespace torch::serialize {

template <class H, std::enable_if_t<std::is_base_of_v<::torch::detail::ModuleHolderIndicator, H>, int> = 0>
OutputArchive &operator<<(OutputArchive &archive, const H &holder) {
    return archive << holder.ptr();
}
template <class M, std::enable_if_t<std::is_base_of_v<::torch::nn::Module, M>, int> = 0>
OutputArchive &operator<<(OutputArchive &archive, const std::shared_ptr<M> &module) {
    if (amp::torch::detail::session_of(*module, true))
        throw amp::error(AMP_ERR_WRONG_STATE, "torch::save of a model that is 16-bit in a session of libamp: "
                                              "session.save(model, file) writes it in FP32, session.load reads it");
    return archive << std::static_pointer_cast<::torch::nn::Module>(module);
}
template <class H, std::enable_if_t<std::is_base_of_v<::torch::detail::ModuleHolderIndicator, H>, int> = 0>
InputArchive &operator>>(InputArchive &archive, H &holder) {
    return archive >> holder.ptr();
}
template <class M, std::enable_if_t<std::is_base_of_v<::torch::nn::Module, M>, int> = 0>
InputArchive &operator>>(InputArchive &archive, const std::shared_ptr<M> &module) {
    auto *session = amp::torch::detail::session_of(*module, false);
    if (!session) return archive >> std::static_pointer_cast<::torch::nn::Module>(module);
    amp::torch::detail::load(*session, *module, archive);
    return archive;
}

} // namespace torch::serialize

#endif /* AMP_TORCH_FILES_HPP */
