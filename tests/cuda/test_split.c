/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split masters on a device step as FP32 masters do there, to the bit, norms too: for every rule, over several steps,
 * with ties planted and kept where the gradient is 0.
 */
#include "device.h"

enum { N = 4, LONGEST = 20001, STEPS = 3 };
static const uint64_t sizes[N] = { 3, 2049, 5000, LONGEST };

/* On the device. remainder: as many words as FP32 has, which are more than enough. */
static struct tensors {
    float grad[N][LONGEST + 3], fp32[N][LONGEST + 3], joined[N][LONGEST + 3], moments[2][3][N][LONGEST + 3];
    uint16_t low[2][N][LONGEST + 7];
    uint32_t remainder[N][LONGEST + 3];
    uint64_t steps[2][N];
} *t;
static amp_device_list *lists[2];
static void *remainders[N];

static void start(void) {
    if (!t) t = device_alloc(sizeof *t + 16);
    memset(t, 0, sizeof *t);
    for (int k = 0; k < 2; k++) ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &lists[k]));
    for (int i = 0; i < N; i++) remainders[i] = t->remainder[i];
}
static void stop(void) {
    for (int k = 0; k < 2; k++) amp_device_list_close(lists[k]);
}

static void spans_of(amp_span spans[N], void *first, size_t stride, amp_dtype dtype) {
    for (int i = 0; i < N; i++) spans[i] = (amp_span){ (char *)first + (size_t)i * stride, sizes[i], dtype, 0 };
}
#define SPANS(name, array, dtype) \
    amp_span name[N]; \
    spans_of(name, (array), sizeof *(array), dtype)

static uint32_t bits_of(float x) {
    uint32_t bits;
    return memcpy(&bits, &x, sizeof bits), bits;
}

/* A third of the elements are ties, some of them up and some down. */
static void fill_masters(void) {
    random_restart();
    for (int i = 0; i < N; i++) {
        fill(PATTERN_NORMAL, AMP_FLOAT32, t->fp32[i], (size_t)sizes[i]);
        for (size_t e = 0; e < sizes[i]; e += 3) {
            const uint32_t tie = (bits_of(t->fp32[i][e]) & 0xffff0000u) | 0x8000u;
            memcpy(&t->fp32[i][e], &tie, sizeof tie);
        }
    }
}

static void check_joined(const char *what) {
    SPANS(joined, t->joined, AMP_FLOAT32);
    SPANS(low, t->low[1], AMP_BFLOAT16);
    ck_ok(amp_device_join(lists[0], device.stream, joined, low, remainders, N));
    device_wait();
    for (int i = 0; i < N; i++)
        for (size_t e = 0; e < sizes[i]; e++)
            ck_assert_msg(bits_of(t->joined[i][e]) == bits_of(t->fp32[i][e]), "%s: tensor %d, element %zu: %a, not %a",
                          what, i, e, (double)t->joined[i][e], (double)t->fp32[i][e]);
}

static void split_all(void) {
    SPANS(fp32, t->fp32, AMP_FLOAT32);
    SPANS(low, t->low[1], AMP_BFLOAT16);
    fill_masters();
    ck_ok(amp_device_split(lists[0], device.stream, low, remainders, fp32, N));
}

/* There and back; and what is there is what amp_split_list makes. */
TEST(test_lists) {
    static uint16_t low[LONGEST];
    static uint32_t block[LONGEST];
    void *here = block;
    split_all();
    check_joined("there and back");
    for (int i = 0; i < N; i++) {
        const amp_span dst = { low, sizes[i], AMP_BFLOAT16, 0 }, src = { t->fp32[i], sizes[i], AMP_FLOAT32, 0 };
        memset(block, 0, sizeof block);
        ck_ok(amp_split_list(&dst, &here, &src, 1));
        ck_assert_mem_eq(low, t->low[1][i], (size_t)sizes[i] * sizeof *low);
        ck_assert_mem_eq(block, t->remainder[i], (size_t)amp_remainder_bytes(sizes[i]));
    }
}

TEST(test_arguments) {
    SPANS(fp32, t->fp32, AMP_FLOAT32);
    SPANS(low, t->low[1], AMP_BFLOAT16);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_split(lists[0], device.stream, low, NULL, fp32, N));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_split(lists[0], device.stream, fp32, remainders, fp32, N));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_join(lists[0], device.stream, low, low, remainders, N));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_join(NULL, device.stream, fp32, low, remainders, N));
    ck_ok(amp_device_join(lists[0], device.stream, NULL, NULL, NULL, 0));
}

static const struct {
    amp_optim_kind kind;
    double momentum;
} rules[] = {
#define KIND(constant, value, ...) { value, 0.0 },
    AMP_OPTIM_MAP(KIND)
#undef KIND
    { AMP_OPTIM_SGD, 0.9 }, { AMP_OPTIM_LARC, 0.9 },
};

static void step(const amp_optim *rule, int split) {
    SPANS(grad, t->grad, AMP_FLOAT32);
    SPANS(fp32, t->fp32, AMP_FLOAT32);
    SPANS(low, t->low[split], AMP_BFLOAT16);
    amp_span moments[3][N];
    amp_optim_tensors tensors = AMP_OPTIM_TENSORS_INIT;
    tensors.n = N, tensors.grad = grad, tensors.steps = t->steps[split];
    tensors.param = split ? low : fp32, tensors.low = split ? NULL : low;
    tensors.remainders = split ? remainders : NULL;
    for (int k = 0; k < 3; k++) {
        spans_of(moments[k], t->moments[split][k], sizeof t->moments[split][k][0], AMP_FLOAT32);
        for (int i = 0; i < N && k == 1 && rule->kind == AMP_OPTIM_NOVOGRAD; i++) moments[k][i].size = 1;
        tensors.moments[k] = moments[k];
    }
    ck_ok(amp_device_optim(lists[split], device.stream, rule, &tensors));
}

TEST_TIMES(test_rules, sizeof rules / sizeof *rules) {
    amp_optim rule = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(rules[_i].kind, &rule));
    rule.momentum = rules[_i].momentum;
    split_all();
    for (int at = 0; at < STEPS; at++) {
        device_wait();
        for (int i = 0; i < N; i++) {
            fill(PATTERN_NORMAL, AMP_FLOAT32, t->grad[i], (size_t)sizes[i]);
            for (size_t e = 0; e < sizes[i]; e += 2) t->grad[i][e] = 0.0f; /* so that ties are stored again */
        }
        step(&rule, 0), step(&rule, 1);
        check_joined("stepped");
        ck_assert_mem_eq(t->low[0], t->low[1], sizeof t->low[0]);
        ck_assert_mem_eq(t->moments[0], t->moments[1], sizeof t->moments[0]);
    }
}

TEST_FIXTURE(start, stop)
