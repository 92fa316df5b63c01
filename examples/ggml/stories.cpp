/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A llama-like model of characters, trained by ggml_opt on stories that the program makes, alone or under a level of
 * libamp. docs/start/ggml.md has the commands that compile it.
 *
 *     stories                      ggml alone, FP32
 *     stories --level O4           under libamp
 *     stories --level O2 --half 1  weights, keys, values and the inputs of products in F16
 */
#include "amp_ggml.hpp"

#include <ggml-cpu.h>
#include <ggml-opt.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

enum { VOCAB = 32 };

static std::map<std::string, std::string> texts = { { "level", "" }, { "save", "" }, { "load", "" } };
static std::map<std::string, double> numbers = {
    { "width", 288 }, { "layers", 6 }, { "heads", 6 }, { "kv-heads", 6 }, { "context", 128 }, { "batch", 4 },
    { "micro-batches", 1 }, { "epochs", 1 }, { "stories", 32 }, { "threads", 1 }, { "rate", 1e-3 }, { "clip", 0 },
    { "init-scale", 0 }, { "half", 0 }, { "seed", 1 }, { "gate", AMP_DEFAULT },
};
static int width, layers, heads, kv_heads, context, batch, stories;
static bool is_half;

static void check(bool good, const std::string &text) {
    if (good) return;
    fprintf(stderr, "stories: %s\n", text.c_str());
    exit(1);
}

/* ---- data: the next character of sentences such as "a small fox ran to the old tree." ---- */

static uint64_t random_state = 1;

