/* SPDX-License-Identifier: Apache-2.0 */
/* O1 and O4 in libtorch: what each op gets, beside casting by hand and beside torch's own autocast. */
#include "tap.hpp"

#include <ATen/autocast_mode.h>

namespace F = ::torch::nn::functional;
using amp::torch::options;

static at::Tensor fp32(at::IntArrayRef shape) { return ::torch::randn(shape); }
static at::Tensor half(at::IntArrayRef shape) { return ::torch::randn(shape).to(at::kHalf); }

/* torch::nn::Linear calls addmm with a view of its weight; this calls linear with the weight. */
struct LinearImpl : ::torch::nn::LinearImpl {
    using ::torch::nn::LinearImpl::LinearImpl;
    at::Tensor forward(const at::Tensor &x) { return ::torch::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

/* A session whose model is of no interest. */
struct bench {
    Linear net{4, 4};
    amp::torch::session amp;

    explicit bench(amp_level level, options options = {})
        : amp(amp::torch::initialize(net, level, std::move(options))) {}
};

static options with_lists(int lists) {
    options made;
    made.config.lists = lists;
    return made;
}

static void test_classes() {
    bench b(AMP_O1);
    const auto guard = b.amp.autocast();
    const at::Tensor x = fp32({4, 4}), h = half({4, 4}), image = fp32({1, 3, 8, 8});
    CHECK(::torch::mm(x, x).scalar_type() == at::kHalf);
    CHECK(::torch::linear(x, x).scalar_type() == at::kHalf);
    CHECK(::torch::conv2d(image, fp32({2, 3, 3, 3})).scalar_type() == at::kHalf);
    CHECK(::torch::einsum("ij,jk->ik", {x, x}).scalar_type() == at::kHalf);
    CHECK(h.exp().scalar_type() == at::kFloat && h.softmax(1).scalar_type() == at::kFloat);
    CHECK(F::interpolate(image.to(at::kHalf), F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}))
              .scalar_type() == at::kFloat);
    CHECK(F::cross_entropy(h, ::torch::arange(4)).scalar_type() == at::kFloat);
    CHECK((h + x).scalar_type() == at::kFloat && (h + h).scalar_type() == at::kHalf);
    CHECK(::torch::cat({h, x}).scalar_type() == at::kFloat && ::torch::stack({h, h}).scalar_type() == at::kHalf);
    CHECK(h.relu().scalar_type() == at::kHalf && x.tanh().scalar_type() == at::kFloat);
    CHECK(::torch::batch_norm(image.to(at::kHalf), fp32({3}), {}, {}, {}, true, 0.1, 1e-5, false).scalar_type() ==
          at::kHalf);
    CHECK(tap::status_of([&] { F::binary_cross_entropy(h.sigmoid(), x.sigmoid()); }) == AMP_ERR_BANNED);
}

static void test_bits() {
    bench b(AMP_O1);
    const at::Tensor x = fp32({5, 7}), y = fp32({7, 3}), h = half({5, 3});
    const at::Tensor by_hand = ::torch::mm(x.to(at::kHalf), y.to(at::kHalf)), soft = h.to(at::kFloat).softmax(1);
    const auto guard = b.amp.autocast();
    CHECK(tap::same(::torch::mm(x, y), by_hand));
    CHECK(tap::same(h.softmax(1), soft));
}

static void test_in_place() {
    bench b(AMP_O1);
    const auto guard = b.amp.autocast();
    at::Tensor h = half({4, 4}), x = fp32({4, 4});
    const at::Tensor expected = h + x.to(at::kHalf);
    void *const data = h.data_ptr();
    h.add_(x);
    CHECK(tap::same(h, expected) && h.data_ptr() == data); /* the type of what is updated */
    CHECK(tap::status_of([&] { h.exp_(); }) == AMP_ERR_UNSUPPORTED);
    x.exp_();
    CHECK(x.scalar_type() == at::kFloat);
    at::Tensor out = fp32({4, 4}); /* out= is left alone, with all that it is made of */
    const at::Tensor plain = [&] {
        const auto off = amp::torch::disable_casts();
        return ::torch::matmul(x, out);
    }();
    const at::Tensor right = out.clone();
    ::torch::matmul_out(out, x, right);
    CHECK(tap::same(out, plain));
}

