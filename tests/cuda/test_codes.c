/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moments in 8 bits and stochastic weights on a device: the bytes of amp_optim_list, for lists of tensors with and
 * without them, at any address, over several steps of which one is skipped.
 */
#include "asserts.h"
#include "device.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

enum { N = 7, LONGEST = 20001, STEPS = 4, ROOM = LONGEST + 16, BLOCKS = ROOM / AMP_STATE_BLOCK + 1 };

static const struct {
    uint64_t size;
    bool coded, alone, split, copy; /* none of the last three: FP32 */
} kinds[N] = {
    { 3, false, false, false, false },   { 4097, true, false, false, false }, { 5000, true, false, false, true },
    { LONGEST, true, true, false, false }, { 2049, true, false, true, false },  { 777, false, true, false, false },
    { 256, true, false, false, true },
};

struct tensors {
    float grad[N][ROOM], fp32[N][ROOM], moments[2][N][ROOM], scales[2][N][BLOCKS];
    uint32_t remainder[N][ROOM];
    uint16_t low[N][ROOM];
    uint8_t codes[2][N][ROOM];
    uint64_t steps[N];
    float found, inv_scale;
};
static struct tensors *there, *here;
static amp_device_list *list;

static void start(void) {
    if (!there) there = device_alloc(sizeof *there + 16);
    if (!here) here = malloc(sizeof *here);
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
}
static void stop(void) { amp_device_list_close(list); }

enum { ODD = 1, STOCHASTIC = 2, COUNTED = 4, SHARED = 8, KEYED = 16, ADAM = 32, CASES = 64 };

struct lists {
    amp_span grad[N], param[N], low[N], moments[2][N];
    float *scales[2][N];
    void *remainders[N];
};

/* Byte addresses odd for codes, element addresses odd for the rest. */
static void fill_lists(struct tensors *t, size_t odd, struct lists *l) {
    memset(l, 0, sizeof *l);
    for (int i = 0; i < N; i++) {
        const uint64_t n = kinds[i].size;
        const bool low = kinds[i].alone || kinds[i].split;
        l->grad[i] = (amp_span){ t->grad[i] + odd, n, AMP_FLOAT32, 0 };
        l->param[i] = low ? (amp_span){ t->low[i] + odd, n, AMP_BFLOAT16, 0 }
                          : (amp_span){ t->fp32[i] + odd, n, AMP_FLOAT32, 0 };
        if (kinds[i].copy) l->low[i] = (amp_span){ t->low[i] + odd, n, AMP_FLOAT16, 0 };
        if (kinds[i].split) l->remainders[i] = t->remainder[i];
        for (int k = 0; k < 2; k++) {
            l->moments[k][i] = kinds[i].coded ? (amp_span){ t->codes[k][i] + odd, n, AMP_DTYPE_OTHER, 0 }
                                              : (amp_span){ t->moments[k][i] + odd, n, AMP_FLOAT32, 0 };
            if (kinds[i].coded) l->scales[k][i] = t->scales[k][i] + odd;
        }
    }
}

static void step(struct tensors *t, int how, uint64_t number, bool on_device) {
    static const uint64_t keys[N] = { 1, 0, 3, UINT64_MAX, 5, 6, 7 }, before[N] = { 0, 512, 0, 0xfffffff0, 256, 77, 0 };
    struct lists l;
    amp_optim rule = AMP_OPTIM_INIT;
    amp_optim_tensors tensors = AMP_OPTIM_TENSORS_INIT;
    ck_ok(amp_optim_defaults(how & ADAM ? AMP_OPTIM_ADAM : AMP_OPTIM_ADAMW, &rule));
    rule.lr = 0x1p-8, rule.weight_decay = 0.01;
    fill_lists(t, how & ODD ? 1 : 0, &l);
    tensors.n = N, tensors.grad = l.grad, tensors.param = l.param, tensors.low = l.low;
    tensors.remainders = l.remainders, tensors.inv_scale = &t->inv_scale, tensors.found_inf = &t->found;
    for (int k = 0; k < 2; k++) tensors.moments[k] = l.moments[k], tensors.scales[k] = l.scales[k];
    if (how & COUNTED) tensors.steps = t->steps, tensors.n_steps = how & SHARED ? 1 : N;
    else tensors.step = number;
    if (how & KEYED) tensors.keys = keys, tensors.before = before;
    if (how & STOCHASTIC) tensors.flags = AMP_TENSORS_STOCHASTIC;
    if (on_device) ck_ok(amp_device_optim(list, device.stream, &rule, &tensors));
    else ck_ok(amp_optim_list(&rule, &tensors));
}

