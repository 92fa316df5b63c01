/* SPDX-License-Identifier: Apache-2.0 */
/* FP32 masters: kept equal to the parameter up to rounding, and lent to the host's optimizer for the time of a step. */
#include "kernels/kernels.h"
#include "kernels/walk.h"
#include "master/grad.h"

#include <stdatomic.h>
#include <string.h>

static uint64_t version_of(const struct amp__param *param) {
    return param->host->version ? param->host->version(param->host->self, param->tensor) : 0;
}

/* Two 16-bit values are the same if their bits are, or if both are NaN. */
static bool same(uint16_t a, uint16_t b, amp_dtype dtype) {
    const uint16_t infinity = dtype == AMP_FLOAT16 ? 0x7c00 : 0x7f80;
    return a == b || ((a & 0x7fff) > infinity && (b & 0x7fff) > infinity);
}

enum { BLOCK = 1024 };

/* dst (fp32) := src (16-bit) wherever dst rounded is not src. */
static amp_status reconcile_block(float *dst, const uint16_t *src, uint64_t size, amp_dtype dtype) {
    uint16_t rounded[BLOCK];
    float widened[BLOCK];
    const amp_span low = { rounded, size, dtype, 0 }, wide = { widened, size, AMP_FLOAT32, 0 };
    const amp_span master = { dst, size, AMP_FLOAT32, 0 };
    uint16_t source[BLOCK];
    memcpy(source, src, size * sizeof *source);
    const amp_span param = { source, size, dtype, 0 };
    AMP_TRY(amp_cast_list(&low, &master, 1));
    AMP_TRY(amp_cast_list(&wide, &param, 1));
    for (uint64_t i = 0; i < size; i++)
        if (!same(rounded[i], source[i], dtype)) dst[i] = widened[i];
    return AMP_OK;
}

amp_status amp__reconcile(float *master, const uint16_t *low, uint64_t size, amp_dtype dtype) {
    for (uint64_t i = 0; i < size; i += BLOCK)
        AMP_TRY(reconcile_block(master + i, low + i, size - i < BLOCK ? size - i : BLOCK, dtype));
    return AMP_OK;
}

amp_status amp__param_elements(const struct amp__param *param, struct amp__elements *now) {
    AMP_TRY(amp__param_block(param, param->tensor, param->name, now));
    return amp__param_check(param, now);
}

static amp_status check_as(const struct amp__param *param, const struct amp__elements *now, amp_dtype dtype) {
    AMP_RETURN_IF(now->size != param->size || now->dtype != dtype, AMP_ERR_WRONG_STATE,
                  "%s changed from %llu %s to %llu %s elements behind libamp's back: change its values, not its "
                  "storage",
                  param->name, (unsigned long long)param->size, amp__dtype_name(dtype), (unsigned long long)now->size,
                  amp__dtype_name(now->dtype));
    return AMP_OK;
}

amp_status amp__param_check(const struct amp__param *param, const struct amp__elements *now) {
    return check_as(param, now, param->dtype);
}

static bool misses_writes(const struct amp__param *param) {
    return (param->host->flags & AMP_HOST_VERSION_MISSES_WRITES) && param->has_master && !param->emulated &&
           !param->on_device && !amp__is_split(param);
}

/* ---- writes without a new version ---- */

enum { PIECE = 8192 }; /* elements of a block that stay in the first cache, the FP32 ones beside them too */

/* A pass over a parameter's elements that sums them. */
struct pass {
    char *elements;
    size_t width;       /* of an element */
    const float *fp32;  /* NULL: the elements as they are, else these rounded to them first */
    amp__cast_fn *cast; /* from fp32 */
    bool stream;        /* elements go past the caches */
    _Atomic uint64_t sum;
};

/* Threads add the sums of blocks in any order, so that a block's sum depends on its place. */
static uint64_t sum_block(const struct pass *pass, size_t begin, size_t end) {
    char rounded[PIECE * sizeof(uint16_t)]; /* what has a master has 16 bits */
    uint64_t sum = begin;
    for (size_t at = begin; at < end; at += PIECE) {
        const size_t n = end - at < PIECE ? end - at : PIECE, bytes = n * pass->width;
        char *const to = pass->elements + at * pass->width, *const seen = pass->stream ? rounded : to;
        if (pass->fp32) pass->cast(seen, pass->fp32 + at, n);
        sum = amp__sum64(sum, seen, bytes);
        if (pass->stream) amp__kernels_get()->cast_stream[AMP_FLOAT16][AMP_FLOAT16](to, seen, n); /* any 16 bits */
    }
    return sum;
}

