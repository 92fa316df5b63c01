/* SPDX-License-Identifier: Apache-2.0 */
/* duet's matrix product: each sum in one float, in order of depth. */
#include "duet.h"

#include <pthread.h>

/* BETA 0 does not read C. */
static void gemm(int TA, int TB, int M, int N, int K, float ALPHA, float *A, int lda, float *B, int ldb, float BETA,
                 float *C, int ldc) {
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++) sum += A[TA ? k * lda + i : i * lda + k] * B[TB ? j * ldb + k : k * ldb + j];
            C[i * ldc + j] = BETA != 0.0f ? BETA * C[i * ldc + j] + ALPHA * sum : ALPHA * sum;
        }
}

/* ---- threads ---- */

struct part {
    void (*body)(void *arg, int part);
    void *arg;
    int part;
};

static void *run_part(void *self) {
    const struct part *part = self;
    part->body(part->arg, part->part);
    return NULL;
}

/* One thread a part, as long as it lasts; where none is to be had the caller does the work. */
static void parallel(void (*body)(void *arg, int part), void *arg, int parts) {
    enum { MOST = 8 };
    pthread_t threads[MOST];
    struct part list[MOST];
    int started[MOST];
    if (parts > MOST) parts = MOST;
    for (int i = 0; i < parts; i++) {
        list[i] = (struct part){ body, arg, i };
        started[i] = !pthread_create(&threads[i], NULL, run_part, &list[i]);
        if (!started[i]) run_part(&list[i]);
    }
    for (int i = 0; i < parts; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}

const duet_blas duet_default_blas = { gemm, parallel };
