/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <amp_diagnostics.h>

#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct wired *all;

/* ---- describing ---- */

typedef void layer_fn(layer l, network net);

/* ISO C has no cast for it. */
static void *address_of(layer_fn *function) {
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

/* What this file was compiled for has its functions where the header says. */
static void check_layout(const network *net) {
    Dl_info info;
    if (darknet_has("forward_network_gpu"))
        stop("this libdarknet.so is built for a GPU, where its buffers are out of reach. Without AMP_LEVEL the program "
             "runs as ever");
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        if (l->type > BLANK || !dladdr(address_of(l->forward), &info))
            stop("layer %d is not laid out as darknet.h says that this library was built with: libdarknet.so is of "
                 "another version. Build libamp beside it; without AMP_LEVEL the program runs as ever", i);
    }
}

struct lists { /* of one network, while it is described */
    amp_param *params;
    void **trained;
    char (*names)[64];
    size_t n;
};

static void add_param(struct wired *w, struct lists *lists, const struct part *p, const char *what, float *data,
                      float *updates, int n) {
    const size_t i = lists->n++;
    amp_buffer *weight = &w->buffers[2 * i], *gradient = weight + 1;
    *weight = *gradient = (amp_buffer)AMP_BUFFER_INIT;
    weight->data = data, gradient->data = updates;
    weight->size = gradient->size = n;
    weight->grad = gradient;
    snprintf(lists->names[i], sizeof lists->names[i], "%s.%s", p->name, what);
    lists->params[i] = (amp_param)AMP_PARAM_INIT;
    lists->params[i].tensor = lists->trained[i] = weight;
    lists->params[i].name = lists->names[i];
    /* the biases of a layer with scales are those of its batch norm */
    const bool norm = p->l->scales && data != p->l->weights;
    lists->params[i].module_kind = norm ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
}

static void describe_params(struct wired *w, struct lists *lists) {
    for (int i = 0; i < w->n_parts; i++) {
        const struct part *p = &w->parts[i];
        const layer *l = p->l;
        add_param(w, lists, p, "weights", l->weights, l->weight_updates, p->n_weights);
        add_param(w, lists, p, "biases", l->biases, l->bias_updates, p->n_biases);
        if (l->scales) add_param(w, lists, p, "scales", l->scales, l->scale_updates, p->n_biases);
    }
}

static void *need(size_t n, size_t size) {
    void *block = calloc(n + 1, size);
    if (!block) stop("out of memory");
    return block;
}

static void initialize(struct wired *w) {
    const size_t most = 3 * (size_t)w->n_parts, n_ops = 2 * (size_t)w->n_parts + 1;
    struct lists lists = { need(most, sizeof *lists.params), need(most, sizeof *lists.trained),
                           need(most, sizeof *lists.names), 0 };
    amp_op *ops = need(n_ops, sizeof *ops);
    amp_model *model = &w->model;
    amp_optimizer *optimizer = &w->optimizer;
    amp_context *context;

    w->buffers = need(2 * most, sizeof *w->buffers);
    describe_params(w, &lists);
    describe_products(ops, w->parts, w->n_parts, &w->other);
    *model = (amp_model)AMP_MODEL_INIT;
    model->host = amp_buffer_host();
    model->ops = ops, model->n_ops = n_ops;
    model->flags = AMP_MODEL_WHOLE_TABLE;
    model->params = lists.params, model->n_params = lists.n;
    *optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    optimizer->host = model->host;
    optimizer->params = lists.trained, optimizer->n_params = lists.n;
    optimizer->flags = AMP_OPTIMIZER_GRADS_STAY; /* darknet keeps its momentum there */
    must(amp_initialize_many(&model, 1, &optimizer, 1, &options()->config, &context), "this network");
    free(lists.params), free(lists.trained), free(lists.names), free(ops);
}

