/* SPDX-License-Identifier: Apache-2.0 */
/* Emulation for hosts with handles whose kernels know FP32 only: cast rounds, and FP32 storage stays. */
#include "checks.h"

#include <amp_kernels.h>

/* ---- a framework of FP32 tensors that may carry a logical type ---- */

enum { N = 4 };
struct tensor {
    float data[N];
    amp_dtype logical;
    bool rounded_by_host; /* made by the cast hook */
};

static int alive; /* tensors made and not released */

static struct tensor *make(amp_dtype logical) {
    struct tensor *tensor = calloc(1, sizeof *tensor);
    ck_assert_ptr_nonnull(tensor);
    tensor->logical = logical;
    alive++;
    return tensor;
}

static void drop(struct tensor *tensor) {
    alive--;
    free(tensor);
}

static struct tensor *filled(float value) {
    struct tensor *tensor = make(AMP_FLOAT32);
    for (int i = 0; i < N; i++) tensor->data[i] = value;
    return tensor;
}

static bool saw_unrounded; /* an op that should run low was given a value that fp16 does not hold */

static float half(float x) { return amp_half_to_float(amp_float_to_half(x)); }

static void look(const struct tensor *tensor) {
    for (int i = 0; i < N; i++) saw_unrounded |= half(tensor->data[i]) != tensor->data[i];
}

static void *mul(void *a, void *b) {
    struct tensor *x = a, *y = b, *out = make(AMP_FLOAT32);
    look(x);
    look(y);
    for (int i = 0; i < N; i++) out->data[i] = x->data[i] * y->data[i];
    return out;
}

static int32_t add_in_place(void *a, void *b) {
    struct tensor *x = a, *y = b;
    for (int i = 0; i < N; i++) x->data[i] += y->data[i];
    return 0;
}

static struct {
    void *(*mul)(void *, void *);
    void *(*activate)(void *, void *);
    int32_t (*add_)(void *, void *);
} table;

/* ---- hooks ---- */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static int64_t shape[] = { N };
    (void)self;
    out->data = ((struct tensor *)handle)->data;
    out->ndim = 1;
    out->shape = shape;
    out->device.type = 1;
    out->dtype.code = 2;
    out->dtype.bits = 32;
    out->dtype.lanes = 1;
    return AMP_OK;
}

static amp_dtype logical_type(void *self, void *handle) {
    (void)self;
    return ((struct tensor *)handle)->logical;
}

static amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    const struct tensor *source = handle;
    (void)self;
    struct tensor *result = make(to);
    for (int i = 0; i < N; i++) result->data[i] = to == AMP_FLOAT16 ? half(source->data[i]) : source->data[i];
    result->rounded_by_host = true;
    *out = result;
    return AMP_OK;
}

static void release(void *self, void *handle) {
    (void)self;
    drop(handle);
}

struct world {
    struct tensor *weight, *gamma;
    amp_host host;
    amp_param params[2];
    amp_op ops[3];
    amp_model model;
    amp_context *context;
};

static amp_op op(const char *name, const char *schema, void *slot, amp_class op_class) {
    amp_op described = AMP_OP_INIT;
    described.name = name;
    described.schema = schema;
    described.slot = slot;
    described.op_class = op_class;
    return described;
}

static struct world set_up(bool with_types) {
    struct world w = { .host = AMP_HOST_INIT, .model = AMP_MODEL_INIT };
    table.mul = mul;
    table.activate = mul;
    table.add_ = add_in_place;
    alive = 0;
    saw_unrounded = false;
    w.weight = filled(1.0f + 0x1p-12f);
    w.gamma = filled(1.0f + 0x1p-12f);
    w.host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    w.host.view = view;
    w.host.dtype = with_types ? logical_type : NULL;
    w.host.cast = cast;
    w.host.release = release;
    w.params[0] = w.params[1] = (amp_param)AMP_PARAM_INIT;
    w.params[0].tensor = w.weight;
    w.params[1].tensor = w.gamma;
    w.params[1].module_kind = AMP_MODULE_BATCH_NORM;
    w.ops[0] = op("mul", "mul(Tensor a, Tensor b) -> Tensor", &table.mul, AMP_LOWER);
    w.ops[1] = op("activate", "activate(Tensor a, Tensor b) -> Tensor", &table.activate, AMP_LEAVE);
    w.ops[2] = op("add_", "add_(Tensor(a!) self, Tensor other) -> int32", &table.add_, AMP_LOWER);
    return w;
}

