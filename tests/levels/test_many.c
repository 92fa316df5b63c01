/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thousands of ops, and a word on each of them: what is looked at grows with their number, not with its square. The
 * linker counts (--wrap): names that are taken apart, names that are compared, and names among which the nearest are
 * looked for.
 */
#include "checks.h"
#include "schema/schema.h"
#include "opt_levels/lists.h"

enum { OPS = 4000, SAME = 1000 };

static size_t bases, compares, guesses;

WRAP(void, amp__op_base_name, const char *name, char base[AMP__OP_NAME_MAX + 1]) {
    bases++;
    __real_amp__op_base_name(name, base);
}
WRAP(int, strcmp, const char *a, const char *b) {
    compares++;
    return __real_strcmp(a, b);
}

WRAP(void, amp__nearest_names, amp__text *text, const char *wanted, const char *const *names, size_t n) {
    guesses += n;
    __real_amp__nearest_names(text, wanted, names, n);
}

static size_t parsed;
WRAP(amp_status, amp__schema_parse, const char *op, const char *text, const amp_struct *structs, size_t n_structs,
     struct amp__schema **out) {
    parsed++;
    return __real_amp__schema_parse(op, text, structs, n_structs, out);
}

/* ---- a large table: OPS names, and SAME ops of one more ---- */

static int32_t nothing(int32_t x) { return x; }

struct table {
    amp_fn slots[OPS + SAME];
    char names[OPS][24], aliases[OPS][24];
    amp_op ops[OPS + SAME];
    amp_host host;
    amp_model model;
};

static struct table *new_table(void) {
    struct table *t = calloc(1, sizeof *t);
    ck_assert_ptr_nonnull(t);
    for (size_t i = 0; i < OPS + SAME; i++) {
        t->slots[i] = (amp_fn)nothing;
        t->ops[i] = OP("same", "op(int32 x) -> int32", &t->slots[i]);
        if (i >= OPS) continue;
        snprintf(t->names[i], sizeof t->names[i], "mine::op%zu.out", i);
        snprintf(t->aliases[i], sizeof t->aliases[i], "alias%zu, second%zu", i, i);
        t->ops[i].name = t->names[i];
        t->ops[i].aliases = t->aliases[i];
    }
    t->host = (amp_host)AMP_HOST_INIT;
    t->model = SIZED(amp_model, .host = &t->host, .ops = t->ops, .n_ops = OPS + SAME);
    return t;
}

static amp_context *start(struct table *t) {
    const amp_config config = config_of(AMP_O1);
    amp_model *models[] = { &t->model };
    amp_context *context;
    ck_ok(amp_initialize_many(models, 1, NULL, 0, &config, &context));
    return context;
}

static void register_as(struct table *t, const char *format, size_t i) {
    char name[32];
    snprintf(name, sizeof name, format, i);
    ck_assert_msg(amp_register(&t->model, name, AMP_LEAVE) == AMP_OK, "%s: %s", name, amp_last_error());
}

/* By name, by alias, by a name's base, by name and number. */
TEST(registrations_are_not_counted_by_ops) {
    struct table *t = new_table();
    bases = compares = 0;
    for (size_t i = 0; i < OPS; i++)
        register_as(t, i % 3 == 0 ? "mine::op%zu.out" : i % 3 == 1 ? "op%zu" : i % 2 ? "alias%zu" : "second%zu", i);
    for (size_t i = 0; i < SAME; i++) register_as(t, "same#%zu", i);
    for (size_t i = 0; i < OPS + SAME; i++) {
        ck_assert_msg(t->ops[i].op_class == AMP_LEAVE && t->ops[i].flags & AMP_OP_REGISTERED, "%zu: %s", i,
                      t->ops[i].name);
    }
    ck_assert_uint_gt(bases, OPS);
    ck_assert_uint_lt(bases + compares, 20 * (OPS + SAME)); /* 100,000; one after the other it was 75 million */
    free(t);
}

