/* SPDX-License-Identifier: Apache-2.0 */
/* The extents of raw buffers: a table worked by hand, then random expressions against an oracle that evaluates the
 * expression's tree, not its text. */
#include "common/common.h"
#include "intercept/intercept.h"
#include "suite.h"

#include <stddef.h>
#include <stdio.h>

/* ---- a table ---- */

/* Every schema ends with these arguments. */
#define TAIL ", int M, int N, int64 K, bool T, uint64 U, int8 S, float f) -> void"

struct values {
    int32_t m, n;
    int64_t k;
    uint8_t t;
    uint64_t u;
    int8_t s;
};

static const struct {
    const char *text;
    struct values values;
    const char *result; /* ndim: shape, row stride, count, span; or the end of the message */
} rows[] = {
    { "f(float x[M, N]" TAIL, { .m = 3, .n = 4 }, "2: 3 4, 4, 12, 12" },
    { "f(float x[M*N]" TAIL, { .m = 3, .n = 4 }, "1: 12, 12, 12, 12" },
    { "f(float x[M, N]" TAIL, { .m = 0, .n = 4 }, "2: 0 4, 4, 0, 0" },
    { "f(float x[N, M]" TAIL, { .m = 0, .n = 4 }, "2: 4 0, 0, 0, 0" },
    { "f(float x[T ? K : M, T ? M : K : N]" TAIL, { .m = 3, .k = 5, .n = 9, .t = 1 }, "2: 5 3, 9, 15, 39" },
    { "f(float x[T?K:M, T?M:K : N]" TAIL, { .m = 3, .k = 5, .n = 5 }, "2: 3 5, 5, 15, 15" },
    { "f(float x[2, 3, 4 : 10]" TAIL, { 0 }, "3: 2 3 4, 10, 24, 54" },
    { "f(float x[1, 4 : 0]" TAIL, { 0 }, "2: 1 4, 0, 4, 4" },
    { "f(float x[M + N * 2 - 1]" TAIL, { .m = 1, .n = 3 }, "1: 6, 6, 6, 6" },
    { "f(float x[(M + N) * 2 - 1]" TAIL, { .m = 1, .n = 3 }, "1: 7, 7, 7, 7" },
    { "f(float x[M - N - 1]" TAIL, { .m = 9, .n = 3 }, "1: 5, 5, 5, 5" },
    { "f(float x[M / N / 2]" TAIL, { .m = 27, .n = 3 }, "1: 4, 4, 4, 4" },
    { "f(float x[-7 / 2 + 4]" TAIL, { 0 }, "1: 1, 1, 1, 1" }, /* towards zero, as C */
    { "f(float x[-7 % 4 + 4]" TAIL, { 0 }, "1: 1, 1, 1, 1" },
    { "f(float x[M < N == 1, M < N != 1, !M, !!N, M <= 1, N >= 4, N > M]" TAIL, { .m = 1, .n = 3 },
      "7: 1 0 0 1 1 0 1, 1, 0, 0" },
    { "f(float x[0 || 5, 2 && 3, 1 || 0 && 0]" TAIL, { 0 }, "3: 1 1 1, 1, 1, 1" },
    { "f(float x[M ? 2 : N ? 3 : 4]" TAIL, { .n = 1 }, "1: 3, 3, 3, 3" },
    { "f(float x[M && N / M, M == 0 || N / M, M ? N / M : 6]" TAIL, { .n = 1 }, "3: 0 1 6, 6, 0, 0" },
    { "f(float x[S + 1]" TAIL, { .s = 127 }, "1: 128, 128, 128, 128" },
    { "f(float x[U - 9]" TAIL, { .u = 10 }, "1: 1, 1, 1, 1" },
    { "f(float x[M, N]" TAIL, { .m = INT32_MAX, .n = INT32_MAX },
      "x: extent N: together with the others it overflows 64 bits" },
    { "f(float x[K, N]" TAIL, { .k = INT64_MAX, .n = 0 }, "2: 9223372036854775807 0, 0, 0, 0" },
    { "f(float x[2, 2 : K]" TAIL, { .k = INT64_MAX }, "x: extent K: together with the others it overflows 64 bits" },
    { "f(double x[1, 2, K]" TAIL, { .k = INT64_MAX / 16 + 1 },
      "x: extent K: together with the others it overflows 64 bits" },
    { "f(half x[1, 2, K]" TAIL, { .k = INT64_MAX / 16 + 1 },
      "3: 1 2 576460752303423488, 576460752303423488, 1152921504606846976, 1152921504606846976" },
    { "f(float x[M - N]" TAIL, { .n = 1 }, "x: extent M - N: it is negative (-1)" },
    { "f(float x[M, 4 : N ]" TAIL, { .m = 2, .n = -4 }, "x: extent N: it is negative (-4)" },
    { "f(float x[M, 4 : N + 1 ]" TAIL, { .m = 2, .n = 2 },
      "x: extent N + 1: the row stride is less than a row: rows would overlap" },
    { "f(float x[2, 1, 4 : 3]" TAIL, { 0 }, "x: extent 3: the row stride is less than a row: rows would overlap" },
    { "f(float x[0, 2, 4 : 3]" TAIL, { 0 }, "3: 0 2 4, 3, 0, 0" },
    { "f(float x[N, M / N]" TAIL, { .m = 2 }, "x: extent M / N: it divides by zero" },
    { "f(float x[M % N]" TAIL, { .m = 2 }, "x: extent M % N: it divides by zero" },
    { "f(float x[K / M]" TAIL, { .k = INT64_MIN, .m = -1 }, "x: extent K / M: it overflows 64 bits" },
    { "f(float x[K % M]" TAIL, { .k = INT64_MIN, .m = -1 }, "x: extent K % M: it overflows 64 bits" },
    { "f(float x[-K]" TAIL, { .k = INT64_MIN }, "x: extent -K: it overflows 64 bits" },
    { "f(float x[K + 1]" TAIL, { .k = INT64_MAX }, "x: extent K + 1: it overflows 64 bits" },
    { "f(float x[K - 1]" TAIL, { .k = INT64_MIN }, "x: extent K - 1: it overflows 64 bits" },
    { "f(float x[K * 2]" TAIL, { .k = INT64_MAX }, "x: extent K * 2: it overflows 64 bits" },
    { "f(float x[U * 0]" TAIL, { .u = UINT64_MAX }, "x: extent U * 0: an argument overflows 64 bits" },
    { "f(float x[?]" TAIL, { 0 }, "x: the schema does not say its extents" },
    { "f(float *x" TAIL, { 0 }, "x: the schema does not say its extents" },
};

