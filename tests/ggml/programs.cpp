/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of ggml beside examples/ggml/stories.cpp:
 *
 *     programs fit LEVEL f32|f16 adamw|sgd      a small convolutional network by ggml_opt_fit, with a validation part
 *     programs shapes LEVEL                     products of many shapes, batched, broadcast and permuted, trained once
 *     programs anew LEVEL PERIOD                a graph that is built for each step, updates after PERIOD of them
 *     programs wrong eval|twice|load|save       mistakes: the error is printed
 *
 * LEVEL: "-" is ggml alone.
 */
#include "amp_ggml.hpp"

#include <ggml-cpu.h>
#include <ggml-opt.h>

#include <cstdio>
#include <cstdlib>
#include <random>

static std::mt19937 random_bits(1);

static void fill(ggml_tensor *t, float range) {
    std::uniform_real_distribution<float> value(-range, range);
    for (std::int64_t i = 0; i < ggml_nelements(t); i++) {
        const float x = value(random_bits);
        if (t->type == GGML_TYPE_F32) static_cast<float *>(t->data)[i] = x;
        else if (t->type == GGML_TYPE_F16) static_cast<ggml_fp16_t *>(t->data)[i] = ggml_fp32_to_fp16(x);
        else static_cast<ggml_bf16_t *>(t->data)[i] = ggml_fp32_to_bf16(x);
    }
}

struct program {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_sched_t sched = ggml_backend_sched_new(&backend, nullptr, 1, GGML_DEFAULT_GRAPH_SIZE, false, true);
    ggml_context *fixed = ggml_init({ ggml_tensor_overhead() * 256, nullptr, true });
    ggml_context *graph = ggml_init({ ggml_tensor_overhead() * 4096 +
        6 * ggml_graph_overhead_custom(GGML_DEFAULT_GRAPH_SIZE, true), nullptr, true });
    std::unique_ptr<amp_ggml> amp;

    explicit program(const std::string &level) {
        ggml_backend_cpu_set_n_threads(backend, 1);
        if (level == "-") return;
        amp_config config = amp::config(amp::level(level.c_str()));
        config.gate = AMP_OFF, config.init_scale = 16.0f; /* every product in 16 bits; some are large here */
        amp = amp_ggml_initialize(sched, config);
    }
    ~program() {
        amp.reset();
        ggml_free(graph), ggml_free(fixed), ggml_backend_sched_free(sched), ggml_backend_free(backend);
    }
    ggml_tensor *weight(const char *name, ggml_type type, int a, int b = 1, int c = 1, int d = 1) {
        ggml_tensor *t = ggml_new_tensor_4d(fixed, type, a, b, c, d);
        ggml_set_name(t, name), ggml_set_param(t);
        return t;
    }
    void print_weights() const {
        std::uint64_t hash = 14695981039346656037u;
        for (ggml_tensor *t = ggml_get_first_tensor(fixed); t; t = ggml_get_next_tensor(fixed, t))
            for (std::size_t i = 0; (t->flags & GGML_TENSOR_FLAG_PARAM) && i < ggml_nbytes(t); i++)
                hash = (hash ^ static_cast<const std::uint8_t *>(t->data)[i]) * 1099511628211u;
        printf("weights %016llx\n", static_cast<unsigned long long>(hash));
    }
};

static ggml_opt_optimizer_params rates(void *) {
    ggml_opt_optimizer_params p = ggml_opt_get_default_optimizer_params(nullptr);
    p.adamw.alpha = 0.01f, p.sgd.alpha = 0.2f;
    return p;
}

