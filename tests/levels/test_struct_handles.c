/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor handles inside the host's structs, which the hook visit finds. */
#include "fp32host.h"

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
    } fields[] = { { "a", &p->a, AMP_ROLE_READ }, { "b", &p->b, AMP_ROLE_READ }, { "bias", &e->bias, AMP_ROLE_READ },
                   { "sum", &e->sum, role_of_sum }, { "mask", &e->mask, AMP_ROLE_KEEP } };
    (void)self;
    ck_assert_str_eq(name, "combine");
    for (int i = 0; i < 5; i++) {
        amp_field field = FIELD(fields[i].name, fields[i].role, .tensor = (void **)(void *)fields[i].handle);
        if (wrong_address) field.address = &wrong_address;
        const amp_status status = emit(emit_self, &field);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

static amp_struct structs[2];

static struct world set_up_structs(amp_class op_class) {
    struct world w = set_up(true);
    role_of_sum = AMP_ROLE_UPDATE;
    wrong_address = NULL;
    w.host.visit = visit_combine;
    structs[0] = SIZED(amp_struct, .name = "pair", .size = sizeof(struct pair), .alignment = _Alignof(struct pair),
                       .members = "pointer a, pointer b, int32 n");
    structs[1] = SIZED(amp_struct, .name = "extra");
    w.ops[2] = OP("combine", "combine(struct pair p, struct extra *e) -> Tensor", &combine_slot, .op_class = op_class);
    w.model.structs = structs, w.model.n_structs = 2;
    return w;
}
#define WORLD_OF_STRUCTS(name, op_class)                                                                               \
    __attribute__((cleanup(finish))) struct world name = set_up_structs(op_class)

/* Without parameters, and nothing emulated. */
static amp_status start_plain(struct world *w) { return start_with(w, 0, CONFIG(AMP_O1)); }

TEST(handles_in_structs_are_cast_for_the_call) {
    WORLD_OF_STRUCTS(w, AMP_LOWER);
    role_of_sum = AMP_ROLE_WRITE; /* one that is updated would have the others follow its type */
    ck_ok(start_plain(&w));
    OWN *a = filled(1.0f + 0x1p-12f), *b = filled(3.0f), *bias = filled(1.0f), *sum = filled(0.0f);
    struct extra extra = { bias, sum, a };
    const struct pair pair = { a, b, 7 };
    OWN *out = combine_slot(pair, &extra);
    ck_assert_int_eq(seen_pair.n, 7);
    ck_assert(seen_pair.a != a && seen_pair.b != b && seen_extra.bias != bias);
    ck_assert(seen_extra.sum == sum && seen_extra.mask == a);
    ck_assert(extra.bias == bias && extra.sum == sum && extra.mask == a);
    ck_assert_float_eq(out->data[0], 3.0f);
    ck_assert_float_eq(sum->data[0], 4.0f);
    ck_assert_uint_eq(stats_of(&w, 2).casts, 3);
}

TEST(handles_in_structs_promote) {
    WORLD_OF_STRUCTS(w, AMP_PROMOTE);
    role_of_sum = AMP_ROLE_KEEP;
    ck_ok(start_plain(&w));
    OWN *a = filled(1.0f), *b = filled(3.0f);
    struct extra extra = { NULL, NULL, NULL };
    b->logical = AMP_FLOAT16;
    OWN *out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_assert_ptr_eq(seen_pair.a, a);
    ck_assert_ptr_ne(seen_pair.b, b); /* widened */
    ck_assert_uint_eq(stats_of(&w, 2).casts, 1);
    drop(out);
    a->logical = AMP_FLOAT16;
    out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_assert(seen_pair.a == a && seen_pair.b == b); /* all agree */
}

TEST(handles_that_a_struct_says_are_written_are_rounded_in_place) {
    WORLD_OF_STRUCTS(w, AMP_LOWER);
    ck_ok(start(&w, AMP_O3));
    OWN *a = filled(1.0f), *b = filled(1.0f), *sum = filled(0x1p-11f);
    struct extra extra = { NULL, sum, NULL };
    a->logical = b->logical = sum->logical = AMP_FLOAT16;
    OWN *out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_assert_float_eq(sum->data[0], 1.0f); /* half way between two of fp16's: to even */
    ck_assert_int_eq(out->logical, AMP_FLOAT16);
}

/* One that is kept is the op's own business, and a handle that is not there is nobody's. */
TEST(handles_that_are_kept_or_missing_are_left_alone) {
    WORLD_OF_STRUCTS(w, AMP_LOWER);
    ck_ok(start(&w, AMP_O3));
    OWN *a = filled(1.0f), *b = filled(1.0f), *kept = filled(1.0f + 0x1p-11f);
    struct extra extra = { NULL, NULL, kept };
    a->logical = b->logical = kept->logical = AMP_FLOAT16;
    OWN *out = combine_slot((struct pair){ a, b, 0 }, &extra);
    ck_ok(amp_check(w.model.amp));
    ck_assert_float_eq(kept->data[0], 1.0f + 0x1p-11f);
    ck_assert(seen_extra.mask == kept && !seen_extra.sum && !seen_extra.bias);
}

TEST_TIMES(a_field_is_a_buffer_or_a_tensor, 4) {
    static const struct {
        amp_role role;
        amp_status status;
        const char *message;
        bool both;
    } wrong[] = {
        { AMP_ROLE_UPDATE, AMP_ERR_INVALID_ARGUMENT, "set address or tensor, not both", true },
        { AMP_ROLE_SEED, AMP_ERR_UNSUPPORTED, "op combine: visit: sum: it is a tensor, which cannot be a seed", false },
        { AMP_ROLE_SCRATCH, AMP_ERR_UNSUPPORTED, "it is a tensor, which cannot be scratch", false },
        { 99, AMP_ERR_INVALID_ARGUMENT, "its role is 99", false },
    };
    float number = 0.0f;
    WORLD_OF_STRUCTS(w, AMP_LOWER);
    ck_ok(start_plain(&w));
    OWN *a = filled(1.0f), *sum = filled(0.0f);
    struct extra extra = { NULL, sum, NULL };
    role_of_sum = wrong[_i].role;
    wrong_address = wrong[_i].both ? &number : NULL;
    OWN *out = combine_slot((struct pair){ a, a, 0 }, &extra);
    ck_assert(seen_pair.a == a && extra.sum == sum); /* ran as it came */
    ck_fails(wrong[_i].status, amp_check(w.context));
    ck_says(wrong[_i].message);
}
