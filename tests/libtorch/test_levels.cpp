/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings under each level, bit by bit beside the same training with casts, scale and masters by hand. */
#include "../support/levels.h"
#include "tap.hpp"

#include <limits>
#include <sstream>

namespace nn = ::torch::nn;
namespace F = ::torch::nn::functional;

struct NetImpl : nn::Module {
    nn::Conv2d conv{nullptr};
    nn::BatchNorm2d norm{nullptr};
    nn::Linear fc{nullptr};

    NetImpl() {
        conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)));
        norm = register_module("norm", nn::BatchNorm2d(4));
        fc = register_module("fc", nn::Linear(4 * 6 * 6, 5));
    }
    at::Tensor forward(const at::Tensor &x) { return fc(::torch::relu(norm(conv(x))).flatten(1)); }
};
TORCH_MODULE(Net);

struct data {
    at::Tensor x = ::torch::randn({8, 1, 6, 6}), y = ::torch::randint(5, {8});
};

static std::unique_ptr<::torch::optim::Optimizer> optimizer_for(const std::vector<at::Tensor> &params, bool adam) {
    if (adam) return std::make_unique<::torch::optim::Adam>(params, ::torch::optim::AdamOptions(1e-2));
    return std::make_unique<::torch::optim::SGD>(params, ::torch::optim::SGDOptions(0.05).momentum(0.9));
}

/* ---- by hand ---- */

struct recipe {
    const char *name;
    amp_level level;
    at::ScalarType low;
    bool casts_ops, casts_model, fp32_norm, masters;
    float scale;
};
static const recipe recipes[] = {
    {"O0", AMP_O0, at::kFloat, false, false, false, false, 1.0f},
    {"O1", AMP_O1, at::kHalf, true, false, false, false, 65536.0f},
    {"O2", AMP_O2, at::kHalf, false, true, true, true, 65536.0f},
    {"O3", AMP_O3, at::kHalf, false, true, false, false, 1.0f},
    {"O4", AMP_O4, at::kBFloat16, true, false, false, false, 1.0f},
    {"O5", AMP_O5, at::kBFloat16, false, true, true, true, 1.0f},
};

static at::Tensor forward_by_hand(NetImpl &net, const at::Tensor &x, const recipe &r) {
    if (r.casts_model) return net.forward(x.to(r.low)).to(at::kFloat);
    if (!r.casts_ops) return net.forward(x);
    const auto low = [&](const at::Tensor &tensor) { return tensor.to(r.low); };
    at::Tensor h = ::torch::conv2d(low(x), low(net.conv->weight), low(net.conv->bias), 1, 1);
    h = ::torch::relu(net.norm(h)).flatten(1);
    return ::torch::addmm(low(net.fc->bias), h, low(net.fc->weight).t());
}

static void retype_by_hand(NetImpl &net, const recipe &r) {
    const ::torch::NoGradGuard no_grad;
    const auto retype = [&](at::Tensor tensor) {
        if (tensor.is_floating_point()) tensor.set_data(tensor.to(r.low));
    };
    for (const auto &child : net.children())
        if (!r.fp32_norm || !child->as<nn::BatchNorm2dImpl>()) {
            for (at::Tensor &tensor : child->parameters()) retype(tensor);
            for (at::Tensor &tensor : child->buffers()) retype(tensor);
        }
}

/* The parameters after `steps` iterations. */
static std::vector<at::Tensor> train_by_hand(NetImpl &net, const data &d, const recipe &r, bool adam, int steps) {
    std::vector<at::Tensor> masters, params = net.parameters();
    for (const at::Tensor &param : params)
        masters.push_back(r.masters ? param.detach().clone().set_requires_grad(true) : param);
    if (r.casts_model) retype_by_hand(net, r);
    const auto optimizer = optimizer_for(masters, adam);
    for (int i = 0; i < steps; i++) {
        const at::Tensor loss = F::cross_entropy(forward_by_hand(net, d.x, r).to(at::kFloat), d.y);
        for (at::Tensor &param : params) param.mutable_grad() = at::Tensor();
        (loss * r.scale).backward();
        const ::torch::NoGradGuard no_grad;
        for (std::size_t j = 0; j < params.size(); j++)
            masters[j].mutable_grad() = params[j].grad().to(masters[j].scalar_type()) * (1.0 / r.scale);
        optimizer->step();
        for (std::size_t j = 0; r.masters && j < params.size(); j++) params[j].copy_(masters[j]);
    }
    return masters;
}

