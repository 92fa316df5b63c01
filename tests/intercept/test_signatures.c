/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapped identity is not to be told from the function itself, whatever its signature; and what a handler can do to a
 * call: substitute arguments, replace the result, not call at all. */
#include "fixture.h"
#include "signatures.h"

static struct record seen;

void record(struct record *record, const void *value, size_t bytes) {
    ck_assert_uint_le(record->n + bytes, sizeof record->bytes);
    if (bytes) memcpy(record->bytes + record->n, value, bytes);
    record->n += bytes;
}

void see(const void *value, size_t bytes) { record(&seen, value, bytes); }

void spoil(void *value, size_t bytes) { memset(value, 0xee, bytes); }

void fill(void *value, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        ((unsigned char *)value)[i] = (unsigned char)(seed >> 56);
    }
}

void intact(const void *value, size_t bytes, uint64_t seed) {
    unsigned char expected[8192];
    ck_assert_uint_le(bytes, sizeof expected);
    fill(expected, bytes, seed);
    ck_assert_msg(memcmp(value, expected, bytes) == 0, "the caller's struct of %zu bytes has changed", bytes);
}

static struct wrap wrap_signature(size_t i, amp_fn *slot, struct watcher *watcher) {
    struct wrap wrap = wrap_of("op", slot, signatures[i].schema, 0, watcher);
    wrap.structs = signature_structs;
    wrap.n_structs = n_signature_structs;
    return wrap;
}

static void check_same(const struct record *got, const struct record *expected, const char *what, size_t i) {
    ck_assert_msg(got->n == expected->n && memcmp(got->bytes, expected->bytes, got->n) == 0,
                  "%s differs, seed %u, signature %zu: %s", what, signature_seed, i, signatures[i].schema);
}

/* Whether arguments and result travel in registers, counted by the C types of the schema. */
static bool fits(size_t i) {
    struct amp__schema *schema;
    unsigned general = 0, vector = 0, by_value = 0;
    ck_ok(amp__schema_parse("op", signatures[i].schema, signature_structs, n_signature_structs, &schema));
    by_value += schema->ret.kind == AMP__STRUCT;
    for (uint32_t j = 0; j < schema->n_args; j++) {
        const uint8_t kind = schema->args[j].kind;
        if (kind == AMP__STRUCT) by_value++;
        else if (kind == AMP__FLOAT || kind == AMP__DOUBLE) vector++;
        else general++;
    }
    amp__free(schema);
    return AMP__GENERAL && !by_value && general <= AMP__GENERAL && vector <= AMP__VECTOR;
}

/* libffi's code lies in memory of its own. */
static bool is_stub(amp_fn code) {
    static uintptr_t first;
    static struct amp__closure nobody;
    if (!first) first = (uintptr_t)amp__stub_take(&nobody);
    return first && (uintptr_t)code > first && (uintptr_t)code < first + 16 * AMP__STUBS;
}

/* Under sanitizers and with the second compiler every third. */
static size_t stride(void) { return getenv("AMP_TEST_SHORT") ? 3 : 1; }
#define EACH_SIGNATURE(i) for (size_t i = 0; i < n_signatures; i += stride())

static size_t check_identities(bool stubs) {
    struct watcher watcher = { 0 };
    size_t n_fitting = 0;
    ck_assert_uint_ge(n_signatures, 1000);
    EACH_SIGNATURE(i) {
        static struct record results[3], received[3];
        amp_fn slot = signatures[i].function;
        for (int j = 0; j < 3; j++) results[j].n = 0;
        seen.n = 0;
        signatures[i].call(slot, &results[0]);
        received[0] = seen;

        struct amp__patch *patch = wire(wrap_signature(i, &slot, &watcher));
        n_fitting += fits(i);
        ck_assert_msg(is_stub(slot) == (stubs && fits(i)), "signature %zu: %s", i, signatures[i].schema);
        for (int scope = 0; scope < 2; scope++) { /* taken, then passed through */
            seen.n = 0;
            in_scope(scope);
            signatures[i].call(slot, &results[scope + 1]);
            received[scope + 1] = seen;
            ck_assert_uint_eq(watcher.calls, i / stride() + 1);
            check_same(&received[scope + 1], &received[0], "what it receives", i);
            check_same(&results[scope + 1], &results[0], "what it returns", i);
        }
        ck_ok(amp__patch_undo(patch));
        ck_assert(slot == signatures[i].function);
    }
    return n_fitting;
}

/* With stubs, and without. */
TEST_TIMES(a_wrapped_identity_is_the_function, 2) {
    if (_i) use_up_stubs();
    const size_t n = check_identities(_i == 0);
    ck_assert_uint_ge(n, AMP__GENERAL ? 150 / stride() : 0);
    ck_assert_uint_le(n, AMP__STUBS);
}