/* Four classes of 8 x 8 images: the quarter that is bright. */
static void fit(const std::string &level, ggml_type type, ggml_opt_optimizer_type optimizer) {
    enum { IMAGES = 256, BATCH = 16, CLASSES = 4 };
    program p(level);
    ggml_tensor *x = ggml_new_tensor_2d(p.fixed, GGML_TYPE_F32, 64, BATCH);
    ggml_tensor *k = p.weight("kernel", type, 3, 3, 1, 8), *kb = p.weight("kernel.bias", GGML_TYPE_F32, 1, 1, 8);
    ggml_tensor *w = p.weight("dense", type, 4 * 4 * 8, CLASSES), *wb = p.weight("dense.bias", GGML_TYPE_F32, CLASSES);
    ggml_tensor *h = ggml_reshape_4d(p.graph, x, 8, 8, 1, BATCH);
    h = ggml_relu(p.graph, ggml_add(p.graph, ggml_conv_2d(p.graph, k, h, 1, 1, 1, 1, 1, 1), kb));
    h = ggml_pool_2d(p.graph, h, GGML_OP_POOL_MAX, 2, 2, 2, 2, 0, 0);
    h = ggml_reshape_2d(p.graph, h, 4 * 4 * 8, BATCH);
    h = ggml_add(p.graph, ggml_mul_mat(p.graph, w, h), wb);
    ggml_backend_alloc_ctx_tensors(p.fixed, p.backend);
    fill(k, 0.5f), fill(w, 0.2f), fill(kb, 0.0f), fill(wb, 0.0f);
    ggml_opt_dataset_t data = ggml_opt_dataset_init(GGML_TYPE_F32, GGML_TYPE_F32, 64, CLASSES, IMAGES, 1);
    ggml_tensor *images = ggml_opt_dataset_data(data), *labels = ggml_opt_dataset_labels(data);
    float *const pixels = static_cast<float *>(images->data);
    fill(images, 0.5f), fill(labels, 0.0f);
    for (int i = 0; i < IMAGES; i++) {
        const int quarter = i % 4;
        static_cast<float *>(labels->data)[i * CLASSES + quarter] = 1.0f;
        for (int at = 0; at < 16; at++)
            pixels[i * 64 + (quarter / 2 * 4 + at / 4) * 8 + quarter % 2 * 4 + at % 4] += 0.5f;
    }
    ggml_opt_fit(p.sched, p.graph, x, h, data, GGML_OPT_LOSS_TYPE_CROSS_ENTROPY, optimizer, rates, 4, BATCH * 2, 0.25f,
                 true);
    if (p.amp) p.amp->check();

    ggml_opt_params params = ggml_opt_default_params(p.sched, GGML_OPT_LOSS_TYPE_CROSS_ENTROPY); /* forward alone */
    params.ctx_compute = p.graph, params.inputs = x, params.outputs = h;
    params.build_type = GGML_OPT_BUILD_TYPE_FORWARD;
    ggml_opt_context_t opt = ggml_opt_init(params);
    ggml_opt_result_t result = ggml_opt_result_init();
    double known = 0.0;
    ggml_opt_epoch(opt, data, nullptr, result, 0, nullptr, nullptr);
    ggml_opt_result_accuracy(result, &known, nullptr);
    if (p.amp) p.amp->check();
    printf("known %.0f of %d, ", known * IMAGES, int(IMAGES));
    ggml_opt_result_free(result), ggml_opt_free(opt);
    p.print_weights();
    ggml_opt_dataset_free(data);
}

/* One product of each kind whose result is summed up: its gradients need OUT_PROD of the same kinds. */
static ggml_tensor *each_shape(program &p) {
    struct shape { int k, m, n, a2, a3, b2, b3; bool permuted; };
    static const shape shapes[] = {
        { 32, 24, 16, 1, 1, 1, 1, false }, { 32, 24, 16, 1, 1, 3, 1, false }, { 32, 24, 16, 2, 1, 4, 1, false },
        { 32, 24, 16, 3, 2, 3, 2, false }, { 32, 24, 16, 4, 1, 4, 1, true }, { 40, 1, 7, 2, 1, 2, 1, true },
        { 24, 17, 1, 1, 1, 1, 1, false }, { 64, 33, 5, 2, 3, 2, 3, true },
    };
    ggml_tensor *total = nullptr;
    for (const shape &s : shapes) {
        const std::string name = "a" + std::to_string(&s - shapes);
        ggml_tensor *a, *b;
        if (s.permuted) { /* heads behind rows, as attention has them */
            a = ggml_permute(p.graph, p.weight(name.c_str(), GGML_TYPE_F32, s.k, s.a2, s.m, s.a3), 0, 2, 1, 3);
            b = ggml_permute(p.graph, p.weight(("b" + name).c_str(), GGML_TYPE_F32, s.k, s.b2, s.n, s.b3), 0, 2, 1, 3);
        } else {
            a = p.weight(name.c_str(), GGML_TYPE_F32, s.k, s.m, s.a2, s.a3);
            b = p.weight(("b" + name).c_str(), GGML_TYPE_F32, s.k, s.n, s.b2, s.b3);
        }
        ggml_tensor *sum = ggml_sum(p.graph, ggml_sqr(p.graph, ggml_mul_mat(p.graph, a, b)));
        total = total ? ggml_add(p.graph, total, sum) : sum;
    }
    return total;
}

