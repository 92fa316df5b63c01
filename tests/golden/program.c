/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host that sees public headers alone. Each release keeps its files, its numbers and its object code (make.py), which
 * every later build must read, repeat and run (test_golden.py):
 *
 *     program make FOLDER           trains each case, saves it, trains on
 *     program resume FOLDER OUT     loads each file of FOLDER, saves it again in OUT, trains on
 *     program damage FOLDER OUT     loads each file changed, cut and extended
 *     program calls                 the interface beside training: calls.c
 *
 * Values are sums and products in double, each rounded once to its tensor's type: the same on every machine.
 */
#include "calls.h"

#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_observe.h>
#include <amp_optim.h>
#include <amp_state.h>
#include <amp_train.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 4, LARGE = 4096, N_PARAMS = 3, BEFORE = 7, AFTER = 6 };

/* ---- the framework ---- */

typedef struct tensor {
    amp_storage storage;
    int64_t shape[1], strides[1];
    struct tensor *grad;
    uint64_t id, version;
} tensor;

static size_t width_of(amp_dtype dtype) { return dtype == AMP_FLOAT32 ? 4 : 2; }

static amp_storage new_block(uint64_t bytes, amp_dtype dtype) {
    amp_storage block;
    memset(&block, 0, sizeof block);
    block.data = block.owner = calloc(1, (size_t)bytes), block.bytes = bytes, block.dtype = dtype;
    if (!block.data) exit(2);
    return block;
}

static tensor *new_tensor(amp_dtype dtype, int64_t n) {
    static uint64_t made;
    tensor *t = calloc(1, sizeof *t);
    if (!t) exit(2);
    t->storage = new_block((uint64_t)n * width_of(dtype), dtype);
    t->shape[0] = n, t->strides[0] = 1, t->id = ++made, t->version = 1;
    return t;
}

static void delete_tensor(tensor *t) {
    if (!t) return;
    delete_tensor(t->grad);
    free(t->storage.owner), free(t);
}

static double get(const tensor *t, int64_t i) {
    const uint16_t *half = t->storage.data;
    if (t->storage.dtype == AMP_FLOAT16) return (double)amp_half_to_float(half[i]);
    if (t->storage.dtype == AMP_BFLOAT16) return (double)amp_bfloat16_to_float(half[i]);
    return (double)((const float *)t->storage.data)[i];
}

static void set(tensor *t, int64_t i, double value) {
    uint16_t *half = t->storage.data;
    t->version++;
    if (t->storage.dtype == AMP_FLOAT16) half[i] = amp_float_to_half((float)value);
    else if (t->storage.dtype == AMP_BFLOAT16) half[i] = amp_float_to_bfloat16((float)value);
    else ((float *)t->storage.data)[i] = (float)value;
}

static tensor *op_linear(tensor *x, tensor *weight, tensor *bias) {
    tensor *out = new_tensor(x->storage.dtype, x->shape[0]);
    for (int64_t i = 0; i < x->shape[0]; i++) set(out, i, get(x, i) * get(weight, i) + get(bias, i % SMALL));
    return out;
}

static tensor *op_mul(tensor *x, tensor *gamma) {
    tensor *out = new_tensor(x->storage.dtype, x->shape[0]);
    for (int64_t i = 0; i < x->shape[0]; i++) set(out, i, get(x, i) * get(gamma, i % SMALL));
    return out;
}

typedef struct net {
    tensor *params[N_PARAMS]; /* weight, bias, gamma of a batch norm */
    tensor *hidden;           /* of the last forward */
    tensor *(*linear)(tensor *x, tensor *weight, tensor *bias);
    tensor *(*mul)(tensor *x, tensor *gamma);
    tensor *(*forward)(struct net *net, tensor *x);
} net;

static tensor *net_forward(net *n, tensor *x) {
    delete_tensor(n->hidden);
    n->hidden = n->linear(x, n->params[0], n->params[1]);
    return n->hidden ? n->mul(n->hidden, n->params[2]) : NULL;
}

