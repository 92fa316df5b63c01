/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.amp.GradScaler for C++, with the same decisions in the same order. The scale, its rule (scaler mode torch) and
 * the check are libamp's: a gradient counts as non-finite after the division. Source: torch/amp/grad_scaler.py.
 */
#ifndef AMP_TORCH_GRAD_SCALER_HPP
#define AMP_TORCH_GRAD_SCALER_HPP

#include "state.hpp"

#include <cmath>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <vector>

namespace amp::torch {

/* Arguments of the constructor in torch, and limits of libamp. */
struct GradScalerOptions {
    double init_scale = 65536.0;
    double growth_factor = 2.0;
    double backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;
    bool enabled = true;
    double min_scale = 0.0;             /* least scale; 0: 2^-126, so that the scale never becomes 0 */
    std::uint32_t max_skips = AMP_NEVER; /* skips in a row before update throws */
};

/* The members of state_dict. */
struct GradScalerState {
    double scale = 0.0; /* 0 for a disabled scaler */
    double growth_factor = 0.0;
    double backoff_factor = 0.0;
    std::int64_t growth_interval = 0;
    std::int64_t growth_tracker = 0;
};

/* One scale for any number of optimizers:
 *
 *     scaler.scale(loss).backward();
 *     scaler.unscale_(optimizer);        optional: to clip
 *     scaler.step(optimizer);            false: skipped
 *     scaler.update();
 *
 * Gradients must be FP32 (a model of 16-bit parameters needs masters: see initialize). One thread at a time. */
class GradScaler {
public:
    explicit GradScaler(const GradScalerOptions &options = {}) : options_(options) {
        if (!options_.enabled) return;
        flag_ = at::zeros({1}, at::kFloat);
        handle_ = flag_.unsafeGetTensorImpl();
        optimizer_.host = &host_;
        optimizer_.params = &handle_;
        optimizer_.n_params = 1;
        rebuild(options_, options_.init_scale, 0);
    }
    GradScaler(const GradScaler &) = delete;
    GradScaler &operator=(const GradScaler &) = delete;

    /* Returns outputs * scale, on the tape. */
    at::Tensor scale(const at::Tensor &outputs) const {
        return enabled() ? detail::take(context_.scale(outputs.unsafeGetTensorImpl())) : outputs;
    }
    std::vector<at::Tensor> scale(const std::vector<at::Tensor> &outputs) const {
        std::vector<at::Tensor> scaled;
        for (const at::Tensor &output : outputs) scaled.push_back(scale(output));
        return scaled;
    }

    /* Divides the gradients of the optimizer by the scale in place. At most once between two updates. */
    void unscale_(::torch::optim::Optimizer &optimizer) {
        (void)unscale(key_of(optimizer), [&] { return gradients_of(optimizer); });
    }
    /* Runs optimizer.step(), unless a gradient is not finite. Returns true if it stepped. */
    bool step(::torch::optim::Optimizer &optimizer) {
        return step(key_of(optimizer), [&] { return gradients_of(optimizer); }, [&] { optimizer.step(); });
    }
    /* Unscales, for a caller with its own update. `key`: a number that identifies the optimizer. `gradients`: returns
     * their list. Returns true if one is not finite. */
    template <class Gradients> bool unscale(std::uint64_t key, Gradients &&gradients) {
        if (!enabled()) return false;
        progress &known = states_[key];
        require_state(known.stage != stage::unscaled,
                      "unscale_() has already been called on this optimizer since the last update().");
        require_state(known.stage != stage::stepped, "unscale_() is being called after step().");
        std::vector<void *> handles;
        const std::vector<at::Tensor> elements = elements_of(gradients());
        for (const at::Tensor &each : elements) handles.push_back(each.unsafeGetTensorImpl());
        known.checked = !handles.empty();
        known.found_inf = !handles.empty() && context_.unscale(handles);
        known.stage = stage::unscaled;
        return known.found_inf;
    }
    template <class Gradients, class Update> bool step(std::uint64_t key, Gradients &&gradients, Update &&update) {
        if (enabled()) {
            require_state(states_[key].stage != stage::stepped,
                          "step() has already been called since the last update().");
            if (states_[key].stage == stage::ready) (void)unscale(key, gradients);
            require_state(states_[key].checked, "No inf checks were recorded for this optimizer.");
        }
        const bool steps = !enabled() || !states_[key].found_inf;
        if (steps) {
            update();
            detail::weights_moved();
        }
        if (enabled()) states_[key].stage = stage::stepped;
        return steps;
    }
    /* Closures are an error, as in torch: gradients that they compute are not unscaled. */
    bool step(::torch::optim::Optimizer &, ::torch::optim::Optimizer::LossClosure) = delete;