static void test_scopes() {
    bench b(AMP_O1), c(AMP_O4);
    const at::Tensor x = fp32({4, 4});
    CHECK(::torch::mm(x, x).scalar_type() == at::kFloat);
    {
        const auto outer = b.amp.autocast();
        CHECK(::torch::mm(x, x).scalar_type() == at::kHalf);
        {
            const auto inner = c.amp.autocast();
            CHECK(::torch::mm(x, x).scalar_type() == at::kBFloat16);
            const auto off = amp::torch::disable_casts();
            CHECK(::torch::mm(x, x).scalar_type() == at::kFloat);
        }
        CHECK(::torch::mm(x, x).scalar_type() == at::kHalf);
        try {
            const auto inner = c.amp.autocast();
            throw 1;
        } catch (int) {
        }
        CHECK(::torch::mm(x, x).scalar_type() == at::kHalf);
        CHECK(b.amp.forward(b.net, x).scalar_type() == at::kHalf &&
              c.amp.forward(c.net, x).scalar_type() == at::kBFloat16);
    }
    CHECK(::torch::mm(x, x).scalar_type() == at::kFloat && b.net(x).scalar_type() == at::kFloat);
}

static void test_registered() {
    options made;
    made.ops = {{"relu", AMP_FP32}, {"linear", AMP_LEAVE}, {"tanh", AMP_LOWER}};
    bench b(AMP_O1, made);
    const auto guard = b.amp.autocast();
    CHECK(half({4}).relu().scalar_type() == at::kFloat && fp32({4}).tanh().scalar_type() == at::kHalf);
    CHECK(b.net(fp32({2, 4})).scalar_type() == at::kFloat); /* and nothing that linear is made of */
}

/* The list "torch" beside torch's own autocast, where the devices' lists agree: types and bits. */
static void test_like_autocast() {
    bench b(AMP_O4, with_lists(AMP_LISTS_TORCH));
    const at::Tensor x = fp32({3, 4, 4}), m = fp32({4, 4}), v = fp32({4}), image = fp32({1, 3, 8, 8}),
                     w = fp32({2, 3, 3, 3});
    const at::Tensor h = m.to(at::kBFloat16), d = m.to(at::kDouble);
    const std::vector<std::pair<const char *, std::function<at::Tensor()>>> calls = {
        {"mm", [&] { return ::torch::mm(m, m); }},
        {"bmm", [&] { return ::torch::bmm(x, x); }},
        {"matmul", [&] { return ::torch::matmul(x, m); }},
        {"linear", [&] { return ::torch::linear(x, m, v); }},
        {"addmm", [&] { return ::torch::addmm(v, m, m); }},
        {"baddbmm", [&] { return ::torch::baddbmm(x, x, x); }},
        {"conv2d", [&] { return ::torch::conv2d(image, w); }},
        {"conv_transpose2d", [&] { return ::torch::conv_transpose2d(image, fp32({3, 2, 3, 3}).zero_()); }},
        {"prelu", [&] { return ::torch::prelu(m, v); }},
        {"mse_loss", [&] { return ::torch::mse_loss(h, h); }},
        {"huber_loss", [&] { return ::torch::huber_loss(h, h); }},
        {"relu", [&] { return h.relu(); }},
        {"cat", [&] { return ::torch::cat({h, m}); }},
        {"add", [&] { return h + m; }},
        {"double mm", [&] { return ::torch::mm(d, d); }},
        {"embedding", [&] { return ::torch::embedding(m, ::torch::arange(3)); }},
    };
    for (const auto &[name, call] : calls) {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const at::Tensor theirs = call();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
        const auto guard = b.amp.autocast();
        const at::Tensor ours = call();
        if (!tap::same(ours, theirs)) std::printf("# %s\n", name);
        CHECK(tap::same(ours, theirs));
    }
}