/* Every integer, pointer and float is replaced by a copy of itself, so that nothing goes on as it came. */
static void copy_all(void *user, struct amp__call *call) {
    static _Alignas(16) char copies[AMP__MAX_ARGS][16];
    void *argv[AMP__MAX_ARGS];
    (void)user;
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        const size_t size = amp__arg_size(call->schema, &call->schema->args[i]);
        argv[i] = size > sizeof copies[i] ? call->args[i] : copies[i];
        memset(copies[i], 0xee, sizeof copies[i]); /* what lies beside a narrow one is nobody's */
        if (argv[i] == copies[i]) memcpy(copies[i], call->args[i], size);
    }
    amp__call_run(call, call->original, argv);
}

TEST_TIMES(substituted_arguments_arrive, 2) {
    if (_i) use_up_stubs();
    EACH_SIGNATURE(i) {
        static struct record expected, result, received;
        amp_fn slot = signatures[i].function;
        expected.n = result.n = seen.n = 0;
        signatures[i].call(slot, &expected);
        received = seen;
        struct wrap wrap = wrap_signature(i, &slot, NULL);
        wrap.handler = copy_all;
        struct amp__patch *patch = wire(wrap);
        seen.n = 0;
        signatures[i].call(slot, &result);
        check_same(&seen, &received, "what it receives", i);
        check_same(&result, &expected, "what it returns", i);
        ck_ok(amp__patch_undo(patch));
    }
}

static void answer(void *user, struct amp__call *call) { amp__call_return(call, user); }

TEST_TIMES(a_handler_can_answer_for_the_function, 2) {
    if (_i) use_up_stubs();
    EACH_SIGNATURE(i) {
        static struct record expected, results[2];
        expected.n = results[0].n = results[1].n = 0;
        amp_fn slot = signatures[i].function;
        seen.n = 0;
        signatures[i].call(slot, &expected);
        for (int zeros = 0; zeros < 2; zeros++) {
            struct wrap wrap = wrap_signature(i, &slot, NULL);
            wrap.handler = answer;
            wrap.user = zeros ? NULL : expected.bytes;
            struct amp__patch *patch = wire(wrap);
            seen.n = 0;
            signatures[i].call(slot, &results[zeros]);
            ck_assert_uint_eq(seen.n, 0);
            if (zeros) memset(expected.bytes, 0, expected.n);
            check_same(&results[zeros], &expected, "the answer", i);
            ck_ok(amp__patch_undo(patch));
        }
    }
}

TEST(narrow_results_fill_a_register) {
    static const struct {
        const char *schema;
        uint64_t value; /* its low bytes */
        long long wide; /* as a long */
    } rows[] = {
        { "f() -> int8", 0x80, -128 },       { "f() -> int8", 0x7f, 127 },         { "f() -> uint8", 0x80, 128 },
        { "f() -> int16", 0x8000, -32768 },  { "f() -> uint16", 0x8000, 32768 },   { "f() -> bool", 1, 1 },
        { "f() -> int32", 0xffffffff, -1 },  { "f() -> uint32", 0xfffffffe, 0xfffffffe },
        { "f() -> int64", UINT64_MAX, -1 },  { "f() -> pointer", 4096, 4096 },
    };
    for (size_t i = 0; i < AMP_COUNT(rows); i++) {
        struct amp__schema *schema;
        unsigned long ret = 0x5a5a5a5a;
        ck_ok(amp__schema_parse("op", rows[i].schema, NULL, 0, &schema));
        const struct amp__call call = { .schema = schema, .ret = &ret };
        amp__call_return(&call, &rows[i].value);
        ck_assert_msg((long)ret == (long)rows[i].wide, "%s: %lx", rows[i].schema, ret);
        amp__call_return(&call, NULL);
        ck_assert_uint_eq(ret, 0);
        amp__free(schema);
    }
}

TEST(arguments_by_value) {
    struct amp__schema *schema;
    const int8_t i8 = -8;
    const uint8_t u8 = 200;
    const int16_t i16 = INT16_MIN;
    const uint32_t u32 = UINT32_MAX;
    const int64_t i64 = INT64_MIN;
    const uint64_t u64 = UINT64_MAX, small = 7;
    void *const pointer = &schema;
    const void *args[] = { &i8, &u8, &i16, &u32, &i64, &u64, &small, &pointer };
    ck_ok(amp__schema_parse("op", "f(int8, uint8, int16, uint32, int64, uint64, uint64, Tensor) -> void", NULL, 0,
                            &schema));
    const struct amp__call call = { .schema = schema, .args = (void *const *)(uintptr_t)args };
    const int64_t expected[] = { -8, 200, INT16_MIN, UINT32_MAX, INT64_MIN, INT64_MAX, 7 };
    for (uint32_t i = 0; i < AMP_COUNT(expected); i++) ck_assert_int_eq(amp__call_integer(&call, i), expected[i]);
    ck_assert_ptr_eq(amp__call_pointer(&call, 7), &schema);
    amp__free(schema);
}