static amp_status start(struct world *w, amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &w->model;
    w->model.host = &w->host;
    w->model.ops = w->ops;
    w->model.n_ops = 3;
    w->model.params = w->params;
    w->model.n_params = 2;
    config.level = level;
    config.emulate = AMP_ON;
    return amp_initialize_many(&model, 1, NULL, 0, &config, &w->context);
}

static void finish(struct world *w) {
    ck_assert_int_eq(amp_check(w->context), AMP_OK);
    ck_assert_int_eq(amp_shutdown(w->context), AMP_OK);
    ck_assert(table.mul == mul && table.activate == mul && table.add_ == add_in_place);
    drop(w->weight);
    drop(w->gamma);
    ck_assert_int_eq(alive, 0);
}

static amp_op_stats stats_of(const struct world *w, size_t i) {
    amp_op_stats stats[3] = { AMP_OP_STATS_INIT, AMP_OP_STATS_INIT, AMP_OP_STATS_INIT };
    size_t n;
    ck_assert_int_eq(amp_get_op_stats(w->context, stats, 3, &n), AMP_OK);
    return stats[i];
}

/* ---- O1 ---- */

START_TEST(a_lower_op_is_round_compute_round) {
    struct world w = set_up(_i);
    ck_assert_int_eq(start(&w, AMP_O1), AMP_OK);
    struct tensor *x = filled(1.0f / 3.0f), *y = table.mul(x, w.weight);
    ck_assert(!saw_unrounded);
    ck_assert_float_eq(y->data[0], half(half(1.0f / 3.0f) * half(1.0f + 0x1p-12f)));
    ck_assert(y->rounded_by_host); /* the rounding of the result is on the tape too */
    ck_assert_float_eq(x->data[0], 1.0f / 3.0f);
    ck_assert_float_eq(w.weight->data[0], 1.0f + 0x1p-12f); /* O1: the weight stays FP32 */
    drop(x);
    drop(y);
    ck_assert_uint_eq(stats_of(&w, 0).casts, 3);
    finish(&w);
}
END_TEST

/* With logical types, what a left op makes of 16-bit tensors is 16-bit; without them nothing says so. */
START_TEST(a_left_op_on_16_bit_tensors_returns_one) {
    struct world w = set_up(_i);
    ck_assert_int_eq(start(&w, AMP_O1), AMP_OK);
    struct tensor *x = filled(1.0f + 0x1p-10f), *y = table.mul(x, x);
    struct tensor *z = table.activate(y, y);
    const float exact = y->data[0] * y->data[0];
    ck_assert_float_ne(half(exact), exact);
    ck_assert_float_eq(z->data[0], _i ? half(exact) : exact);
    struct tensor *full = table.activate(x, x); /* FP32 in, FP32 out */
    ck_assert_float_eq(full->data[0], x->data[0] * x->data[0]);
    struct tensor *all[] = { x, y, z, full };
    for (int i = 0; i < 4; i++) drop(all[i]);
    finish(&w);
}
END_TEST

START_TEST(what_is_lost_is_counted) {
    struct world w = set_up(_i);
    ck_assert_int_eq(start(&w, AMP_O1), AMP_OK);
    struct tensor *x = filled(1.0f), *one = filled(1.0f);
    x->data[0] = 1e6f;  /* infinite in fp16 */
    x->data[1] = 1e-9f; /* zero */
    x->data[2] = 1e-6f; /* subnormal: on the way in, and on the way out */
    struct tensor *y = table.mul(x, one);
    const amp_op_stats stats = stats_of(&w, 0);
    ck_assert_uint_eq(stats.overflowed, 1);
    ck_assert_uint_eq(stats.zeroed, 1);
    ck_assert_uint_eq(stats.subnormal, 2);
    drop(x);
    drop(one);
    drop(y);
    finish(&w);
}
END_TEST

/* ---- O2 ---- */

