/* SPDX-License-Identifier: Apache-2.0 */
#include "amp_gate.h"
#include "amp_raw.h"
#include "call/call.h"
#include "call/gate.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/probe.h"
#include "kernels/matmul.h"
#include "raw/raw.h"

#include <math.h>
#include <string.h>

/* ---- known speeds ---- */

static const amp_gate_row table[] = {
#define AMP__GATE_ROW(who, kind, unit, type, least) { sizeof(amp_gate_row), type, who, kind, unit, least },
#include "call/gate_table.inc"
#undef AMP__GATE_ROW
};

const amp_gate_row *amp__gate_rows(size_t *n) {
    *n = AMP_COUNT(table);
    return table;
}

/* Products by amp_matmul. */
static const amp_gate_row *find_row(const char *who, const char *unit, amp_dtype type) {
    for (size_t i = 0; unit && i < AMP_COUNT(table); i++)
        if (table[i].dtype == type && !strcmp(table[i].who, who) && !strcmp(table[i].unit, unit)) return &table[i];
    return NULL;
}

/* ---- an op ---- */

static bool has_handles(const struct amp__op *op) { return !op->schema || op->schema->n_tensors || amp__visits(op); }

static bool looks(const struct amp__op *op) {
    const struct amp__properties *properties = &amp__policy_of(op->context)->properties;
    if (properties->gate == AMP_OFF || !properties->patch_ops || properties->emulate) return false;
    if (op->op_class != AMP_LOWER) return false;
    if (op->flags & AMP_OP_DIRECT) return properties->gate == AMP_ON;
    if (properties->low == AMP_FLOAT16 ? op->functions.fp16 : op->functions.bf16) return true;
    return properties->gate == AMP_ON && has_handles(op);
}

/* Returns true if the op has views, which alone tell the device of handles. */
static bool watches(const struct amp__op *op) {
    const struct amp__properties *properties = &amp__policy_of(op->context)->properties;
    return properties->gate != AMP_OFF && properties->patch_ops && !properties->emulate && op->op_class == AMP_LOWER &&
           op->flags & AMP_OP_MATMUL && op->host && op->host->view && has_handles(op);
}

static amp_status watch_call(const struct amp__probed *call, enum amp__side side, void *room);

void amp__gate_init(struct amp__op *op) {
    const struct amp__policy *policy = amp__policy_of(op->context);
    static const struct amp__probe watch = { .enter = watch_call };
    const amp_dtype low = policy->properties.low;
    op->gate.applies = looks(op);
    op->glance = watches(op) ? &watch : NULL;
    if (!op->gate.applies) return;
    /* by default ops of unknown speed follow the level; with AMP_ON they run in FP32 */
    const amp_switch gate = policy->properties.gate;
    amp__gate_set_least(op, gate == AMP_ON ? AMP_GATE_NEVER : AMP_GATE_ALWAYS, AMP__GATE_UNKNOWN);
    if (!(op->flags & AMP_OP_MATMUL)) return;
    amp__matmul_unit(low, &op->gate.who, &op->gate.unit);
    const amp_gate_row *row = find_row(op->gate.who, op->gate.unit, low);
    if (row) amp__gate_set_least(op, row->least, AMP__GATE_TABLE);
}

amp_switch amp__gate_pays(const amp_context *context, amp_dtype low) {
    const struct amp__models *models = amp__models_of(context);
    const struct amp__policy *policy = amp__policy_of(context);
    const char *who, *unit;
    for (size_t i = 0; i < models->n && low == policy->properties.low; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) {
            const struct amp__op *op = &models->list[i].ops[j];
            if (op->gate.applies && op->gate.source >= AMP__GATE_MEASURED)
                return op->gate.least == AMP_GATE_NEVER ? AMP_OFF : AMP_ON;
        }
    amp__matmul_unit(low, &who, &unit);
    const amp_gate_row *row = find_row(who, unit, low);
    return !row ? AMP_DEFAULT : row->least == AMP_GATE_NEVER ? AMP_OFF : AMP_ON;
}

void amp__gate_set_least(struct amp__op *op, uint64_t least, enum amp__gate_source source) {
    amp_context *context = op->context;
    pthread_mutex_t *lock = amp__lock_of(context);
    pthread_mutex_lock(lock);
    if ((int)source >= (int)op->gate.source) {
        op->gate.source = (uint8_t)source;
        op->gate.least = least;
    }
    pthread_mutex_unlock(lock);
}

/* ---- a call's size ---- */

uint64_t amp__gate_edge(double m, double n, double k) {
    return m > 0.0 && n > 0.0 && k > 0.0 ? (uint64_t)(3.0 / (1.0 / m + 1.0 / n + 1.0 / k) + 1e-9) : 0;
}

enum { DIMS = 8 };

struct shape {
    int32_t ndim;
    double extents[DIMS], size;
};