/* ---- by libamp ---- */

static at::Tensor iterate(amp::torch::session &amp, Net &net, ::torch::optim::Optimizer &optimizer, const data &d,
                          float poison = 1.0f) {
    const auto guard = amp.autocast();
    const at::Tensor loss = F::cross_entropy(amp.forward(net, d.x), d.y) * poison;
    optimizer.zero_grad();
    auto scaled = amp.scale_loss(loss, {&optimizer});
    scaled.backward();
    return loss;
}

static void test_recipe(const recipe &r, bool adam) {
    const data d;
    Net ours, theirs;
    {
        const ::torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < ours->parameters().size(); i++)
            theirs->parameters()[i].copy_(ours->parameters()[i]);
    }
    const std::vector<at::Tensor> expected = train_by_hand(*theirs, d, r, adam, 4);
    const auto optimizer = optimizer_for(ours->parameters(), adam);
    auto amp = amp::torch::initialize(ours, *optimizer, r.level);
    for (int i = 0; i < 4; i++) {
        iterate(amp, ours, *optimizer, d);
        CHECK(amp.step(*optimizer));
    }
    const std::vector<at::Tensor> masters = amp.master_params(*optimizer), params = ours->parameters();
    CHECK(masters.size() == expected.size());
    for (std::size_t i = 0; i < masters.size(); i++) {
        CHECK(tap::same(masters[i], expected[i]));
        CHECK(tap::same(params[i], theirs->parameters()[i]));
    }
    CHECK(tap::same(ours->norm->running_var, theirs->norm->running_var));
    CHECK(amp.forward(ours, d.x).scalar_type() == (r.casts_ops ? r.low : at::kFloat));
}

/* ---- overflow, exceptions, accumulation ---- */

static std::vector<at::Tensor> copies(const std::vector<at::Tensor> &tensors) {
    std::vector<at::Tensor> all;
    for (const at::Tensor &tensor : tensors) all.push_back(tensor.detach().clone());
    return all;
}

static bool all_same(const std::vector<at::Tensor> &a, const std::vector<at::Tensor> &b) {
    bool same = a.size() == b.size() && !a.empty();
    for (std::size_t i = 0; same && i < a.size(); i++) same = tap::same(a[i], b[i]);
    return same;
}

static void test_overflow(amp_level level) {
    const data d;
    Net net;
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    std::vector<float> scales;
    amp::torch::options options;
    options.config.loss_scale = AMP_DYNAMIC;
    options.config.init_scale = 1024.0f;
    options.event = [&](const amp_event &event) {
        if (event.kind == AMP_EVENT_SKIP) scales.push_back(event.scale_after);
    };
    auto amp = amp::torch::initialize(net, optimizer, level, options);
    iterate(amp, net, optimizer, d);
    CHECK(amp.step(optimizer));
    const auto before = copies(amp.master_params(optimizer));
    iterate(amp, net, optimizer, d, std::numeric_limits<float>::infinity());
    CHECK(!amp.step(optimizer) && amp.loss_scale() == 512.0f && scales == std::vector<float>{512.0f});
    CHECK(all_same(before, copies(amp.master_params(optimizer))));
    iterate(amp, net, optimizer, d);
    CHECK(amp.step(optimizer) && !all_same(before, copies(amp.master_params(optimizer))));
}

struct Thrower : ::torch::autograd::Function<Thrower> {
    static at::Tensor forward(::torch::autograd::AutogradContext *, const at::Tensor &x) { return x.clone(); }
    static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext *,
                                                     ::torch::autograd::variable_list) {
        throw std::runtime_error("backward broke");
    }
};

static void test_exceptions(amp_level level) {
    const data d;
    Net net;
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto amp = amp::torch::initialize(net, optimizer, level);
    iterate(amp, net, optimizer, d);
    const auto before = copies([&] {
        std::vector<at::Tensor> gradients;
        for (const at::Tensor &param : net->parameters()) gradients.push_back(param.grad());
        return gradients;
    }());
    bool thrown = false;
    try {
        auto scaled = amp.scale_loss(Thrower::apply(amp.forward(net, d.x)).sum());
        scaled.backward();
    } catch (const std::runtime_error &error) {
        thrown = std::string(error.what()).find("backward broke") != std::string::npos;
    }
    CHECK(thrown);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor &param : net->parameters()) gradients.push_back(param.grad());
    CHECK(all_same(before, gradients)); /* cancelled */
    CHECK(amp.step(optimizer));
    iterate(amp, net, optimizer, d);
    CHECK(amp.step(optimizer));
    bool wrong_shape = false;
    try {
        amp.forward(net, ::torch::randn({2, 3}));
    } catch (const c10::Error &) {
        wrong_shape = true;
    }
    CHECK(wrong_shape && amp.forward(net, d.x).defined());
}