START_TEST(parameters_are_rounded_in_place_but_batch_norms) {
    struct world w = set_up(_i);
    ck_assert_int_eq(start(&w, AMP_O2), AMP_OK);
    ck_assert_float_eq(w.weight->data[0], 1.0f);
    ck_assert_float_eq(w.gamma->data[0], 1.0f + 0x1p-12f);
    struct tensor *x = filled(1.0f / 3.0f), *y = table.activate(x, w.weight); /* left by its descriptor: not the model */
    ck_assert_float_eq(y->data[0], 1.0f / 3.0f);
    struct tensor *z = table.mul(x, w.gamma); /* gamma as it is, the rest rounded */
    ck_assert_float_eq(z->data[0], half(half(1.0f / 3.0f) * (1.0f + 0x1p-12f)));
    drop(x);
    drop(y);
    drop(z);
    finish(&w);
}
END_TEST

START_TEST(what_an_op_writes_in_place_is_rounded_in_place) {
    struct world w = set_up(_i);
    ck_assert_int_eq(start(&w, AMP_O2), AMP_OK);
    struct tensor *x = filled(1.0f), *y = filled(0x1p-12f + 0x1p-20f);
    x->logical = y->logical = AMP_FLOAT16;
    ck_assert_int_eq(table.add_(x, y), 0);
    ck_assert_float_eq(x->data[0], 1.0f);  /* fp16 has nothing between 1 and 1 + 2^-10 */
    ck_assert(!x->rounded_by_host);
    drop(x);
    drop(y);
    finish(&w);
}
END_TEST

/* ---- out-parameters ---- */

static bool split_fails;

/* a -> *sum and both[2]; on failure nothing is written. */
static int32_t split(void *a, void **sum, void **both) {
    if (split_fails) return -1;
    *sum = mul(a, a);
    both[0] = NULL;
    if (both[1]) return -2; /* an op that reads what it only writes sees a slot of libamp's, and no garbage of the caller's */
    both[1] = mul(a, a);
    return 0;
}

static int32_t (*split_slot)(void *, void **, void **) = split;

START_TEST(handles_in_out_parameters_are_rounded) {
    struct world w = set_up(_i);
    struct tensor untouched = { .logical = AMP_FLOAT32 };
    void *sum = &untouched, *both[2] = { &untouched, NULL };
    w.ops[2] = op("split", "split(Tensor a, Tensor(out a!)* sum, Tensor(out a!)*[2] both) -> int32", &split_slot, AMP_LOWER);
    ck_assert_int_eq(start(&w, AMP_O1), AMP_OK);
    struct tensor *x = filled(1.0f + 0x1p-10f);
    split_fails = true;
    ck_assert_int_eq(split_slot(x, &sum, both), -1);
    ck_assert(sum == &untouched && both[0] == &untouched && !both[1]);
    split_fails = false;
    ck_assert_int_eq(split_slot(x, &sum, both), -2); /* slots of libamp's own, which say that nothing is there yet */
    ck_assert(!both[0] && !both[1]);
    ck_assert_float_eq(((struct tensor *)sum)->data[0], half(x->data[0] * x->data[0]));
    ck_assert(((struct tensor *)sum)->rounded_by_host);
    drop(x);
    drop(sum);
    finish(&w);
    ck_assert(split_slot == split);
}
END_TEST

static int32_t run_forward(void *self, void *x, void **y) {
    (void)self;
    ck_assert_int_eq(((struct tensor *)x)->logical, AMP_FLOAT16);
    *y = make(AMP_FLOAT16);
    return 7;
}

static int32_t (*forward_slot)(void *, void *, void **) = run_forward;

/* With or without emulation: the model's outputs are FP32, however they are handed over. */
START_TEST(a_forwards_out_parameter_has_the_outputs_type) {
    struct world w = set_up(true);
    amp_op forward = op("forward", "forward(pointer self, Tensor x, Tensor(out a!)* y) -> int32", &forward_slot, 0);
    void *y = NULL;
    w.model.forward = &forward;
    w.model.self = &w;
    ck_assert_int_eq(start(&w, AMP_O2), AMP_OK);
    struct tensor *x = filled(1.0f);
    ck_assert_int_eq(forward_slot(&w, x, &y), 7);
    ck_assert_int_eq(((struct tensor *)y)->logical, AMP_FLOAT32);
    drop(x);
    drop(y);
    finish(&w);
}
END_TEST

/* ---- handles inside structs ---- */

struct pair {
    struct tensor *a, *b;
    int32_t n;
};
struct extra {
    struct tensor *bias, *sum, *mask;
};

static struct pair seen_pair;
static struct extra seen_extra;