static void describe(amp__text *text, const struct amp__extents *x) {
    amp__text_add(text, "%d:", x->ndim);
    for (int32_t i = 0; i < x->ndim; i++) amp__text_add(text, " %lld", (long long)x->shape[i]);
    amp__text_add(text, ", %lld, %lld, %lld", (long long)x->row_stride, (long long)x->count, (long long)x->span);
}

TEST(a_table_worked_by_hand) {
    for (size_t i = 0; i < AMP_COUNT(rows); i++) {
        struct amp__schema *schema;
        struct amp__extents extents = { .ndim = -1 };
        struct values v = rows[i].values;
        char got[512];
        amp__text text = { got, sizeof got, 0 };
        void *x = NULL;
        float f = 0;
        void *args[] = { &x, &v.m, &v.n, &v.k, &v.t, &v.u, &v.s, &f };
        ck_ok(amp__schema_parse("op", rows[i].text, NULL, 0, &schema));
        const struct amp__call call = { .schema = schema, .args = args };
        const amp_status status = amp__buffer_extents(&call, 0, &extents);
        if (status == AMP_OK) describe(&text, &extents);
        else {
            ck_assert_int_eq(status, AMP_ERR_INVALID_ARGUMENT);
            ck_assert_int_eq(extents.ndim, -1); /* untouched */
            ck_assert_int_eq(strncmp(amp_last_error(), "op f: ", 6), 0);
            amp__text_add(&text, "%s", amp_last_error() + 6);
        }
        ck_assert_msg(strcmp(got, rows[i].result) == 0, "%s: %s, expected %s", rows[i].text, got, rows[i].result);
        amp__free(schema);
    }
}

/* ---- members of structs ---- */

struct small {
    int32_t n;
    int8_t step;
    float rate;
};
struct big {
    char head[72];
    int64_t batch;
    uint16_t width;
    float *data;
};