/* One look at a call's arguments. */
struct look {
    const struct amp__op *op;
    struct shape before; /* the handle before this one */
    double product[3];   /* m, n and k of the first two neighbours that can be multiplied (0: none yet) */
    double elements;     /* floating ones, of all arguments */
    double read[2], written; /* raw buffers: the two largest that are read, the largest that is written */
    bool elsewhere;      /* not on a CPU */
    bool on_gpu;         /* on an NVIDIA GPU */
    int32_t gpu;         /* number so much */
    bool gpus_alone;     /* CPUs do not matter: nothing is inspected after the first handle */
    bool done;           /* and so it is now */
};

/* Most of `before` may be anything while it has no dimensions. */
static void begin(struct look *look, const struct amp__op *op, bool gpus_alone) {
    look->op = op;
    look->before.ndim = 0;
    look->product[0] = look->product[1] = look->product[2] = 0.0;
    look->elements = look->read[0] = look->read[1] = look->written = 0.0;
    look->elsewhere = look->on_gpu = look->done = false;
    look->gpu = 0;
    look->gpus_alone = gpus_alone;
}

/* Sets m, n and k of a times b: batches of matrices, a times b transposed (linear), images and filters. Other
 * dimensions may be anything, since this is about time. */
static void set_product(struct look *look, double m, double n, double k) {
    look->product[0] = m, look->product[1] = n, look->product[2] = k;
}

static void look_for_product(struct look *look, const struct shape *a, const struct shape *b) {
    if (a->ndim < 2 || b->ndim < 2 || look->product[0] > 0.0) return;
    const double *x = a->extents, *y = b->extents;
    const double x_last = x[a->ndim - 1], y_last = y[b->ndim - 1], y_before = y[b->ndim - 2];
    if (b->ndim > 2 && a->ndim == b->ndim && x[1] == y[1] && !(x[0] == y[0] && x_last == y_before))
        set_product(look, a->size / x[1], y[0], b->size / y[0]);
    else if (x_last == y_before) set_product(look, b->ndim > 2 ? x[a->ndim - 2] : a->size / x_last, y_last, x_last);
    else if (x_last == y_last) set_product(look, a->size / x_last, b->size / y_last, x_last);
}

static void look_at_handle(struct look *look, void *tensor) {
    const amp_host *host = look->op->host;
    amp_tensor_view view;
    struct shape shape = { .size = 1.0 };
    memset(&view, 0, sizeof view);
    if (!tensor || !host->view || host->view(host->self, tensor, &view) != AMP_OK) return;
    if (!amp__is_floating(amp__view_dtype(&view)) || view.ndim < 0 || (view.ndim && !view.shape)) return;
    look->elsewhere |= view.device.type > AMP__DEVICE_CPU;
    look->done = look->gpus_alone && view.device.type != AMP__DEVICE_CUDA;
    if (view.device.type == AMP__DEVICE_CUDA) look->on_gpu = true, look->gpu = view.device.id;
    if (look->done && !look->on_gpu) return; /* no number matters any more */
    for (int32_t i = 0; i < view.ndim; i++) shape.size *= (double)view.shape[i];
    look->elements += shape.size;
    shape.ndim = view.ndim <= DIMS ? view.ndim : 0;
    for (int32_t i = 0; i < shape.ndim; i++) shape.extents[i] = (double)view.shape[i];
    look_for_product(look, &look->before, &shape);
    look->before = shape;
}

static void look_at_buffer(struct look *look, double size, bool reads, bool writes) {
    look->elements += size;
    if (writes && size > look->written) look->written = size;
    if (!reads || writes) return;
    const double least = fmin(look->read[0], size);
    look->read[0] = fmax(look->read[0], size);
    look->read[1] = fmax(look->read[1], least);
}

static amp_status look_at_field(void *self, const amp_field *field) {
    const struct look *look = self;
    const bool writes = field->role == AMP_ROLE_WRITE || field->role == AMP_ROLE_UPDATE;
    if (look->done) return AMP_OK;
    if (field->tensor) look_at_handle(self, field->role == AMP_ROLE_READ ? *field->tensor : NULL);
    else if (*field->address && field->role <= AMP_ROLE_WRITE)
        look_at_buffer(self, (double)field->size, field->role == AMP_ROLE_READ, writes);
    return AMP_OK;
}

static double buffer_size(const struct amp__op *op, const struct amp__call *call, const struct amp__bound_arg *arg) {
    struct amp__extents extents;
    int64_t rest;
    if (arg->flags & AMP__EXTENT_UNKNOWN)
        return amp__range_rest(op->context, arg->buffer, &rest) == AMP_OK ? (double)rest : 0.0;
    return amp__buffer_extents(call, arg->index, &extents) == AMP_OK ? (double)extents.count : 0.0;
}