static void test_accumulation(amp_level level) {
    const data a, b;
    Net net;
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto amp = amp::torch::initialize(net, optimizer, level);
    const auto gradients_of = [&](const std::vector<const data *> &all) {
        optimizer.zero_grad();
        for (const data *d : all) {
            auto scaled = amp.scale_loss(F::cross_entropy(amp.forward(net, d->x).to(at::kFloat), d->y));
            scaled.backward();
        }
        std::vector<at::Tensor> found;
        for (const at::Tensor &master : amp.master_params(optimizer)) found.push_back(master.grad().clone());
        return found;
    };
    net->norm->eval(); /* each batch by itself */
    const auto first = gradients_of({&a}), second = gradients_of({&b}), both = gradients_of({&a, &b});
    for (std::size_t i = 0; i < both.size(); i++) CHECK(tap::same(both[i], first[i] + second[i]));
    at::Tensor weight = net->fc->weight, mine = ::torch::zeros_like(weight).detach();
    weight.mutable_grad() = mine;
    for (int i = 0; i < 2; i++) { /* set aside, put back or added, and let go */
        auto scaled = amp.scale_loss(amp.forward(net, a.x).sum());
        if (i) scaled.backward();
    }
    weight.mutable_grad() = at::Tensor();
    CHECK(mine.use_count() == 1);
}

/* ---- several models, optimizers, losses ---- */

static void test_several() {
    nn::Linear first(4, 4), second(4, 4);
    ::torch::optim::SGD one(first->parameters(), 0.1), two(second->parameters(), 0.1);
    amp::torch::options options;
    options.config.num_losses = 2;
    options.config.init_scale = 256.0f;
    auto amp = amp::torch::initialize({first.get(), second.get()}, {&one, &two}, AMP_O2, options);
    CHECK(first->weight.scalar_type() == at::kHalf && second->weight.scalar_type() == at::kHalf);
    const at::Tensor x = ::torch::randn({3, 4});
    const auto before = copies(second->parameters());
    {
        auto scaled = amp.scale_loss(amp.forward(first, x).sum(), {&one}, 0);
        scaled.backward();
    }
    {
        auto scaled = amp.scale_loss(amp.forward(second, x).sum() * std::numeric_limits<float>::infinity(), {&two}, 1);
        scaled.backward();
    }
    CHECK(amp.step(one) && !amp.step(two));
    CHECK(amp.loss_scale(0) == 256.0f && amp.loss_scale(1) == 128.0f);
    CHECK(all_same(before, copies(second->parameters())));
    ::torch::optim::SGD stranger(first->parameters(), 0.1);
    CHECK(tap::status_of([&] { amp.step(stranger); }) == AMP_ERR_INVALID_ARGUMENT);
    CHECK(tap::status_of([&] { amp.scale_loss(x.sum(), {&one}, 7); }) == AMP_ERR_INVALID_ARGUMENT);
    CHECK(tap::status_of([&] { amp::torch::initialize(first, AMP_O1); }) != AMP_OK); /* 16-bit already */
}

/* ---- masters, checkpoints, the end ---- */

static void test_masters() {
    const data d;
    Net net;
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    amp::torch::options options;
    options.config.init_scale = 256.0f;
    auto amp = amp::torch::initialize(net, optimizer, AMP_O2, options);
    iterate(amp, net, optimizer, d);
    const std::vector<at::Tensor> masters = amp.master_params(optimizer);
    CHECK(masters[0].scalar_type() == at::kFloat && net->conv->weight.scalar_type() == at::kHalf);
    CHECK(net->norm->weight.scalar_type() == at::kFloat);
    at::Tensor sum = ::torch::zeros({});
    for (const at::Tensor &master : masters) sum += master.grad().to(at::kDouble).pow(2).sum().to(at::kFloat);
    const double norm = amp.clip_grad_norm(optimizer, 1e-3);
    CHECK(std::abs(norm / std::sqrt(sum.item<double>()) - 1.0) < 1e-5); /* FP32 sums of some 800 squares */
    CHECK(nn::utils::clip_grad_norm_(amp.master_params(optimizer), 1e9) < 1.01e-3);
    CHECK(amp.step(optimizer));

    at::Tensor late = ::torch::ones({3}).set_requires_grad(true);
    amp.add_param_group(optimizer, ::torch::optim::OptimizerParamGroup({late}));
    {
        auto scaled = amp.scale_loss((late * late).sum());
        scaled.backward();
    }
    CHECK(late.scalar_type() == at::kHalf && amp.step(optimizer));
    CHECK(tap::same(amp.master_params(optimizer).back().detach(), ::torch::full({3}, 1.0f - 0.1f * 2.0f)));
    const at::Tensor base = ::torch::ones({2, 2}), gaps = base.slice(1, 0, 1).detach().set_requires_grad(true);
    CHECK(tap::status_of([&] { amp.add_param_group(optimizer, ::torch::optim::OptimizerParamGroup({gaps})); }) !=
          AMP_OK);
    CHECK(optimizer.param_groups().size() == 2); /* all or nothing */
}

