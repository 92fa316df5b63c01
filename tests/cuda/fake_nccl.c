/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_nccl.h"

#include "kernels/ref/convert.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { SUM = 0, MAX = 2, FLOAT16 = 6, FLOAT32 = 7, FLOAT64 = 8, BFLOAT16 = 9, CHUNK = 4096, QUEUE = 64 };

EXPORT struct fake_nccl amp_fake_nccl = { .ranks = 2, .socket = -1 };
#define F amp_fake_nccl

#define CALLED()                                                                                                       \
    do {                                                                                                               \
        F.on_wrong_device += F.current && *F.current != F.device;                                                      \
        if (++F.calls == F.fail_at) return F.fail_with;                                                                \
    } while (0)

/* ---- the other rank ---- */

static void give_up(const char *why) {
    fprintf(stderr, "fake NCCL, rank %d: %s\n", F.rank, why);
    abort();
}

static void all(ssize_t (*move)(int, char *, size_t), char *bytes, size_t n) {
    while (n) {
        const ssize_t moved = move(F.socket, bytes, n);
        if (moved <= 0) give_up("the other rank is gone");
        bytes += moved, n -= (size_t)moved;
    }
}
static ssize_t give(int socket, char *bytes, size_t n) { return write(socket, bytes, n); }
static ssize_t take(int socket, char *bytes, size_t n) { return read(socket, bytes, n); }

/* In turn, and never more than a socket holds: neither waits for the other to read. */
EXPORT void amp_fake_nccl_swap(void *given, size_t n) {
    char *bytes = given, other[CHUNK];
    for (size_t at = 0; at < n && F.socket >= 0; at += CHUNK) {
        const size_t now = n - at < CHUNK ? n - at : CHUNK;
        if (F.rank == 0) all(give, bytes + at, now);
        all(take, other, now);
        if (F.rank != 0) all(give, bytes + at, now);
        memcpy(bytes + at, other, now);
    }
}

/* ---- work ---- */

struct reduction {
    const void *from;
    void *to;
    size_t count;
    int type, operation;
    const void *stream;
};

static size_t width(int type) { return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2; }

static double load(int type, const void *at) {
    uint16_t bits = 0;
    float single = 0.0f;
    double wide = 0.0;
    memcpy(type == FLOAT64 ? (void *)&wide : type == FLOAT32 ? (void *)&single : (void *)&bits, at, width(type));
    if (type == FLOAT64) return wide;
    if (type == FLOAT32) return (double)single;
    return (double)(type == FLOAT16 ? amp__f16_to_f32(bits) : amp__bf16_to_f32(bits));
}

static void store(int type, void *at, double value) {
    const float single = (float)value;
    const uint16_t bits = type == FLOAT16 ? amp__f32_to_f16(single) : amp__f32_to_bf16(single);
    if (type == FLOAT64) memcpy(at, &value, sizeof value);
    else if (type == FLOAT32) memcpy(at, &single, sizeof single);
    else memcpy(at, &bits, sizeof bits);
}

/* 16-bit types are added in FP32 and rounded once; what a float holds is added in double and rounded as if once. */
static double combine(const struct reduction *work, double a, double b) {
    if (work->operation == MAX) return a > b ? a : b;
    return work->type == FLOAT64 ? a + b : (double)(float)(a + b);
}

static void run(const void *given) {
    const struct reduction *work = given;
    const size_t bytes = work->count * width(work->type);
    uint64_t header[3] = { work->count, (uint64_t)work->type, (uint64_t)work->operation }, other[3];
    char *theirs = malloc(bytes + 1);
    if (!theirs) give_up("out of memory");
    memcpy(other, header, sizeof header);
    amp_fake_nccl_swap(other, sizeof other);
    if (memcmp(header, other, sizeof header) != 0) give_up("the other rank reduces something else");
    memcpy(theirs, work->from, bytes);
    for (size_t i = 0; i < work->count && work->type == FLOAT32; i++)
        F.unwritten += !memcmp(theirs + 4 * i, "\xa5\xa5\xa5\xa5", 4);
    amp_fake_nccl_swap(theirs, bytes);
    for (size_t i = 0; i < work->count && F.ranks > 1; i++) {
        const size_t at = i * width(work->type);
        const double mine = load(work->type, (const char *)work->from + at), their = load(work->type, theirs + at);
        store(work->type, (char *)work->to + at,
              F.rank == 0 ? combine(work, mine, their) : combine(work, their, mine));
    }
    if (F.written) F.written(work->to, bytes);
    free(theirs);
}

static struct reduction queue[QUEUE];
static int queued;

static void start(void) {
    for (int i = 0; i < queued; i++) F.work_on(queue[i].stream, run, &queue[i], sizeof queue[i]);
    F.sent += queued;
    queued = 0;
}

/* ---- as nccl.h has them ---- */

EXPORT int ncclGetVersion(int *version);
EXPORT int ncclGetVersion(int *version) {
    CALLED();
    *version = F.version ? F.version : 22809;
    return SUCCESS;
}
EXPORT const char *ncclGetErrorString(int result);
EXPORT const char *ncclGetErrorString(int result) { return result ? "an error of the fake NCCL" : "no error"; }
EXPORT int ncclCommCount(void *comm, int *count);
EXPORT int ncclCommCount(void *comm, int *count) {
    CALLED();
    *count = F.ranks;
    return comm == &F ? SUCCESS : INVALID_ARGUMENT;
}
EXPORT int ncclCommCuDevice(void *comm, int *device);
EXPORT int ncclCommCuDevice(void *comm, int *device) {
    CALLED();
    *device = F.device;
    return comm == &F ? SUCCESS : INVALID_ARGUMENT;
}
EXPORT int ncclCommGetAsyncError(void *comm, int *error);
EXPORT int ncclCommGetAsyncError(void *comm, int *error) {
    CALLED();
    *error = F.async_error;
    return comm == &F ? SUCCESS : INVALID_ARGUMENT;
}
EXPORT int ncclGroupStart(void);
EXPORT int ncclGroupStart(void) {
    CALLED();
    F.open++;
    return SUCCESS;
}
EXPORT int ncclGroupEnd(void);
EXPORT int ncclGroupEnd(void) {
    F.open--;
    F.groups++;
    if (F.open == 0) start();
    CALLED();
    return F.open < 0 ? INVALID_USAGE : SUCCESS;
}
EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream);
EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
    CALLED();
    if (comm != &F || !stream || queued == QUEUE || type < FLOAT16 || type > BFLOAT16) return INVALID_ARGUMENT;
    if (operation != SUM && operation != MAX) return INVALID_ARGUMENT;
    queue[queued++] = (struct reduction){ from, to, count, type, operation, stream };
    if (F.open == 0) start();
    return SUCCESS;
}
