/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp.hpp on two small hosts: raw buffers for brackets, steps, masters and states, and handles with a cast for scopes
 * and direct calls. Everything twice: by exceptions and by statuses. Prints TAP.
 */
#include <amp.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

/* ---- TAP ---- */

static int number, failures;

static void check(bool good, const char *what, int line) {
    std::printf("%s %d - %s (line %d)\n", good ? "ok" : "not ok", ++number, what, line);
    if (!good) std::printf("# %s\n", amp_last_error());
    failures += !good;
}
#define CHECK(condition) check(condition, #condition, __LINE__)

template <class Call> static amp_status status_of(Call call) {
    try {
        call();
        return AMP_OK;
    } catch (const amp::error &error) {
        return std::strlen(error.what()) ? error.status() : 0;
    }
}

/* ---- a host of raw buffers: one weight ---- */

struct buffers {
    float weight[2] = {1.0f, 2.0f}, gradient[2] = {0.0f, 0.0f};
    amp_buffer described[2] = {AMP_BUFFER_INIT, AMP_BUFFER_INIT};
    amp_param param = AMP_PARAM_INIT;
    void *handle = &described[0];
    amp_model model = amp::make<amp_model>();
    amp_optimizer optimizer = amp::make<amp_optimizer>();

    buffers() {
        described[0].data = weight;
        described[1].data = gradient;
        described[0].size = described[1].size = 2;
        described[0].grad = &described[1];
        param.tensor = handle;
        param.name = "weight";
        model.host = optimizer.host = amp_buffer_host();
        model.params = &param;
        model.n_params = 1;
        optimizer.params = &handle;
        optimizer.n_params = 1;
    }
    buffers(const buffers &) = delete;

    /* backward: adds `value` times the scale */
    void backward(const amp::scaled_loss &scaled, float value) {
        for (float &element : gradient) element += value * scaled.seed_factor();
    }
    /* w -= g */
    void update() {
        for (int i = 0; i < 2; i++) weight[i] -= gradient[i];
    }
};

static amp_config dynamic(float scale) {
    amp_config config = amp::config(AMP_O0);
    config.loss_scale = AMP_DYNAMIC;
    config.init_scale = scale;
    return config;
}

static void test_brackets() {
    buffers host;
    amp::context context({&host.model}, {&host.optimizer}, dynamic(8.0f));
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(context && context.get() == host.optimizer.amp);

    CHECK(amp::scale_loss(host.optimizer, nullptr, [&](const amp::scaled_loss &s) { host.backward(s, 0.5f); }) ==
          AMP_STEP);
    CHECK(host.gradient[0] == 0.5f && host.gradient[1] == 0.5f);
    {
        amp::step first(host.optimizer), step(std::move(first));
        CHECK(static_cast<bool>(step) && !first);
        host.update();
        step.end();
    }
    CHECK(host.weight[0] == 0.5f && host.weight[1] == 1.5f);

    {
        amp::scaled_loss scaled(host.optimizer);
        CHECK(scaled.is_open() && scaled.scale() == 8.0f && scaled.seed_factor() == 8.0f);
        host.backward(scaled, infinity);
    } /* ends with its block */
    CHECK(context.record().action == AMP_SKIP && context.record().scale_after == 4.0f);
    CHECK(!amp::step(host.optimizer));

    host.gradient[0] = host.gradient[1] = 0.25f;
    try {
        amp::scale_loss(host.optimizer, nullptr, [&](const amp::scaled_loss &s) {
            host.backward(s, 9.0f);
            throw 7;
        });
        CHECK(false && "the exception goes on");
    } catch (int thrown) {
        CHECK(thrown == 7 && host.gradient[0] == 0.25f); /* cancelled: as it was at begin */
    }
    CHECK(context.record().brackets == 2);

    std::optional<amp::scaled_loss> kept;
    {
        amp::scaled_loss scaled(host.optimizer);
        kept.emplace(std::move(scaled));
        CHECK(!scaled.is_open() && !scaled.loss());
        CHECK(status_of([&] { (void)scaled.scale(); }) == AMP_ERR_WRONG_STATE);
    } /* not its end any more */
    CHECK(kept->is_open() && kept->scale() == 4.0f);
    kept->cancel();
    CHECK(status_of([&] { (void)kept->scale(); }) == AMP_ERR_WRONG_STATE && !kept->loss());
    kept.reset();

    amp::nothrow::scaled_loss quiet;
    CHECK(quiet.scale().status == AMP_ERR_WRONG_STATE);
    CHECK(quiet.begin(context.get(), {&host.optimizer}, nullptr, 3) == AMP_ERR_INVALID_ARGUMENT && !quiet.is_open());
    CHECK(quiet.begin(host.optimizer) == AMP_OK && quiet.begin(host.optimizer) == AMP_ERR_WRONG_STATE);
    CHECK(quiet.seed_factor() > 0.0f);
    const amp::outcome<amp_action> ended = quiet.end();
    CHECK(ended && ended.value == AMP_STEP && quiet.end().status == AMP_ERR_WRONG_STATE);
    CHECK(status_of([&] { amp::scaled_loss bad(context.get(), {&host.optimizer}, nullptr, 3); }) ==
          AMP_ERR_INVALID_ARGUMENT);

    CHECK(amp::clip_grad_norm(host.optimizer, 0.1f) > 0.35f && std::fabs(host.gradient[0]) < 0.1f);
    CHECK(amp::clip_grad_value<amp::statuses>(host.optimizer, 0.01f) == AMP_OK && host.gradient[0] == 0.01f);
}