/* As a WGAN clips: no version counts it. What the next step would write is the clipped weight, and what it adds. */
static void test_data_writes(amp_level level) {
    const data d;
    Net net;
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    amp::torch::options options;
    options.config.loss_scale = 64.0f;
    auto amp = amp::torch::initialize(net, optimizer, level, options);
    for (int i = 0; i < 3; i++) {
        iterate(amp, net, optimizer, d);
        CHECK(amp.step(optimizer));
        const at::Tensor weight = net->fc->weight;
        weight.data().clamp_(-0.01, 0.01);
        static_cast<::torch::optim::SGDOptions &>(optimizer.param_groups()[0].options()).lr(0.0);
        iterate(amp, net, optimizer, d);
        CHECK(amp.step(optimizer));
        static_cast<::torch::optim::SGDOptions &>(optimizer.param_groups()[0].options()).lr(0.1);
        CHECK(weight.to(at::kFloat).abs().max().item<float>() < 0.0101f);
    }
}

static void test_shutdown() {
    const data d;
    Net net;
    std::vector<at::Tensor> masters;
    ::torch::optim::Adam optimizer(net->parameters());
    const auto references = net->fc->weight.use_count(), buffers = net->norm->running_mean.use_count();
    {
        auto amp = amp::torch::initialize(net, optimizer, AMP_O2);
        iterate(amp, net, optimizer, d);
        amp.step(optimizer);
        masters = copies(amp.master_params(optimizer));
        amp::torch::session moved(std::move(amp));
        CHECK(moved.get() && !amp.get());
    }
    CHECK(all_same(masters, copies(net->parameters())));
    CHECK(net->fc->weight.use_count() == references &&
          net->norm->running_mean.use_count() == buffers); /* nothing is kept */
    CHECK(net->fc->weight.storage().use_count() == 1);
    CHECK(net->fc->weight.grad().use_count() == 1);
    CHECK(net->norm->running_mean.scalar_type() == at::kFloat);
    auto again = amp::torch::initialize(net, optimizer, AMP_O1);
    iterate(again, net, optimizer, d);
    CHECK(again.step(optimizer));
}

/* Three steps of which one is skipped, saved, three more: beside six. The parts are loaded in either order. */
static void test_resume(amp_level level, bool amp_first) {
    const data d;
    amp::torch::options dynamic;
    dynamic.config.loss_scale = AMP_DYNAMIC;
    dynamic.config.init_scale = 1024.0f;
    std::ostringstream model_file, optimizer_file;
    std::vector<at::Tensor> expected;
    at::Tensor state;
    {
        Net net;
        ::torch::optim::Adam optimizer(net->parameters(), ::torch::optim::AdamOptions(1e-2));
        auto amp = amp::torch::initialize(net, optimizer, level, dynamic);
        for (int i = 0; i < 6; i++) {
            if (i == 3) {
                amp.save(net, model_file);
                ::torch::save(optimizer, optimizer_file);
                state = amp.state();
            }
            iterate(amp, net, optimizer, d, i == 1 ? std::numeric_limits<float>::infinity() : 1.0f);
            CHECK(amp.step(optimizer) == (i != 1));
        }
        expected = copies(amp.master_params(optimizer));
    }
    ::torch::manual_seed(77);
    Net net;
    ::torch::optim::Adam optimizer(net->parameters(), ::torch::optim::AdamOptions(1e-2));
    auto amp = amp::torch::initialize(net, optimizer, level, dynamic);
    std::istringstream model_in(model_file.str()), optimizer_in(optimizer_file.str());
    if (amp_first) amp.load_state(state);
    if (amp_first) amp.load(net, model_in);
    else ::torch::load(net, model_in);
    ::torch::load(optimizer, optimizer_in);
    if (!amp_first) amp.load_state(state);
    const auto resumed = copies(amp.master_params(optimizer));
    CHECK(!all_same(expected, resumed) && amp.loss_scale() == 512.0f);
    for (int i = 3; i < 6; i++) {
        iterate(amp, net, optimizer, d);
        CHECK(amp.step(optimizer));
    }
    for (const at::Tensor &param : expected) CHECK(param.isfinite().all().item<bool>());
    CHECK(all_same(expected, copies(amp.master_params(optimizer))));
    CHECK(tap::status_of([&] { amp.load_state(::torch::zeros({9}, at::kByte)); }) == AMP_ERR_BAD_FILE);
}

