/* SPDX-License-Identifier: Apache-2.0 */
/* Re-typing: new storage under the same handles, the old one kept as master or for the way back. */
#include "master/param.h"

#include <stdio.h>
#include <math.h>
#include <string.h>

static amp_span span_of(const amp_storage *storage, uint64_t size) {
    return (amp_span){ storage->data, size, storage->dtype, 0 };
}

static amp_status cast_storage(const struct amp__param *param, const amp_storage *dst, const amp_storage *src) {
    const amp_span to = span_of(dst, param->size), from = span_of(src, param->size);
    return amp__param_copy(param, AMP__WORK_WRITE_BACK, &to, &from);
}

static uint64_t version_of(const struct amp__param *param) {
    return param->host->version ? param->host->version(param->host->self, param->tensor) : 0;
}

/* Tied handles get the same block and return the same block. If one refuses, those before it are put back. */
amp_status amp__param_swap(const struct amp__param *param, amp_storage *storage) {
    const amp_storage fresh = *storage;
    amp_storage old = fresh;
    AMP_TRY(amp__host_swap(param->host, param->tensor, param->name, &old));
    for (size_t i = 0; i < param->n_ties; i++) {
        amp_storage other = fresh;
        const amp_status status = amp__host_swap(param->host, param->ties[i], param->name, &other);
        if (status == AMP_OK) continue;
        amp_storage back = old;
        (void)amp__host_swap(param->host, param->tensor, param->name, &back);
        while (i--) {
            back = old;
            (void)amp__host_swap(param->host, param->ties[i], param->name, &back);
        }
        return status;
    }
    *storage = old;
    return AMP_OK;
}

uint64_t amp__count_unfit(const float *exact, const uint16_t *low, uint64_t size, amp_dtype dtype) {
    const uint16_t infinity = dtype == AMP_FLOAT16 ? 0x7c00 : 0x7f80;
    uint64_t count = 0;
    for (uint64_t i = 0; i < size; i++) {
        uint32_t bits;
        memcpy(&bits, exact + i, sizeof bits);
        count += (low[i] & 0x7fff) == infinity && (bits & 0x7f800000u) != 0x7f800000u;
    }
    return count;
}

uint64_t amp__count_unwhole(const float *exact, const uint16_t *low, uint64_t size, amp_dtype dtype) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < size; i++) {
        float rounded;
        const amp_span from = { (uint16_t *)(uintptr_t)low + i, 1, dtype, 0 }, to = { &rounded, 1, AMP_FLOAT32, 0 };
        if (exact[i] != truncf(exact[i])) return 0; /* and for NaN */
        if (amp_cast_list(&to, &from, 1) != AMP_OK) return 0;
        count += rounded != exact[i];
    }
    return count;
}

amp_status amp__param_look(struct amp__param *param, amp_dtype dtype) {
    enum { PIECE = 1024 };
    uint16_t rounded[PIECE];
    struct amp__elements now;
    AMP_RETURN_IF(param->on_device, AMP_ERR_UNSUPPORTED, "%s is in a device's memory: its host needs the hook "
                  "swap_data, or amp_config.emulate", param->name);
    AMP_TRY(amp__param_elements(param, &now));
    for (uint64_t at = 0; at < param->size; at += PIECE) {
        const uint64_t n = param->size - at < PIECE ? param->size - at : PIECE;
        const amp_span low = { rounded, n, dtype, 0 }, exact = { (float *)now.data + at, n, AMP_FLOAT32, 0 };
        AMP_TRY(amp_cast_list(&low, &exact, 1));
        param->unfit += amp__count_unfit(exact.data, rounded, n, dtype);
    }
    return AMP_OK;
}

amp_status amp__param_retype(struct amp__param *param, amp_dtype dtype, enum amp__keep keep) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (keep == AMP__KEEP_SPLIT) AMP_TRY(amp__remainder_make(param));
    amp_storage storage;
    AMP_TRY(amp__param_alloc(param, dtype, AMP_FOR_PARAMETER, &storage));
    const amp_storage old = { now.data, NULL, 0, now.dtype, 0 };
    amp_status status = cast_storage(param, &storage, &old);
    if (status == AMP_OK) {
        if (!param->on_device) param->unfit = amp__count_unfit(old.data, storage.data, param->size, dtype);
        if (!param->on_device && !param->in_optimizer)
            param->unwhole = amp__count_unwhole(old.data, storage.data, param->size, dtype);
        amp_storage swap = storage;
        status = amp__param_swap(param, &swap);
        if (status == AMP_OK) {
            param->master.fp32 = swap;
            param->master.fp32.dtype = AMP_FLOAT32;
        }
    }
    if (status != AMP_OK) {
        if (param->on_device) amp__place_drop(param->place);
        amp__param_free(param, &storage);
        return status;
    }
    param->dtype = dtype;
    param->re_typed = true;
    param->has_master = keep != AMP__KEEP_NOTHING;
    amp__master_agrees(param, storage.data);
    return AMP_OK;
}