/* ---- substitution ---- */

typedef void *(*pick_fn)(void *, void *, int);
static void *pick(void *a, void *b, int which) { return which ? b : a; }

static int substitute;

static void swap_tensor(void *user, struct amp__call *call) {
    void *argv[3] = { call->args[0], call->args[1], call->args[2] }, *other = &substitute;
    ck_assert_ptr_eq(amp__call_pointer(call, 0), user);
    argv[0] = &other;
    amp__call_run(call, call->original, argv);
    ck_assert_ptr_eq(amp__call_returned(call), &substitute);
    ck_assert_ptr_eq(amp__call_pointer(call, 0), user); /* the caller's own argument stays */
    amp__call_return_pointer(call, user);
}

TEST(a_handler_substitutes_tensors) {
    amp_fn slot = (amp_fn)pick;
    int a, b;
    struct wrap wrap = wrap_of("op pick", &slot, "pick(Tensor a, Tensor b, int which) -> Tensor", 0, NULL);
    wrap.handler = swap_tensor;
    wrap.user = &a;
    struct amp__patch *patch = wire(wrap);
    ck_assert_ptr_eq(((pick_fn)slot)(&a, &b, 0), &a);
    ck_ok(amp__patch_undo(patch));
}

/* ---- structs ---- */

struct layer { /* as large as a layer of a public C framework, and passed by value there */
    int kind;
    float *weights;
    char rest[1168];
};
_Static_assert(sizeof(struct layer) == 1184, "the size this is about");

struct pair {
    float x;
    double y;
};

typedef struct pair (*forward_fn)(struct layer, struct layer *, int);

static struct pair forward(struct layer l, struct layer *same, int n) {
    const struct pair result = { l.weights[0] + (float)n, (double)l.kind };
    ck_assert_ptr_ne(&l, same);
    memset(&l, 0, sizeof l); /* its own copy */
    return result;
}

/* The weights of a copy are replaced; the op's arguments and the caller's struct are as they were. */
static void patch_layer(void *user, struct amp__call *call) {
    static float other[] = { 40.0f };
    struct layer copy;
    void *argv[] = { &copy, call->args[1], call->args[2] };
    ck_assert_uint_eq(amp__arg_size(call->schema, &call->schema->args[0]), sizeof copy);
    ck_assert_uint_eq(amp__arg_size(call->schema, &call->schema->args[1]), sizeof(void *));
    memcpy(&copy, amp__call_value(call, 0), sizeof copy);
    ck_assert_mem_eq(&copy, user, sizeof copy);
    copy.weights = other;
    amp__call_run(call, call->original, argv);
    ck_assert_mem_eq(amp__call_value(call, 0), user, sizeof copy);
}

TEST(structs_by_value_are_patched_in_a_copy) {
    const amp_struct structs[] = {
        { sizeof(amp_struct), 0, "layer", sizeof(struct layer), _Alignof(struct layer), 0, NULL },
        { sizeof(amp_struct), 0, "pair", sizeof(struct pair), _Alignof(struct pair), 0, "float x, double y" },
    };
    float weights[] = { 1.0f };
    struct layer l = { .kind = 7, .weights = weights }, before;
    amp_fn slot = (amp_fn)forward;
    struct wrap wrap =
        wrap_of("op forward", &slot, "forward(struct layer l, struct layer *same, int n) -> struct pair", 0, NULL);
    wrap.structs = structs;
    wrap.n_structs = AMP_COUNT(structs);
    wrap.handler = patch_layer;
    wrap.user = &before;
    memset(l.rest, 'r', sizeof l.rest);
    before = l;
    struct amp__patch *patch = wire(wrap);
    const struct pair got = ((forward_fn)slot)(l, &l, 2);
    ck_assert(got.x == 42.0f && got.y == 7.0);
    ck_assert_mem_eq(&l, &before, sizeof l);
    ck_ok(amp__patch_undo(patch));
}

/* One text over two structs of one name is two functions. */
TEST(a_slot_has_one_idea_of_its_structs) {
    amp_struct pair = { sizeof(amp_struct), 0, "pair", 16, 8, 0, "float, double" };
    amp_fn slot = (amp_fn)forward;
    struct wrap wrap = wrap_of("op a", &slot, "f(struct pair x) -> void", 0, NULL);
    bool wrapped;
    wrap.handler = answer;
    wrap.structs = &pair;
    wrap.n_structs = 1;
    struct amp__patch *patch = wire(wrap), *other = new_patch();
    pair.members = "double, float";
    wrap.owner = owner(1);
    wrap.what = "op b";
    ck_fails(AMP_ERR_CONFLICT, patch_add(other, &wrap, &wrapped));
    ck_says("op b: its slot is wrapped already for op a under other structs");
    ck_ok(amp__patch_undo(other));
    ck_ok(amp__patch_undo(patch));
}