    /* Sets the next scale after all steps of an iteration, or new_scale. */
    void update(std::optional<double> new_scale = std::nullopt) {
        if (!enabled()) return;
        bool checked = false, found = false;
        for (const auto &entry : states_) {
            checked |= entry.second.checked;
            found |= entry.second.found_inf;
        }
        require_state(checked || new_scale, "No inf checks were recorded prior to update.");
        if (new_scale) check(options_, *new_scale);
        states_.clear();
        if (new_scale) set_scale(*new_scale);
        else tick(found);
    }

    /* Returns the present scale (1 for a disabled scaler). */
    double get_scale() const {
        return enabled() ? static_cast<double>(scale(at::ones({1}, at::kFloat)).item<float>()) : 1.0;
    }
    /* Sets the scale between two iterations. */
    void set_scale(double scale) {
        if (enabled()) rebuild(options_, scale, growth_tracker());
    }
    double get_growth_factor() const { return options_.growth_factor; }
    void set_growth_factor(double factor) {
        change(&GradScalerOptions::growth_factor, factor);
    }
    double get_backoff_factor() const { return options_.backoff_factor; }
    void set_backoff_factor(double factor) {
        change(&GradScalerOptions::backoff_factor, factor);
    }
    std::int64_t get_growth_interval() const { return options_.growth_interval; }
    void set_growth_interval(std::int64_t interval) {
        change(&GradScalerOptions::growth_interval, interval);
    }
    bool is_enabled() const { return enabled(); }

    /* Returns the state after update, for a checkpoint beside the model and the optimizer. A disabled scaler returns
     * zeros. */
    GradScalerState state_dict() const {
        if (!enabled()) return {};
        return {get_scale(), options_.growth_factor, options_.backoff_factor, options_.growth_interval,
                growth_tracker()};
    }
    void load_state_dict(const GradScalerState &state) {
        if (!enabled()) return;
        require(state.scale > 0.0, "the state is of a scaler that was not enabled");
        GradScalerOptions next = options_;
        next.growth_factor = state.growth_factor;
        next.backoff_factor = state.backoff_factor;
        next.growth_interval = state.growth_interval;
        rebuild(next, state.scale, state.growth_tracker);
    }
    /* Saves the state in an archive with the names of state_dict in Python. */
    void save(::torch::serialize::OutputArchive &archive) const {
        const GradScalerState state = state_dict();
        archive.write("scale", c10::IValue(state.scale));
        archive.write("growth_factor", c10::IValue(state.growth_factor));
        archive.write("backoff_factor", c10::IValue(state.backoff_factor));
        archive.write("growth_interval", c10::IValue(state.growth_interval));
        archive.write("_growth_tracker", c10::IValue(state.growth_tracker));
    }
    void load(::torch::serialize::InputArchive &archive) {
        const auto read = [&](const char *key) {
            c10::IValue value;
            archive.read(key, value);
            return value;
        };
        load_state_dict({read("scale").toDouble(), read("growth_factor").toDouble(), read("backoff_factor").toDouble(),
                         read("growth_interval").toInt(), read("_growth_tracker").toInt()});
    }

private:
    enum class stage { ready, unscaled, stepped };
    struct progress {
        amp::torch::GradScaler::stage stage = amp::torch::GradScaler::stage::ready;
        bool checked = false, found_inf = false;
    };

    static void require(bool condition, const char *what) {
        if (!condition) throw error(AMP_ERR_INVALID_ARGUMENT, what);
    }
    static void require_state(bool condition, const char *what) {
        if (!condition) throw error(AMP_ERR_WRONG_STATE, what);
    }