static void shapes(const std::string &level) {
    program p(level);
    ggml_tensor *x = ggml_new_tensor_1d(p.fixed, GGML_TYPE_F32, 1), *total = ggml_mul(p.graph, each_shape(p), x);
    ggml_backend_alloc_ctx_tensors(p.fixed, p.backend);
    for (ggml_tensor *t = ggml_get_first_tensor(p.fixed); t; t = ggml_get_next_tensor(p.fixed, t)) fill(t, 1.0f);
    *static_cast<float *>(x->data) = 1.0f;
    ggml_opt_params params = ggml_opt_default_params(p.sched, GGML_OPT_LOSS_TYPE_SUM);
    params.ctx_compute = p.graph, params.inputs = x, params.outputs = total;
    params.optimizer = GGML_OPT_OPTIMIZER_TYPE_SGD;
    ggml_opt_context_t opt = ggml_opt_init(params);
    for (int i = 0; i < 2; i++) ggml_opt_alloc(opt, true), ggml_opt_eval(opt, nullptr);
    if (p.amp) {
        std::vector<char> text(1 << 16);
        p.amp->check();
        amp::throwing::done(amp_health(p.amp->context(), text.data(), text.size(), nullptr));
        puts(text.data());
    }
    p.print_weights();
    ggml_opt_free(opt);
}

/* Graphs that are built for each step, as llama.cpp does it. */
static void built_anew(const std::string &level, int period) {
    program p(level);
    ggml_tensor *w = p.weight("w", GGML_TYPE_F32, 32, 16), *x = ggml_new_tensor_2d(p.fixed, GGML_TYPE_F32, 32, 8);
    ggml_backend_buffer_t memory = ggml_backend_alloc_ctx_tensors(p.fixed, p.backend);
    fill(w, 0.2f), fill(x, 1.0f);
    ggml_opt_params params = ggml_opt_default_params(p.sched, GGML_OPT_LOSS_TYPE_MEAN);
    params.opt_period = period;
    ggml_opt_context_t opt = ggml_opt_init(params);
    for (int i = 0; i < 8; i++) {
        ggml_context *nodes = ggml_init({ ggml_tensor_overhead() * 512 +
            3 * ggml_graph_overhead_custom(GGML_DEFAULT_GRAPH_SIZE, true), nullptr, true });
        ggml_cgraph *g = ggml_new_graph_custom(nodes, GGML_DEFAULT_GRAPH_SIZE, true);
        ggml_tensor *y = ggml_sqr(nodes, ggml_mul_mat(nodes, w, x));
        ggml_build_forward_expand(g, y);
        ggml_opt_prepare_alloc(opt, nodes, g, x, y);
        ggml_opt_alloc(opt, true), ggml_opt_eval(opt, nullptr);
        ggml_free(nodes);
    }
    if (p.amp) p.amp->check();
    p.print_weights();
    ggml_opt_free(opt), ggml_backend_buffer_free(memory);
}

static bool watch(ggml_tensor *, bool, void *) { return true; }

static void wrong(const std::string &what) {
    program p("O4");
    ggml_tensor *x = ggml_new_tensor_2d(p.fixed, GGML_TYPE_F32, 8, 4);
    ggml_tensor *y = ggml_mul_mat(p.graph, p.weight("w", GGML_TYPE_F32, 8, 8), x);
    ggml_backend_alloc_ctx_tensors(p.fixed, p.backend);
    if (what == "eval") ggml_backend_sched_set_eval_callback(p.sched, watch, nullptr);
    if (what == "twice") (void)amp_ggml_initialize(p.sched, AMP_O1);
    if (what == "load") p.amp->load("programs");
    if (what == "save") p.amp->save("nothing.gguf");
    ggml_opt_params params = ggml_opt_default_params(p.sched, GGML_OPT_LOSS_TYPE_MEAN);
    params.ctx_compute = p.graph, params.inputs = x, params.outputs = y;
    ggml_opt_context_t opt = ggml_opt_init(params);
    ggml_opt_result_t result = ggml_opt_result_init();
    double loss = 0.0;
    ggml_opt_alloc(opt, true), ggml_opt_eval(opt, result);
    ggml_opt_result_loss(result, &loss, nullptr);
    printf("loss %f\n", loss);
    p.amp->check();
    ggml_opt_result_free(result), ggml_opt_free(opt);
}

int main(int n, char **args) {
    try {
        const std::string what = args[1];
        if (n == 5 && what == "fit")
            fit(args[2], std::string(args[3]) == "f16" ? GGML_TYPE_F16 : GGML_TYPE_F32,
                std::string(args[4]) == "sgd" ? GGML_OPT_OPTIMIZER_TYPE_SGD : GGML_OPT_OPTIMIZER_TYPE_ADAMW);
        if (n == 3 && what == "shapes") shapes(args[2]);
        if (n == 4 && what == "anew") built_anew(args[2], atoi(args[3]));
        if (n == 3 && what == "wrong") wrong(args[2]);
    } catch (const std::exception &e) {
        printf("error: %s\n", e.what());
        return 1;
    }
    return 0;
}