static uint32_t random_number(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static void tell(char *text, int size) {
    static const char *const words[5][8] = {
        { "a", "the", "one", "my", "her", "his", "our", "that" },
        { "small", "big", "old", "red", "kind", "sad", "shy", "brave" },
        { "fox", "dog", "girl", "boy", "bird", "bear", "cat", "frog" },
        { "ran to", "sat by", "saw", "found", "liked", "slept at", "hid in", "sang to" },
        { "tree", "house", "lake", "hill", "moon", "garden", "river", "barn" },
    };
    static const int order[] = { 0, 1, 2, 3, 0, 1, 4 };
    for (int at = 0; at < size;) {
        char sentence[128] = "";
        for (int i = 0; i < 7; i++) {
            strcat(sentence, words[order[i]][random_number(8)]);
            strcat(sentence, i < 6 ? " " : ". ");
        }
        for (const char *c = sentence; *c && at < size; c++) text[at++] = *c;
    }
}

static int token(char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 1 : c == '.' ? 27 : 0; }

/* Labels are one-hot, because ggml_opt's cross entropy takes probabilities. */
static ggml_opt_dataset_t make_data(void) {
    const int n = context;
    ggml_opt_dataset_t data = ggml_opt_dataset_init(GGML_TYPE_I32, GGML_TYPE_F32, n, int64_t(n) * VOCAB, stories, 1);
    int32_t *x = static_cast<int32_t *>(ggml_opt_dataset_data(data)->data);
    float *y = static_cast<float *>(ggml_opt_dataset_labels(data)->data);
    std::vector<char> text(size_t(n) + 1);
    memset(y, 0, ggml_nbytes(ggml_opt_dataset_labels(data)));
    for (int i = 0; i < stories; i++) {
        tell(text.data(), n + 1);
        for (int k = 0; k < n; k++, x++, y += VOCAB) *x = token(text[k]), y[token(text[k + 1])] = 1.0f;
    }
    return data;
}

/* ---- the model ---- */

struct model {
    ggml_context *weights, *graph;
    ggml_backend_buffer_t memory;
    ggml_tensor *tokens, *positions, *logits;
};

static ggml_tensor *weight(model *m, int layer, const char *name, int in, int out) {
    /* norms are vectors, and the table of embeddings is no operand of a product: both stay F32 */
    const ggml_type type = is_half && out > 1 && strcmp(name, "embedding") ? GGML_TYPE_F16 : GGML_TYPE_F32;
    ggml_tensor *t = out > 1 ? ggml_new_tensor_2d(m->weights, type, in, out)
                                    : ggml_new_tensor_1d(m->weights, type, in);
    if (layer < 0) ggml_set_name(t, name);
    else ggml_format_name(t, "blk.%d.%s", layer, name);
    ggml_set_param(t);
    return t;
}

static ggml_tensor *half(model *m, ggml_tensor *x) {
    return is_half ? ggml_cast(m->graph, x, GGML_TYPE_F16) : x;
}

static ggml_tensor *norm(model *m, ggml_tensor *x, int layer, const char *name) {
    return ggml_mul(m->graph, ggml_rms_norm(m->graph, x, 1e-5f), weight(m, layer, name, width, 1));
}

static ggml_tensor *linear(model *m, ggml_tensor *x, int layer, const char *name, int out) {
    return ggml_mul_mat(m->graph, weight(m, layer, name, (int)x->ne[0], out), x);
}

static ggml_tensor *attention(model *m, ggml_tensor *x, int layer) {
    ggml_context *g = m->graph;
    const int size = width / heads, n = context, kv = kv_heads;
    ggml_tensor *q = linear(m, x, layer, "attn_q", width), *k = linear(m, x, layer, "attn_k", size * kv);
    ggml_tensor *v = linear(m, x, layer, "attn_v", size * kv);
    q = ggml_rope(g, ggml_reshape_4d(g, q, size, heads, n, batch), m->positions, size, 0);
    k = ggml_rope(g, ggml_reshape_4d(g, k, size, kv, n, batch), m->positions, size, 0);
    q = ggml_permute(g, q, 0, 2, 1, 3), k = half(m, ggml_permute(g, k, 0, 2, 1, 3));
    v = ggml_permute(g, ggml_reshape_4d(g, v, size, kv, n, batch), 1, 2, 0, 3);
    v = is_half ? half(m, v) : ggml_cont(g, v);
    ggml_tensor *scores = ggml_scale(g, ggml_mul_mat(g, k, q), 1.0f / sqrtf((float)size));
    ggml_format_name(scores, "blk.%d.scores", layer);
    ggml_tensor *p = ggml_soft_max(g, ggml_diag_mask_inf(g, scores, 0));
    ggml_tensor *out = ggml_permute(g, ggml_mul_mat(g, v, p), 0, 2, 1, 3);
    out = ggml_reshape_2d(g, is_half ? half(m, out) : ggml_cont(g, out), width, (int64_t)n * batch);
    return linear(m, out, layer, "attn_out", width);
}

static ggml_tensor *feed_forward(model *m, ggml_tensor *x, int layer) {
    ggml_tensor *gate = linear(m, x, layer, "ffn_gate", width * 8 / 3 / 16 * 16);
    ggml_tensor *up = linear(m, x, layer, "ffn_up", (int)gate->ne[0]);
    return linear(m, half(m, ggml_swiglu_split(m->graph, gate, up)), layer, "ffn_down", width);
}

static void build(model *m, ggml_backend_t backend) {
    const ggml_init_params small = { ggml_tensor_overhead() * (size_t(layers) * 9 + 8), nullptr, true };
    const ggml_init_params large = { ggml_tensor_overhead() * 8192 +
            3 * ggml_graph_overhead_custom(GGML_DEFAULT_GRAPH_SIZE, true), nullptr, true };
    m->weights = ggml_init(small), m->graph = ggml_init(large);
    m->tokens = ggml_new_tensor_2d(m->weights, GGML_TYPE_I32, context, batch);
    m->positions = ggml_new_tensor_1d(m->weights, GGML_TYPE_I32, context);
    ggml_set_name(m->tokens, "tokens"), ggml_set_name(m->positions, "positions");
    ggml_tensor *x = ggml_get_rows(m->graph, weight(m, -1, "embedding", width, VOCAB),
                                          ggml_reshape_1d(m->graph, m->tokens, (int64_t)context * batch));
    for (int i = 0; i < layers; i++) {
        x = ggml_add(m->graph, x, attention(m, half(m, norm(m, x, i, "attn_norm")), i));
        x = ggml_add(m->graph, x, feed_forward(m, half(m, norm(m, x, i, "ffn_norm")), i));
    }
    m->logits = linear(m, half(m, norm(m, x, -1, "output_norm")), -1, "output", VOCAB);
    ggml_set_name(m->logits, "logits");
    m->memory = ggml_backend_alloc_ctx_tensors(m->weights, backend);
    check(m->memory, "no memory");
    for (int i = 0; i < context; i++) static_cast<int32_t *>(m->positions->data)[i] = i;
    for (ggml_tensor *t = ggml_get_first_tensor(m->weights); t; t = ggml_get_next_tensor(m->weights, t)) {
        const float range = t->ne[1] > 1 ? sqrtf(3.0f / (float)t->ne[0]) : 0.0f; /* norms start as 1 */
        if (t->type == GGML_TYPE_I32) continue;
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            const float value = t->ne[1] > 1 ? range * ((float)random_number(65536) / 32768.0f - 1.0f) : 1.0f;
            if (t->type == GGML_TYPE_F32) ((float *)t->data)[i] = value;
            else ((ggml_fp16_t *)t->data)[i] = ggml_fp32_to_fp16(value);
        }
    }
}

/* ---- training ---- */

static ggml_opt_optimizer_params optimizer_params(void *self) {
    ggml_opt_optimizer_params p = ggml_opt_get_default_optimizer_params(self);
    p.adamw.alpha = float(numbers["rate"]);
    return p;
}

