/* SPDX-License-Identifier: Apache-2.0 */
/* Casts of weights are those of the weights as they are, whoever wrote them: torch::optim writes through data(), which
 * leaves a tensor's version as it is. Everything beside the same with cache = AMP_OFF, bit by bit. */
#include "tap.hpp"

#include <optional>

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;

/* The convolution alone trains. */
struct NetImpl : nn::Module {
    nn::Conv2d conv{nullptr};
    nn::Linear fc{nullptr};

    NetImpl() {
        conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 3, 3)));
        fc = register_module("fc", nn::Linear(3 * 4 * 4, 2));
        for (at::Tensor &param : fc->parameters()) param.set_requires_grad(false);
    }
    at::Tensor forward(const at::Tensor &x) { return fc(::torch::tanh(conv(x)).flatten(1)); }
};
TORCH_MODULE(Net);

using maker = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;
static const std::vector<std::pair<std::string, maker>> makers = {
    { "SGD", [](auto params) { return std::make_unique<optim::SGD>(params, optim::SGDOptions(0.05)); } },
    { "SGD with momentum",
      [](auto params) {
          return std::make_unique<optim::SGD>(params, optim::SGDOptions(0.02).momentum(0.9).nesterov(true));
      } },
    { "Adam", [](auto params) { return std::make_unique<optim::Adam>(params, optim::AdamOptions(0.01)); } },
    { "AdamW", [](auto params) { return std::make_unique<optim::AdamW>(params, optim::AdamWOptions(0.01)); } },
    { "Adagrad", [](auto params) { return std::make_unique<optim::Adagrad>(params, optim::AdagradOptions(0.05)); } },
    { "RMSprop",
      [](auto params) {
          return std::make_unique<optim::RMSprop>(params, optim::RMSpropOptions(0.005).momentum(0.5));
      } },
};

/* How a script steps. */
enum way { bracket, plain, scaler, one_guard, n_ways };
static const char *const way_names[] = {"bracket and session.step", "plain backward and step", "GradScaler",
                                        "the whole loop under one autocast()"};

static amp::torch::options cached(bool yes) {
    amp::torch::options made;
    made.config.cache = yes ? AMP_ON : AMP_OFF;
    return made;
}

static at::Tensor train(amp_level level, bool cache, const maker &make, way how) {
    ::torch::manual_seed(3);
    Net net;
    const at::Tensor x = ::torch::randn({6, 1, 6, 6}), y = ::torch::randn({6, 2});
    const auto optimizer = make(net->conv->parameters());
    auto amp = how == bracket ? amp::torch::initialize(net, *optimizer, level, cached(cache))
                              : amp::torch::initialize(net, level, cached(cache));
    amp::torch::GradScaler scaling(amp::torch::GradScalerOptions{256.0});
    std::optional<amp::torch::scope_guard> whole;
    if (how == one_guard) whole.emplace(amp.autocast());
    for (int i = 0; i < 60; i++) {
        std::optional<amp::torch::scope_guard> guard;
        if (how == scaler) guard.emplace(amp.autocast());
        const at::Tensor loss = ::torch::mse_loss(amp.forward(net, x).to(at::kFloat), y);
        guard.reset();
        optimizer->zero_grad();
        if (how == bracket) {
            auto scaled = amp.scale_loss(loss);
            scaled.backward();
            scaled.end();
            amp.step(*optimizer);
        } else if (how == scaler) {
            scaling.scale(loss).backward();
            scaling.step(*optimizer);
            scaling.update();
        } else {
            loss.backward();
            optimizer->step();
        }
    }
    return net->conv->weight.detach().clone();
}

static void test_training(amp_level level, const maker &make, way how) {
    const at::Tensor kept = train(level, true, make, how), fresh = train(level, false, make, how);
    ::torch::manual_seed(3);
    const Net start;
    CHECK(tap::same(kept, fresh));
    CHECK((kept - start->conv->weight).abs().max().item<float>() > 0.02f);
}

/* Its step evaluates the model several times. Refused at initialize, so without. */
static void test_lbfgs(amp_level level) {
    const auto run = [&](bool cache) {
        ::torch::manual_seed(3);
        Net net;
        const at::Tensor x = ::torch::randn({6, 1, 6, 6}), y = ::torch::randn({6, 2});
        optim::LBFGS optimizer(net->conv->parameters(), optim::LBFGSOptions(0.1).max_iter(5));
        auto amp = amp::torch::initialize(net, level, cached(cache));
        for (int i = 0; i < 4; i++)
            optimizer.step([&] {
                optimizer.zero_grad();
                const at::Tensor loss = ::torch::mse_loss(amp.forward(net, x).to(at::kFloat), y);
                loss.backward();
                return loss;
            });
        return net->conv->weight.detach().clone();
    };
    CHECK(tap::same(run(true), run(false)));
}

/* ---- evaluate, edit, evaluate ---- */

using edit = std::function<void(at::Tensor &)>;
static const std::vector<std::pair<std::string, edit>> edits = {
    {"data().copy_", [](at::Tensor &w) { w.data().copy_(::torch::full_like(w, 0.5)); }},
    {"data().mul_().add_", [](at::Tensor &w) { w.data().mul_(0.9).add_(w.detach().clone(), 0.25); }},
    {"a slice of data()", [](at::Tensor &w) { w.data().slice(0, 0, 1).zero_(); }},
    {"set_data", [](at::Tensor &w) { w.set_data(::torch::full_like(w, 0.25)); }},
    {"detach().fill_", [](at::Tensor &w) { w.detach().fill_(0.125); }},
    {"an out=", [](at::Tensor &w) {
         at::Tensor shown = w.data();
         ::torch::mul_out(shown, shown.clone(), ::torch::full({1}, 2.0));
     }},
    {"a list", [](at::Tensor &w) { at::_foreach_mul_({w.data()}, 0.5); }},
};