static amp_status widen_master(struct amp__param *param, const struct amp__elements *now) {
    if (!param->master.fp32.data)
        AMP_TRY(amp__param_alloc(param, AMP_FLOAT32, AMP_FOR_MASTER, &param->master.fp32));
    const amp_storage low = { now->data, NULL, 0, now->dtype, 0 };
    return cast_storage(param, &param->master.fp32, &low);
}

amp_status amp__param_make_master(struct amp__param *param, bool split) {
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    if (split && param->dtype == AMP_BFLOAT16) AMP_TRY(amp__remainder_make(param));
    else AMP_TRY(widen_master(param, &now));
    param->has_master = true;
    amp__master_agrees(param, now.data);
    return AMP_OK;
}

/* Of a parameter that came in 16 bits, and stays so. */
static void drop_master(struct amp__param *param) {
    amp__param_free(param, &param->master.fp32);
    amp__param_free(param, &param->master.rest);
    param->has_master = param->master.spent = false;
}

/* Undoes emulation. A failing step is tried once more. */
static amp_status undo_emulation(struct amp__param *param) {
    return amp__emulated_undo(param) == AMP_OK ? AMP_OK : amp__emulated_undo(param);
}

amp_status amp__param_undo_retype(struct amp__param *param) {
    if (!param->re_typed) {
        drop_master(param);
        return AMP_OK;
    }
    if (param->emulated) return undo_emulation(param);
    if (amp__param_swap(param, &param->master.fp32) != AMP_OK) AMP_TRY(amp__param_swap(param, &param->master.fp32));
    drop_master(param);
    param->dtype = AMP_FLOAT32;
    param->re_typed = false;
    return AMP_OK;
}

void amp__param_commit_retype(struct amp__param *param) {
    if (param->re_typed && !param->has_master && (param->emulated || amp__host_owns_memory(param->host)))
        amp__param_free(param, &param->master.fp32);
    amp__master_release(param);
}

void amp__param_tell_left(const struct amp__param *param, amp__text *text) {
    const char *separator = text->length ? ", " : "";
    if (param->lent.grad) {
        amp__text_add(text, "%sthe gradient of %s has libamp's FP32 block", separator, param->name);
        separator = ", ";
    }
    if (param->re_typed && param->emulated)
        amp__text_add(text, "%s%s has values rounded to %s", separator, param->name, amp__dtype_name(param->emulated));
    else if (param->re_typed && !param->lent.stuck && param->master.fp32.data)
        amp__text_add(text, "%s%s has libamp's %s block (its own is at %p)", separator, param->name,
                      amp__dtype_name(param->dtype), param->master.fp32.data);
    else if (param->re_typed && !param->lent.stuck)
        amp__text_add(text, "%s%s has libamp's %s block", separator, param->name, amp__dtype_name(param->dtype));
    else if (!param->re_typed && param->lent.stuck)
        amp__text_add(text, "%s%s has libamp's FP32 block", separator, param->name);
}

/* Ends the master of a parameter that came in 16 bits. If the host refuses its own block, it keeps the master, and this
 * block belongs to the host. */
static amp_status end_master(struct amp__param *param) {
    const amp_status status = amp__master_settle(param);
    if (!param->lent.stuck || amp__host_owns_memory(param->host)) drop_master(param);
    return status;
}

/* Without masters the FP32 block may be gone (freed at the commit): then a new one is made and widened into. */
amp_status amp__param_restore(struct amp__param *param) {
    if (!param->re_typed) return end_master(param);
    AMP_TRY(amp__master_join(param));
    /* a late change by the host is kept if it can be seen; the storage returns in any case */
    amp_status seen = param->has_master ? amp__master_reconcile(param, !param->host->version) : AMP_OK;
    const amp_status launched = param->on_device ? amp__place_flush(param->place) : AMP_OK;
    if (seen == AMP_OK) seen = launched;
    char text[256];
    snprintf(text, sizeof text, "%s", amp_last_error());
    if (param->emulated) {
        AMP_TRY(undo_emulation(param));
        return seen == AMP_OK ? AMP_OK : amp__fail(seen, "%s", text);
    }
    if (amp__is_split(param) && !param->master.fp32.data) return amp__fail(seen, "%s", text); /* no FP32 came of it */
    if (param->lent.stuck) { /* the host holds its FP32 block already, and refuses another */
        amp__param_free(param, &param->master.fp32);
        return seen;
    }
    amp_storage storage = param->master.fp32;
    const bool fresh = !storage.data;
    if (fresh)
        AMP_TRY(amp__param_alloc(param, AMP_FLOAT32, AMP_FOR_PARAMETER, &storage));
    amp_status status = AMP_OK;
    if (!param->has_master) {
        struct amp__elements now;
        status = amp__param_elements(param, &now);
        const amp_storage low = { now.data, NULL, 0, now.dtype, 0 };
        if (status == AMP_OK) status = cast_storage(param, &storage, &low);
        /* before a block of it goes */
        if (status == AMP_OK && param->on_device) status = amp__place_flush(param->place);
    }
    amp_storage swap = storage;
    if (status == AMP_OK) status = amp__param_swap(param, &swap);
    if (status != AMP_OK) {
        if (!fresh && !amp__host_owns_memory(param->host)) return status;
        amp__param_free(param, &storage);
        memset(&param->master.fp32, 0, sizeof param->master.fp32);
        return status;
    }
    amp__param_free(param, &swap);
    memset(&param->master.fp32, 0, sizeof param->master.fp32);
    param->dtype = AMP_FLOAT32;
    param->re_typed = param->has_master = false;
    return seen == AMP_OK ? AMP_OK : amp__fail(seen, "%s", text);
}