/* Adds the gradients of (out[0]^2 + ...) * factor / 2 to those of the parameters, in the parameters' types. */
static void net_backward(net *n, const tensor *x, const tensor *out, double factor) {
    double bias[SMALL] = { 0 }, gamma[SMALL] = { 0 };
    for (int k = 0; k < N_PARAMS; k++)
        if (!n->params[k]->grad) n->params[k]->grad = new_tensor(n->params[k]->storage.dtype, n->params[k]->shape[0]);
    for (int64_t i = 0; i < x->shape[0]; i++) {
        const double d = get(out, i) * factor, inner = d * get(n->params[2], i % SMALL);
        set(n->params[0]->grad, i, get(n->params[0]->grad, i) + inner * get(x, i));
        bias[i % SMALL] += inner;
        gamma[i % SMALL] += d * get(n->hidden, i);
    }
    for (int64_t i = 0; i < SMALL; i++) {
        set(n->params[1]->grad, i, get(n->params[1]->grad, i) + bias[i]);
        set(n->params[2]->grad, i, get(n->params[2]->grad, i) + gamma[i]);
    }
}

static void net_init(net *n, int64_t size) {
    memset(n, 0, sizeof *n);
    n->linear = op_linear, n->mul = op_mul, n->forward = net_forward;
    for (int k = 0; k < N_PARAMS; k++) {
        n->params[k] = new_tensor(AMP_FLOAT32, k ? SMALL : size);
        for (int64_t i = 0; i < n->params[k]->shape[0]; i++)
            set(n->params[k], i, 0.7 - 0.3 * k + (double)(i * 29 % 32 - 16) / 37.0);
    }
}

static void net_end(net *n) {
    for (int k = 0; k < N_PARAMS; k++) delete_tensor(n->params[k]);
    delete_tensor(n->hidden);
}

/* ---- its hooks ---- */

static amp_status hook_view(void *self, void *handle, amp_tensor_view *view) {
    tensor *t = handle;
    (void)self;
    view->data = t->storage.data, view->device.type = 1, view->ndim = 1, view->shape = t->shape;
    view->strides = t->strides, view->dtype.code = t->storage.dtype == AMP_BFLOAT16 ? 4 : 2;
    view->dtype.bits = (uint8_t)(8 * width_of(t->storage.dtype)), view->dtype.lanes = 1;
    return AMP_OK;
}
static amp_dtype hook_dtype(void *self, void *handle) { return (void)self, ((tensor *)handle)->storage.dtype; }
static amp_status hook_scale(void *self, void *handle, float factor, void **out) {
    const tensor *t = handle;
    tensor *made = new_tensor(t->storage.dtype, t->shape[0]);
    (void)self;
    for (int64_t i = 0; i < t->shape[0]; i++) set(made, i, get(t, i) * (double)factor);
    *out = made;
    return AMP_OK;
}
static amp_status hook_cast(void *self, void *handle, amp_dtype to, void **out) {
    const tensor *t = handle;
    tensor *made = new_tensor(to, t->shape[0]);
    (void)self;
    for (int64_t i = 0; i < t->shape[0]; i++) set(made, i, get(t, i));
    *out = made;
    return AMP_OK;
}
static void hook_release(void *self, void *handle) { (void)self, delete_tensor(handle); }
static uint64_t hook_id(void *self, void *handle) { return (void)self, ((tensor *)handle)->id; }
static uint64_t hook_version(void *self, void *handle) { return (void)self, ((tensor *)handle)->version; }
static amp_status hook_grad(void *self, void *handle, void **grad) {
    return (void)self, *grad = ((tensor *)handle)->grad, AMP_OK;
}
static amp_status hook_set_grad(void *self, void *handle, void *grad) {
    return (void)self, ((tensor *)handle)->grad = grad, AMP_OK;
}
static amp_status hook_swap(void *self, void *handle, amp_storage *storage) {
    tensor *t = handle;
    const amp_storage old = t->storage;
    (void)self;
    t->storage = *storage, *storage = old, t->version++;
    return AMP_OK;
}
static amp_status hook_alloc(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage) {
    (void)self, (void)device, (void)purpose;
    *storage = new_block(bytes, storage->dtype);
    return AMP_OK;
}
static void hook_free(void *self, amp_storage *storage) { (void)self, free(storage->owner); }
static void hook_event(void *self, const amp_event *event) {
    unsigned *events = self; /* by kind; later kinds are ignored */
    if (event->kind >= AMP_EVENT_LOG && event->kind <= AMP_EVENT_BRACKET) events[event->kind]++;
}

