// SPDX-License-Identifier: Apache-2.0
/*
 * C++: what must be ended ends with its owner, and errors are exceptions. One weight vector learns y = 3 x, emulated in
 * FP32 memory.
 *
 *     c++ -std=c++17 cxx.cpp $(pkg-config --cflags --libs libamp)
 */
#include <amp.hpp>

#include <cstdio>
#include <exception>
#include <vector>

// ---- the trainer ----

static void multiply_loops(float *y, const float *x, const float *w, int n) {
    for (int i = 0; i < n; i++) y[i] = x[i] * w[i];
}
static void (*multiply)(float *y, const float *x, const float *w, int n) = multiply_loops;

struct network {
    std::vector<float> weight, gradient, x, y;
    explicit network(std::size_t n) : weight(n, 0.1f), gradient(n), x(n, 1.0f), y(n) {}
    void forward() { multiply(y.data(), x.data(), weight.data(), static_cast<int>(y.size())); }
    void backward(float seed) {
        for (std::size_t i = 0; i < y.size(); i++) gradient[i] += seed * (y[i] - 3.0f) * x[i];
    }
    void update() {
        for (std::size_t i = 0; i < y.size(); i++) weight[i] -= 0.125f * gradient[i];
    }
    void zero_grad() { gradient.assign(gradient.size(), 0.0f); }
};

// ---- the adapter: what is described lives as long as the context ----

class adapter {
public:
    adapter(network &net, amp_level level) : net_(net) {
        weight_.data = net.weight.data(), gradient_.data = net.gradient.data();
        weight_.size = gradient_.size = static_cast<int64_t>(net.weight.size());
        weight_.grad = &gradient_;
        param_.tensor = trained_[0] = &weight_, param_.name = "weight";
        op_.name = "multiply", op_.op_class = AMP_LOWER, op_.slot = reinterpret_cast<amp_fn *>(&multiply);
        op_.schema = "multiply(float(out a!) y[n], float x[n], float w[n], int n) -> void";
        model_.host = amp_buffer_host();
        model_.ops = &op_, model_.n_ops = 1, model_.params = &param_, model_.n_params = 1;
        optimizer_.params = trained_, optimizer_.n_params = 1;
        amp_config config = amp::config(level);
        config.emulate = AMP_ON;
        context_.open({&model_}, {&optimizer_}, config);
    }
    adapter(const adapter &) = delete; // the context has its addresses

    // True if it stepped. An exception that leaves the bracket cancels it.
    bool iterate() {
        net_.zero_grad();
        net_.forward();
        amp::scale_loss(optimizer_, nullptr, [&](const amp::scaled_loss &s) { net_.backward(s.seed_factor()); });
        amp::step step(optimizer_);
        if (step) net_.update();
        const bool stepped = static_cast<bool>(step);
        step.end();
        return stepped;
    }

private:
    network &net_;
    amp_buffer weight_ = AMP_BUFFER_INIT, gradient_ = AMP_BUFFER_INIT;
    amp_param param_ = AMP_PARAM_INIT;
    void *trained_[1] = {};
    amp_op op_ = amp::make<amp_op>();
    amp_model model_ = amp::make<amp_model>();
    amp_optimizer optimizer_ = amp::make<amp_optimizer>();
    amp::context context_; // last: it ends first
};

int main() try {
    for (const char *name : {"O0", "O1", "O2", "O4", "O5"}) {
        network net(4);
        int steps = 0;
        {
            adapter adapted(net, amp::level(name));
            for (int i = 0; i < 40; i++) steps += adapted.iterate();
        }
        std::printf("%s: %d steps of 40, w = %.3f\n", name, steps, static_cast<double>(net.weight[0]));
        if (!(net.weight[0] > 2.9f && net.weight[0] < 3.1f)) return 1;
    }
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