static const char *words_of(amp_level level) {
#define WORDS(name, value, text, ...) [value] = #name ": " text,
    static const char *const words[] = { AMP_LEVEL_MAP(WORDS) };
#undef WORDS
    return words[level] + strlen("AMP_");
}

static struct wired *wire(const network *net) {
    struct wired *w = need(1, sizeof *w);
    check_layout(net);
    w->layers = net->layers, w->n_layers = net->n;
    w->parts = parts_of(net->layers, net->n, &w->n_parts);
    initialize(w);
    tell("a network of %d layers, %d of them trained, at %s", net->n, w->n_parts, words_of(options()->config.level));
    return w;
}

/* ---- giving it back ---- */

static void tell_passes(const struct wired *w) {
    amp_record record = AMP_RECORD_INIT;
    if (amp_get_record(w->model.amp, 0, &record) != AMP_OK || !record.brackets) return;
    tell("%llu backward passes, %llu of them overflowed and were skipped, loss scale %g",
         (unsigned long long)record.brackets, (unsigned long long)record.skipped, (double)record.scale_after);
}

static void tell_products(const struct wired *w) {
    const size_t n_ops = 2 * (size_t)w->n_parts + 1;
    amp_op_stats *stats = need(n_ops, sizeof *stats);
    unsigned long long calls = 0, gated = 0;
    size_t n = 0;
    stats[0] = (amp_op_stats)AMP_OP_STATS_INIT;
    if (amp_get_op_stats(w->model.amp, stats, n_ops, &n) != AMP_OK) n = 0;
    for (size_t i = 0; i < n; i++) calls += stats[i].calls - stats[i].passed, gated += stats[i].gated;
    if (calls && options()->config.level != AMP_O0)
        tell("%llu products in 16 bits, %llu in FP32 that are too small to gain", calls - gated, gated);
    free(stats);
}

static void unwire(struct wired *w) {
    tell_passes(w);
    tell_products(w);
    if (amp_shutdown(w->model.amp) != AMP_OK) tell("%s", amp_last_error());
    free(w->parts), free(w->buffers), free(w);
}

static bool has_layer(const struct wired *w, const layer *l) {
    for (int i = 0; i < w->n_layers; i++)
        if (w->layers[i].output == l->output) return true;
    return false;
}

void unwire_layer(const layer *l) {
    (void)pthread_mutex_lock(&lock);
    for (struct wired **at = &all; *at; at = &(*at)->next) {
        struct wired *w = *at;
        if (!has_layer(w, l)) continue;
        *at = w->next;
        unwire(w);
        break;
    }
    (void)pthread_mutex_unlock(&lock);
}

/* At the program's end its networks are there still. Threads may be, too: one that works on a network keeps it, and
 * none enters any more. */
__attribute__((destructor)) static void unwire_all(void) {
    (void)pthread_mutex_lock(&lock);
    for (struct wired *w = all, *next; w; w = next) {
        next = w->next;
        if (!w->busy) unwire(w);
    }
}

/* ---- entering ---- */

static void check_same(const struct wired *w, const network *net) {
    bool same = w->n_layers == net->n;
    for (int i = 0; same && i < w->n_parts; i++) same = w->parts[i].l->weights == w->parts[i].weights;
    if (!same)
        stop("a network's layers or weights were replaced while libamp was on: free it with free_network, or set it up "
             "as a whole before its first forward pass");
}

struct wired *enter(network *net) {
    (void)pthread_mutex_lock(&lock);
    struct wired *w = all;
    while (w && w->layers != net->layers) w = w->next;
    if (!w) {
        w = wire(net);
        w->next = all, all = w;
    }
    const bool busy = w->busy;
    w->busy = 1;
    (void)pthread_mutex_unlock(&lock);
    if (busy) stop("two threads work on one network at the same time: darknet's buffers, and libamp's, are for one");
    check_same(w, net);
    return w;
}

void leave(struct wired *w) {
    (void)pthread_mutex_lock(&lock);
    w->busy = 0;
    (void)pthread_mutex_unlock(&lock);
}