static void sum_part(void *job, const struct amp__part *part) {
    struct pass *pass = job;
    uint64_t sum = 0;
    for (size_t at = part->begin; at < part->end; at += AMP__SUM_BLOCK)
        sum += sum_block(pass, at, part->end - at < AMP__SUM_BLOCK ? part->end : at + AMP__SUM_BLOCK);
    atomic_fetch_add_explicit(&pass->sum, sum, memory_order_relaxed);
}

static uint64_t run_pass(struct pass *pass, const struct amp__param *param) {
    const amp_span span = { pass->elements, param->size, param->dtype, 0 };
    pass->width = amp__dtype_size(param->dtype);
    amp__walk(&span, 1, param->size, sum_part, pass);
    return pass->sum;
}

static uint64_t sum_of(const struct amp__param *param, const void *elements) {
    struct pass pass = { .elements = (char *)(uintptr_t)elements };
    return run_pass(&pass, param);
}

void amp__master_agrees(struct amp__param *param, const void *elements) {
    param->master.version = version_of(param);
    if (misses_writes(param)) param->master.sum = sum_of(param, elements);
}

/* Rounds the master to the elements and sums them in one pass through memory. */
static void round_and_sum(struct amp__param *param, void *elements) {
    const uint64_t bytes = param->size * (sizeof(float) + amp__dtype_size(param->dtype));
    struct pass pass = { .elements = elements, .fp32 = param->master.fp32.data, .stream = bytes > amp__cache_bytes() };
    pass.cast = amp__kernels_get()->cast[param->dtype][AMP_FLOAT32];
    param->master.version = version_of(param);
    param->master.sum = run_pass(&pass, param);
}

/* Returns true if the elements were written without a new version. */
static bool was_missed(struct amp__param *param, const void *elements) {
    const bool missed = sum_of(param, elements) != param->master.sum;
    param->missed |= missed;
    return missed;
}

amp_status amp__masters_found(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (params[i]->missed || (misses_writes(params[i]) && version_of(params[i]) != params[i]->master.version))
            AMP_TRY(amp__master_reconcile(params[i], false));
    return AMP_OK;
}

amp_status amp__master_reconcile(struct amp__param *param, bool always) {
    if (!param->has_master || param->lent.steps) return AMP_OK;
    AMP_TRY(amp__master_settle(param));
    const uint64_t version = version_of(param);
    if (amp__split_is_parted(param)) { /* the parameter's own bits are the master's */
        param->master.may_differ = false;
        param->master.version = version;
        return AMP_OK;
    }
    /* where it is emulated, a look costs little beside that */
    always |= param->master.may_differ || (param->emulated && !param->host->version);
    always |= version != param->master.version;
    if (!always && !misses_writes(param)) return AMP_OK;
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (!always && !was_missed(param, now.data)) return AMP_OK;
    const amp_span master = { param->master.fp32.data, param->size, AMP_FLOAT32, 0 };
    const amp_span low = { now.data, param->size, param->dtype, 0 };
    if (param->emulated) AMP_TRY(amp__emulated_reconcile(param, now.data));
    else if (param->on_device) AMP_TRY(amp__param_add(param, AMP__WORK_RECONCILE, &master, &low));
    else AMP_TRY(amp__reconcile(param->master.fp32.data, now.data, param->size, param->dtype));
    param->master.may_differ = false;
    amp__master_agrees(param, now.data);
    return AMP_OK;
}

amp_status amp__master_write_back(struct amp__param *param) {
    struct amp__elements now;
    if (param->master.may_differ) return AMP_OK; /* the parameter has values unknown to the master, and there was no
                                                    step */
    AMP_TRY(amp__param_elements(param, &now));
    amp__master_round(param, now.data);
    return AMP_OK;
}

void amp__master_round(struct amp__param *param, void *elements) {
    if (param->emulated) {
        amp__emulated_show(param, elements);
        return;
    }
    if (amp__is_split(param)) {
        if (!amp__split_is_parted(param)) amp__master_split(param, elements);
        param->master.version = version_of(param);
        return;
    }
    if (misses_writes(param)) {
        round_and_sum(param, elements);
        return;
    }
    const amp_span dst = { elements, param->size, param->dtype, 0 };
    const amp_span src = { param->master.fp32.data, param->size, AMP_FLOAT32, 0 };
    const amp_status status = amp__param_copy(param, AMP__WORK_WRITE_BACK, &dst, &src);
    (void)status; /* it fails only on spans that are none: on a device there is room */
    amp__master_agrees(param, elements);
}