/* ---- the cases ---- */

/* What a file of golden contents is saved under. */
typedef struct golden {
    const char *name;
    amp_level level;
    amp_switch masters;
    amp_optim_kind kind; /* 0: the host's own step, p -= 0.125 * g */
    uint32_t flags;      /* AMP_OPTIM_* beside the defaults */
    uint32_t fused;      /* AMP_FUSED_* */
    int64_t size;        /* elements of the weight (0: SMALL) */
    int32_t scaler;
    uint32_t losses;
    int32_t traced; /* 1: a trace, 2: and observed, 3: Apex's form too */
} golden;

static const golden cases[] = {
    { "o0", AMP_O0, 0, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 1 },
    { "o1", AMP_O1, 0, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 2 },
    { "o2", AMP_O2, 0, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 1 },
    { "o3", AMP_O3, 0, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 0 },
    { "o4", AMP_O4, 0, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 0 },
    { "o5", AMP_O5, 0, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 1 },
    { "o0-host", AMP_O0, 0, 0, 0, 0, 0, 0, 1, 0 },
    { "o1-host-losses", AMP_O1, 0, 0, 0, 0, 0, 0, 3, 3 },
    { "o2-host-losses", AMP_O2, 0, 0, 0, 0, 0, 0, 2, 0 },
    { "o3-host", AMP_O3, 0, 0, 0, 0, 0, 0, 1, 0 },
    { "o4-host", AMP_O4, 0, 0, 0, 0, 0, 0, 1, 0 },
    { "o5-host", AMP_O5, 0, 0, 0, 0, 0, 0, 1, 0 },
    { "o5-split", AMP_O5, AMP_SPLIT, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 0 },
    { "o5-split-host", AMP_O5, AMP_SPLIT, 0, 0, 0, 0, 0, 1, 0 },
    { "o5-stochastic", AMP_O5, AMP_STOCHASTIC, AMP_OPTIM_ADAMW, 0, 0, 0, 0, 1, 0 },
    { "o2-8bit", AMP_O2, 0, AMP_OPTIM_ADAM, 0, AMP_FUSED_STATE_8BIT, LARGE, 0, 1, 0 },
    { "o1-torch", AMP_O1, 0, AMP_OPTIM_SGD, 0, 0, 0, AMP_SCALER_TORCH, 1, 0 },
    { "o1-megatron", AMP_O1, 0, AMP_OPTIM_LAMB, 0, 0, 0, AMP_SCALER_MEGATRON, 1, 0 },
    { "o2-deepspeed", AMP_O2, 0, AMP_OPTIM_NOVOGRAD, 0, 0, 0, AMP_SCALER_DEEPSPEED, 1, 0 },
    { "o2-jmp", AMP_O2, 0, AMP_OPTIM_ADAGRAD, 0, 0, 0, AMP_SCALER_JMP, 1, 0 },
    { "o2-mxnet", AMP_O2, 0, AMP_OPTIM_LARC, 0, 0, 0, AMP_SCALER_MXNET, 1, 0 },
    { "o2-amsgrad", AMP_O2, 0, AMP_OPTIM_ADAM, AMP_OPTIM_AMSGRAD, 0, 0, 0, 1, 0 },
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* ---- a training ---- */

typedef struct run {
    const golden *of;
    net net;
    unsigned events[AMP_EVENT_BRACKET + 1];
    amp_host host;
    amp_op ops[2], forward;
    amp_param params[N_PARAMS];
    void *trained[N_PARAMS];
    amp_optim rule;
    amp_fused fused;
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
    int32_t dynamic;
    int step;
} run;

static void check(const run *r, amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s: %s\n", r->of->name, amp_status_name(status), amp_last_error());
    exit(1);
}

static amp_op describe(const char *name, const char *schema, amp_fn *slot) {
    amp_op op = AMP_OP_INIT;
    op.name = name, op.schema = schema, op.slot = slot;
    return op;
}

static void describe_host(run *r) {
    amp_host *host = &r->host;
    *host = (amp_host)AMP_HOST_INIT;
    host->flags = AMP_HOST_TAPE_RETAINS_INPUTS, host->self = r->events;
    host->view = hook_view, host->dtype = hook_dtype, host->cast = hook_cast, host->release = hook_release;
    host->id = hook_id, host->version = hook_version, host->grad = hook_grad, host->set_grad = hook_set_grad;
    host->swap_data = hook_swap, host->scale = hook_scale, host->alloc = hook_alloc, host->free = hook_free;
    host->event = hook_event;
}

static void describe_net(run *r) {
    static const char *const names[N_PARAMS] = { "weight", "bias", "gamma" };
    r->ops[0] = describe("linear", "linear(Tensor x, Tensor weight, Tensor bias) -> Tensor", (amp_fn *)&r->net.linear);
    r->ops[1] = describe("mul", "mul(Tensor x, Tensor gamma) -> Tensor", (amp_fn *)&r->net.mul);
    r->forward = describe("forward", "forward(pointer self, Tensor x) -> Tensor", (amp_fn *)&r->net.forward);
    for (int k = 0; k < N_PARAMS; k++) {
        r->params[k] = (amp_param)AMP_PARAM_INIT;
        r->params[k].tensor = r->trained[k] = r->net.params[k], r->params[k].name = names[k];
        r->params[k].module_kind = k == 2 ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
    }
    r->model = (amp_model)AMP_MODEL_INIT;
    r->model.host = &r->host, r->model.self = &r->net, r->model.ops = r->ops, r->model.n_ops = 2;
    r->model.params = r->params, r->model.n_params = N_PARAMS, r->model.forward = &r->forward;
}

static void describe_optimizer(run *r) {
    r->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    r->optimizer.host = &r->host, r->optimizer.params = r->trained, r->optimizer.n_params = N_PARAMS;
    if (!r->of->kind) return;
    r->rule = (amp_optim)AMP_OPTIM_INIT, r->fused = (amp_fused)AMP_FUSED_INIT;
    check(r, amp_optim_defaults(r->of->kind, &r->rule));
    r->rule.flags |= r->of->flags, r->rule.lr = 0.03125, r->rule.weight_decay = 0.01;
    if (r->of->kind == AMP_OPTIM_SGD || r->of->kind == AMP_OPTIM_LARC) r->rule.momentum = 0.9;
    r->fused.groups = &r->rule, r->fused.n_groups = 1, r->fused.flags = r->of->fused, r->fused.seed = 7;
    r->optimizer.fused = &r->fused;
}

static run *start(const golden *of, const char *trace) {
    run *r = calloc(1, sizeof *r);
    amp_config config = AMP_CONFIG_INIT, resolved = AMP_CONFIG_INIT;
    amp_model *models[1];
    amp_optimizer *optimizers[1];
    if (!r) exit(2);
    r->of = of, models[0] = &r->model, optimizers[0] = &r->optimizer;
    net_init(&r->net, of->size ? of->size : SMALL);
    describe_host(r), describe_net(r), describe_optimizer(r);
    config.level = of->level, config.master_weights = of->masters, config.num_losses = of->losses;
    config.scaler = of->scaler, config.trace = trace, config.observe = of->traced == 2 ? AMP_ON : AMP_DEFAULT;
    check(r, amp_config_resolve(&config, &resolved));
    r->dynamic = resolved.loss_scale == AMP_DYNAMIC;
    if (r->dynamic) config.init_scale = 256.0f, config.window = 3;
    check(r, amp_initialize_many(models, 1, optimizers, 1, &config, &r->context));
    if (of->traced == 2 && trace) {
        amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
        static const char *const names[] = { "linear", "weight" };
        options.every = 1000, options.first = 3, options.names = names, options.n_names = 2;
        check(r, amp_observe(r->context, &options));
    }
    return r;
}

static void end(run *r) {
    check(r, amp_shutdown(r->context));
    net_end(&r->net), free(r);
}

static void host_step(run *r) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    check(r, amp_step_begin(&r->optimizer, &info));
    for (int k = 0; k < N_PARAMS && info.action == AMP_STEP; k++) {
        tensor *p = r->net.params[k];
        for (int64_t i = 0; i < p->shape[0]; i++) set(p, i, get(p, i) - 0.125 * get(p->grad, i));
    }
    check(r, amp_step_end(&r->optimizer));
    for (int k = 0; k < N_PARAMS; k++) delete_tensor(r->net.params[k]->grad), r->net.params[k]->grad = NULL;
}