static const struct {
    const char *schema, *result; /* of the call below, or the end of the message */
} member_rows[] = {
    { "f(float x[s.n], struct small s, struct big *b) -> void", "1: 6, 6, 6, 6" },
    { "f(float x[s.n * s.step], struct small s, struct big *b) -> void", "1: 18, 18, 18, 18" },
    { "f(float x[b->batch, b->width : s.n], struct small s, struct big *b) -> void", "2: 4 5, 6, 20, 23" },
    { "f(float x[s.m], struct small s, struct big *b) -> void", "the struct has no member of this name" },
    { "f(float x[s.rate], struct small s, struct big *b) -> void", "this member is no integer" },
    { "f(float x[b->data], struct small s, struct big *b) -> void", "this member is no integer" },
    { "f(float x[s->n], struct small s, struct big *b) -> void",
      "a member of a struct by value is named with '.', one behind a pointer with '->'" },
    { "f(float x[b.batch], struct small s, struct big *b) -> void",
      "a member of a struct by value is named with '.', one behind a pointer with '->'" },
    { "f(float x[u->n], struct unknown *u) -> void", "this struct does not tell its members" },
};

static void describe_structs(amp_struct structs[3]) {
    structs[0] = SIZED(amp_struct, .name = "small", .size = sizeof(struct small), .alignment = _Alignof(struct small),
                       .members = "int32 n, int8 step, float rate");
    structs[1] = SIZED(amp_struct, .name = "big", .size = sizeof(struct big), .alignment = _Alignof(struct big),
                       .members = "@72 int64 batch, @80 uint16 width, @88 pointer data");
    structs[2] = SIZED(amp_struct, .name = "unknown");
    ck_assert_uint_eq(offsetof(struct big, batch), 72);
    ck_assert_uint_eq(offsetof(struct big, width), 80);
    ck_assert_uint_eq(offsetof(struct big, data), 88);
}

TEST(members_of_structs_are_integers_too) {
    amp_struct structs[3];
    struct small small = { .n = 6, .step = 3 };
    struct big big = { .batch = 4, .width = 5 }, *pointer = &big;
    void *x = NULL, *args[] = { &x, &small, &pointer };
    describe_structs(structs);
    for (size_t i = 0; i < AMP_COUNT(member_rows); i++) {
        struct amp__schema *schema = NULL;
        struct amp__extents extents = { .ndim = -1 };
        char got[512];
        amp__text text = { got, sizeof got, 0 };
        if (amp__schema_parse("f", member_rows[i].schema, structs, 3, &schema) == AMP_OK) {
            const struct amp__call call = { .schema = schema, .args = args };
            ck_ok(amp__buffer_extents(&call, 0, &extents));
            describe(&text, &extents);
            amp__free(schema);
        } else amp__text_add(&text, "%s", amp_last_error());
        ck_assert_msg(strstr(got, member_rows[i].result) != NULL, "%s: %s", member_rows[i].schema, got);
    }
}

TEST(members_are_read_at_each_call) {
    static const char text[] = "f(float x[b->batch], struct big *b) -> void";
    amp_struct structs[3];
    struct amp__schema *schema = NULL;
    struct amp__extents extents;
    struct big big = { .batch = 4 }, *pointer = &big;
    void *x = NULL, *args[] = { &x, &pointer };
    describe_structs(structs);
    ck_ok(amp__schema_parse("f", text, structs, 3, &schema));
    const struct amp__call call = { .schema = schema, .args = args };
    for (big.batch = 1; big.batch < 4; big.batch++) {
        ck_ok(amp__buffer_extents(&call, 0, &extents));
        ck_assert_int_eq(extents.count, big.batch);
    }
    big.batch = -1;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "x: extent b->batch: it is negative (-1)",
               amp__buffer_extents(&call, 0, &extents));
    pointer = NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "its pointer is NULL", amp__buffer_extents(&call, 0, &extents));
    amp__free(schema);
}

/* As Fortran passes them. */
TEST(integers_behind_pointers_are_read_at_each_call) {
    static const char text[] = "f(float a[*t==78||*t==110?*k:m, *t==78||*t==110?m:*k : *ld], char *t, const int *k, "
                               "int64_t *ld, int m) -> void";
    struct amp__schema *schema = NULL;
    struct amp__extents extents;
    char letter = 'N', *t = &letter;
    int k = 3, m = 5, *k_at = &k;
    int64_t ld = 7, *ld_at = &ld;
    void *x = NULL, *args[] = { &x, &t, &k_at, &ld_at, &m };
    ck_ok(amp__schema_parse("f", text, NULL, 0, &schema));
    const struct amp__call call = { .schema = schema, .args = args };
    ck_ok(amp__buffer_extents(&call, 0, &extents));
    ck_assert_int_eq(extents.shape[0], 3);
    ck_assert_int_eq(extents.span, 2 * 7 + 5);
    letter = 'T', k = 4;
    ck_ok(amp__buffer_extents(&call, 0, &extents));
    ck_assert_int_eq(extents.shape[0], 5);
    ck_assert_int_eq(extents.span, 4 * 7 + 4);
    k = -1;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "it is negative (-1)", amp__buffer_extents(&call, 0, &extents));
    k_at = NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "its pointer is NULL", amp__buffer_extents(&call, 0, &extents));
    amp__free(schema);
}

