/* SPDX-License-Identifier: Apache-2.0 */
/* How sessions, brackets and guards begin, end, move and refuse; what goes into a forward and comes out. */
#include "nets.hpp"

#include <array>
#include <chrono>
#include <map>
#include <optional>

/* ---- ended brackets, ended sessions ---- */

static void test_closed(amp_level level) {
    nn::Sequential net = net_of();
    optim::SGD optimizer(net->parameters(), 0.1);
    auto amp = amp::torch::initialize(net, optimizer, level);
    const at::Tensor x = ::torch::randn({6, 4});
    for (int how = 0; how < 3; how++) {
        auto scaled = amp.scale_loss(amp.forward(net, x).sum());
        std::optional<amp::torch::scaled_loss> moved;
        if (how == 0) scaled.end();
        if (how == 1) scaled.cancel();
        if (how == 2) moved.emplace(std::move(scaled));
        CHECK(refused(AMP_ERR_WRONG_STATE, "loss()", [&] { scaled.loss(); }));
        CHECK(refused(AMP_ERR_WRONG_STATE, "scale()", [&] { (void)scaled.scale(); }));
        CHECK(refused(AMP_ERR_WRONG_STATE, "backward()", [&] { scaled.backward(); }));
        CHECK(refused(AMP_ERR_WRONG_STATE, "end()", [&] { scaled.end(); }));
        CHECK(refused(AMP_ERR_WRONG_STATE, "cancel()", [&] { scaled.cancel(); }));
        if (moved) moved->backward();
    }
    CHECK(refused(AMP_ERR_INVALID_ARGUMENT, "undefined", [&] { amp.scale_loss(at::Tensor()); }));
}

static void test_session_dies_first(amp_level level) {
    const at::Tensor x = ::torch::randn({6, 4}), m = ::torch::randn({4, 4});
    nn::Sequential net = net_of();
    const at::Tensor before = net->parameters()[0].detach().clone();
    {
        std::optional<amp::torch::scope_guard> guard;
        std::optional<amp::torch::scaled_loss> scaled;
        {
            optim::SGD optimizer(net->parameters(), 0.1);
            auto amp = amp::torch::initialize(net, optimizer, level);
            guard.emplace(amp.autocast());
            scaled.emplace(amp.scale_loss(amp.forward(net, x).sum()));
        }
        CHECK(refused(AMP_ERR_WRONG_STATE, "session has ended", [&] { scaled->backward(); }));
        if (level_casts_ops(level))
            CHECK(refused(AMP_ERR_WRONG_STATE, "session that has ended", [&] { ::torch::mm(m, m); }));
        else CHECK(::torch::mm(m, m).scalar_type() == at::kFloat);
    }
    CHECK(::torch::mm(m, m).scalar_type() == at::kFloat);
    const at::Tensor given = level == AMP_O3 ? before.to(at::kHalf).to(at::kFloat) : before;
    CHECK(tap::same(given, net->parameters()[0].detach()));
    auto amp = amp::torch::initialize(net, level);
    CHECK(amp.forward(net, x).defined());
}