static void train(run *r, int steps) {
    for (int last = r->step + steps; r->step < last; r->step++) {
        const int64_t size = r->net.params[0]->shape[0];
        tensor *x = new_tensor(AMP_FLOAT32, size), *loss = new_tensor(AMP_FLOAT32, 1);
        amp_optimizer *optimizers[1];
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        double sum = 0.0;
        optimizers[0] = &r->optimizer;
        const double wide = r->dynamic && r->step % 4 == 2 ? 0x1p-20 : 64.0; /* one in four overflows */
        for (int64_t i = 0; i < size; i++) set(x, i, (double)((i * 37 + r->step * 11) % 64 - 32) / wide);
        tensor *out = r->net.forward(&r->net, x);
        if (!out) check(r, amp_check(r->context));
        for (int64_t i = 0; i < size; i++) sum += get(out, i) * get(out, i);
        set(loss, 0, sum * SMALL / (double)size / 2.0);
        check(r, amp_scale_loss_begin_many(r->context, optimizers, 1, (uint32_t)r->step % r->of->losses, 0, loss,
                                           &scaled));
        net_backward(&r->net, x, out, (double)*scaled.scale * SMALL / (double)size);
        check(r, amp_scale_loss_end(&scaled));
        if (!r->of->kind) host_step(r);
        else check(r, amp_fused_step(&r->optimizer, NULL)), check(r, amp_fused_zero_grad(&r->optimizer));
        delete_tensor(x), delete_tensor(out), delete_tensor(loss);
    }
}