static void test_errors() {
    buffers host;
    amp::nothrow::context quiet;
    CHECK(!quiet && quiet.open({&host.model}, {&host.optimizer}, amp::config(0)) == AMP_ERR_INVALID_ARGUMENT && !quiet);
    CHECK(quiet.open({&host.model}, {&host.optimizer}, amp::config(AMP_O0)) == AMP_OK && quiet);
    CHECK(quiet.record(5).status == AMP_ERR_INVALID_ARGUMENT);
    CHECK(status_of([&] { amp::context twice({&host.model}, {}, amp::config(AMP_O0)); }) == AMP_ERR_WRONG_STATE);
    CHECK(amp::level("O2") == AMP_O2 && amp::level<amp::statuses>("02").status == AMP_ERR_INVALID_ARGUMENT);
    try {
        amp::level("02");
        CHECK(false && "an error");
    } catch (const std::runtime_error &error) {
        CHECK(std::strstr(error.what(), "AMP_ERR_INVALID_ARGUMENT") && std::strstr(error.what(), "letter O"));
    }
    CHECK(quiet.shutdown() == AMP_OK && !quiet && host.model.amp == nullptr);
}

static void test_ownership() {
    buffers first, second;
    amp::context a({&first.model}, {&first.optimizer}, dynamic(4.0f));
    amp::context b({&second.model}, {&second.optimizer}, dynamic(2.0f));
    amp_context *const kept = a.get();
    b = std::move(a);
    CHECK(!a && b.get() == kept && second.model.amp == nullptr && first.model.amp == kept);
    const std::vector<amp_model *> models = {&second.model};
    a.open(models, {}, amp::config(AMP_O0));
    CHECK(second.model.amp == a.get());
    amp_context *const loose = a.release();
    CHECK(!a && amp_shutdown(loose) == AMP_OK && second.model.amp == nullptr);
    { const amp::context moved(std::move(b)); }
    CHECK(first.model.amp == nullptr);
}

static void test_masters() {
    buffers host;
    host.weight[0] = 1.0f / 3.0f;
    amp_config config = amp::config(AMP_O2);
    config.emulate = AMP_ON;
    config.init_scale = 2.0f;
    amp::context context({&host.model}, {&host.optimizer}, config);
    const std::vector<amp_master> masters = amp::master_params(host.optimizer);
    CHECK(masters.size() == 1 && masters[0].is_master && masters[0].size == 2 &&
          !std::strcmp(masters[0].name, "weight"));
    CHECK(*static_cast<float *>(masters[0].data) == 1.0f / 3.0f && host.weight[0] != 1.0f / 3.0f);
    amp::scale_loss(host.optimizer, nullptr, [&](const amp::scaled_loss &s) { host.backward(s, 0.125f); });
    {
        amp::step step(host.optimizer);
        CHECK(host.weight[0] == 1.0f / 3.0f); /* the optimizer sees the master */
        if (step) host.update();
    } /* written back */
    CHECK(*static_cast<float *>(amp::master_params(host.optimizer)[0].data) == 1.0f / 3.0f - 0.125f);
    CHECK(host.weight[0] != 1.0f / 3.0f - 0.125f && host.weight[1] == 1.875f);

    const auto state = amp::nothrow::context().state_save_memory();
    CHECK(!state && state.value.empty());
    if (status_of([&] { context.state_save_memory(); }) == AMP_ERR_UNSUPPORTED) {
        std::printf("ok %d - states # SKIP built without a JSON library\n", ++number);
        return;
    }
    const std::vector<unsigned char> bytes = context.state_save_memory();
    const float before = *static_cast<float *>(amp::master_params(host.optimizer)[0].data);
    *static_cast<float *>(amp::master_params(host.optimizer)[0].data) = 5.0f;
    context.state_load_memory(bytes);
    CHECK(*static_cast<float *>(amp::master_params(host.optimizer)[0].data) == before);
    context.state_load_memory(std::string("{\"loss_scaler0\": {\"loss_scale\": 32.0, \"unskipped\": 1}}"));
    CHECK(amp::scaled_loss(host.optimizer).scale() == 32.0f);
    CHECK(status_of([&] { context.state_load_memory(std::string("{")); }) == AMP_ERR_BAD_FILE);
    CHECK(status_of([&] { context.state_load("/nowhere/state"); }) != AMP_OK);
}