    bool enabled() const { return options_.enabled; }
    std::int64_t growth_tracker() const { return context_.record().unskipped; }

    static std::uint64_t key_of(const ::torch::optim::Optimizer &optimizer) {
        return reinterpret_cast<std::uintptr_t>(&optimizer);
    }
    static std::vector<at::Tensor> gradients_of(::torch::optim::Optimizer &optimizer) {
        std::vector<at::Tensor> found;
        for (const auto &group : optimizer.param_groups())
            for (const at::Tensor &param : group.params()) found.push_back(param.mutable_grad());
        return found;
    }
    /* Returns the tensors to divide: for a sparse gradient its values. */
    static std::vector<at::Tensor> elements_of(const std::vector<at::Tensor> &gradients) {
        std::vector<at::Tensor> found;
        for (const at::Tensor &gradient : gradients) {
            if (!gradient.defined()) continue;
            require(gradient.scalar_type() != at::kHalf, "Attempting to unscale FP16 gradients.");
            found.push_back(gradient.is_sparse() ? gradient._values() : gradient);
        }
        return found;
    }

    /* Checks the options before anything changes. */
    static void check(const GradScalerOptions &options, double scale) {
        const double growth = options.growth_factor, backoff = options.backoff_factor;
        require(growth > 1.0 && std::isfinite(static_cast<float>(growth)),
                "the growth factor must be > 1.0, and finite in FP32");
        require(static_cast<float>(backoff) > 0.0f && backoff < 1.0, "the backoff factor must be < 1.0, and above 0");
        require(options.growth_interval > 0 && options.growth_interval < std::int64_t{UINT32_MAX},
                "the growth interval must be at least 1, and have 32 bits");
        require(scale > 0.0 && std::isfinite(static_cast<float>(scale)),
                "the scale must be above 0 and finite in FP32");
    }

    void rebuild(const GradScalerOptions &options, double scale, std::int64_t tracker) {
        check(options, scale);
        options_ = options;
        build(scale, tracker);
    }

    /* Builds the scaler in libamp: a context without a model, and one optimizer with found_inf as its gradient. */
    void build(double scale, std::int64_t tracker) {
        amp_config config = amp::config(AMP_O0);
        config.cast_model_type = AMP_DTYPE_UNCHANGED;
        config.loss_scale = AMP_DYNAMIC;
        config.scaler = AMP_SCALER_TORCH;
        config.init_scale = static_cast<float>(scale);
        config.min_scale = static_cast<float>(options_.min_scale);
        config.growth = options_.growth_factor;
        config.backoff = options_.backoff_factor;
        config.window = static_cast<std::uint32_t>(options_.growth_interval);
        config.max_skips = options_.max_skips;
        context_.open({}, {&optimizer_}, config);
        if (!tracker) return;
        std::ostringstream state;
        state.imbue(std::locale::classic());
        state << std::setprecision(17) << "{\"loss_scaler0\": {\"loss_scale\": " << get_scale() << ", \"unskipped\": "
              << tracker << "}}";
        context_.state_load_memory(state.str());
    }

    template <class T> void change(T GradScalerOptions::*member, T value) {
        GradScalerOptions next = options_;
        next.*member = value;
        if (enabled()) rebuild(next, get_scale(), growth_tracker());
    }

    void tick(bool found_inf) {
        basic_scaled_loss<detail::errors> bracket(optimizer_);
        (void)bracket.seed_factor(); /* scale() has applied the scale already */
        flag_.mutable_grad() = at::full({1}, found_inf ? std::numeric_limits<double>::infinity() : 0.0, at::kFloat);
        bracket.end();
        flag_.mutable_grad() = at::Tensor();
    }

    GradScalerOptions options_;
    amp_host host_ = detail::hooks(nullptr);
    at::Tensor flag_;
    void *handle_ = nullptr;
    amp_optimizer optimizer_ = AMP_OPTIMIZER_INIT;
    std::unordered_map<std::uint64_t, progress> states_; /* states by key */
    basic_context<detail::errors> context_;
};

} // namespace amp::torch

#endif /* AMP_TORCH_GRAD_SCALER_HPP */
