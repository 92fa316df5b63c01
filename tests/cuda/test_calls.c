/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of amp_device.h give what those for the CPU give; on the fake device and, where there is one, on
 * a GPU. */
#include "device.h"

#include <math.h>

enum { TENSORS = 30, ROOM = 20000 * 8 };

struct world {
    amp_device_list *list;
    amp_span dst[TENSORS], x[TENSORS], y[TENSORS], wanted[TENSORS];
    float *numbers; /* on the device */
};

static amp_device_list *open_list(void) {
    amp_device_list *list = NULL;
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
    return list;
}

static amp_span random_span(uint64_t size) {
    const amp_dtype type = all_types[random_below(TYPES)];
    const size_t width = type == AMP_FLOAT64 ? 8 : type == AMP_FLOAT32 ? 4 : 2;
    unsigned char *memory = device_alloc(ROOM + 64);
    amp_span span = { memory + width * random_below(8), size, type, 0 };
    fill(random_below(3) ? PATTERN_NORMAL : PATTERN_BITS, type, span.data, (size_t)size);
    return span;
}

static void make(struct world *w) {
    static const uint64_t sizes[] = { 0, 1, 7, 16, 333, 2048, 2055, 6000, 19999 };
    w->list = open_list();
    w->numbers = device_alloc(1000 * sizeof *w->numbers);
    for (int i = 0; i < TENSORS; i++) {
        const uint64_t size = sizes[random_below(sizeof sizes / sizeof *sizes)];
        w->dst[i] = random_span(size), w->x[i] = random_span(size), w->y[i] = random_span(size);
        w->wanted[i] = w->dst[i];
        w->wanted[i].data = device_alloc(ROOM);
        memcpy(w->wanted[i].data, w->dst[i].data, (size_t)size * 2);
    }
}

static void compare(const struct world *w, const char *what) {
    device_wait();
    for (int i = 0; i < TENSORS; i++)
        for (size_t e = 0; e < w->dst[i].size; e++) {
            const amp_dtype type = w->dst[i].dtype;
            const uint64_t got = get_bits(type, w->dst[i].data, e), want = get_bits(type, w->wanted[i].data, e);
            CHECK_THAT(bits_agree(type, got, want), "%s: tensor %d element %zu: %#llx, not %#llx", what, i, e,
                       (unsigned long long)got, (unsigned long long)want);
        }
}

TEST(test_elementwise) {
    struct world w;
    float found = 0.0f;
    random_restart();
    make(&w);
    ck_ok(amp_device_cast(w.list, device.stream, w.dst, w.x, TENSORS));
    ck_ok(amp_cast_list(w.wanted, w.x, TENSORS));
    compare(&w, "cast");

    w.numbers[0] = 3.0f;
    const amp_factor inverse = { &w.numbers[0], 0.0f, AMP_FACTOR_INVERSE },
                     value = { NULL, -0.3f, AMP_FACTOR_AS_IT_IS };
    ck_ok(amp_device_scale(w.list, device.stream, w.dst, w.x, TENSORS, &inverse, &w.numbers[1]));
    ck_ok(amp_scale_list(w.wanted, w.x, TENSORS, 1.0f / 3.0f, &found));
    compare(&w, "scale");
    ck_assert(w.numbers[1] == found);

    found = w.numbers[1] = 0.0f;
    ck_ok(amp_device_axpby(w.list, device.stream, w.dst, &value, w.x, &inverse, w.y, TENSORS, &w.numbers[1]));
    ck_ok(amp_axpby_list(w.wanted, -0.3f, w.x, 1.0f / 3.0f, w.y, TENSORS, &found));
    compare(&w, "axpby");
    ck_assert(w.numbers[1] == found && found == 1.0f);

    ck_ok(amp_device_zero(w.list, device.stream, w.dst, TENSORS));
    for (int i = 0; i < TENSORS; i++) memset(w.wanted[i].data, 0, ROOM);
    compare(&w, "zero");
    amp_device_list_close(w.list);
}

/* Both sums are within 5000 * 2^-53 of the exact one, as test_lists.c derives: in float, one unit in the last place
 * apart. */
