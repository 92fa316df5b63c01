/* SPDX-License-Identifier: Apache-2.0 */
/* amp_pack and amp_unpack: checks, then the kernels, with whole groups for each thread. */
#include "amp_pack.h"
#include "kernels/device.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

#include <stdatomic.h>

_Static_assert(AMP__SUM_BLOCK % AMP_PACK_GROUP == 0, "parts are whole groups");

static bool bits_are(int32_t bits) { return bits == 8 || bits == 4 || bits == 2 || bits == 1; }

AMP_API uint64_t amp_pack_bytes(uint64_t size, int32_t bits) {
    if (!bits_are(bits) || size > PTRDIFF_MAX) return 0;
    const uint64_t bytes = (size / AMP_PACK_GROUP + (size % AMP_PACK_GROUP != 0)) * (uint64_t)(32 * bits + 4);
    return bytes <= PTRDIFF_MAX ? bytes : 0;
}

static amp_status check_packed(const amp_span *span, const char *name, int32_t bits, const void *packed,
                               struct amp__facts *facts) {
    AMP_RETURN_IF(!bits_are(bits), AMP_ERR_INVALID_ARGUMENT, "bits is %d: use 8, 4, 2 or 1", (int)bits);
    AMP_TRY(amp__spans_check(span, 1, name, facts));
    AMP_RETURN_IF(span->dtype == AMP_FLOAT64, AMP_ERR_INVALID_ARGUMENT, "%s[0].dtype is fp64: use fp32, fp16 or bf16",
                  name);
    AMP_RETURN_IF(span->size && !packed, AMP_ERR_INVALID_ARGUMENT, "packed is NULL and %s has %llu element%s", name,
                  (unsigned long long)span->size, AMP__S(span->size));
    AMP_RETURN_IF((uintptr_t)packed % 4, AMP_ERR_INVALID_ARGUMENT, "packed is not aligned to 4 bytes");
    return AMP_OK;
}

/* ---- pack ---- */

struct packing {
    struct amp__pack p;
    amp__pack_fn *kernel;
    _Atomic uint32_t seen;
};

static void pack_part(void *job, const struct amp__part *part) {
    struct packing *x = job;
    const uint32_t seen = x->kernel(&x->p, part->begin, part->end);
    if (seen) atomic_fetch_or_explicit(&x->seen, seen, memory_order_relaxed);
}

amp_status amp__pack(const amp_pack_args *a) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(check_packed(&a->src, "src", a->bits, a->packed, &facts));
    struct packing x = { { a->src.data, a->packed, (size_t)a->src.size, a->seed, a->src.dtype, a->bits },
                         amp__kernels_get()->pack, 0 };
    const amp__fpenv saved = amp__fpenv_enter();
    amp__walk(&a->src, 1, a->src.size, pack_part, &x);
    amp__fpenv_leave(saved);
    const uint32_t seen = atomic_load_explicit(&x.seen, memory_order_relaxed);
    if (seen & AMP__PACK_NONFINITE_SEEN && a->found_inf) *a->found_inf = 1.0f;
    if (seen & AMP__PACK_INEXACT && a->bits == 1 && a->inexact) *a->inexact = 1.0f;
    return AMP_OK;
}

/* ---- unpack ---- */

struct unpacking {
    struct amp__unpack u;
    amp__unpack_fn *kernel;
};

/* The caller's arguments, checked. */
static amp_status read_unpack_args(const amp_unpack_args *args, amp_unpack_args *a) {
    struct amp__facts facts = { 0, false };
    AMP_RETURN_IF(!args, AMP_ERR_INVALID_ARGUMENT, "args is NULL");
    AMP_TRY(amp__copy_struct(a, sizeof *a, sizeof *a, args, args->struct_size, "amp_unpack_args"));
    return check_packed(&a->dst, "dst", a->bits, a->packed, &facts);
}

static void unpack_part(void *job, const struct amp__part *part) {
    const struct unpacking *x = job;
    x->kernel(&x->u, part->begin, part->end);
}

AMP_API amp_status amp_unpack(const amp_unpack_args *args) {
    amp_unpack_args a;
    AMP_TRY(read_unpack_args(args, &a));
    const uint64_t bytes = a.dst.size * amp__dtype_size(a.dst.dtype) + amp_pack_bytes(a.dst.size, a.bits);
    struct unpacking x = { { a.dst.data, a.packed, (size_t)a.dst.size, a.dst.dtype, a.bits,
                             bytes > amp__cache_bytes() },
                           amp__kernels_get()->unpack };
    const amp__fpenv saved = amp__fpenv_enter();
    amp__walk(&a.dst, 1, a.dst.size, unpack_part, &x);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

/* ---- on a device ---- */

amp_status amp__device_pack(amp_device_list *list, void *stream, const amp_pack_args *a) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(check_packed(&a->src, "src", a->bits, a->packed, &facts));
    const struct amp__list_call call = { .kind = AMP__LIST_PACK, .stream = stream, .n = 1, .pack = a };
    return amp__device_run(list, &call, "amp_device_pack");
}

AMP_API amp_status amp_device_unpack(amp_device_list *list, void *stream, const amp_unpack_args *args) {
    amp_unpack_args a;
    AMP_TRY(read_unpack_args(args, &a));
    const struct amp__list_call call = { .kind = AMP__LIST_PACK, .stream = stream, .n = 1, .unpack = &a };
    return amp__device_run(list, &call, "amp_device_unpack");
}