static void test_moves() {
    nn::Sequential net = net_of();
    const at::Tensor x = ::torch::randn({6, 4}), m = ::torch::randn({4, 4});
    optim::SGD optimizer(net->parameters(), 0.1);
    amp::torch::session amp;
    CHECK(!amp && !amp.get());
    CHECK(refused(AMP_ERR_WRONG_STATE, "no session", [&] { amp.forward(net, x); }));
    CHECK(refused(AMP_ERR_WRONG_STATE, "no session", [&] { amp.autocast(); }));
    amp = amp::torch::initialize(net, optimizer, AMP_O2);
    CHECK(amp && net->parameters()[0].scalar_type() == at::kHalf);
    amp.reset();
    CHECK(net->parameters()[0].scalar_type() == at::kFloat);
    amp::torch::options options;
    options.config.init_scale = 1024.0f; /* whatever the weights are, nothing overflows */
    amp = amp::torch::initialize(net, optimizer, AMP_O1, options);
    std::optional<amp::torch::scope_guard> guard;
    for (int i = 0; i < 2; i++) {
        guard.emplace(amp.autocast());
        CHECK(::torch::mm(m, m).scalar_type() == at::kHalf);
        {
            const std::optional<amp::torch::scope_guard> off(amp::torch::disable_casts());
            CHECK(::torch::mm(m, m).scalar_type() == at::kFloat);
        }
        guard.reset();
        CHECK(::torch::mm(m, m).scalar_type() == at::kFloat);
    }
    amp::torch::session other(std::move(amp));
    CHECK(refused(AMP_ERR_WRONG_STATE, "no session", [&] { amp.step(optimizer); })); /* NOLINT: moved from */
    iterate(other, net, optimizer, x);
    CHECK(other.step(optimizer));
    struct trainer {
        nn::Sequential net = net_of();
        optim::SGD optimizer{net->parameters(), 0.1};
        amp::torch::session amp;
    } made;
    made.amp = amp::torch::initialize(made.net, made.optimizer, AMP_O5);
    iterate(made.amp, made.net, made.optimizer, x);
    CHECK(made.amp.step(made.optimizer));
}

/* ---- refusals ---- */

static void test_refusals(amp_level level) {
    nn::Sequential net = net_of(), stranger = net_of();
    optim::LBFGS lbfgs(net->parameters());
    CHECK(refused(AMP_ERR_UNSUPPORTED, "LBFGS", [&] { amp::torch::initialize(net, lbfgs, level); }));
    optim::SGD other(stranger->parameters(), 0.1);
    CHECK(refused(AMP_ERR_INVALID_ARGUMENT, "another model", [&] { amp::torch::initialize(net, other, level); }));
    std::vector<at::Tensor> copies;
    for (const at::Tensor &param : net->parameters())
        copies.push_back(param.detach().clone().set_requires_grad(true));
    optim::SGD of_copies(copies, 0.1), optimizer(net->parameters(), 0.1);
    CHECK(refused(AMP_ERR_INVALID_ARGUMENT, "copies", [&] { amp::torch::initialize(net, of_copies, level); }));
    CHECK(net->parameters()[0].scalar_type() == at::kFloat); /* nothing has changed */
    auto amp = amp::torch::initialize(net, optimizer, level);
    const bool low = net->parameters()[0].scalar_type() != at::kFloat;
    for (amp_level second : all_levels) {
        CHECK(refused(AMP_ERR_WRONG_STATE, "another session",
                      [&] { amp::torch::initialize(net, optimizer, second); }));
        if (low)
            CHECK(refused(AMP_ERR_WRONG_STATE, "another session", [&] { amp::torch::initialize(net, second); }));
    }
}

/* One session's bracket, another's step. */
static void test_foreign_bracket(amp_level level) {
    nn::Sequential first = net_of(), second = net_of();
    optim::SGD one(first->parameters(), 0.1), two(second->parameters(), 0.1);
    amp::torch::options with_scale;
    with_scale.config.loss_scale = 128.0f;
    auto a = amp::torch::initialize(first, one, level, with_scale);
    auto b = amp::torch::initialize(second, two, level, with_scale);
    const at::Tensor x = ::torch::randn({6, 4});
    {
        auto scaled = a.scale_loss((a.forward(first, x) + b.forward(second, x)).sum());
        scaled.backward();
    }
    CHECK(a.step(one));
    CHECK(refused(AMP_ERR_WRONG_STATE, "another bracket", [&] { b.step(two); }));
    iterate(b, second, two, x);
    CHECK(b.step(two));
    iterate(a, first, one, x);
    two.zero_grad();
    CHECK(b.step(two)); /* without a gradient there is nothing to say */
}