/* ---- the weights' casts ---- */

static std::pair<std::uint64_t, std::uint64_t> casts_and_hits(const amp::torch::session &amp) {
    for (const amp_op_stats &stats : amp.context().op_stats())
        if (std::string(stats.name) == "aten::linear") return {stats.casts, stats.cache_hits};
    return {};
}

static void test_cache() {
    options made;
    made.ops = {{"linear", AMP_LOWER}};
    bench b(AMP_O1, made);
    b.net->bias.set_requires_grad(false);
    const at::Tensor x = half({2, 4});
    const auto run = [&] { return b.amp.forward(b.net, x); };
    {
        const ::torch::NoGradGuard no_grad;
        run();
    }
    const auto guard = b.amp.autocast();
    at::Tensor first = run(), second = run();
    const auto [casts, hits] = casts_and_hits(b.amp);
    CHECK(hits >= 2 && casts <= 4);
    (first.sum() + second.sum()).backward();
    CHECK(b.net->weight.grad().defined() &&
          b.net->weight.grad().abs().sum().item<float>() > 0); /* no_grad first, then grad */
    {
        const ::torch::NoGradGuard no_grad;
        b.net->weight.zero_();
        b.net->bias.zero_();
        CHECK(run().abs().sum().item<float>() == 0); /* edited in place */
        b.net->weight.copy_(::torch::ones({4, 4}));
    }
    run();
    b.net->bias.set_requires_grad(true); /* frozen before: its cast had no path */
    run().sum().backward();
    CHECK(b.net->bias.grad().defined() && tap::same(b.net->bias.grad(), ::torch::full({4}, 2.0)));
}

/* Backward in the scope: the casts are on the tape, its own ops run as they come. */
static void test_backward_in_scope() {
    const at::Tensor x = fp32({3, 4});
    const auto gradient = [&](bool inside) {
        ::torch::manual_seed(1);
        bench b(AMP_O1);
        const at::Tensor loss = [&] {
            const auto forward = b.amp.autocast();
            const at::Tensor out = b.net(x);
            const auto off = amp::torch::disable_casts();
            return (out.exp().sum() + ::torch::mm(x, b.net->weight).sum()); /* whose backward multiplies FP32 */
        }();
        if (inside) {
            const auto scope = b.amp.autocast();
            loss.backward();
        } else {
            loss.backward();
        }
        return b.net->weight.grad();
    };
    CHECK(tap::same(gradient(true), gradient(false)));
    CHECK(gradient(true).scalar_type() == at::kFloat);
}

static void test_double_backward() {
    bench b(AMP_O4);
    const at::Tensor x = fp32({3, 4}).set_requires_grad(true);
    const at::Tensor out = b.amp.forward(b.net, x).to(at::kFloat).pow(2).sum();
    const at::Tensor g = ::torch::autograd::grad({out}, {x}, {}, true, true)[0];
    g.pow(2).sum().backward();
    CHECK(b.net->weight.grad().defined() && b.net->weight.grad().isfinite().all().item<bool>());
}

int main() {
    ::torch::manual_seed(0);
    tap::test("each class of ops", test_classes);
    tap::test("the bits of casting by hand", test_bits);
    tap::test("in place, and out=", test_in_place);
    tap::test("scopes nest and end, on exceptions too", test_scopes);
    tap::test("classes by the user's word", test_registered);
    tap::test("the list torch is torch's autocast", test_like_autocast);
    tap::test("a weight's cast is kept as long as it is right", test_cache);
    tap::test("backward runs as it comes", test_backward_in_scope);
    tap::test("double backward", test_double_backward);
    return tap::done();
}
