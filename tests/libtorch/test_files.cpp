/* SPDX-License-Identifier: Apache-2.0 */
/* A session's models in files: what is written, and files of every type read. */
#include "nets.hpp"

#include <sstream>

/* An FP32 file is taken by a live session, exactly, by torch::load and by its own. */
static void test_load(amp_level level, bool own) {
    nn::Sequential saved = net_of(), net = net_of();
    std::stringstream file;
    ::torch::save(saved, file);
    optim::SGD optimizer(net->parameters(), 0.01);
    auto amp = amp::torch::initialize(net, optimizer, level);
    const at::Tensor x = ::torch::randn({6, 4});
    iterate(amp, net, optimizer, x);
    amp.step(optimizer);
    const at::ScalarType type = net->parameters()[0].scalar_type();
    if (own) amp.load(net, file);
    else ::torch::load(net, file);
    const auto masters = amp.master_params(optimizer);
    for (std::size_t i = 0; i < masters.size(); i++) {
        const at::Tensor exact = saved->parameters()[i].detach(), now = net->parameters()[i].detach();
        CHECK(tap::same(masters[i].detach(), exact.to(masters[i].scalar_type())));
        CHECK(tap::same(now, exact.to(now.scalar_type())));
    }
    CHECK(net->parameters()[0].scalar_type() == type);
    for (int i = 0; i < 3; i++) {
        iterate(amp, net, optimizer, x);
        amp.step(optimizer);
    }
    CHECK(finite(net) && !tap::same(amp.master_params(optimizer)[0].detach(),
                                    saved->parameters()[0].detach().to(masters[0].scalar_type())));
}

/* A file of 16 bits or of 64, read into the types that the session has by now. */
static void test_load_typed(amp_level level, at::ScalarType type, bool own) {
    nn::Sequential saved = net_of(), net = net_of();
    saved->to(type);
    std::stringstream file;
    ::torch::save(saved, file);
    optim::SGD optimizer(net->parameters(), 0.01);
    auto amp = amp::torch::initialize(net, optimizer, level);
    const at::Tensor x = ::torch::randn({6, 4});
    (void)amp.forward(net, x);
    std::vector<at::ScalarType> types;
    for (const at::Tensor &param : net->parameters()) types.push_back(param.scalar_type());
    if (own) amp.load(net, file);
    else ::torch::load(net, file);
    const auto masters = amp.master_params(optimizer);
    for (std::size_t i = 0; i < masters.size(); i++) {
        const at::Tensor exact = saved->parameters()[i].detach().to(at::kFloat), now = net->parameters()[i].detach();
        CHECK(now.scalar_type() == types[i] && tap::same(now, exact.to(types[i])));
        CHECK(tap::same(masters[i].detach(), exact.to(masters[i].scalar_type())));
    }
    iterate(amp, net, optimizer, x);
    CHECK(amp.step(optimizer) && finite(net));
}

/* A file that ends too early, or is another model's, changes nothing that is 16-bit. */
static void test_load_refused(amp_level level) {
    nn::Sequential other(nn::Linear(4, 8)), net = net_of();
    std::stringstream file;
    ::torch::save(other, file);
    optim::SGD optimizer(net->parameters(), 0.01);
    auto amp = amp::torch::initialize(net, optimizer, level);
    std::vector<at::Tensor> before;
    for (const at::Tensor &param : net->parameters()) before.push_back(param.detach().clone());
    bool thrown = false;
    try {
        ::torch::load(net, file);
    } catch (const c10::Error &) {
        thrown = true;
    }
    CHECK(thrown);
    for (std::size_t i = 0; i < before.size(); i++)
        if (before[i].element_size() == 2) CHECK(tap::same(before[i], net->parameters()[i].detach()));
    iterate(amp, net, optimizer, ::torch::randn({6, 4}));
    CHECK(amp.step(optimizer) && finite(net));
}

/* A file of the session's is FP32, and holds the masters. */
static void test_save(amp_level level) {
    nn::Sequential net = net_of(), plain = net_of(), again = net_of();
    optim::SGD optimizer(net->parameters(), 0.01);
    std::stringstream file, second;
    const at::Tensor x = ::torch::randn({6, 4});
    std::vector<at::Tensor> masters;
    {
        auto amp = amp::torch::initialize(net, optimizer, level);
        for (int i = 0; i < 3; i++) {
            iterate(amp, net, optimizer, x);
            amp.step(optimizer);
        }
        for (const at::Tensor &master : amp.master_params(optimizer)) masters.push_back(master.detach().clone());
        const at::Tensor before = net->parameters()[0].detach().clone();
        amp.save(net, file);
        CHECK(tap::same(before, net->parameters()[0].detach()));
        const bool low = before.scalar_type() != at::kFloat;
        if (low) {
            CHECK(refused(AMP_ERR_WRONG_STATE, "session.save", [&] { ::torch::save(net, second); }));
            CHECK(refused(AMP_ERR_WRONG_STATE, "session.save", [&] { ::torch::save(net.ptr(), second); }));
        } else {
            ::torch::save(net, second);
        }
        iterate(amp, net, optimizer, x);
        CHECK(amp.step(optimizer));
    }
    ::torch::load(plain, file);
    for (std::size_t i = 0; i < masters.size(); i++)
        CHECK(tap::same(plain->parameters()[i].detach(), masters[i].to(at::kFloat)));
    for (const at::Tensor &buffer : plain->buffers()) CHECK(buffer.scalar_type() != at::kHalf);
    CHECK(plain->forward(x).isfinite().all().item<bool>());
    ::torch::save(net, second); /* after its end */
}

int main() {
    ::torch::manual_seed(0);
    for (amp_level level : all_levels) {
        for (bool own : {false, true})
            tap::test(named(own ? "session.load" : "torch::load", level), [&] { test_load(level, own); });
        for (at::ScalarType type : {at::kHalf, at::kBFloat16, at::kDouble})
            for (bool own : {false, true})
                tap::test(named(own ? "session.load" : "torch::load", level) + ", of " + c10::toString(type),
                          [&] { test_load_typed(level, type, own); });
        tap::test(named("files hold FP32", level), [&] { test_save(level); });
    }
    for (amp_level level : low_levels)
        tap::test(named("a file of another model", level), [&] { test_load_refused(level); });
    return tap::done();
}