/* Clipped where the optimizer looks: the step is as long as was asked. */
static void test_clipping(amp_level level, bool by_value) {
    nn::Linear net(16, 16);
    optim::SGD optimizer(net->parameters(), 1.0);
    amp::torch::options with_scale;
    with_scale.config.loss_scale = 8.0f;
    auto amp = amp::torch::initialize(net, optimizer, level, with_scale);
    const at::Tensor x = ::torch::randn({6, 16});
    for (int i = 0; i < 2; i++) {
        optimizer.zero_grad();
        {
            auto scaled = amp.scale_loss(amp.forward(net, x).to(at::kFloat).pow(2).sum());
            scaled.backward();
        }
        std::vector<at::Tensor> before;
        for (const at::Tensor &master : amp.master_params(optimizer)) before.push_back(master.detach().clone());
        if (by_value) nn::utils::clip_grad_value_(net->parameters(), 0.001);
        else CHECK(nn::utils::clip_grad_norm_(net->parameters(), 0.01) > 1.0);
        CHECK(amp.step(optimizer));
        double squares = 0.0, most = 0.0;
        for (std::size_t j = 0; j < before.size(); j++) {
            const at::Tensor step = (before[j] - amp.master_params(optimizer)[j].detach()).to(at::kFloat);
            squares += step.pow(2).sum().item<double>();
            most = std::max(most, step.abs().max().item<double>());
        }
        /* Gradients are rounded to 16 bits as they are clipped: 2^-8 of bfloat16; at O3 the parameters too, which are
         * below 1 and lose 2^-12 a step. */
        const double slack = level == AMP_O3 ? 272 * 0x1p-12 : 0.0;
        if (by_value) CHECK(most > 0.0009 && most < 0.00101 + 0x1p-11);
        else CHECK(std::sqrt(squares) > 0.009 && std::sqrt(squares) < 0.0101 + slack);
    }
}

/* ---- forward ---- */

struct outputs {
    at::Tensor logits;
    std::vector<at::Tensor> hidden;
    int steps = 0;
};
template <class Visit> void amp_visit_tensors(outputs &out, Visit &&visit) {
    visit(out.logits);
    visit(out.hidden);
}

struct KindsImpl : nn::Module {
    nn::Linear fc{nullptr};
    nn::GRU gru{nullptr};
    std::vector<at::ScalarType> seen;
    KindsImpl() {
        fc = register_module("fc", nn::Linear(4, 4));
        gru = register_module("gru", nn::GRU(4, 4));
    }
    outputs forward(const std::array<at::Tensor, 2> &pair, const std::map<std::string, at::Tensor> &by_name,
                    const outputs &own, const nn::utils::rnn::PackedSequence &packed,
                    const std::variant<int, at::Tensor> &either,
                    const ::torch::OrderedDict<std::string, at::Tensor> &dict) {
        seen = {pair[0].scalar_type(),          pair[1].scalar_type(),    by_name.at("x").scalar_type(),
                own.logits.scalar_type(),       own.hidden.at(0).scalar_type(), packed.data().scalar_type(),
                std::get<1>(either).scalar_type(), dict["x"].scalar_type()};
        return {fc(pair[0]), {pair[1] + 1, by_name.at("x") * 2}, 7};
    }
};
TORCH_MODULE(Kinds);

struct PackedImpl : nn::Module {
    nn::Linear fc{nullptr};
    PackedImpl() { fc = register_module("fc", nn::Linear(4, 4)); }
    std::tuple<nn::utils::rnn::PackedSequence, std::array<at::Tensor, 1>, std::map<int, at::Tensor>>
    forward(const nn::utils::rnn::PackedSequence &packed) {
        const at::Tensor out = fc(packed.data());
        return {nn::utils::rnn::PackedSequence(out, packed.batch_sizes()), {out + 1}, {{3, out * 2}}};
    }
};
TORCH_MODULE(Packed);

