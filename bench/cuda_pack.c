/* SPDX-License-Identifier: Apache-2.0 */
/* amp_device_pack and amp_device_unpack on a GPU, against copying as many bytes as they read and write. */
#include "cuda_lists.h"

#include <amp_pack.h>

#include <stdio.h>

struct packing {
    amp_device_list *list;
    amp_pack_args pack;
    amp_unpack_args unpack;
};

static void pack(void *data) {
    const struct packing *p = data;
    bench_must(amp_device_pack(p->list, bench_cuda_stream, &p->pack), "amp_device_pack");
}
static void unpack(void *data) {
    const struct packing *p = data;
    bench_must(amp_device_unpack(p->list, bench_cuda_stream, &p->unpack), "amp_device_unpack");
}

/* Numbers of both signs, a piece of them over and over. */
static void make_numbers(char *to, size_t bytes, amp_dtype dtype) {
    enum { PIECE = 1 << 16 };
    static float piece[PIECE], low[PIECE];
    uint32_t seed = 1;
    for (size_t i = 0; i < PIECE; i++) piece[i] = (float)(int32_t)(seed = seed * 1664525u + 1013904223u) * 0x1p-31f;
    const amp_span from = { piece, PIECE, AMP_FLOAT32, 0 }, into = { low, PIECE, dtype, 0 };
    bench_must(amp_cast_list(&into, &from, 1), "amp_cast_list");
    const size_t whole = PIECE * cuda_width(dtype);
    bench_cuda_write(to, low, whole < bytes ? whole : bytes);
    for (size_t done = whole; done < bytes; done *= 2)
        bench_cuda_copy(to + done, to, 2 * done < bytes ? done : bytes - done);
}

static void measure(const char *what, const char *type, int32_t bits, struct packing *p, struct bench_copies *copies) {
    const bool packs = what[0] == 'p';
    char name[64], size[32];
    if (packs) snprintf(name, sizeof name, "pack, %s to %d bit%s", type, (int)bits, bits == 1 ? "" : "s");
    else snprintf(name, sizeof name, "unpack, %d bit%s to %s", (int)bits, bits == 1 ? "" : "s", type);
    snprintf(size, sizeof size, "%.0f MB", copies->moved / 1e6);
    bench_run(&(struct bench_case){ .group = "pack", .name = name, .size = size, .unit = "GB/s",
                                    .bytes = copies->moved, .ours = packs ? pack : unpack, .ours_data = p,
                                    .reference = bench_cuda_copies, .reference_data = copies,
                                    .reference_name = "copying as many bytes", .goal = 0.7, .gpu = true });
}

static void run(amp_dtype dtype, const char *type, int32_t bits) {
    const struct bench_arena arena = bench_cuda_arena();
    const size_t group = AMP_PACK_GROUP * cuda_width(dtype), small = (size_t)amp_pack_bytes(AMP_PACK_GROUP, bits);
    const size_t groups = arena.bytes / 2 / (group + small) / 2048 * 2048 + 1;
    struct packing p = { NULL, AMP_PACK_ARGS_INIT, AMP_UNPACK_ARGS_INIT };
    struct bench_copies copies = { arena, (double)(groups * (group + small)) };
    make_numbers(arena.memory, groups * group, dtype);
    p.pack.src = p.unpack.dst = (amp_span){ arena.memory, groups * AMP_PACK_GROUP, dtype, 0 };
    p.pack.bits = p.unpack.bits = bits, p.pack.seed = 1;
    p.unpack.packed = p.pack.packed = arena.memory + groups * group;
    bench_must(amp_device_list_open((amp_device){ 2, 0 }, &p.list), "amp_device_list_open");
    measure("pack", type, bits, &p, &copies);
    make_numbers(arena.memory, groups * group, dtype); /* which the copies went over */
    pack(&p);
    measure("unpack", type, bits, &p, &copies);
    bench_cuda_wait();
    amp_device_list_close(p.list);
}

void bench_cuda_pack(void) {
    for (int32_t bits = 8; bits; bits /= 2) {
        run(AMP_FLOAT32, "fp32", bits);
        run(AMP_BFLOAT16, "bf16", bits);
    }
}
