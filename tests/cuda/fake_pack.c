/* SPDX-License-Identifier: Apache-2.0 */
/* pack.cu on the fake device: groups one after the other. */
#include "fake_work.h"

#include "kernels/cuda/pack.h"

static void pack_mask(const struct cuda_pack *p, uint64_t group, float x[][CUDA_PACK_ITEMS],
                      const struct cuda_pack_seen *all) {
    uint32_t masks[CUDA_PACK_PAIRS], inexact = cuda_pack_nonfinite(all);
    for (uint32_t pair = 0; pair < CUDA_PACK_PAIRS; pair++) {
        float least;
        masks[pair] = cuda_pack_mask(x[pair], &least);
        inexact |= masks[pair] && least != all->max;
    }
    for (uint32_t w = 0; w < CUDA_PACK_PAIRS; w++) cuda_pack_codes(p, 1, group)[w] = cuda_pack_gather(masks, w);
    *cuda_pack_header(p, 1, group) = cuda_pack_mask_header(all);
    if (p->inexact && inexact) *p->inexact = 1.0f;
}

static void run_pack(const void *given) {
    const struct cuda_pack *p = given;
    for (uint64_t group = cuda_pack_groups(p); group-- > 0;) {
        const uint32_t left = cuda_pack_left(p, group);
        const bool whole = left == AMP__PACK_GROUP && cuda_pack_aligned(p);
        float x[CUDA_PACK_PAIRS][CUDA_PACK_ITEMS];
        struct cuda_pack_seen all = cuda_pack_nothing();
        for (uint32_t pair = 0; pair < CUDA_PACK_PAIRS; pair++) {
            const struct cuda_pack_seen mine = cuda_pack_load(x[pair], p, p->type, group, 2 * pair, left, whole);
            cuda_pack_see(&all, mine.min, mine.max);
        }
        if (p->found_inf && cuda_pack_nonfinite(&all)) *p->found_inf = 1.0f;
        if (p->bits == 1) pack_mask(p, group, x, &all);
        for (uint32_t pair = 0; pair < CUDA_PACK_PAIRS && p->bits != 1; pair++)
            cuda_pack_pair(p, (int)p->bits, left, group, 2 * pair, x[pair], &all);
    }
}

static void run_unpack(const void *given) {
    const struct cuda_pack *p = given;
    for (uint64_t group = cuda_pack_groups(p); group-- > 0;)
        for (uint32_t lane = 0; lane < AMP__PACK_LANES; lane++) {
            float x[AMP__PACK_ROWS];
            if (p->bits == 1) cuda_unpack_mask(x, p, p->type, group, lane);
            else cuda_unpack_lane(x, p, p->type, (int)p->bits, group, lane);
            cuda_unpack_store(x, p, p->type, group * AMP__PACK_GROUP + lane, cuda_pack_rows(p, group, lane));
        }
}

static cudaError_t launch(const struct cuda_pack *p, cudaStream_t stream, fake_work_fn *run) {
    if (!p->size) return cudaSuccess;
    fake_on_stream(stream);
    amp_fake_cuda.launches++;
    const cudaError_t error = fake_called();
    if (error == cudaSuccess) fake_work(run, p, sizeof *p);
    return error;
}

cudaError_t cuda_launch_pack(const struct cuda_pack *p, cudaStream_t stream) { return launch(p, stream, run_pack); }
cudaError_t cuda_launch_unpack(const struct cuda_pack *p, cudaStream_t stream) { return launch(p, stream, run_unpack); }