TEST(test_norms) {
    struct world w;
    float norm, norms[TENSORS], found = 0.0f;
    random_restart();
    make(&w);
    for (int i = 0; i < TENSORS; i++) fill(PATTERN_NORMAL, w.x[i].dtype, w.x[i].data, (size_t)w.x[i].size);
    const amp_factor scale = { NULL, 0.3f, AMP_FACTOR_AS_IT_IS };
    float *of_all = w.numbers, *of_each = w.numbers + 1, *flag = w.numbers + 1 + TENSORS;
    ck_ok(amp_device_check(w.list, device.stream, w.x, TENSORS, &scale, NULL, of_all, of_each, flag));
    ck_ok(amp_check_list(w.x, TENSORS, 0.3f, 1.0f, &norm, norms, &found));
    device_wait();
    ck_assert(fabsf(*of_all - norm) <= 0x1p-23f * norm);
    for (int i = 0; i < TENSORS; i++) ck_assert(fabsf(of_each[i] - norms[i]) <= 0x1p-23f * norms[i]);
    ck_assert(*flag == 0.0f);

    const float first = *of_all; /* again, to the bit; and clipped by it */
    ck_ok(amp_device_check(w.list, device.stream, w.x, TENSORS, &scale, NULL, of_all, NULL, flag));
    device_wait();
    ck_assert(*of_all == first);
    const amp_factor clip = { of_all, first / 2.0f, AMP_FACTOR_CLIP };
    for (int i = 0; i < TENSORS; i++) {
        w.dst[i] = w.x[i];
        w.wanted[i].dtype = w.x[i].dtype;
        ck_ok(amp_scale_list(&w.wanted[i], &w.x[i], 1, (float)((double)(first / 2.0f) / ((double)first + 1e-6)), NULL));
    }
    ck_ok(amp_device_scale(w.list, device.stream, w.x, w.x, TENSORS, &clip, NULL));
    compare(&w, "clip");

    *of_all = 7.0f;
    ck_ok(amp_device_check(w.list, device.stream, NULL, 0, NULL, NULL, of_all, NULL, NULL));
    device_wait();
    ck_assert(*of_all == 0.0f);
    amp_device_list_close(w.list);
}

/* ---- optimizers ---- */

enum { N = 3, LONGEST = 3000 };

struct tensors {
    amp_span grad[N], param[N], low[N], moments[3][N];
    uint64_t *steps;
    float *numbers;
};

/* Few bits in each number: sums of squares are exact in any order, so that norms are equal to the bit. */
static void make_tensors(struct tensors *t, amp_optim_kind kind) {
    static const uint64_t sizes[N] = { 5, LONGEST, 1027 };
    t->steps = device_alloc(N * sizeof *t->steps);
    t->numbers = device_alloc(64);
    for (int i = 0; i < N; i++) {
        float *grad = device_alloc(LONGEST * 4), *param = device_alloc(LONGEST * 4);
        t->grad[i] = (amp_span){ grad, sizes[i], AMP_FLOAT32, 0 };
        t->param[i] = (amp_span){ param, sizes[i], AMP_FLOAT32, 0 };
        t->low[i] = (amp_span){ i ? device_alloc(LONGEST * 2) : NULL, sizes[i], AMP_FLOAT16, 0 };
        for (int k = 0; k < 3; k++) {
            const uint64_t size = kind == AMP_OPTIM_NOVOGRAD && k == 1 ? 1 : sizes[i];
            t->moments[k][i] = (amp_span){ device_alloc(LONGEST * 4), size, AMP_FLOAT32, 0 };
        }
        for (uint64_t e = 0; e < sizes[i]; e++) {
            grad[e] = ((float)(e * 37 % 64) - 31.5f) * 16.0f;
            param[e] = ((float)(e * 29 % 32) - 15.5f) / 8.0f;
        }
    }
}

static amp_optim_tensors call_of(const struct tensors *t) {
    return SIZED(amp_optim_tensors, .n = N, .grad = t->grad, .param = t->param, .low = t->low, .steps = t->steps,
                 .moments = { t->moments[0], t->moments[1], t->moments[2] }, .found_inf = &t->numbers[0],
                 .inv_scale = &t->numbers[1]);
}