TEST(places_of_members_are_checked) {
    static const struct {
        uint64_t size;
        const char *members, *message;
    } wrong[] = {
        { 96, "@72 int64 batch, uint16 width", "either all members say where they lie, or none does" },
        { 96, "@71 int64 batch", "nothing of this type lies there" },
        { 96, "@92 int64 batch", "nothing of this type lies there" },
        { 96, "@96 int64 batch", "one ends at byte 104, but the struct is declared with 96 bytes" },
        { 96, "@x int64 batch", "expected an offset in bytes" },
        { 16, "@0 int64 batch", "it may travel in registers: list every member, without @" },
    };
    for (size_t i = 0; i < AMP_COUNT(wrong); i++) {
        struct amp__schema *schema = NULL;
        amp_struct structs[3];
        describe_structs(structs);
        structs[1].size = wrong[i].size;
        structs[1].members = wrong[i].members;
        ck_assert_int_ne(amp__schema_parse("f", "f(float x[b->batch], struct big *b) -> void", structs, 3, &schema),
                         AMP_OK);
        ck_assert_msg(strstr(amp_last_error(), wrong[i].message) != NULL, "%s: %s", wrong[i].members, amp_last_error());
    }
}

/* ---- random expressions ---- */

enum { RANDOM_EXPRESSIONS = 20000, N_ARGS = 6 };

static uint64_t seed_of_run = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

__extension__ typedef __int128 wide; /* products of two numbers fit */

/* A number, or that there is none (overflow, division by zero). */
struct number {
    wide value;
    bool valid;
};

struct made {
    struct number number;
    int precedence; /* of the outermost operator; 9: needs no parentheses anywhere */
    int operations; /* at most this many */
    int depth;
    char text[2048];
};

static struct number checked(wide value, bool valid) {
    return (struct number){ value, valid && value >= INT64_MIN && value <= INT64_MAX };
}

static const struct {
    const char *text;
    int precedence;
} operators[] = { { "*", 8 }, { "/", 8 }, { "%", 8 }, { "+", 7 }, { "-", 7 }, { "<", 6 }, { "<=", 6 }, { ">", 6 },
                  { ">=", 6 }, { "==", 5 }, { "!=", 5 }, { "&&", 4 }, { "||", 3 } };

static struct number apply(size_t op, struct number a, struct number b) {
    const bool both = a.valid && b.valid;
    const wide x = a.value, y = b.value;
    switch (op) {
    case 0: return checked(both ? x * y : 0, both);
    case 1: return checked(both && y ? x / y : 0, both && y);
    case 2: /* INT64_MIN % -1 is not defined in C, as its quotient is not */
        return checked(both && y ? x % y : 0, both && y && !(y == -1 && x == INT64_MIN));
    case 3: return checked(both ? x + y : 0, both);
    case 4: return checked(both ? x - y : 0, both);
    case 5: return checked(x < y, both);
    case 6: return checked(x <= y, both);
    case 7: return checked(x > y, both);
    case 8: return checked(x >= y, both);
    case 9: return checked(x == y, both);
    case 10: return checked(x != y, both);
    case 11: return !a.valid || !a.value ? checked(0, a.valid) : checked(y != 0, b.valid);
    default: return !a.valid || a.value ? checked(1, a.valid) : checked(y != 0, b.valid);
    }
}

/* Parentheses where C needs them, and now and then where it does not. */
static void add_operand(struct made *out, amp__text *text, const struct made *operand, int least, uint64_t *state) {
    const bool wrap = operand->precedence < least || next(state) % 8 == 0;
    amp__text_add(text, wrap ? "(%s)" : "%s", operand->text);
    if (operand->depth + wrap > out->depth) out->depth = operand->depth + wrap;
    out->operations += operand->operations;
}

static void make(struct made *out, int size, const int64_t *args, uint64_t *state);

static void make_leaf(struct made *out, const int64_t *args, uint64_t *state) {
    amp__text text = { out->text, sizeof out->text, 0 };
    const uint64_t which = next(state) % (N_ARGS + 2);
    out->precedence = 9;
    out->operations = 1;
    if (which < N_ARGS) {
        amp__text_add(&text, "a%d", (int)which);
        out->number = checked(args[which], true);
    } else {
        const int64_t value = next(state) % 16 ? (int64_t)(next(state) % 7) : (int64_t)(next(state) >> 1);
        amp__text_add(&text, "%lld", (long long)value);
        out->number = checked(value, true);
    }
}