static void test_kinds(amp_level level, at::ScalarType type) {
    Kinds net;
    Packed packing;
    auto amp = amp::torch::initialize({net.get(), packing.get()}, {}, level);
    const at::Tensor x = ::torch::randn({2, 4});
    const auto packed = nn::utils::rnn::pack_sequence({::torch::randn({3, 4}), ::torch::randn({2, 4})});
    ::torch::OrderedDict<std::string, at::Tensor> dict;
    dict.insert("x", x);
    const outputs own{x, {x}, 1};
    const outputs out = amp.forward(net, std::array<at::Tensor, 2>{ x, x },
                                    std::map<std::string, at::Tensor>{ { "x", x } }, own, packed,
                                    std::variant<int, at::Tensor>(x), dict);
    CHECK(net->seen.size() == 8);
    for (at::ScalarType each : net->seen) CHECK(each == type);
    CHECK(out.logits.scalar_type() == at::kFloat && out.hidden[0].scalar_type() == at::kFloat &&
          out.hidden[1].scalar_type() == at::kFloat && out.steps == 7);
    CHECK(x.scalar_type() == at::kFloat && own.logits.is_same(x) && packed.data().scalar_type() == at::kFloat);
    const auto [sequence, list, map] = amp.forward(packing, packed);
    CHECK(sequence.data().scalar_type() == at::kFloat && list[0].scalar_type() == at::kFloat &&
          map.at(3).scalar_type() == at::kFloat && sequence.batch_sizes().scalar_type() == at::kLong);
}

/* What forward writes into its arguments is the caller's. */
struct StateImpl : nn::Module {
    nn::Linear fc{nullptr};
    at::ScalarType seen = at::kByte;
    bool fails = false;
    StateImpl() { fc = register_module("fc", nn::Linear(4, 4)); }
    at::Tensor forward(const at::Tensor &x, std::pair<at::Tensor, at::Tensor> &state, int &calls) {
        seen = state.first.scalar_type();
        calls++;
        if (fails) throw std::runtime_error("forward broke");
        state.first = state.first + fc(x);
        return state.first * 2;
    }
    void clear(std::pair<at::Tensor, at::Tensor> &) {}
};
TORCH_MODULE(State);

struct FillImpl : nn::Module {
    nn::Linear fc{nullptr};
    FillImpl() { fc = register_module("fc", nn::Linear(4, 4)); }
    void forward(const at::Tensor &x, std::vector<at::Tensor> &out) {
        out.clear();
        for (int i = 0; i < 9; i++) out.push_back(fc(x));
    }
};
TORCH_MODULE(Fill);

static void test_state(amp_level level) {
    State net;
    Fill fill;
    auto amp = amp::torch::initialize({net.get(), fill.get()}, {}, level);
    const at::Tensor x = ::torch::randn({2, 4}), start = ::torch::zeros({2, 4}), untouched = ::torch::ones({2, 4});
    std::pair<at::Tensor, at::Tensor> state{start, untouched};
    int calls = 0;
    const bool low = level_retypes(level);
    const at::Tensor out = amp.forward(net, x, state, calls);
    CHECK(calls == 1 && net->seen == (level == AMP_O5 ? at::kBFloat16 : low ? at::kHalf : at::kFloat));
    CHECK(!state.first.is_same(start) && state.second.is_same(untouched) && start.abs().sum().item<float>() == 0);
    if (low) CHECK(state.first.scalar_type() == at::kFloat && tap::same(out, state.first * 2));
    const at::Tensor first = state.first;
    amp.forward(net, x, state, calls);
    CHECK(calls == 2 && (state.first - first * 2).abs().max().item<float>() < 0.02f); /* bfloat16 */
    net->fails = true;
    const at::Tensor second = state.first;
    bool thrown = false;
    try {
        amp.forward(net, x, state, calls);
    } catch (const std::runtime_error &) {
        thrown = true;
    }
    CHECK(thrown && state.first.is_same(second) && state.second.is_same(untouched));
    std::vector<at::Tensor> filled{x};
    amp.forward(fill, x, filled);
    CHECK(filled.size() == 9 && filled[8].defined());
    if (low) CHECK(filled[0].scalar_type() == at::kFloat && filled[8].scalar_type() == at::kFloat);
    CHECK(x.scalar_type() == at::kFloat);
}

/* ---- ops in no list ---- */