/* ---- a host of handles ---- */

struct tensor {
    amp_dtype type;
    float value;
};
static int alive;

static amp_dtype dtype_of(void *, void *handle) { return static_cast<tensor *>(handle)->type; }
static amp_status cast(void *, void *handle, amp_dtype to, void **out) {
    alive++;
    *out = new tensor{to, static_cast<tensor *>(handle)->value};
    return AMP_OK;
}
static void release(void *, void *handle) {
    alive--;
    delete static_cast<tensor *>(handle);
}

static amp_dtype linear_sees(amp_context *context) {
    tensor input = {AMP_FLOAT32, 3.0f};
    std::array<void *, 2> arguments = {&input, nullptr};
    const amp::cast_frame frame(context, "linear", arguments);
    return static_cast<tensor *>(arguments[0])->type;
}

static void test_calls() {
    amp_host host = amp::make<amp_host>();
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    host.dtype = dtype_of;
    host.cast = cast;
    host.release = release;
    amp_op op = amp::make<amp_op>();
    op.flags = AMP_OP_DIRECT;
    op.name = "linear";
    amp_model model = amp::make<amp_model>();
    model.host = &host;
    model.ops = &op;
    model.n_ops = 1;
    amp::context context({&model}, {}, amp::config(AMP_O1));

    const amp_dtype types[] = {AMP_FLOAT32, AMP_FLOAT16};
    CHECK(context.op_target("linear", types) == AMP_FLOAT16 && context.op_target("exp", {AMP_FLOAT16}) == AMP_FLOAT32);
    CHECK(linear_sees(context.get()) == AMP_FLOAT16 && alive == 0);
    {
        const amp::scope disabled(nullptr);
        CHECK(linear_sees(context.get()) == AMP_FLOAT32);
        amp::scope inner(context.get());
        CHECK(linear_sees(context.get()) == AMP_FLOAT16);
        std::optional<amp::scope> moved(std::move(inner));
        CHECK(linear_sees(context.get()) == AMP_FLOAT16);
        moved.reset();
        CHECK(linear_sees(context.get()) == AMP_FLOAT32);
        const amp_scope captured = amp::scope::capture();
        amp_dtype adopted = AMP_DTYPE_DEFAULT, other = AMP_DTYPE_DEFAULT;
        std::thread([&] {
            const amp::scope scope(captured);
            adopted = linear_sees(context.get());
        }).join();
        std::thread([&] { other = linear_sees(context.get()); }).join();
        CHECK(adopted == AMP_FLOAT32 && other == AMP_FLOAT16);
    }
    CHECK(linear_sees(context.get()) == AMP_FLOAT16 && alive == 0);
    CHECK(context.op_stats().size() == 1 && context.op_stats()[0].casts >= 3);
    CHECK(context.explain("linear").find("lower") != std::string::npos && context.explain().back() != '\0');
    CHECK(status_of([&] { (void)context.explain("nothing_of_the_kind"); }) == AMP_ERR_NOT_FOUND);
    CHECK(context.health().find("level O1: ") == 0 && context.health().back() == '\n');
    std::uint64_t ticks = 0;
    CHECK(status_of([&] { context.gate_measure([&] { return ++ticks; }); }) == AMP_OK);
    CHECK(status_of([&] { context.gate_set("exotic", AMP_GATE_NEVER); }) == AMP_ERR_NOT_FOUND);
    context.cache_clear();
    context.tape_done();
    context.check();
    CHECK(amp::register_op<amp::statuses>(model, "linear", AMP_FP32) == AMP_ERR_WRONG_STATE);
}

int main() {
    test_brackets();
    test_errors();
    test_ownership();
    test_masters();
    test_calls();
    std::printf("1..%d\n", number);
    return failures != 0;
}