static void test_edit(amp_level level, const edit &write, bool one_scope) {
    const auto run = [&](bool cache) {
        ::torch::manual_seed(5);
        Net net;
        const at::Tensor x = ::torch::randn({2, 1, 6, 6});
        auto amp = amp::torch::initialize(net, level, cached(cache));
        std::optional<amp::torch::scope_guard> guard;
        if (one_scope) guard.emplace(amp.autocast());
        const ::torch::NoGradGuard no_grad;
        std::vector<at::Tensor> seen{amp.forward(net, x)};
        write(net->conv->weight);
        seen.push_back(amp.forward(net, x));
        write(net->conv->bias);
        seen.push_back(amp.forward(net, x));
        return seen;
    };
    const auto kept = run(true), fresh = run(false);
    for (std::size_t i = 0; i < fresh.size(); i++) CHECK(tap::same(kept[i], fresh[i]));
    CHECK(!tap::same(fresh[0], fresh[1]) && !tap::same(fresh[1], fresh[2]));
}

/* What no op writes is seen by the next outermost forward. */
static void test_raw_edit(amp_level level) {
    Net net;
    const at::Tensor x = ::torch::randn({2, 1, 6, 6});
    auto amp = amp::torch::initialize(net, level);
    const ::torch::NoGradGuard no_grad;
    const at::Tensor before = amp.forward(net, x);
    std::fill_n(net->conv->weight.data_ptr<float>(), 27, 0.0f);
    std::fill_n(net->conv->bias.data_ptr<float>(), 3, 0.0f);
    CHECK(!tap::same(before, amp.forward(net, x)));
    CHECK(tap::same(amp.forward(net, x), amp.forward(net, ::torch::zeros_like(x))));
    const auto guard = amp.autocast(); /* inside of one the script says so */
    const at::Tensor zeroed = amp.forward(net, x);
    std::fill_n(net->conv->weight.data_ptr<float>(), 27, 1.0f);
    CHECK(amp_cache_clear(amp.get()) == AMP_OK);
    CHECK(!tap::same(zeroed, amp.forward(net, x)));
}

/* A momentum encoder: trained by nobody, written after each step. */
static void test_target(amp_level level) {
    const auto run = [&](bool cache) {
        ::torch::manual_seed(7);
        Net online, target;
        const at::Tensor x = ::torch::randn({4, 1, 6, 6});
        optim::SGD optimizer(online->conv->parameters(), 0.05);
        auto amp = amp::torch::initialize({online.get(), target.get()}, {&optimizer}, level, cached(cache));
        for (int i = 0; i < 20; i++) {
            const auto guard = amp.autocast();
            const at::Tensor goal = [&] {
                const ::torch::NoGradGuard no_grad;
                return amp.forward(target, x);
            }();
            const at::Tensor loss = ::torch::mse_loss(amp.forward(online, x).to(at::kFloat), goal.to(at::kFloat) + 1);
            optimizer.zero_grad();
            auto scaled = amp.scale_loss(loss);
            scaled.backward();
            scaled.end();
            amp.step(optimizer);
            for (std::size_t j = 0; j < 2; j++)
                target->parameters()[j].data().mul_(0.5).add_(online->parameters()[j].data(), 0.5);
        }
        return amp.forward(target, x);
    };
    CHECK(tap::same(run(true), run(false)));
}

/* And they are kept where nothing moves: one guard, one cast of each. */
static void test_kept(amp_level level) {
    amp::torch::options made;
    made.ops = {{"conv2d", AMP_LOWER}}; /* counted */
    Net net;
    auto amp = amp::torch::initialize(net, level, made);
    const at::Tensor x = ::torch::randn({2, 1, 6, 6});
    const auto guard = amp.autocast();
    for (int i = 0; i < 5; i++) amp.forward(net, x);
    std::uint64_t hits = 0;
    for (const amp_op_stats &stats : amp.context().op_stats())
        if (std::string(stats.name) == "aten::conv2d") hits = stats.cache_hits;
    CHECK(hits == 2 * 4);
}

int main() {
    at::globalContext().setDeterministicAlgorithms(true, false);
    for (amp_level level : {AMP_O1, AMP_O4}) {
        const std::string name = ", O" + std::to_string(level - AMP_O0);
        for (const auto &[optimizer, make] : makers)
            for (int how = 0; how < n_ways; how++)
                tap::test(optimizer + ", " + way_names[how] + name,
                          [&, make = make] { test_training(level, make, static_cast<way>(how)); });
        tap::test("LBFGS" + name, [&] { test_lbfgs(level); });
        for (const auto &[what, write] : edits)
            for (bool one_scope : {false, true})
                tap::test(what + (one_scope ? " under one autocast()" : " between forwards") + name,
                          [&, write = write] { test_edit(level, write, one_scope); });
        tap::test("written by nobody's op" + name, [&] { test_raw_edit(level); });
        tap::test("a target network" + name, [&] { test_target(level); });
        tap::test("kept where nothing moves" + name, [&] { test_kept(level); });
    }
    return tap::done();
}