void amp__master_stepped(struct amp__param *param, void *elements) {
    if (param->emulated) amp__emulated_show(param, elements);
    amp__master_agrees(param, elements);
}

/* ---- lending ---- */

/* Exchanges the parameter's storage with the one beside it. A block that cannot be it is given back. */
static amp_status exchange(struct amp__param *param, amp_dtype now_beside) {
    AMP_TRY(amp__param_swap(param, &param->master.fp32));
    const uint64_t bytes = param->master.fp32.bytes, least = param->size * amp__dtype_size(now_beside);
    if (bytes && bytes < least) {
        (void)amp__param_swap(param, &param->master.fp32);
        return amp__fail(AMP_ERR_WRONG_STATE, "%s: the host's hook swap_data returned a block of %llu byte%s instead "
                         "of the %llu that were there: change a parameter's values, not its storage", param->name,
                         (unsigned long long)bytes, AMP__S(bytes), (unsigned long long)least);
    }
    param->master.fp32.dtype = now_beside;
    return AMP_OK;
}

/* A handle with gaps keeps its strides, so the block put under it has the same gaps. */
static amp_status lend_spread(struct amp__param *param, void *grad, const struct amp__elements *shown) {
    amp_storage block;
    AMP_TRY(
        amp__host_alloc(param->host, amp__strides_reach(shown), AMP_FLOAT32, param->device, AMP_FOR_GRADIENT, &block));
    struct amp__elements wide = *shown;
    wide.data = block.data;
    wide.dtype = AMP_FLOAT32;
    memset(block.data, 0, (size_t)amp__strides_reach(shown) * sizeof(float));
    amp__strides_scatter(&wide, param->gradient.master.data);
    param->gradient.lent = block;
    param->gradient.with_gaps = block;
    const amp_dtype dtype = shown->dtype;
    const amp_status status = amp__host_swap(param->host, grad, param->name, &param->gradient.with_gaps);
    if (status != AMP_OK) {
        param->gradient.with_gaps = (amp_storage){ 0 };
        amp__host_free(param->host, &block);
        return status;
    }
    param->gradient.with_gaps.dtype = dtype;
    param->lent.grad = grad;
    return AMP_OK;
}

/* The FP32 gradient is back. The optimizer may have written to it. */
static amp_status show_grad(struct amp__param *param) {
    return param->lent.unused ? AMP_OK : amp__grads_show(param, false);
}

static amp_status take_spread_back(struct amp__param *param, void *now) {
    struct amp__elements wide;
    if (now == param->lent.grad) {
        AMP_TRY(amp__host_layout(param->host, now, param->name, &wide));
        if (wide.strides && wide.size == param->size && wide.dtype == AMP_FLOAT32)
            amp__strides_gather(param->gradient.master.data, &wide);
        AMP_TRY(amp__host_swap(param->host, now, param->name, &param->gradient.with_gaps));
        amp__host_free(param->host, &param->gradient.with_gaps);
        param->lent.grad = NULL;
        return show_grad(param);
    }
    param->lent.grad = NULL; /* the handle is gone: as below, but that `gradient.master` never left */
    if (!amp__host_owns_memory(param->host)) param->gradient.with_gaps = param->gradient.lent;
    amp__host_free(param->host, &param->gradient.with_gaps);
    param->gradient.handle = NULL;
    return AMP_OK;
}

/* The gradient handle shows the FP32 gradient while the step runs. */
static amp_status lend_grad(struct amp__param *param) {
    amp_span exact, shown;
    struct amp__elements spread;
    AMP_TRY(amp__grads_look(param, &exact, &shown));
    if (!exact.data || exact.data != param->gradient.master.data) return AMP_OK;
    void *grad = param->gradient.handle;
    if (param->gradient.gaps) {
        AMP_TRY(amp__host_layout(param->host, grad, param->name, &spread));
        return lend_spread(param, grad, &spread);
    }
    const amp_storage lent = param->gradient.master;
    AMP_TRY(amp__host_swap(param->host, grad, param->name, &param->gradient.master));
    param->gradient.lent = lent;
    param->gradient.master.dtype = shown.dtype;
    param->lent.grad = grad;
    return AMP_OK;
}

