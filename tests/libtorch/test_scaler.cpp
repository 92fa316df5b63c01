/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GradScaler: its own promises and, given the file of a trace that trace.py made with torch.amp.GradScaler, the same
 * trace.
 */
#include "tap.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

using amp::torch::GradScaler;
using amp::torch::GradScalerOptions;

static const float infinity = std::numeric_limits<float>::infinity();

struct bench {
    at::Tensor a = ::torch::ones({3}).set_requires_grad(true), b = ::torch::ones({2}).set_requires_grad(true);
    ::torch::optim::SGD one{{a}, 1.0}, two{{b}, 1.0};
};

/* ---- Python's trace ---- */

/* A line of the trace: a word and numbers; see trace.py. */
static void follow(const std::string &path) {
    std::ifstream file(path);
    std::string line, word;
    std::unique_ptr<GradScaler> scaler;
    bench b;
    int steps = 0;
    CHECK(file.good());
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        fields >> word;
        if (word == "new") {
            GradScalerOptions options;
            fields >> options.init_scale >> options.growth_factor >> options.backoff_factor >> options.growth_interval;
            scaler = std::make_unique<GradScaler>(options);
        } else if (word == "backward") { /* optimizer, gradient of each element */
            double gradient = 0;
            int which = 0;
            std::string text;
            fields >> which >> text;
            gradient = std::stod(text);
            at::Tensor &param = which ? b.b : b.a;
            scaler->scale((param * gradient).sum()).backward();
        } else if (word == "unscale") {
            int which = 0;
            fields >> which;
            scaler->unscale_(which ? b.two : b.one);
        } else if (word == "step") { /* optimizer; the parameter's first element and its gradient afterwards */
            int which = 0;
            double value = 0;
            std::string gradient;
            fields >> which >> value >> gradient;
            scaler->step(which ? b.two : b.one);
            const at::Tensor &param = which ? b.b : b.a;
            const double expected = std::stod(gradient), found = param.grad()[0].item<float>();
            CHECK(param[0].item<float>() == value);
            CHECK(found == expected || (std::isnan(found) && std::isnan(expected)));
            param.mutable_grad() = at::Tensor();
            steps++;
        } else if (word == "update") { /* scale and growth tracker afterwards */
            double scale = 0;
            std::int64_t tracker = 0;
            fields >> scale >> tracker;
            scaler->update();
            if (scaler->get_scale() != scale || scaler->state_dict().growth_tracker != tracker)
                std::printf("# step %d: %g %ld, Python has %s\n", steps, scaler->get_scale(),
                            static_cast<long>(scaler->state_dict().growth_tracker), line.c_str());
            CHECK(scaler->get_scale() == scale && scaler->state_dict().growth_tracker == tracker);
        } else if (word == "set") { /* update(new_scale) */
            double scale = 0;
            fields >> scale;
            scaler->update(scale);
            CHECK(scaler->get_scale() == scale);
        } else {
            CHECK(word == "a word of the trace");
        }
    }
    CHECK(steps > 100);
}

/* ---- its own promises ---- */

static void test_usage() {
    bench b;
    GradScaler scaler;
    CHECK(scaler.get_scale() == 65536.0 && scaler.is_enabled());
    CHECK(tap::status_of([&] { scaler.update(); }) == AMP_ERR_WRONG_STATE);
    CHECK(tap::status_of([&] { scaler.step(b.one); }) == AMP_ERR_WRONG_STATE); /* no gradient at all */
    GradScaler fresh;
    fresh.scale(b.a.sum()).backward();
    fresh.unscale_(b.one);
    CHECK(tap::same(b.a.grad(), ::torch::ones({3})));
    CHECK(tap::status_of([&] { fresh.unscale_(b.one); }) == AMP_ERR_WRONG_STATE);
    CHECK(fresh.step(b.one));
    CHECK(tap::status_of([&] { fresh.step(b.one); }) == AMP_ERR_WRONG_STATE);
    CHECK(tap::status_of([&] { fresh.unscale_(b.one); }) == AMP_ERR_WRONG_STATE);
    fresh.update();
    at::Tensor half = ::torch::ones({2}, at::kHalf).set_requires_grad(true);
    ::torch::optim::SGD low({half}, 1.0);
    half.sum().backward();
    CHECK(tap::status_of([&] { fresh.unscale_(low); }) == AMP_ERR_INVALID_ARGUMENT);
    CHECK(tap::status_of([&] { GradScaler bad(GradScalerOptions{8.0, 1.0}); }) == AMP_ERR_INVALID_ARGUMENT);
    const std::vector<at::Tensor> scaled = fresh.scale(std::vector<at::Tensor>{b.a, b.b});
    CHECK(scaled.size() == 2 && scaled[1][0].item<float>() == 65536.0f);
}

static void test_disabled() {
    bench b;
    GradScalerOptions options;
    options.enabled = false;
    GradScaler scaler(options);
    CHECK(scaler.scale(b.a).is_same(b.a) && scaler.get_scale() == 1.0 && scaler.state_dict().scale == 0.0);
    (b.a.sum() * infinity).backward();
    scaler.unscale_(b.one);
    CHECK(scaler.step(b.one) && std::isinf(b.a[0].item<float>()));
    scaler.update();
}

static void run(GradScaler &scaler, bench &b, float factor) {
    b.one.zero_grad();
    scaler.scale(b.a.sum() * factor).backward();
    scaler.step(b.one);
    scaler.update();
}