/* LAMB's rate follows from a norm whose squares are not exact: two floats that are one unit apart at most. */
static void compare_param(amp_optim_kind kind, const struct tensors *a, const struct tensors *b) {
    for (int i = 0; i < N; i++) {
        const float *got = a->param[i].data, *want = b->param[i].data;
        ck_assert_uint_eq(a->steps[i], b->steps[i]);
        for (uint64_t e = 0; e < a->param[i].size; e++) {
            const float before = ((float)(e * 29 % 32) - 15.5f) / 8.0f, change = fabsf(want[e] - before);
            const float allowed = kind == AMP_OPTIM_LAMB ? 0x1p-21f * change + 0x1p-23f * fabsf(want[e]) : 0.0f;
            CHECK_THAT(fabsf(got[e] - want[e]) <= allowed, "kind %d tensor %d element %llu: %a, not %a", (int)kind, i,
                       (unsigned long long)e, (double)got[e], (double)want[e]);
        }
        if (kind != AMP_OPTIM_LAMB && a->low[i].data)
            ck_assert_mem_eq(a->low[i].data, b->low[i].data, a->low[i].size * 2);
    }
}

TEST_RANGE(test_optimizers, AMP_OPTIM_SGD, AMP_OPTIM_LARC + 1) {
    const amp_optim_kind kind = (amp_optim_kind)_i;
    amp_optim rule = AMP_OPTIM_INIT;
    struct tensors ours, theirs;
    OWN_LIST *list = open_list();
    ck_ok(amp_optim_defaults(kind, &rule));
    rule.weight_decay = 0.0625;
    if (kind == AMP_OPTIM_SGD || kind == AMP_OPTIM_LARC) rule.momentum = 0.5;
    rule.flags &= ~(uint32_t)AMP_OPTIM_CLIP; /* a ratio that shows */
    make_tensors(&ours, kind), make_tensors(&theirs, kind);
    ours.numbers[1] = theirs.numbers[1] = 0x1p-4f;
    const amp_optim_tensors a = call_of(&ours), b = call_of(&theirs);
    ck_ok(amp_device_optim(list, device.stream, &rule, &a));
    ck_ok(amp_optim_list(&rule, &b));
    device_wait();
    compare_param(kind, &ours, &theirs);
    if (kind != AMP_OPTIM_LAMB) { /* whose parameters may be a bit apart by now */
        ck_ok(amp_device_optim(list, device.stream, &rule, &a));
        ck_ok(amp_optim_list(&rule, &b));
        device_wait();
        for (int i = 0; i < N && kind != AMP_OPTIM_LARC; i++) /* LARC's norms are not exact any more */
            ck_assert_mem_eq(ours.param[i].data, theirs.param[i].data, ours.param[i].size * 4);
        ck_assert_uint_eq(ours.steps[1], 2);
    }
    float before[LONGEST];
    memcpy(before, ours.param[1].data, sizeof before);
    const uint64_t steps = ours.steps[1];
    ours.numbers[0] = 1.0f; /* an overflow, on the device */
    ck_ok(amp_device_optim(list, device.stream, &rule, &a));
    device_wait();
    ck_assert_mem_eq(before, ours.param[1].data, sizeof before);
    ck_assert_uint_eq(ours.steps[1], steps);
}

/* One count that all tensors share there, and one that the host keeps: the bits that a count each gives. */
TEST_RANGE(test_one_count, AMP_OPTIM_SGD, AMP_OPTIM_LARC + 1) {
    const amp_optim_kind kind = (amp_optim_kind)_i;
    amp_optim rule = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(kind, &rule));
    rule.weight_decay = 0.0625;
    if (kind == AMP_OPTIM_SGD || kind == AMP_OPTIM_LARC) rule.momentum = 0.5;
    struct tensors sides[3];
    amp_device_list *lists[3] = { open_list(), open_list(), open_list() };
    amp_optim_tensors calls[3];
    for (int k = 0; k < 3; k++) {
        make_tensors(&sides[k], kind);
        sides[k].numbers[1] = 0x1p-4f;
        calls[k] = call_of(&sides[k]);
    }
    calls[1].n_steps = 1;
    calls[2].steps = NULL;
    for (uint64_t step = 1; step < 5; step++) {
        calls[2].step = step;
        for (int k = 0; k < 3; k++) {
            sides[k].numbers[0] = step == 4 ? 1.0f : 0.0f; /* an overflow */
            ck_ok(amp_device_optim(lists[k], device.stream, &rule, &calls[k]));
        }
        device_wait();
        for (int k = 1; k < 3; k++)
            for (int i = 0; i < N; i++) {
                ck_assert_mem_eq(sides[0].param[i].data, sides[k].param[i].data, sides[0].param[i].size * 4);
                if (i) ck_assert_mem_eq(sides[0].low[i].data, sides[k].low[i].data, sides[0].low[i].size * 2);
            }
        const uint64_t taken = step == 4 ? 3 : step;
        ck_assert(sides[0].steps[0] == taken && sides[1].steps[0] == taken && sides[1].steps[1] == 0);
    }
    for (int k = 0; k < 3; k++) amp_device_list_close(lists[k]);
}

