/* SPDX-License-Identifier: Apache-2.0 */
/* amp_pack against reading its input; amp_unpack against a copy that moves as many bytes as it reads and writes. */
#include "bench.h"

#include <amp_pack.h>

#include <stdio.h>

static void pack(void *data) { bench_must(amp_pack(data), "amp_pack"); }
static void unpack(void *data) { bench_must(amp_unpack(data), "amp_unpack"); }

/* Numbers of both signs, of the span's type. */
static void make_numbers(const amp_span *span) {
    enum { PIECE = 1024 };
    float piece[PIECE];
    uint32_t seed = 1;
    const size_t width = span->dtype == AMP_FLOAT32 ? 4 : 2;
    for (size_t at = 0; at < span->size; at += PIECE) {
        const amp_span from = { piece, PIECE, AMP_FLOAT32, 0 };
        const amp_span to = { (char *)span->data + at * width, PIECE, span->dtype, 0 };
        for (size_t i = 0; i < PIECE; i++) piece[i] = (float)(int32_t)(seed = seed * 1664525u + 1013904223u) * 0x1p-31f;
        bench_must(amp_cast_list(&to, &from, 1), "amp_cast_list");
    }
}

static void run(amp_dtype dtype, const char *type, size_t width, int32_t bits, size_t bytes, const char *size,
                double goal) {
    const size_t small = (size_t)amp_pack_bytes(bytes / width, bits), moved = (bytes + small) / 2 / 64 * 64;
    void *packed = bench_memory(small), *other = bench_memory(bytes);
    struct bench_floats floats = { bench_memory(bytes), bytes / 4, 1.0f };
    struct bench_move move = { other, floats.data, moved, moved };
    amp_pack_args to = AMP_PACK_ARGS_INIT;
    amp_unpack_args from = AMP_UNPACK_ARGS_INIT;
    char name[64];
    to.bits = from.bits = bits, to.packed = packed, from.packed = packed, to.seed = 1;
    to.src = from.dst = (amp_span){ floats.data, bytes / width, dtype, 0 };
    make_numbers(&to.src);
    snprintf(name, sizeof name, "pack, %s to %d bit%s", type, (int)bits, bits == 1 ? "" : "s");
    bench_run(&(struct bench_case){ .group = "pack", .name = name, .size = size, .unit = "GB/s", .bytes = (double)bytes,
                                    .ours = pack, .ours_data = &to,
                                    .reference = bench_reads[bench_best(bench_reads, bench_n_floats(), &floats)],
                                    .reference_data = &floats, .reference_name = "reading the input", .goal = goal });
    pack(&to); /* its own input is not written by now */
    snprintf(name, sizeof name, "unpack, %d bit%s to %s", (int)bits, bits == 1 ? "" : "s", type);
    bench_run(&(struct bench_case){ .group = "pack", .name = name, .size = size, .unit = "GB/s",
                                    .bytes = (double)(2 * moved), .ours = unpack, .ours_data = &from,
                                    .reference = bench_moves[bench_best(bench_moves, bench_n_moves(), &move)],
                                    .reference_data = &move, .reference_name = "a copy, as many bytes moved",
                                    .goal = goal });
    bench_release(floats.data, bytes), bench_release(other, bytes), bench_release(packed, small);
}

static void run_size(size_t bytes, const char *size, double goal) {
    for (int32_t bits = 8; bits; bits /= 2) {
        run(AMP_FLOAT32, "fp32", 4, bits, bytes, size, goal);
        run(AMP_FLOAT16, "fp16", 2, bits, bytes, size, goal);
        run(AMP_BFLOAT16, "bf16", 2, bits, bytes, size, goal);
    }
}

void bench_pack(void) { run_size((size_t)256 << 20, "256 MiB", 0.7); }
