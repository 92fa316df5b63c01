/* SPDX-License-Identifier: Apache-2.0 */
#include "packing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor as it was, for all nodes that keep it. */
struct packed {
    struct packed *next;
    int refs, bits;
    uint64_t id, version;
    mt_dtype dtype;
    int ndim, shape[MT_MAX_DIMS];
    mt_storage *block; /* an activation's, as the tensor's own: minitape counts it */
};

enum { SMALLEST = 256 }; /* elements of a group: shorter tensors would take as much */

static amp_span span_of(const mt_tensor *tensor) {
    const amp_dtype dtype = tensor->dtype == MT_F16    ? AMP_FLOAT16
                            : tensor->dtype == MT_BF16 ? AMP_BFLOAT16
                                                       : AMP_FLOAT32;
    return (amp_span){ tensor->storage->data, mt_numel(tensor), dtype, 0 };
}

static int fail(const char *what) {
    fprintf(stderr, "packing: %s\n", what);
    return -1;
}

static struct packed *find(const struct packing *packing, const mt_tensor *tensor) {
    for (struct packed *p = packing->alive; p; p = p->next)
        if (p->id == tensor->id && p->version == tensor->version) return p;
    return NULL;
}

static void drop(void *user, void *given) {
    struct packing *packing = user;
    struct packed *p = given, **at = &packing->alive;
    if (--p->refs) return;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    mt_storage_free(p->block);
    free(p);
}

/* An infinity or a NaN must reach the gradients as it is: such tensors are kept. */
static int fill(struct packing *packing, const mt_tensor *tensor, struct packed *p) {
    amp_pack_args args = AMP_PACK_ARGS_INIT;
    float found_inf = 0.0F;
    args.src = span_of(tensor);
    args.bits = p->bits;
    args.seed = packing->seed++;
    args.packed = p->block->data;
    args.found_inf = &found_inf;
    args.context = packing->context;
    if (amp_pack(&args) != AMP_OK) return fail(amp_last_error());
    return found_inf != 0.0F;
}

static int pack(void *user, mt_tensor *tensor, void **packed) {
    struct packing *packing = user;
    struct packed *p = find(packing, tensor);
    *packed = p;
    if (p) return p->refs++, 0;
    if (tensor->storage->device != MT_CPU || mt_numel(tensor) < SMALLEST) return 0;
    p = calloc(1, sizeof *p);
    if (!p) return fail("out of memory");
    *p = (struct packed){ NULL, 1, packing->bits, tensor->id, tensor->version, tensor->dtype, tensor->ndim, { 0 },
                          NULL };
    memcpy(p->shape, tensor->shape, sizeof p->shape);
    p->block = mt_storage_new((size_t)amp_pack_bytes(mt_numel(tensor), p->bits), MT_MEM_ACTIVATION);
    const int kept = p->block ? fill(packing, tensor, p) : fail(mt_error());
    if (kept) {
        drop(packing, p);
        return kept < 0 ? -1 : 0;
    }
    p->next = packing->alive;
    packing->alive = p;
    *packed = p;
    return 0;
}

static mt_tensor *unpack(void *user, void *packed) {
    const struct packed *p = packed;
    amp_unpack_args args = AMP_UNPACK_ARGS_INIT;
    mt_tensor *tensor = mt_tensor_new(p->dtype, p->ndim, p->shape, MT_MEM_ACTIVATION);
    (void)user;
    if (!tensor) return NULL;
    args.dst = span_of(tensor);
    args.bits = p->bits;
    args.packed = p->block->data;
    if (amp_unpack(&args) == AMP_OK) return tensor;
    fail(amp_last_error());
    mt_release(tensor);
    return NULL;
}

void packing_begin(struct packing *packing, int bits, uint64_t seed, amp_context *context) {
    *packing = (struct packing){ bits, seed << 32, context, NULL };
    mt_set_saver(&(const mt_saver){ packing, pack, unpack, drop });
}

void packing_end(void) { mt_set_saver(NULL); }