/* More tensors than a block has threads: blocks agree on which of them advances the count. */
TEST(test_one_count_of_many) {
    enum { MANY = 2 * 256 + 1 };
    float *numbers = device_alloc(4 * MANY * sizeof *numbers);
    uint64_t *steps = device_alloc(sizeof *steps);
    static amp_span spans[4][MANY];
    const amp_optim_tensors t = SIZED(amp_optim_tensors, .n = MANY, .grad = spans[0], .param = spans[1], .steps = steps,
                                      .moments = { spans[2], spans[3] }, .n_steps = 1);
    amp_optim rule = AMP_OPTIM_INIT;
    OWN_LIST *list = open_list();
    for (size_t i = 0; i < 4 * MANY; i++) {
        numbers[i] = i < MANY ? 1.0f : 0.0f;
        spans[i / MANY][i % MANY] = (amp_span){ &numbers[i], 1, AMP_FLOAT32, 0 };
    }
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAM, &rule));
    for (uint64_t step = 1; step < 4; step++) {
        ck_ok(amp_device_optim(list, device.stream, &rule, &t));
        device_wait();
        ck_assert_uint_eq(*steps, step);
        for (size_t i = 1; i < MANY; i++) ck_assert(numbers[MANY + i] == numbers[MANY] && numbers[MANY] < 0.0f);
    }
}

/* ---- a graph ---- */

/* A list's first call of a kind may be a captured one. What it left in the list's memory is there for calls that come
 * before the graph is launched for the first time. */
TEST(test_between_capture_and_replay) {
    enum { SIZE = 3 };
    OWN_LIST *list = open_list();
    float *numbers = device_alloc(64 * sizeof *numbers), *in_graph = numbers + 32, *before = numbers + 33;
    const amp_span x = { numbers, SIZE, AMP_FLOAT32, 0 };
    for (int i = 0; i < SIZE; i++) numbers[i] = (float)i;
    *in_graph = *before = -1.0f;
    device_capture_begin();
    ck_ok(amp_device_check(list, device.stream, &x, 1, NULL, NULL, in_graph, NULL, NULL));
    device_capture_end();
    ck_ok(amp_device_check(list, device.stream, &x, 1, NULL, NULL, before, NULL, NULL));
    device_wait();
    ck_assert_double_eq_tol((double)*before, sqrt(5.0), 1e-6);
    ck_assert(*in_graph == -1.0f);
    for (int i = 0; i < 2; i++) {
        numbers[2] = (float)(2 + i);
        device_replay();
        device_wait();
        ck_assert_double_eq_tol((double)*in_graph, i ? sqrt(10.0) : sqrt(5.0), 1e-6);
    }
}

/* ---- refusals ---- */