static void test_plain_ops() {
    nn::Sequential net = net_of();
    amp::torch::options made;
    made.ops = {{"erf", AMP_FP32}};
    auto amp = amp::torch::initialize(net, AMP_O1, made);
    const auto has_kernel = [](const char *name) {
        const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
        return op && op->hasKernelForDispatchKey(amp::torch::detail::policy_key);
    };
    for (const char *name : {"aten::relu", "aten::view", "aten::t", "aten::batch_norm", "aten::sigmoid"})
        CHECK(has_kernel(name)); /* falls through: dispatch does not come to libamp */
    for (const char *name :
         { "aten::mm", "aten::linear", "aten::exp", "aten::relu_", "aten::erf", "aten::upsample_nearest2d" })
        CHECK(!has_kernel(name)); /* the fallback's */
    const auto guard = amp.autocast();
    CHECK(::torch::ones({2}, at::kHalf).erf().scalar_type() == at::kFloat);
    CHECK(::torch::ones({2}, at::kHalf).relu().scalar_type() == at::kHalf);
}

static void test_explain() {
    nn::Sequential net = net_of();
    auto amp = amp::torch::initialize(net, AMP_O1);
    for (const char *name : {"aten::mm", "mm", "aten::mm.out", "aten::addmm"})
        CHECK(amp.context().explain(name).find("lower") != std::string::npos);
    CHECK(amp.context().explain("aten::softmax.int").find("fp32") != std::string::npos);
    CHECK(amp.context().explain("aten::cross_entropy_loss").find("fp32") != std::string::npos);
    CHECK(tap::status_of([&] { (void)amp.context().explain("aten::relu"); }) == AMP_ERR_NOT_FOUND);
}

/* test_libtorch_sessions --time: nanoseconds of a call, the figures of docs/start/libtorch.md. The least of many short
 * rounds, which a busy machine leaves alone. */
static int time_ops() {
    const auto time = [](const std::function<void()> &call) {
        double least = 1e9;
        for (int round = 0; round < 3000; round++) {
            const auto began = std::chrono::steady_clock::now();
            for (int i = 0; i < 100; i++) call();
            least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
        }
        return least * 1e9 / 100;
    };
    const ::torch::NoGradGuard no_grad;
    at::Tensor x = ::torch::ones({4}), m = ::torch::ones({2, 2}).to(at::kHalf);
    const std::vector<std::pair<const char *, std::function<void()>>> calls = { { "sigmoid", [&] { x.sigmoid(); } },
                                                                                { "t", [&] { m.t(); } },
                                                                                { "relu_", [&] { x.relu_(); } },
                                                                                { "mm", [&] { m.mm(m); } } };
    std::printf("op        plain  autocast()  boxed\n");
    nn::Sequential net = net_of();
    for (const auto &[name, call] : calls) {
        amp::torch::options boxed;
        boxed.ops = {{name, AMP_LEAVE}};
        double under[2];
        const double plain = time(call);
        for (int i = 0; i < 2; i++) {
            auto amp = amp::torch::initialize(net, AMP_O1, i ? boxed : amp::torch::options());
            const auto guard = amp.autocast();
            under[i] = time(call);
        }
        std::printf("%-8s %6.0f %11.0f %6.0f\n", name, plain, under[0], under[1]);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && std::string(argv[1]) == "--time") return time_ops();
    ::torch::manual_seed(0);
    for (amp_level level : all_levels) {
        tap::test(named("a bracket that is closed", level), [&] { test_closed(level); });
        tap::test(named("a session that dies first", level), [&] { test_session_dies_first(level); });
        tap::test(named("what initialize refuses", level), [&] { test_refusals(level); });
        tap::test(named("another session's bracket", level), [&] { test_foreign_bracket(level); });
        tap::test(named("arguments that forward writes", level), [&] { test_state(level); });
    }
    for (amp_level level : low_levels) {
        for (bool by_value : {false, true})
            tap::test(named(by_value ? "clipping the model's gradients by value" : "clipping the model's gradients",
                            level),
                      [&] { test_clipping(level, by_value); });
    }
    tap::test("sessions and guards move", test_moves);
    tap::test("arrays, maps, sequences and structs, O2", [] { test_kinds(AMP_O2, at::kHalf); });
    tap::test("arrays, maps, sequences and structs, O5", [] { test_kinds(AMP_O5, at::kBFloat16); });
    tap::test("ops in no list", test_plain_ops);
    tap::test("explain finds ops by ATen's names", test_explain);
    return tap::done();
}