static void report(const model &m, ggml_backend_sched_t sched, ggml_backend_t backend, double loss, double time) {
    uint64_t hash = 14695981039346656037u, bytes = 0, n = 0;
    for (ggml_tensor *t = ggml_get_first_tensor(m.weights); t; t = ggml_get_next_tensor(m.weights, t)) {
        if (t->type == GGML_TYPE_I32) continue;
        bytes += ggml_nbytes(t), n += (uint64_t)ggml_nelements(t);
        for (size_t i = 0; i < ggml_nbytes(t); i++) hash = (hash ^ ((const uint8_t *)t->data)[i]) * 1099511628211u;
    }
    printf("loss %.5f, %.1f ms a graph, %llu parameters in %.2f MB, activations %.2f MB, weights %016llx\n", loss,
           1e3 * time, (unsigned long long)n, (double)bytes / 1e6,
           (double)ggml_backend_sched_get_buffer_size(sched, backend) / 1e6, (unsigned long long)hash);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double train(ggml_opt_context_t opt, ggml_opt_dataset_t data, double *time) {
    double loss = 0.0;
    ggml_opt_result_t result = ggml_opt_result_init();
    for (int i = 0; i < numbers["epochs"]; i++) {
        const double start = now();
        ggml_opt_result_reset(result);
        ggml_opt_epoch(opt, data, result, nullptr, stories, nullptr, nullptr);
        ggml_opt_result_loss(result, &loss, nullptr);
        const double took = (now() - start) * batch / stories;
        if (i == 0 || took < *time) *time = took;
    }
    ggml_opt_result_free(result);
    return loss;
}

static void read_args(int n, char **given) {
    for (int i = 1; i + 1 < n; i += 2) {
        const std::string name = std::string(given[i]).substr(2);
        check(texts.count(name) || numbers.count(name), "no such option: " + name);
        if (texts.count(name)) texts[name] = given[i + 1];
        else numbers[name] = atof(given[i + 1]);
    }
    check(n % 2, "options have values");
    width = int(numbers["width"]), layers = int(numbers["layers"]), heads = int(numbers["heads"]);
    kv_heads = int(numbers["kv-heads"]), context = int(numbers["context"]), batch = int(numbers["batch"]);
    random_state = uint64_t(numbers["seed"]), stories = int(numbers["stories"]), is_half = numbers["half"] != 0;
    check(heads % kv_heads == 0 && width % (2 * heads) == 0,
          "heads must be a multiple of kv-heads, and width one of 2 * heads");
}

static std::unique_ptr<amp_ggml> start(ggml_backend_sched_t sched) {
    if (texts["level"].empty()) return nullptr;
    amp_config config = amp::config(amp::level(texts["level"].c_str()));
    config.init_scale = float(numbers["init-scale"]), config.gate = amp_switch(numbers["gate"]);
    auto amp = amp_ggml_initialize(sched, config, float(numbers["clip"]));
    if (!texts["load"].empty()) amp->load(texts["load"]);
    return amp;
}

static void finish(const amp_ggml *amp) {
    amp_record record = AMP_RECORD_INIT;
    if (!amp) return;
    amp->check();
    if (!texts["save"].empty()) amp->save(texts["save"]);
    amp::throwing::done(amp_get_record(amp->context(), 0, &record));
    printf("%s: %llu backward passes, %llu skipped, loss scale %g\n", texts["level"].c_str(),
           (unsigned long long)record.brackets, (unsigned long long)record.skipped, double(record.scale_after));
}

static void run() {
    model m;
    double time = 0.0;
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, int(numbers["threads"]));
    ggml_backend_sched_t sched = ggml_backend_sched_new(&backend, nullptr, 1, GGML_DEFAULT_GRAPH_SIZE, false, true);
    build(&m, backend);
    ggml_opt_dataset_t data = make_data();

    auto amp = start(sched);
    ggml_opt_params params = ggml_opt_default_params(sched, GGML_OPT_LOSS_TYPE_CROSS_ENTROPY);
    params.ctx_compute = m.graph, params.inputs = m.tokens, params.outputs = m.logits;
    params.opt_period = int(numbers["micro-batches"]), params.get_opt_pars = optimizer_params;
    ggml_opt_context_t opt = ggml_opt_init(params);
    const double loss = train(opt, data, &time);
    finish(amp.get());
    amp.reset();
    report(m, sched, backend, loss, time);

    ggml_opt_free(opt), ggml_opt_dataset_free(data);
    ggml_backend_buffer_free(m.memory), ggml_free(m.graph), ggml_free(m.weights);
    ggml_backend_sched_free(sched), ggml_backend_free(backend);
}

int main(int n, char **given) {
    try {
        read_args(n, given);
        run();
    } catch (const std::exception &e) {
        check(false, e.what());
    }
    return 0;
}