/* ---- what goes in and what comes out ---- */

struct ManyImpl : nn::Module {
    nn::Linear fc{nullptr};
    at::ScalarType seen = at::kByte, listed = at::kByte, indices = at::kByte;
    ManyImpl() { fc = register_module("fc", nn::Linear(4, 4)); }
    std::tuple<at::Tensor, std::vector<at::Tensor>, int>
    forward(const at::Tensor &x, const std::vector<at::Tensor> &more, const at::Tensor &labels, int number) {
        seen = x.scalar_type();
        listed = more[0].scalar_type();
        indices = labels.scalar_type();
        return {fc(x), {more[0] + 1, labels}, number};
    }
};
TORCH_MODULE(Many);

static void test_forward() {
    Many net;
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto amp = amp::torch::initialize(net, optimizer, AMP_O2);
    const at::Tensor x = ::torch::randn({2, 4}), labels = ::torch::arange(2);
    const auto [out, more, number] = amp.forward(net, x, std::vector<at::Tensor>{x}, labels, 7);
    CHECK(net->seen == at::kHalf && net->listed == at::kHalf && net->indices == at::kLong && number == 7);
    CHECK(out.scalar_type() == at::kFloat && more[0].scalar_type() == at::kFloat && more[1].scalar_type() == at::kLong);
    CHECK(tap::same(more[0], (x.to(at::kHalf) + 1).to(at::kFloat)) && x.scalar_type() == at::kFloat);
    out.sum().backward();
    CHECK(net->fc->weight.grad().scalar_type() == at::kHalf);
    CHECK(tap::status_of([&] { amp.forward(net->fc, x); }) == AMP_ERR_INVALID_ARGUMENT);

    nn::Sequential sequence(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 2));
    auto other = amp::torch::initialize(sequence, AMP_O5);
    CHECK(other.forward(sequence, x).scalar_type() == at::kFloat);
    CHECK(sequence[0]->as<nn::LinearImpl>()->weight.scalar_type() == at::kBFloat16);
}

int main() {
    ::torch::manual_seed(0);
    at::globalContext().setDeterministicAlgorithms(true, false);
    for (const recipe &r : recipes)
        for (bool adam : {false, true})
            tap::test(std::string(r.name) + (adam ? ", Adam" : ", SGD") + ": the bits of casting by hand",
                      [&] { test_recipe(r, adam); });
    for (amp_level level : {EACH_LEVEL}) {
        const std::string name = ", O" + std::to_string(level - AMP_O0);
        tap::test("an overflow skips" + name, [&] { test_overflow(level); });
        tap::test("an exception cancels" + name, [&] { test_exceptions(level); });
    }
    for (amp_level level : {AMP_O1, AMP_O2, AMP_O5})
        tap::test("gradients add up, O" + std::to_string(level - AMP_O0), [&] { test_accumulation(level); });
    tap::test("several models, optimizers and losses", test_several);
    tap::test("masters", test_masters);
    for (const amp_level level : {AMP_O2, AMP_O5})
        tap::test("writes through data() stay, O" + std::to_string(level - AMP_O0), [&] { test_data_writes(level); });
    tap::test("the end gives FP32 back", test_shutdown);
    for (amp_level level : {AMP_O1, AMP_O2, AMP_O5})
        for (bool first : {false, true})
            tap::test("resumes to the bit, O" + std::to_string(level - AMP_O0) + (first ? ", libamp's part first" : ""),
                      [&] { test_resume(level, first); });
    tap::test("tensors in tuples and vectors", test_forward);
    return tap::done();
}