/* A gradient's handle that was never taken back keeps the block of ours that lies under it, and the host's own lies
 * here. A host with free has made both and may have its own freed. */
static void leave_to_host(struct amp__param *param) {
    if (!param->lent.grad || amp__host_owns_memory(param->host)) return;
    struct amp__gradient *gradient = &param->gradient;
    *(gradient->with_gaps.data ? &gradient->with_gaps : &gradient->master) = (amp_storage){ 0 };
}

/* ---- shown as it would be without the level ---- */

/* Makes an FP32 block with the values of `from` (empty: zeros). */
static amp_status widen(const struct amp__param *param, const amp_span *from, amp_purpose purpose, amp_storage *out) {
    AMP_TRY(amp__param_alloc(param, AMP_FLOAT32, purpose, out));
    const amp_span to = span_of(out, param->size);
    amp_status status = from ? amp__param_copy(param, AMP__WORK_WRITE_BACK, &to, from) : amp__param_zero(param, &to);
    if (status == AMP_OK && param->on_device) status = amp__place_flush(param->place);
    if (status != AMP_OK) amp__param_free(param, out);
    return status;
}

static amp_status expose_grad(struct amp__param *param, struct amp__exposed *kept) {
    void *grad = NULL;
    struct amp__elements now;
    if (!param->host->grad) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return AMP_OK;
    AMP_TRY(amp__param_block(param, grad, param->name, &now));
    if (!amp__is_low(now.dtype)) return AMP_OK;
    AMP_TRY(widen(param, NULL, AMP_FOR_GRADIENT, &kept->grad));
    const amp_status status = amp__host_swap(param->host, grad, param->name, &kept->grad);
    if (status != AMP_OK) amp__param_free(param, &kept->grad);
    else kept->handle = grad;
    return status;
}

amp_status amp__param_expose(struct amp__param *param, struct amp__exposed *kept) {
    struct amp__elements now;
    *kept = (struct amp__exposed){ .handle = NULL };
    if (param->emulated) { /* the block itself; whoever exposes it puts its elements back */
        AMP_TRY(amp__emulated_lend(param));
        return param->on_device ? amp__place_flush(param->place) : AMP_OK;
    }
    if (!amp__is_low(param->dtype)) return AMP_OK;
    kept->settled = param->master.version == version_of(param);
    AMP_TRY(amp__param_elements(param, &now));
    const bool parted = amp__split_is_parted(param);
    AMP_TRY(amp__master_join(param));
    const amp_span low = { now.data, param->size, param->dtype, 0 };
    const amp_span exact = param->has_master ? span_of(&param->master.fp32, param->size) : low;
    AMP_TRY(widen(param, &exact, AMP_FOR_PARAMETER, &kept->param));
    if (parted) { /* nothing has changed; a master that was there may have been written */
        param->master.spent = true;
        amp__master_release(param);
    }
    const amp_status status = amp__param_swap(param, &kept->param);
    if (status != AMP_OK) {
        amp__param_free(param, &kept->param);
        return status;
    }
    return expose_grad(param, kept);
}

amp_status amp__param_cover(struct amp__param *param, struct amp__exposed *kept) {
    amp_status status = AMP_OK;
    if (kept->handle) status = amp__host_swap(param->host, kept->handle, param->name, &kept->grad);
    if (kept->handle && status == AMP_OK) amp__param_free(param, &kept->grad);
    kept->handle = NULL;
    if (!kept->param.data) return status;
    amp_status one = amp__param_swap(param, &kept->param);
    if (one != AMP_OK) one = amp__param_swap(param, &kept->param); /* once more, before it is reported */
    if (one == AMP_OK) amp__param_free(param, &kept->param);
    if (one == AMP_OK && kept->settled) param->master.version = version_of(param); /* its own elements were not
                                                                                      written */
    if (one != AMP_OK)
        one = amp__fail_prefix(one, "%s keeps an FP32 block that it was shown: shut the context down", param->name);
    return status == AMP_OK ? one : status;
}

void amp__param_destroy(struct amp__param *param) {
    if (!param) return;
    if (param->host) {
        leave_to_host(param);
        if (param->emulated) amp__param_free(param, &param->master.fp32); /* ours: a restore that failed left it */
        amp__param_free(param, &param->master.rest);
        amp__param_free(param, &param->gradient.master);
        amp__param_free(param, &param->gradient.first_copy);
        amp__host_free(param->host, &param->gradient.with_gaps);
        for (int i = 0; i < 3; i++) amp__param_free(param, &param->gradient.spare[i]);
    }
    amp__free(param->gradient.flat);
    amp__free(param->layout);
    amp__free(param->ties);
    amp__free(param);
}