TEST(test_refusals) {
    amp_device_list *list = NULL;
    ck_refused(AMP_ERR_UNSUPPORTED, "type 1", amp_device_list_open((amp_device){ 1, 0 }, &list));
    ck_refused(AMP_ERR_NO_DEVICE, "no CUDA device 99", amp_device_list_open((amp_device){ 2, 99 }, &list));
    ck_refused(AMP_ERR_NO_DEVICE, "no CUDA device -1", amp_device_list_open((amp_device){ 2, -1 }, &list));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "list is NULL", amp_device_list_open((amp_device){ 2, 0 }, NULL));
    ck_assert_ptr_null(list);
    list = open_list();
    void *s = device.stream;
    unsigned char *memory = device_alloc(1024);
    const amp_span a = { memory, 8, AMP_FLOAT32, 0 }, b = { memory + 64, 8, AMP_FLOAT32, 0 },
                   odd = { memory + 2, 8, AMP_FLOAT32, 0 };
    const amp_span shorter = { memory, 7, AMP_FLOAT32, 0 };
    const amp_factor clip = { (float *)(void *)(memory + 512), 1.0f, AMP_FACTOR_CLIP }, strange = { NULL, 1.0f, 3 },
                     no_limit = { (float *)(void *)(memory + 512), NAN, AMP_FACTOR_CLIP };
    amp_optim rule = AMP_OPTIM_INIT;
    const amp_optim_tensors nothing = SIZED(amp_optim_tensors, .n = 1);
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAM, &rule));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "legacy default stream", amp_device_cast(list, NULL, &a, &b, 1));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "list is NULL", amp_device_cast(NULL, s, &a, &b, 1));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "must be equal", amp_device_cast(list, s, &a, &shorter, 1));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "tensor 0 of list 1", amp_device_cast(list, s, &a, &odd, 1));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "in place", amp_device_scale(list, s, &a, &b, 1, &clip, NULL));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "how is 3", amp_device_scale(list, s, &a, &b, 1, &strange, NULL));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "clips to nan", amp_device_scale(list, s, &a, &a, 1, &no_limit, NULL));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "scale is NULL", amp_device_scale(list, s, &a, &b, 1, NULL, NULL));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "amp_device_optim: ", amp_device_optim(list, s, &rule, &nothing));
    ck_ok(amp_device_cast(list, s, &a, &b, 1)); /* nothing of it stuck */
    device_wait();
    amp_device_list_close(list);
    amp_device_list_close(NULL);
}

/* What a step launches does not grow with its tensors: a captured one is a graph of a few nodes. */
TEST_TIMES(test_nodes, 2) {
    enum { MANY = 200, SIZE = 40 };
    const bool is_lamb = _i == 1;
    amp_device_list *checked = open_list(), *stepped = open_list();
    float *numbers = device_alloc((4 * MANY * SIZE + 16) * sizeof *numbers);
    uint64_t *steps = device_alloc(MANY * sizeof *steps);
    amp_span spans[4][MANY];
    const amp_optim_tensors t = SIZED(amp_optim_tensors, .n = MANY, .grad = spans[0], .param = spans[1], .steps = steps,
                                      .moments = { spans[2], spans[3] }, .found_inf = &numbers[0]);
    amp_optim rule = AMP_OPTIM_INIT;
    for (int i = 0; i < 4 * MANY * SIZE + 16; i++) numbers[i] = 0.0f;
    for (size_t i = 0; i < MANY; i++) {
        steps[i] = 0;
        for (size_t k = 0; k < 4; k++)
            spans[k][i] = (amp_span){ numbers + 16 + (k * MANY + i) * SIZE, SIZE, AMP_FLOAT32, 0 };
    }
    ck_ok(amp_optim_defaults(is_lamb ? AMP_OPTIM_LAMB : AMP_OPTIM_ADAM, &rule));
    for (int captured = 0; captured < 2; captured++) {
        const struct fake before = device.fake ? *device.fake : (struct fake){ 0 };
        if (captured) device_capture_begin();
        if (!is_lamb)
            ck_ok(amp_device_check(checked, device.stream, spans[0], MANY, NULL, NULL, &numbers[1], NULL, numbers));
        ck_ok(amp_device_optim(stepped, device.stream, &rule, &t));
        if (captured) device_capture_end();
        if (!device.fake || !captured) continue;
        const int nodes = device.fake->launches + device.fake->uploads - before.launches - before.uploads;
        ck_assert_int_eq(device.fake->broke_capture, 0);
        ck_assert_int_gt(nodes, 0);
        ck_assert_int_lt(nodes, 8);
    }
    device_replay();
    device_wait();
    ck_assert_uint_eq(steps[MANY - 1], 2);
    amp_device_list_close(checked);
    amp_device_list_close(stepped);
}