/* sum += a b + bias; returns a b */
static void *combine(struct pair p, struct extra *e) {
    struct tensor *out = make(AMP_FLOAT32);
    seen_pair = p;
    seen_extra = *e;
    for (int i = 0; i < N; i++) {
        out->data[i] = p.a->data[i] * p.b->data[i];
        if (e->sum) e->sum->data[i] += out->data[i] + (e->bias ? e->bias->data[i] : 0.0f);
    }
    return out;
}

static void *(*combine_slot)(struct pair, struct extra *) = combine;
static amp_role role_of_sum;
static float *wrong_address;

static amp_status visit_combine(void *self, const char *name, void *const *args, amp_emit emit, void *emit_self) {
    struct pair *p = args[0];
    struct extra *e = *(struct extra *const *)args[1];
    const struct {
        const char *name;
        struct tensor **handle;
        amp_role role;
    } fields[] = { { "a", &p->a, AMP_ROLE_READ },
                   { "b", &p->b, AMP_ROLE_READ },
                   { "bias", &e->bias, AMP_ROLE_READ },
                   { "sum", &e->sum, role_of_sum },
                   { "mask", &e->mask, AMP_ROLE_KEEP } };
    (void)self;
    ck_assert_str_eq(name, "combine");
    for (int i = 0; i < 5; i++) {
        amp_field field = AMP_FIELD_INIT;
        field.name = fields[i].name;
        field.role = fields[i].role;
        field.tensor = (void **)(void *)fields[i].handle;
        if (wrong_address) field.address = &wrong_address;
        const amp_status status = emit(emit_self, &field);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

static struct world set_up_structs(amp_class op_class, amp_struct structs[2]) {
    struct world w = set_up(true);
    role_of_sum = AMP_ROLE_UPDATE;
    wrong_address = NULL;
    w.host.visit = visit_combine;
    structs[0] = structs[1] = (amp_struct)AMP_STRUCT_INIT;
    structs[0].name = "pair";
    structs[0].size = sizeof(struct pair);
    structs[0].alignment = _Alignof(struct pair);
    structs[0].members = "pointer a, pointer b, int32 n";
    structs[1].name = "extra";
    w.ops[2] = op("combine", "combine(struct pair p, struct extra *e) -> Tensor", &combine_slot, op_class);
    w.model.structs = structs;
    w.model.n_structs = 2;
    return w;
}

static amp_status start_plain(struct world *w, amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &w->model;
    w->model.host = &w->host;
    w->model.ops = w->ops;
    w->model.n_ops = 3;
    config.level = level;
    return amp_initialize_many(&model, 1, NULL, 0, &config, &w->context);
}

START_TEST(handles_in_structs_are_cast_for_the_call) {
    amp_struct structs[2];
    struct world w = set_up_structs(AMP_LOWER, structs);
    role_of_sum = AMP_ROLE_WRITE; /* one that is updated would have the others follow its type */
    ck_assert_int_eq(start_plain(&w, AMP_O1), AMP_OK);
    struct tensor *a = filled(1.0f + 0x1p-12f), *b = filled(3.0f), *bias = filled(1.0f), *sum = filled(0.0f);
    struct extra extra = { bias, sum, a };
    const struct pair pair = { a, b, 7 };
    struct tensor *out = combine_slot(pair, &extra);
    ck_assert_int_eq(seen_pair.n, 7);
    ck_assert(seen_pair.a != a && seen_pair.b != b && seen_extra.bias != bias);
    ck_assert(seen_extra.sum == sum && seen_extra.mask == a);
    ck_assert(extra.bias == bias && extra.sum == sum && extra.mask == a);
    ck_assert_float_eq(out->data[0], 3.0f);
    ck_assert_float_eq(sum->data[0], 4.0f);
    ck_assert_uint_eq(stats_of(&w, 2).casts, 3);
    struct tensor *all[] = { a, b, bias, sum, out };
    for (int i = 0; i < 5; i++) drop(all[i]);
    finish(&w);
}
END_TEST

START_TEST(handles_in_structs_promote) {
    amp_struct structs[2];
    struct world w = set_up_structs(AMP_PROMOTE, structs);
    role_of_sum = AMP_ROLE_KEEP;
    ck_assert_int_eq(start_plain(&w, AMP_O1), AMP_OK);
    struct tensor *a = filled(1.0f), *b = filled(3.0f);
    struct extra extra = { NULL, NULL, NULL };
    b->logical = AMP_FLOAT16;
    struct tensor *out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_assert_ptr_eq(seen_pair.a, a);
    ck_assert_ptr_ne(seen_pair.b, b); /* widened */
    ck_assert_uint_eq(stats_of(&w, 2).casts, 1);
    drop(out);
    a->logical = AMP_FLOAT16;
    out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_assert(seen_pair.a == a && seen_pair.b == b); /* all agree */
    drop(a);
    drop(b);
    drop(out);
    finish(&w);
}
END_TEST

START_TEST(handles_that_a_struct_says_are_written_are_rounded_in_place) {
    amp_struct structs[2];
    struct world w = set_up_structs(AMP_LOWER, structs);
    ck_assert_int_eq(start(&w, AMP_O3), AMP_OK);
    struct tensor *a = filled(1.0f), *b = filled(1.0f), *sum = filled(0x1p-11f);
    struct extra extra = { NULL, sum, NULL };
    a->logical = b->logical = sum->logical = AMP_FLOAT16;
    struct tensor *out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_assert_float_eq(sum->data[0], 1.0f); /* half way between two of fp16's: to even */
    ck_assert_int_eq(out->logical, AMP_FLOAT16);
    struct tensor *all[] = { a, b, sum, out };
    for (int i = 0; i < 4; i++) drop(all[i]);
    finish(&w);
}
END_TEST

START_TEST(a_field_is_a_buffer_or_a_tensor) {
    static const struct {
        amp_role role;
        amp_status status;
        const char *message;
        bool both;
    } wrong[] = {
        { AMP_ROLE_UPDATE, AMP_ERR_INVALID_ARGUMENT, "set address or tensor, not both", true },
        { AMP_ROLE_SEED, AMP_ERR_UNSUPPORTED, "sum is a tensor, which cannot be a seed", false },
        { AMP_ROLE_SCRATCH, AMP_ERR_UNSUPPORTED, "sum is a tensor, which cannot be scratch", false },
        { 99, AMP_ERR_INVALID_ARGUMENT, "unknown role 99", false },
    };
    float number = 0.0f;
    amp_struct structs[2];
    struct world w = set_up_structs(AMP_LOWER, structs);
    ck_assert_int_eq(start_plain(&w, AMP_O1), AMP_OK);
    struct tensor *a = filled(1.0f), *sum = filled(0.0f);
    struct extra extra = { NULL, sum, NULL };
    role_of_sum = wrong[_i].role;
    wrong_address = wrong[_i].both ? &number : NULL;
    struct tensor *out = combine_slot((struct pair){ a, a, 0 }, &extra);
    ck_assert(seen_pair.a == a && extra.sum == sum); /* ran as it came */
    ck_assert_int_eq(amp_check(w.context), wrong[_i].status);
    ck_assert_msg(strstr(amp_last_error(), wrong[_i].message) != NULL, "%s", amp_last_error());
    drop(a);
    drop(sum);
    drop(out);
    finish(&w);
}
END_TEST

START_TEST(emulation_needs_the_cast_hook_for_handles) {
    struct world w = set_up(false);
    w.host.cast = NULL;
    ck_assert_int_eq(start(&w, AMP_O2), AMP_ERR_MISSING_HOOK);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "cast"));
    ck_assert_float_eq(w.weight->data[0], 1.0f + 0x1p-12f);
    drop(w.weight);
    drop(w.gamma);
}
END_TEST

int main(void) {
    const struct test tests[] = {
        { a_lower_op_is_round_compute_round, 2 }, { a_left_op_on_16_bit_tensors_returns_one, 2 },
        { what_is_lost_is_counted, 2 }, { parameters_are_rounded_in_place_but_batch_norms, 2 },
        { what_an_op_writes_in_place_is_rounded_in_place, 2 }, { emulation_needs_the_cast_hook_for_handles, 1 },
        { handles_in_structs_are_cast_for_the_call, 1 }, { handles_in_structs_promote, 1 },
        { handles_that_a_struct_says_are_written_are_rounded_in_place, 1 }, { a_field_is_a_buffer_or_a_tensor, 4 },
        { handles_in_out_parameters_are_rounded, 2 }, { a_forwards_out_parameter_has_the_outputs_type, 1 },
    };
    return RUN_TESTS("emulate", tests);
}