/* ---- its numbers ---- */

static uint64_t digest(const void *data, size_t size) { /* FNV-1a */
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

static size_t state_of(run *r, unsigned char **state) {
    size_t size = 0;
    check(r, amp_state_save_memory(r->context, AMP_STATE_SAFETENSORS, NULL, 0, &size));
    *state = malloc(size);
    if (!*state) exit(2);
    check(r, amp_state_save_memory(r->context, AMP_STATE_SAFETENSORS, *state, size, &size));
    return size;
}

/* A state's tensors, masters and moments: its bytes behind the header. */
static uint64_t digest_state(run *r) {
    unsigned char *state;
    const size_t size = state_of(r, &state);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | state[i];
    const uint64_t result = digest(state + 8 + header, size - 8 - (size_t)header);
    free(state);
    return result;
}

static void print_losses(run *r) {
    for (uint32_t i = 0; i < r->of->losses; i++) {
        amp_record record = AMP_RECORD_INIT;
        check(r, amp_get_record(r->context, i, &record));
        printf(" loss %u %a %u %u %u %llu", (unsigned)i, (double)record.scale_after, (unsigned)record.unskipped,
               (unsigned)record.skips_in_row, (unsigned)record.hysteresis_left, (unsigned long long)record.skipped);
    }
}

static void print_numbers(run *r, const char *when) {
    amp_master masters[N_PARAMS];
    size_t n = 0;
    for (int k = 0; k < N_PARAMS; k++) masters[k] = (amp_master)AMP_MASTER_INIT;
    check(r, amp_master_params(&r->optimizer, masters, N_PARAMS, &n));
    printf("%s %s:", r->of->name, when);
    for (size_t k = 0; k < n; k++) {
        const tensor *p = masters[k].param;
        printf(" %s %016llx %016llx", masters[k].name,
               (unsigned long long)digest(masters[k].data, (size_t)masters[k].size * width_of(masters[k].dtype)),
               (unsigned long long)digest(p->storage.data, (size_t)p->shape[0] * width_of(p->storage.dtype)));
    }
    print_losses(r);
    printf(" state %016llx\n", (unsigned long long)digest_state(r));
}

/* ---- the commands ---- */

static const char *path_of(const char *folder, const golden *of, const char *end_of) {
    static char paths[2][4096];
    static int turn;
    char *path = paths[turn = !turn];
    snprintf(path, sizeof paths[0], "%s/%s.%s", folder, of->name, end_of);
    return path;
}

/* Apex's form has the scales alone. */
static void load_apex(const golden *of, const char *folder) {
    run *r = start(of, NULL);
    check(r, amp_state_load(r->context, path_of(folder, of, "json")));
    printf("%s apex:", of->name), print_losses(r), printf("\n");
    end(r);
}

static void make(const golden *of, const char *folder) {
    run *r = start(of, of->traced == 1 || of->traced == 2 ? path_of(folder, of, "jsonl") : NULL);
    train(r, BEFORE);
    check(r, amp_state_save(r->context, path_of(folder, of, "safetensors"), AMP_STATE_SAFETENSORS));
    if (of->traced == 3) check(r, amp_state_save(r->context, path_of(folder, of, "json"), AMP_STATE_APEX));
    print_numbers(r, "saved");
    train(r, AFTER);
    print_numbers(r, "trained");
    end(r);
    if (of->traced == 3) load_apex(of, folder);
}

static void resume(const golden *of, const char *folder, const char *out) {
    run *r = start(of, NULL);
    check(r, amp_state_load(r->context, path_of(folder, of, "safetensors")));
    check(r, amp_state_save(r->context, path_of(out, of, "safetensors"), AMP_STATE_SAFETENSORS));
    if (r->events[AMP_EVENT_WARNING]) printf("%s: %u warnings\n", of->name, r->events[AMP_EVENT_WARNING]);
    print_numbers(r, "saved");
    r->step = BEFORE;
    train(r, AFTER);
    print_numbers(r, "trained");
    end(r);
    if (of->traced == 3) load_apex(of, folder);
}

/* The bytes of a file in three lengths: as they are, with one bit changed, cut or extended. */
static void damage(const golden *of, const char *folder, const char *out) {
    run *r = start(of, NULL);
    unsigned char *bytes = calloc(1, 1 << 20);
    FILE *file = fopen(path_of(folder, of, "safetensors"), "rb");
    if (!bytes || !file) exit(2);
    const size_t size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    const uint64_t before = digest_state(r);
    const size_t cuts[] = { 0, 5, 8, 200, size / 2, size - 1, size + 1 };
    const size_t bits[] = { 0, 3, 20, 34, 60, 300, size / 2, size - 60, size - 1 };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts + sizeof bits / sizeof *bits; i++) {
        const int cut = i < sizeof cuts / sizeof *cuts;
        const size_t at = cut ? cuts[i] : bits[i - sizeof cuts / sizeof *cuts];
        const char *path = path_of(out, of, "damaged");
        if (!cut) bytes[at] ^= 1;
        if (!(file = fopen(path, "wb")) || fwrite(bytes, 1, cut ? at : size, file) != (cut ? at : size)) exit(2);
        fclose(file);
        if (!cut) bytes[at] ^= 1;
        const amp_status status = amp_state_load(r->context, path);
        printf("%s %s %lu: %s: %s\n", of->name, cut ? "cut" : "changed", (unsigned long)at, amp_status_name(status),
               status == AMP_OK ? "" : amp_last_error());
        if (digest_state(r) != before) printf("%s: a refused file changed the training\n", of->name);
    }
    free(bytes);
    end(r);
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    if (!strcmp(command, "calls") && argc == 2) return calls();
    for (size_t i = 0; i < N_CASES; i++) {
        if (!strcmp(command, "make") && argc == 3) make(&cases[i], argv[2]);
        else if (!strcmp(command, "resume") && argc == 4) resume(&cases[i], argv[2], argv[3]);
        else if (!strcmp(command, "damage") && argc == 4) damage(&cases[i], argv[2], argv[3]);
        else return fputs("program make|resume|damage FOLDER [OUT], program calls\n", stderr), 2;
    }
    return 0;
}