/* A host that offers a long list of names, of which this model has few. The first misses are told what is near. */
TEST(names_that_are_not_there_are_not_counted_by_ops) {
    struct table *t = new_table();
    char name[32];
    bases = compares = guesses = 0;
    for (size_t i = 0; i < OPS; i++) {
        snprintf(name, sizeof name, i % 2 ? "mine::up%zu.out" : "same#%zu", i + SAME);
        ck_fails(AMP_ERR_NOT_FOUND, amp_register(&t->model, name, AMP_LEAVE));
        if (i < 2) ck_says(i ? "did you mean" : "has 1000 ops named same");
    }
    ck_assert_uint_gt(bases, OPS);
    ck_assert_uint_gt(guesses, OPS);
    ck_assert_uint_lt(bases + compares + guesses, 40 * (OPS + SAME)); /* 60,000; read again at each it was 60 million */
    register_as(t, "op%zu", 1);
    ck_assert_int_eq(t->ops[1].op_class, AMP_LEAVE);
    free(t);
}

/* The table is the caller's, and may grow. */
TEST(a_table_that_changes_is_read_again) {
    struct table *t = new_table(), *other = new_table();
    t->model.n_ops = 100;
    register_as(t, "op%zu", 1);
    ck_fails(AMP_ERR_NOT_FOUND, amp_register(&t->model, "op100", AMP_LEAVE));
    t->model.n_ops = 200;
    register_as(t, "op%zu", 100);
    other->ops[7].name = "another";
    register_as(other, "another", 0);
    register_as(t, "op%zu", 7);
    ck_assert_int_eq(other->ops[7].op_class, AMP_LEAVE);
    ck_assert_int_eq(t->ops[7].op_class, AMP_LEAVE);
    free(other);
    free(t);
}

TEST(gates_are_not_counted_by_ops) {
    struct table *t = new_table();
    amp_context *context = start(t);
    char name[32];
    bases = compares = 0;
    for (size_t i = 0; i < OPS; i++) ck_ok(amp_gate_set(context, t->names[i], i));
    for (size_t i = 0; i < SAME; i++) {
        snprintf(name, sizeof name, "same#%zu", i);
        ck_ok(amp_gate_set(context, name, i));
    }
    ck_assert_uint_ge(compares, OPS);
    ck_assert_uint_lt(bases + compares, 20 * (OPS + SAME));
    ck_fails(AMP_ERR_NOT_FOUND, amp_gate_set(context, "same#1000", 0));
    ck_ok(amp_shutdown(context));
    free(t);
}

/* A wrapped op's schema is its slot's, too. */
TEST(each_schema_is_read_once) {
    struct table *t = new_table();
    for (size_t i = 0; i < OPS; i++) t->ops[i].op_class = AMP_LOWER;
    for (int round = 1; round <= 2; round++) {
        parsed = 0;
        amp_context *context = start(t);
        ck_assert_uint_eq(parsed, OPS + SAME);
        ck_assert(t->slots[0] != (amp_fn)nothing);
        ck_assert_int_eq(((int32_t(*)(int32_t))t->slots[0])(7), 7);
        ck_ok(amp_shutdown(context));
        ck_assert(t->slots[0] == (amp_fn)nothing);
    }
    free(t);
}

/* By the context's ops, by the lists, by neither. */
TEST(questions_by_name_are_not_counted_by_ops) {
    struct table *t = new_table();
    amp_class op_class;
    amp_dtype fp32 = AMP_FLOAT32, target;
    t->ops[OPS - 1].op_class = AMP_LOWER;
    amp_context *context = start(t);
    bases = compares = 0;
    for (size_t i = 0; i < OPS; i++) {
        ck_ok(amp_op_class(context, t->names[i], &op_class));
        ck_assert_int_eq(op_class, i == OPS - 1 ? AMP_LOWER : AMP_LEAVE);
        ck_ok(amp_op_target(context, t->names[i], &fp32, 1, &target));
    }
    ck_assert_uint_ge(compares, OPS);
    ck_assert_uint_lt(bases + compares, 40 * (OPS + SAME)); /* one after the other it was 16 million */
    ck_ok(amp_op_class(context, "matmul", &op_class));
    ck_assert_int_eq(op_class, AMP_LOWER);
    ck_ok(amp_op_class(context, "same#1", &op_class)); /* a number is no part of a name here */
    ck_assert_int_eq(op_class, AMP_LEAVE);
    ck_ok(amp_shutdown(context));
    free(t);
}