static void measure(struct look *look, const struct amp__bound *bound) {
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        for (size_t j = 0; amp__may_cast(arg->flags) && j < arg->count; j++) {
            look_at_handle(look, arg->handles[j]);
            if (look->done) return;
        }
    }
    for (uint32_t i = 0; i < bound->n_buffers; i++) {
        const struct amp__bound_arg *arg = &bound->buffers[i];
        const bool writes = (arg->flags & (AMP__WRITE | AMP__READ_WRITE)) != 0;
        if (!(arg->flags & (AMP__KEEP | AMP__SEED)) && arg->dtype == AMP_FLOAT32)
            look_at_buffer(look, buffer_size(look->op, bound->call, arg), !writes, writes);
    }
    if (bound->call && amp__visits(look->op))
        (void)amp__visit(look->op, bound->call->args, look_at_field, look);
}

/* Three matrices of mk, kn and mn elements say m n k: the root of their product. */
static uint64_t size_of(const struct look *look) {
    if (!(look->op->flags & AMP_OP_MATMUL)) return (uint64_t)fmin(look->elements, 0x1p63);
    const uint64_t edge = amp__gate_edge(look->product[0], look->product[1], look->product[2]);
    if (edge || !(look->written > 0.0)) return edge;
    const double mk = look->read[0], kn = look->read[1], mn = look->written, mnk = sqrt(mk * kn * mn);
    return mnk > 0.0 ? amp__gate_edge(mnk / kn, mnk / mk, mnk / mn) : 0;
}

/* ---- the decision ---- */

static bool holds(const struct look *look, uint64_t least) {
    const bool told = atomic_load_explicit(&look->op->gate.source, memory_order_relaxed) == AMP__GATE_SET;
    if (!told && look->elsewhere)
        return look->on_gpu && look->op->glance && amp__gate_lacks_cores(look->op, look->gpu);
    return size_of(look) < least;
}

bool amp__gate_holds(const struct amp__op *op, const struct amp__bound *bound) {
    const uint64_t least = atomic_load_explicit(&op->gate.least, memory_order_relaxed);
    struct look look;
    begin(&look, op, bound->call && least == 0);
    if (least != AMP_GATE_NEVER || has_handles(op)) measure(&look, bound);
    return holds(&look, least);
}

/* ---- on GPUs ---- */

static void count(struct amp__op *op, const struct look *look) {
    if (!look->on_gpu) return;
    const struct amp__gate_product product = { { look->product[0], look->product[1], look->product[2] }, look->gpu };
    amp__gate_count(op, &product);
}

/* In whatever types: a product on a GPU that is not at its best there is counted. */
static amp_status watch_call(const struct amp__probed *call, enum amp__side side, void *room) {
    struct look look;
    begin(&look, call->op, true);
    (void)side, (void)room;
    measure(&look, call->bound);
    count(call->op, &look);
    return AMP_OK;
}

/* ---- in words ---- */

static void explain_source(const struct amp__op *op, amp__text *text) {
    const uint8_t source = atomic_load(&op->gate.source);
    static const char *const names[] = { [AMP__GATE_UNKNOWN] = "nothing is known of it: amp_gate_set",
                                         [AMP__GATE_TABLE] = "table",
                                         [AMP__GATE_MEASURED] = "amp_gate_measure",
                                         [AMP__GATE_SET] = "amp_gate_set" };
    amp__text_add(text, " (%s", names[source]);
    if (source == AMP__GATE_TABLE)
        amp__text_add(text, ": %s, %s", op->gate.who, op->gate.unit[0] ? op->gate.unit : "converted to fp32");
    amp__text_add(text, ")");
}

/* A large product, of which nothing but its arguments exists. */
static void explain_product(const struct amp__op *op, amp__text *text) {
    static uint16_t nothing;
    const amp_dtype low = amp__policy_of(op->context)->properties.low;
    const amp_matmul_args large = { .struct_size = sizeof large,
                                    .a_dtype = low,
                                    .b_dtype = low,
                                    .d_dtype = low,
                                    .m = 256,
                                    .n = 256,
                                    .k = 256,
                                    .a = &nothing,
                                    .b = &nothing,
                                    .d = &nothing,
                                    .alpha = 1.0f };
    char how[256] = "";
    if (amp_matmul_explain(&large, how, sizeof how, NULL) == AMP_OK) amp__text_add(text, "; products by %s", how);
}

void amp__gate_explain(const struct amp__op *op, amp__text *text) {
    const uint64_t least = atomic_load(&op->gate.least);
    const char *low = amp__dtype_name(amp__policy_of(op->context)->properties.low);
    if (!op->gate.applies) {
        amp__gate_explain_device(op, text);
        return;
    }
    if (least == AMP_GATE_ALWAYS) amp__text_add(text, "; gate: always %s", low);
    else if (least == AMP_GATE_NEVER) amp__text_add(text, "; gate: always fp32");
    else
        amp__text_add(text, "; gate: %s from %llu %s on, else fp32", low, (unsigned long long)least,
                      op->flags & AMP_OP_MATMUL ? "(edge)" : "elements");
    explain_source(op, text);
    if (op->flags & AMP_OP_MATMUL) explain_product(op, text);
    amp__gate_explain_device(op, text);
}