static void test_state() {
    bench b;
    GradScalerOptions options;
    options.init_scale = 3.0e4; /* no power of two */
    options.growth_interval = 5;
    GradScaler first(options), second, third;
    for (float factor : {1.0f, infinity, 1.0f, 1.0f, 1.0f}) run(first, b, factor);
    const amp::torch::GradScalerState state = first.state_dict();
    CHECK(state.scale == 1.5e4 && state.growth_tracker == 3 && state.growth_interval == 5);
    second.load_state_dict(state);
    std::ostringstream file;
    ::torch::serialize::OutputArchive out;
    first.save(out);
    out.save_to(file);
    ::torch::serialize::InputArchive in;
    std::istringstream loaded(file.str());
    in.load_from(loaded);
    third.load(in);
    for (float factor : {1.0f, 1.0f, infinity, 1.0f}) {
        for (GradScaler *scaler : {&first, &second, &third}) run(*scaler, b, factor);
        CHECK(first.get_scale() == second.get_scale() && first.get_scale() == third.get_scale());
        CHECK(first.state_dict().growth_tracker == third.state_dict().growth_tracker);
    }
    first.set_growth_interval(2);
    first.set_growth_factor(4.0);
    first.set_backoff_factor(0.25);
    const double scale = first.get_scale();
    CHECK(first.state_dict().growth_tracker == 1);
    run(first, b, 1.0f);
    CHECK(first.get_scale() == 4.0 * scale);
    run(first, b, infinity);
    CHECK(first.get_scale() == scale && first.get_growth_factor() == 4.0);
    CHECK(tap::status_of([&] { second.load_state_dict({}); }) == AMP_ERR_INVALID_ARGUMENT);
    const double kept = second.get_scale();
    for (double bad : {0.0, -1.0, 1e300})
        CHECK(tap::status_of([&] { second.set_scale(bad); }) == AMP_ERR_INVALID_ARGUMENT);
    CHECK(tap::status_of([&] { second.set_growth_interval(0); }) == AMP_ERR_INVALID_ARGUMENT);
    CHECK(tap::status_of([&] { second.set_growth_factor(1.0); }) == AMP_ERR_INVALID_ARGUMENT);
    CHECK(tap::status_of([&] { second.set_backoff_factor(1.0); }) == AMP_ERR_INVALID_ARGUMENT);
    run(second, b, 1.0f);
    CHECK(second.get_scale() == kept && second.get_growth_interval() == 5); /* as if nothing had been asked */
}

/* What torch's gets wrong. */
static void test_mended() {
    bench b;
    GradScalerOptions options;
    options.init_scale = 0x1p-120;
    options.max_skips = 200;
    GradScaler scaler(options);
    for (int i = 0; i < 20; i++) run(scaler, b, infinity);
    CHECK(scaler.get_scale() == 0x1p-126); /* never 0 */
    run(scaler, b, 1.0f);
    GradScaler tiny;
    tiny.load_state_dict(scaler.state_dict());
    CHECK(tiny.get_scale() == 0x1p-126 && tiny.state_dict().growth_tracker == 1);
    const at::Tensor before = b.a.detach().clone();
    b.one.zero_grad();
    b.a.mutable_grad() = ::torch::full({3}, 1e30f); /* finite, but not divided by the scale */
    CHECK(!scaler.step(b.one) && tap::same(b.a.detach(), before));
    scaler.update();
    options.max_skips = 3;
    GradScaler impatient(options);
    CHECK(tap::status_of([&] {
              for (int i = 0; i < 5; i++) run(impatient, b, infinity);
          }) == AMP_ERR_TOO_MANY_SKIPS);
}

static void test_sparse() {
    at::Tensor weight = ::torch::ones({4, 2}).set_requires_grad(true);
    ::torch::optim::SGD optimizer({weight}, 1.0);
    GradScaler scaler;
    const at::Tensor rows = ::torch::tensor({1, 1, 3});
    scaler.scale(::torch::embedding(weight, rows, -1, false, true).sum()).backward();
    CHECK(weight.grad().is_sparse());
    scaler.unscale_(optimizer);
    CHECK(tap::same(weight.grad().to_dense(),
                    ::torch::tensor({0.0f, 0.0f, 2.0f, 2.0f, 0.0f, 0.0f, 1.0f, 1.0f}).view({4, 2})));
    CHECK(scaler.step(optimizer));
    scaler.update();
}

/* As one uses it: model and loss in FP32, O1's ops. */
static void test_with_a_session() {
    ::torch::nn::Linear net(4, 4);
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto amp = amp::torch::initialize(net, AMP_O1);
    GradScaler scaler(GradScalerOptions{1024.0});
    const at::Tensor x = ::torch::randn({2, 4}), before = net->weight.detach().clone();
    scaler.scale(amp.forward(net, x).to(at::kFloat).pow(2).sum()).backward();
    scaler.unscale_(optimizer);
    CHECK(::torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1) > 0.1);
    CHECK(scaler.step(optimizer) && !tap::same(before, net->weight.detach()));
    scaler.update();
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        tap::test(std::string("the trace of torch.amp.GradScaler, ") + std::to_string(i), [&] { follow(argv[i]); });
    tap::test("order of calls", test_usage);
    tap::test("not enabled", test_disabled);
    tap::test("state", test_state);
    tap::test("defects mended", test_mended);
    tap::test("sparse gradients", test_sparse);
    tap::test("beside a session", test_with_a_session);
    return tap::done();
}