/* A GPU has one NaN. */
static void make_nans_alike(struct tensors *t) {
    const uint32_t nan = 0x7fc00000;
    for (int i = 0; i < N; i++)
        for (size_t e = 0; e < ROOM; e++) {
            if (isnan(t->fp32[i][e])) memcpy(&t->fp32[i][e], &nan, sizeof nan);
            if (!kinds[i].copy && (t->low[i][e] & 0x7fff) > 0x7f80) t->low[i][e] = 0x7fc0;
        }
}

static void compare(int how, int at) {
    const struct { const char *name; size_t from, to; } parts[] = {
#define PART(member) { #member, offsetof(struct tensors, member), \
                       offsetof(struct tensors, member) + sizeof there->member }
        PART(grad), PART(fp32), PART(moments), PART(scales), PART(remainder), PART(low), PART(codes), PART(steps),
#undef PART
    };
    const unsigned char *a = (void *)there, *b = (void *)here;
    device_wait();
    make_nans_alike(there), make_nans_alike(here);
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
        for (size_t i = parts[p].from; i < parts[p].to; i++)
            CHECK_THAT(a[i] == b[i], "case %d, step %d: byte %zu of %s", how, at, i - parts[p].from, parts[p].name);
}

/* Every third case of the switches, each switch on and off among them. */
TEST_TIMES(test_bytes, CASES / 3) {
    const int how = _i * 3 + _i % 3;
    random_restart();
    memset(here, 0, sizeof *here);
    here->inv_scale = 0x1p-4f;
    for (int i = 0; i < N; i++) {
        fill(PATTERN_NORMAL, AMP_FLOAT32, here->fp32[i], ROOM);
        fill(PATTERN_NORMAL, AMP_BFLOAT16, here->low[i], ROOM);
        here->steps[i] = how & SHARED ? 3 : (uint64_t)i;
    }
    memcpy(there, here, sizeof *here);
    for (int at = 0; at < STEPS; at++) {
        for (int i = 0; i < N; i++) fill(PATTERN_NORMAL, AMP_FLOAT32, here->grad[i], ROOM);
        if (at == 2) here->grad[3][1000] = INFINITY, here->grad[1][4000] = NAN; /* they lose a block each */
        here->found = at == 1;
        device_wait();
        memcpy(there->grad, here->grad, sizeof here->grad);
        there->found = here->found;
        step(here, how, (uint64_t)at + 1, false), step(there, how, (uint64_t)at + 1, true);
        compare(how, at);
    }
    ck_assert(here->scales[0][2][1] > 0.0f && (isnan(here->scales[0][3][3]) || (how & ODD)));
}

/* bf16 parameters alone by the other rules whose numbers are the CPU's to the bit. */
TEST_TIMES(test_rules, 2) {
    amp_optim rule = AMP_OPTIM_INIT;
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    random_restart();
    memset(here, 0, sizeof *here);
    fill(PATTERN_NORMAL, AMP_FLOAT32, here->grad[0], ROOM), fill(PATTERN_NORMAL, AMP_BFLOAT16, here->low[0], ROOM);
    memcpy(there, here, sizeof *here);
    ck_ok(amp_optim_defaults(_i ? AMP_OPTIM_ADAGRAD : AMP_OPTIM_SGD, &rule));
    rule.lr = 0x1p-9, rule.momentum = _i ? 0.0 : 0.875;
    t.n = 1, t.flags = AMP_TENSORS_STOCHASTIC;
    for (t.step = 1; t.step < 4; t.step++)
        for (int k = 0; k < 2; k++) {
            struct tensors *of = k ? there : here;
            const amp_span grad = { of->grad[0], LONGEST, AMP_FLOAT32, 0 };
            const amp_span param = { of->low[0], LONGEST, AMP_BFLOAT16, 0 };
            const amp_span moment = { of->moments[0][0], LONGEST, AMP_FLOAT32, 0 };
            t.grad = &grad, t.param = &param, t.moments[0] = &moment;
            if (k) ck_ok(amp_device_optim(list, device.stream, &rule, &t));
            else ck_ok(amp_optim_list(&rule, &t));
        }
    compare(0, 3);
}

TEST(test_alignment) {
    struct lists l;
    amp_optim rule = AMP_OPTIM_INIT;
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    float *scales[2];
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAM, &rule));
    fill_lists(there, 0, &l);
    t.n = 1, t.step = 1, t.grad = l.grad + 1, t.param = l.param + 1;
    for (int k = 0; k < 2; k++) {
        scales[k] = (float *)(void *)((char *)there->scales[k][1] + 1);
        t.moments[k] = l.moments[k] + 1, t.scales[k] = &scales[k];
    }
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "scales[0][0] is not aligned",
               amp_device_optim(list, device.stream, &rule, &t));
}

TEST_FIXTURE(start, stop)
