/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of the implementation of a matmul: args->backend, else AMP_MATMUL_BACKEND in the environment, else the
 * size. A call of a backend costs some microseconds before it computes, in which the built-in code finishes a small
 * product. The first product large enough for a backend loads it.
 */
#include "kernels/matmul.h"
#include "common/common.h"
#include "kernels/backend.h"
#include "kernels/fpenv.h"
#include "system/system.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the environment, read once ---- */

static int32_t wanted_by_environment; /* AMP_MATMUL_... */
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

bool amp__matmul_read_backend(const char *name, int32_t *backend) {
    static const struct {
        const char *name;
        int32_t backend;
    } names[] = { { "auto", AMP_MATMUL_AUTO }, { "builtin", AMP_MATMUL_BUILTIN }, { "onednn", AMP_MATMUL_ONEDNN } };
    *backend = AMP_MATMUL_AUTO;
    for (size_t i = 0; name && i < AMP_COUNT(names); i++)
        if (!strcmp(name, names[i].name)) return *backend = names[i].backend, true;
    return false;
}

static void read_environment(void) {
    (void)amp__matmul_read_backend(amp__trusted_getenv("AMP_MATMUL_BACKEND"), &wanted_by_environment);
}

/* ---- the decision ---- */

/*
 * The least m * n * k * batch that goes to a backend. Measured: docs/internals/backends.md. Below, the built-in code is
 * as fast where the shape was seen before; the first product of a shape takes oneDNN much longer.
 */
#define LEAST_PRODUCTS (32.0 * 32.0 * 32.0)

struct choice {
    const struct amp__backend *backend; /* NULL: the built-in code */
    bool required;                      /* by the caller: no falling back */
    amp_status status;                  /* of a required backend that cannot be had */
    char why[160];
};

static void choose_backend(const amp_matmul_args *g, struct choice *choice) {
    pthread_once(&environment_once, read_environment);
    const bool by_environment = g->backend == AMP_MATMUL_AUTO && wanted_by_environment != AMP_MATMUL_AUTO;
    const int32_t wanted = by_environment ? wanted_by_environment : g->backend;
    const double products = (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
    amp__text why = { choice->why, sizeof choice->why, 0 };
    *choice = (struct choice){ NULL, g->backend == AMP_MATMUL_ONEDNN, AMP_OK, "" };
    if (wanted == AMP_MATMUL_BUILTIN) {
        amp__text_add(&why, by_environment ? "AMP_MATMUL_BACKEND says so" : "the caller says so");
    } else if (products == 0.0 || g->alpha == 0.0f) {
        amp__text_add(&why, "there is nothing to multiply");
    } else if (wanted == AMP_MATMUL_AUTO && products < LEAST_PRODUCTS) {
        amp__text_add(&why, "%.0f multiplications are fewer than the %.0f from which on a backend is faster", products,
                      LEAST_PRODUCTS);
    } else {
        choice->backend = amp__backend_get(AMP__BACKEND_onednn, choice->required ? &choice->status : NULL);
        if (choice->backend && !choice->backend->matmul) {
            choice->backend = NULL;
            if (choice->required)
                choice->status = amp__fail(AMP_ERR_UNSUPPORTED, "matmul: this backend onednn has no matmul");
        }
        if (!choice->backend) amp__text_add(&why, "backend onednn is not there; amp_backend_load(\"onednn\") says why");
    }
}

/* Nothing was written, so that the built-in code can still do it. */
static bool may_fall_back(amp_status status) { return status == AMP_ERR_UNSUPPORTED || status == AMP_ERR_NO_MEMORY; }

bool amp__matmul_offload(const amp_matmul_args *g, amp_status *status) {
    struct choice choice;
    choose_backend(g, &choice);
    *status = choice.status;
    if (!choice.backend) return choice.status != AMP_OK;
    *status = choice.backend->matmul(g, amp__matmul_threads(g));
    return *status == AMP_OK || choice.required || !may_fall_back(*status);
}

/* ---- for the gate ---- */

/* The widest instruction set that is in use. */
static const char *own_unit(void) {
    static const struct {
        uint32_t flag;
        const char *name;
    } sets[] = {
        { AMP_CPU_AVX512, "avx512" }, { AMP_CPU_AVX2, "avx2" }, { AMP_CPU_SSE2, "sse2" }, { AMP_CPU_NEON, "neon" }
    };
    const uint32_t flags = amp_cpu_flags();
    for (size_t i = 0; i < AMP_COUNT(sets); i++)
        if (flags & sets[i].flag) return sets[i].name;
    return "scalar";
}

void amp__matmul_unit(amp_dtype type, const char **who, const char **unit) {
    const amp_matmul_args large = { .a_dtype = type, .b_dtype = type, .d_dtype = type, .m = 256, .n = 256, .k = 256,
                                    .batch = 1, .alpha = 1.0f };
    struct choice choice;
    choose_backend(&large, &choice);
    *who = choice.backend ? choice.backend->name : "built-in";
    if (!choice.backend) *unit = own_unit();
    else *unit = choice.backend->matmul_unit ? choice.backend->matmul_unit(type) : NULL;
}

/* ---- in words ---- */

static amp_status explain_choice(const amp_matmul_args *args, amp__text *text) {
    amp_matmul_args g;
    struct choice choice;
    char how[256] = "";
    AMP_TRY(amp__matmul_read(&g, args));
    if (g.device.type == AMP__DEVICE_CUDA) return amp__device_matmul(&g, text);
    choose_backend(&g, &choice);
    AMP_TRY(choice.status);
    if (choice.backend && choice.backend->matmul_explain) {
        const amp_status status = choice.backend->matmul_explain(&g, amp__matmul_threads(&g), how, sizeof how);
        if (status == AMP_OK) {
            amp__text_add(text, "%s", how);
            return AMP_OK;
        }
        if (choice.required || !may_fall_back(status)) return status;
        amp__text_add(text, "built-in: %s", amp_last_error());
        return AMP_OK;
    }
    if (choice.backend) amp__text_add(text, "%s", choice.backend->name);
    else amp__text_add(text, "built-in: %s", choice.why);
    return AMP_OK;
}

AMP_API amp_status amp_matmul_explain(const amp_matmul_args *args, char *text, size_t capacity, size_t *length) {
    AMP_RETURN_IF(!args, AMP_ERR_INVALID_ARGUMENT, "matmul: args is NULL");
    AMP_RETURN_IF(!text && capacity, AMP_ERR_INVALID_ARGUMENT, "amp_matmul_explain: text is NULL");
    amp__text words = { text, capacity, 0 };
    const amp__fpenv saved = amp__fpenv_enter();
    const amp_status status = explain_choice(args, &words);
    amp__fpenv_leave(saved);
    if (status == AMP_OK && length) *length = words.length;
    return status;
}