/* The host may have dropped or replaced its gradient during the step, with the lent block in its handle. Until the
 * block is back, lent.grad says so. */
static amp_status take_grad_back(struct amp__param *param) {
    void *grad = param->lent.grad;
    if (!grad) return AMP_OK;
    void *now;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &now));
    if (param->gradient.with_gaps.data) return take_spread_back(param, now);
    if (now == grad) {
        AMP_TRY(amp__host_swap(param->host, grad, param->name, &param->gradient.master));
        param->lent.grad = NULL;
        param->gradient.master.dtype = AMP_FLOAT32;
        return show_grad(param);
    }
    param->lent.grad = NULL;
    /* `gradient.master` is the 16-bit block that was there. A host with free has freed the lent one with its handle;
     * without it each side keeps the blocks it made: the lent one comes back to us, the other is the host's. */
    if (amp__host_owns_memory(param->host)) amp__param_free(param, &param->gradient.master);
    else param->gradient.master = param->gradient.lent;
    param->gradient.handle = NULL;
    return AMP_OK;
}

amp_status amp__master_swap_in(struct amp__param *param) {
    if (!param->has_master && !param->emulated) return AMP_OK;
    if (param->lent.steps) {
        param->lent.steps++;
        return AMP_OK;
    }
    AMP_TRY(amp__master_reconcile(param, false));
    if (param->master.held_by_host) {
        param->lent.steps = 1;
        return AMP_OK;
    }
    if (param->emulated) {
        AMP_TRY(amp__emulated_lend(param));
    } else {
        AMP_TRY(lend_grad(param));
        const bool whole = !amp__split_is_parted(param);
        amp_status status = amp__master_join(param);
        if (status == AMP_OK) status = exchange(param, param->dtype);
        param->master.spent = !whole; /* until a step has run on it */
        if (status != AMP_OK) {
            param->lent.unused = !param->host->version;
            (void)amp__master_settle_now(param);
            return status;
        }
    }
    param->lent.steps = 1;
    return AMP_OK;
}

static amp_status take_back(struct amp__param *param) {
    param->lent.stuck = true;
    const amp_status status = amp__master_settle(param);
    /* once more, before the host drops the storage under its handles */
    if (status != AMP_OK) (void)amp__master_settle(param);
    return status;
}

amp_status amp__master_swap_out(struct amp__param *param) {
    if (!param->lent.steps || --param->lent.steps) return AMP_OK;
    param->master.spent = false;
    return param->master.held_by_host ? amp__master_write_back(param) : take_back(param);
}

void amp__master_swap_undo(struct amp__param *param) {
    struct amp__elements now;
    if (!param->lent.steps || --param->lent.steps || param->master.held_by_host) return;
    if (!param->emulated) {
        param->lent.unused = !param->host->version || amp__is_split(param);
        (void)take_back(param);
    } else if (!param->master.may_differ && amp__param_elements(param, &now) == AMP_OK) {
        amp__emulated_show(param, now.data);
    }
}

static amp_status take_storage_back(struct amp__param *param) {
    if (param->emulated) {
        AMP_TRY(amp__emulated_take_back(param));
        param->lent.stuck = false;
        return AMP_OK;
    }
    struct amp__elements lent; /* the master, unless the host put something else there */
    AMP_TRY(amp__param_block(param, param->tensor, param->name, &lent));
    AMP_TRY(check_as(param, &lent, AMP_FLOAT32));
    AMP_TRY(exchange(param, AMP_FLOAT32));
    const amp_status status = param->lent.unused ? AMP_OK : amp__master_write_back(param);
    if (status != AMP_OK) { /* a stale 16-bit block would be taken for the host's own change: the step would be lost */
        param->lent.stuck = exchange(param, param->dtype) == AMP_OK;
        return status;
    }
    param->lent.stuck = false;
    return AMP_OK;
}

amp_status amp__master_settle_now(struct amp__param *param) {
    if (param->lent.steps) return AMP_OK;
    const amp_status grad_status = take_grad_back(param);
    const amp_status status = param->lent.stuck ? take_storage_back(param) : AMP_OK;
    if (!param->lent.stuck && !param->lent.grad) param->lent.unused = false;
    return status == AMP_OK ? grad_status : status;
}