static void make_conditional(struct made *out, amp__text *text, struct made *parts, uint64_t *state) {
    out->precedence = 2;
    out->operations = 2;
    add_operand(out, text, &parts[0], 3, state);
    amp__text_add(text, " ? ");
    add_operand(out, text, &parts[1], 2, state);
    amp__text_add(text, ":");
    add_operand(out, text, &parts[2], 2, state);
    out->depth++;
    out->number = !parts[0].number.valid ? parts[0].number : parts[0].number.value ? parts[1].number : parts[2].number;
}

/* An expression of about `size` leaves. */
static void make(struct made *out, int size, const int64_t *args, uint64_t *state) {
    struct made *parts = malloc(3 * sizeof *parts);
    ck_assert_ptr_nonnull(parts);
    amp__text text = { out->text, sizeof out->text, 0 };
    out->depth = out->operations = 0;
    const uint64_t kind = next(state) % 8;
    if (size <= 1 && kind) {
        make_leaf(out, args, state);
    } else if (kind == 0) {
        make(&parts[0], size, args, state);
        const bool negate = next(state) % 2;
        amp__text_add(&text, negate ? "-" : "!");
        add_operand(out, &text, &parts[0], 9, state);
        out->depth++;
        out->operations++;
        out->precedence = 9; /* a sign binds as tightly as a name */
        const struct number x = parts[0].number;
        out->number = negate ? checked(-x.value, x.valid) : checked(!x.value, x.valid);
    } else if (kind == 1 && size > 2) {
        for (int i = 0; i < 3; i++) make(&parts[i], size / 3, args, state);
        make_conditional(out, &text, parts, state);
    } else {
        const size_t op = next(state) % AMP_COUNT(operators);
        const int precedence = operators[op].precedence, left = 1 + (int)(next(state) % (uint64_t)size) / 2;
        make(&parts[0], left, args, state);
        make(&parts[1], size - left, args, state);
        add_operand(out, &text, &parts[0], precedence, state);
        amp__text_add(&text, next(state) % 2 ? " %s " : "%s", operators[op].text);
        add_operand(out, &text, &parts[1], precedence + 1, state);
        out->precedence = precedence;
        out->operations += 2;
        out->number = apply(op, parts[0].number, parts[1].number);
    }
    free(parts);
}

static void check_random(uint64_t *state, size_t *valid) {
    static struct made made;
    int64_t values[N_ARGS];
    void *x = NULL, *args[N_ARGS + 1] = { &x };
    for (int i = 0; i < N_ARGS; i++) {
        values[i] = next(state) % 8 ? (int64_t)(next(state) % 13) - 4 : (int64_t)next(state);
        args[i + 1] = &values[i];
    }
    make(&made, 1 + (int)(next(state) % 12), values, state);
    if (made.operations > AMP__MAX_OPERATIONS || made.depth > AMP__MAX_NESTING) return;

    char text[2304];
    struct amp__schema *schema;
    struct amp__extents extents;
    snprintf(text, sizeof text, "f(half x[%s, 0], int64 a0, int64 a1, int64 a2, int64 a3, int64 a4, int64 a5) -> void",
             made.text);
    ck_ok(amp__schema_parse("op", text, NULL, 0, &schema));
    const struct amp__call call = { .schema = schema, .args = args };
    const bool expected = made.number.valid && made.number.value >= 0;
    const amp_status status = amp__buffer_extents(&call, 0, &extents);
    ck_assert_msg((status == AMP_OK) == expected, "seed %llx: %s: %s", (unsigned long long)seed_of_run, text,
                  status == AMP_OK ? "has a value" : amp_last_error());
    ck_assert_msg(!expected || extents.shape[0] == made.number.value, "seed %llx: %s: %lld",
                  (unsigned long long)seed_of_run, text, (long long)extents.shape[0]);
    *valid += expected;
    amp__free(schema);
}

TEST(random_expressions_agree_with_the_oracle) {
    size_t valid = 0;
    const char *seed = getenv("AMP_TEST_SEED");
    if (seed) seed_of_run = strtoull(seed, NULL, 0);
    uint64_t state = seed_of_run;
    for (int i = 0; i < RANDOM_EXPRESSIONS; i++) check_random(&state, &valid);
    ck_assert_uint_gt(valid, RANDOM_EXPRESSIONS / 4);
    ck_assert_uint_lt(valid, RANDOM_EXPRESSIONS);
}
