/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate's table where oneDNN multiplies: bf16 from the measured edge on where the processor has the unit, FP32 where
 * operands would be converted, on the same machine with fewer instructions too. Who multiplies is told by
 * amp_matmul_explain.
 */
#include <amp_all.h>
#include <amp_kernels.h>

#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { EDGE = 64 };

static int ran;

static void in_fp32(float *d, const float *a, const float *b, int n) { (void)d, (void)a, (void)b, (void)n, ran = 32; }
static void in_low(float *d, const float *a, const float *b, int n) { (void)d, (void)a, (void)b, (void)n, ran = 16; }

static void (*slot)(float *, const float *, const float *, int);

/* Whether a product of `edge` runs in 16 bits under the gate, by whatever switch. */
static int runs_low(amp_level level, amp_switch gate, int edge, const char *expected_words) {
    static float matrix[EDGE * EDGE], out[EDGE * EDGE];
    char words[512];
    amp_op op = AMP_OP_INIT;
    amp_model model = AMP_MODEL_INIT, *models = &model;
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context;
    slot = in_fp32;
    op.name = "matmul";
    op.schema = "matmul(float(out a!) d[N,N], float a[N,N], float b[N,N], int32 N) -> void";
    op.flags = AMP_OP_MATMUL;
    op.slot = (amp_fn *)(void *)&slot;
    op.fp16 = op.bf16 = (amp_fn)in_low;
    model.host = amp_buffer_host();
    model.ops = &op, model.n_ops = 1;
    config.level = level;
    config.gate = gate;
    ck_ok(amp_initialize_many(&models, 1, NULL, 0, &config, &context));
    slot(out, matrix, matrix, edge);
    ck_ok(amp_explain(context, "matmul", words, sizeof words, NULL));
    ck_assert_msg(strstr(words, expected_words) && strstr(words, "products by onednn"), "\"%s\" not in: %s",
                  expected_words, words);
    ck_ok(amp_shutdown(context));
    return ran == 16;
}

static const char *how(amp_dtype type) {
    static char text[256];
    static const uint16_t nothing;
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = type;
    g.m = g.n = g.k = 256, g.a = g.b = &nothing, g.d = text, g.backend = AMP_MATMUL_ONEDNN;
    ck_ok(amp_matmul_explain(&g, text, sizeof text, NULL));
    return text;
}

TEST_TIMES(the_table_is_followed_in_both_directions, 2) {
    const amp_level level = _i ? AMP_O1 : AMP_O4;
    const char *path = how(_i ? AMP_FLOAT16 : AMP_BFLOAT16);
    for (amp_switch gate = AMP_DEFAULT; gate <= AMP_ON; gate += AMP_ON) {
        if (strstr(path, "converted")) {
            ck_assert_int_eq(runs_low(level, gate, EDGE, "always fp32 (table: onednn, converted to fp32)"), 0);
        } else if (strstr(path, "avx512_core_bf16") && !strstr(path, "amx")) {
            ck_assert_int_eq(runs_low(level, gate, 48, "bf16 from 48 (edge) on, else fp32 (table: onednn, "), 1);
            ck_assert_int_eq(runs_low(level, gate, 47, "bf16 from 48 (edge) on"), 0);
        } else if (strstr(path, "amx")) {
            ck_assert_int_eq(runs_low(level, gate, 56, "bf16 from 56 (edge) on, else fp32 (table: onednn, "), 1);
            ck_assert_int_eq(runs_low(level, gate, 55, "bf16 from 56 (edge) on"), 0);
        } else { /* not measured yet */
            ck_assert_int_eq(runs_low(level, gate, EDGE, "(nothing is known"), gate != AMP_ON);
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        printf("1..0 # SKIP %s\n", argv[1]);
        return 0;
    }
    return suite_run();
}