/* ---- parameters that come one by one ---- */

enum { PARAMS = 2000 };

struct param {
    float *data;
};
static size_t views;

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    static int64_t shape[] = { 4 };
    (void)self;
    views++;
    *out = (amp_tensor_view){ .data = ((struct param *)handle)->data, .device = { 1, 0 }, .dtype = { 2, 32, 1 },
                              .ndim = 1, .shape = shape };
    return AMP_OK;
}

struct optimizer {
    amp_host host;
    amp_optimizer optimizer;
    struct param params[PARAMS + 3];
    float data[PARAMS + 3][4];
    amp_context *context;
};

static struct optimizer *start_optimizer(void) {
    struct optimizer *o = calloc(1, sizeof *o);
    amp_config config = config_of(AMP_O0);
    ck_assert_ptr_nonnull(o);
    amp_optimizer *optimizers[] = { &o->optimizer };
    for (size_t i = 0; i < PARAMS + 3; i++) o->params[i].data = o->data[i];
    o->host = SIZED(amp_host, .view = view);
    o->optimizer = SIZED(amp_optimizer, .host = &o->host);
    ck_ok(amp_initialize_many(NULL, 0, optimizers, 1, &config, &o->context));
    return o;
}

static amp_status add_param(struct optimizer *o, size_t i) {
    return amp_add_params(&o->optimizer, &SIZED(amp_param, .tensor = &o->params[i]), 1);
}

TEST(additions_are_not_counted_by_parameters) {
    struct optimizer *o = start_optimizer();
    views = 0;
    for (size_t i = 0; i < PARAMS; i++) ck_ok(add_param(o, i));
    ck_assert_uint_ge(views, PARAMS);
    ck_assert_uint_lt(views, 20 * PARAMS); /* 40,000; all of them each time were 2 million */
    ck_fails(AMP_ERR_INVALID_ARGUMENT, add_param(o, PARAMS / 2)); /* it has that already */
    o->params[PARAMS].data = o->data[PARAMS / 3] + 2;
    ck_refused(AMP_ERR_CONFLICT, "shares memory with", add_param(o, PARAMS));
    o->params[PARAMS].data = o->data[PARAMS];
    ck_ok(add_param(o, PARAMS));
    ck_ok(amp_shutdown(o->context));
    free(o);
}

/* One moves: where it was is free, where it is is not. */
TEST(parameters_that_moved_are_found) {
    struct optimizer *o = start_optimizer();
    for (size_t i = 0; i < 4; i++) ck_ok(add_param(o, i));
    o->params[1].data = o->data[PARAMS];
    o->params[4].data = o->data[1];
    ck_ok(add_param(o, 4));
    o->params[5].data = o->data[PARAMS] + 3;
    ck_fails(AMP_ERR_CONFLICT, add_param(o, 5));
    o->params[5].data = o->data[5];
    ck_ok(add_param(o, 5));
    for (size_t i = 6; i < PARAMS; i++) ck_ok(add_param(o, i));
    o->params[PARAMS - 1].data = o->data[PARAMS + 1];
    o->params[PARAMS].data = o->data[PARAMS - 1]; /* the one that is in the way is looked at, wherever it is */
    ck_ok(add_param(o, PARAMS));
    ck_ok(amp_shutdown(o->context));
    free(o);
}
