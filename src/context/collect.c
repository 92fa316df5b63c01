/* SPDX-License-Identifier: Apache-2.0 */
/* The context's parameters: one per storage, from the models' lists and the optimizers'. */
#include "amp_raw.h"
#include "common/map.h"
#include "common/thread.h"
#include "context/build.h"
#include "context/context.h"
#include "context/optimizer.h"
#include "context/findings.h"

#include <stdio.h>
#include <string.h>

/* ---- one parameter ---- */

static bool libamp_must_see(const amp_context *context, bool in_optimizer) {
    return amp__may_be_low(&context->policy.properties) ||
           (in_optimizer && !amp__scaling_is_trivial(&context->policy.properties));
}

/* A look at a device's memory would end the process. */
static amp_status check_view(const amp_context *context, const struct amp__param *param,
                             const struct amp__elements *now) {
    amp_device where;
    if (amp__is_device(now->device) || !now->size) return AMP_OK;
    AMP_TRY(amp__places_where(&context->devices, now->data, &where));
    AMP_RETURN_IF(where.type == AMP__DEVICE_CUDA, AMP_ERR_INVALID_ARGUMENT,
                  "%s is in the memory of CUDA device %d, and its view says that it is in the CPU's: the hook view "
                  "must set device to { 2, %d } (amp_buffer is for the CPU's memory)",
                  param->name, (int)where.id, (int)where.id);
    return AMP_OK;
}

/* Fills the members known from the elements. Hosts without `view` may list parameters if only their handles matter (the
 * cache at O1). */
static amp_status inspect(amp_context *context, struct amp__param *param, bool in_optimizer) {
    if (!param->host->view && !libamp_must_see(context, in_optimizer)) {
        param->dtype = amp__host_dtype(param->host, param->tensor);
        return AMP_OK;
    }
    struct amp__elements now;
    AMP_TRY(amp__host_find(param->host, param->tensor, param->name, &now));
    AMP_TRY(check_view(context, param, &now));
    const struct amp__properties *properties = &context->policy.properties;
    AMP_RETURN_IF(amp__is_low(now.dtype) && properties->enabled && !properties->low_params,
                  AMP_ERR_INVALID_ARGUMENT,
                  "%s is %s already: give libamp FP32 parameters, it makes the 16-bit ones itself, or set the flag "
                  "AMP_MODEL_LOW_PARAMS in amp_model.flags, and 16-bit parameters stay as they are", param->name,
                  amp__dtype_name(now.dtype));
    param->size = now.size;
    param->dtype = now.dtype;
    param->device = now.device;
    AMP_TRY(amp__place_param(&context->devices, &context->policy, param));
    AMP_RETURN_IF(param->on_device && now.strides, AMP_ERR_UNSUPPORTED,
                  "%s is not one compact block (its strides leave gaps or permute): on a device make it contiguous",
                  param->name);
    param->address = now.strides ? NULL : now.data; /* slices may lie between each other: no range, no ties */
    return AMP_OK;
}

/* A buffer that says of itself that it is not trained; a host with set_grad may give it a gradient later. */
static amp_status check_trained(const amp_host *host, const struct amp__param *param) {
    const amp_host *buffers = amp_buffer_host();
    if (host->grad != buffers->grad || host->set_grad != buffers->set_grad) return AMP_OK;
    if (((const amp_buffer *)param->tensor)->grad) return AMP_OK;
    return amp__refuse(AMP__NEVER_TRAINED, AMP_ERR_INVALID_ARGUMENT, "%s is listed in an optimizer, and its amp_buffer "
                       "has no grad", param->name);
}

static amp_status new_param(amp_context *context, const amp_host *host, void *tensor, const char *name,
                            const char *owner, size_t index, struct amp__param **out) {
    char numbered[64];
    if (!name) snprintf(numbered, sizeof numbered, "%sparam.%zu", owner, index);
    const char *text = name ? name : numbered;
    const size_t length = strlen(text) + 1;
    struct amp__param *param = amp__alloc_aligned(sizeof *param + length); /* aligned to cache lines */
    if (!param) return amp__fail_memory();
    memset(param, 0, sizeof *param);
    param->host = host;
    param->tensor = tensor;
    param->name = memcpy(param + 1, text, length);
    if (context->params.n == context->params.capacity) {
        const size_t capacity = 2 * context->params.capacity + 16;
        void *grown = amp__grow(context->params.list, context->params.capacity, capacity, sizeof *context->params.list);
        if (!grown) {
            amp__param_destroy(param);
            return amp__fail_memory();
        }
        context->params.list = grown;
        context->params.capacity = capacity;
    }
    param->index = (uint32_t)context->params.n;
    context->params.list[context->params.n++] = param;
    *out = param;
    return amp__params_insert(&context->params, tensor, param);
}

/* ---- models ---- */

static const amp_param *nth(const amp_param *params, size_t i) {
    return (const amp_param *)(const void *)((const char *)params + i * params->struct_size);
}

static amp_status add_model_param(amp_context *context, const amp_param *given, const amp_host *host, size_t i,
                                  const char *owner) {
    amp_param entry;
    AMP_TRY(amp__copy_struct(&entry, sizeof entry, sizeof(amp_param), given, given->struct_size, "amp_param"));
    AMP_RETURN_IF(!entry.tensor, AMP_ERR_INVALID_ARGUMENT, "parameter %zu (%s) has no tensor", i,
                  entry.name ? entry.name : "unnamed");
    AMP_RETURN_IF(entry.module_kind != AMP_MODULE_OTHER && entry.module_kind != AMP_MODULE_BATCH_NORM,
                  AMP_ERR_INVALID_ARGUMENT, "parameter %zu (%s): module_kind %d does not exist", i,
                  entry.name ? entry.name : "unnamed", (int)entry.module_kind);
    struct amp__param *param = amp__param_of_handle(&context->params, entry.tensor);
    if (param) { /* listed twice: tied */
        param->in_model = true;
        if (entry.module_kind) param->module_kind = entry.module_kind;
        return AMP_OK;
    }
    AMP_TRY(new_param(context, host, entry.tensor, entry.name, owner, i, &param));
    param->module_kind = entry.module_kind;
    param->in_model = true;
    return inspect(context, param, false);
}

amp_status amp__collect_model(amp_context *context, const amp_model *model, const amp_host *host, size_t model_index) {
    AMP_RETURN_IF(model->n_params && !model->params, AMP_ERR_INVALID_ARGUMENT,
                  "model %zu: params is NULL, but n_params is %zu", model_index, model->n_params);
    char owner[48] = "";
    const size_t first = context->params.n;
    if (model_index) snprintf(owner, sizeof owner, "model%zu.", model_index);
    for (size_t i = 0; i < model->n_params; i++) {
        AMP_RETURN_IF(nth(model->params, i)->struct_size != model->params->struct_size, AMP_ERR_ABI_MISMATCH,
                      "model %zu: params[%zu].struct_size is %u, but params[0].struct_size is %u: all elements of an "
                      "array have one size", model_index, i, (unsigned)nth(model->params, i)->struct_size,
                      (unsigned)model->params->struct_size);
        if (i + AMP__PREFETCH < model->n_params)
            amp__params_prefetch(&context->params, nth(model->params, i + AMP__PREFETCH)->tensor);
        AMP_TRY(add_model_param(context, nth(model->params, i), host, i, owner));
    }
    amp__params_check_names(context, first, model_index);
    return AMP_OK;
}

/* ---- optimizers ---- */

amp_status amp__collect_optimizer(amp_context *context, struct amp__optimizer *optimizer,
                                  const amp_optimizer *given, size_t optimizer_index) {
    AMP_RETURN_IF(given->n_params && !given->params, AMP_ERR_INVALID_ARGUMENT,
                  "optimizer %zu: params is NULL, but n_params is %zu", optimizer_index, given->n_params);
    char owner[48];
    snprintf(owner, sizeof owner, "optimizer%zu.", optimizer_index);
    optimizer->params = amp__alloc(given->n_params, sizeof *optimizer->params);
    if (!optimizer->params) return amp__fail_memory();
    for (size_t i = 0; i < given->n_params; i++) {
        void *tensor = given->params[i];
        AMP_RETURN_IF(!tensor, AMP_ERR_INVALID_ARGUMENT, "optimizer %zu: params[%zu] is NULL", optimizer_index, i);
        if (i + AMP__PREFETCH < given->n_params)
            amp__params_prefetch(&context->params, given->params[i + AMP__PREFETCH]);
        amp__param_prefetch_ahead(context->params.list, context->params.n, i); /* often in the model's order */
        struct amp__param *param = amp__param_of_handle(&context->params, tensor);
        if (!param) AMP_TRY(new_param(context, &optimizer->host, tensor, NULL, owner, i, &param));
        AMP_RETURN_IF(param->listed_by == optimizer_index + 1, AMP_ERR_INVALID_ARGUMENT,
                      "optimizer %zu: %s is listed twice (the second time as params[%zu]): it would be updated twice a "
                      "step",
                      optimizer_index, param->name, i);
        param->listed_by = optimizer_index + 1;
        param->in_optimizer = true;
        param->master.held_by_host |= optimizer->holds;
        if (!param->address) AMP_TRY(inspect(context, param, true));
        AMP_TRY(check_trained(&optimizer->host, param));
        optimizer->params[optimizer->n_params++] = param;
    }
    return AMP_OK;
}

/* ---- ties and overlaps ---- */

static amp_status tie(amp_context *context, struct amp__param *first, struct amp__param *second) {
    void **grown = amp__grow(first->ties, first->n_ties, first->n_ties + 1, sizeof *grown);
    if (!grown) return amp__fail_memory();
    first->ties = grown;
    first->ties[first->n_ties++] = second->tensor;
    first->in_optimizer |= second->in_optimizer;
    first->master.held_by_host |= second->master.held_by_host;
    first->in_model |= second->in_model;
    if (second->module_kind) first->module_kind = second->module_kind;
    second->tied_to = first;
    return amp__params_insert(&context->params, second->tensor, first);
}

static amp_status compare_neighbours(amp_context *context, const struct amp__keyed *sorted, size_t n, size_t *tied) {
    struct amp__param *last = NULL;
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = sorted[i].value;
        if (i + AMP__PREFETCH < n) amp__param_prefetch_all(sorted[i + AMP__PREFETCH].value);
        const char *end = last ? (const char *)last->address + last->size * amp__dtype_size(last->dtype) : NULL;
        if (last && param->address == last->address && param->size == last->size && param->dtype == last->dtype) {
            AMP_TRY(tie(context, last, param));
            ++*tied;
            continue;
        }
        AMP_RETURN_IF(last && (const char *)param->address < end, AMP_ERR_CONFLICT,
                      "%s and %s overlap in memory without being the same: a parameter's storage must be its own",
                      last->name, param->name);
        last = param;
    }
    return AMP_OK;
}

/* Tied parameters leave the context's list; their handles find the first of them. */
static void remove_tied(amp_context *context) {
    size_t kept = 0;
    for (size_t i = 0; i < context->params.n; i++) {
        struct amp__param *param = context->params.list[i];
        if (param->tied_to) continue;
        param->index = (uint32_t)kept;
        context->params.list[kept++] = param;
    }
    context->params.n = kept;
}

static amp_status resolve_ties(amp_context *context) {
    for (size_t k = 0; k < context->optimizers.n; k++) {
        struct amp__optimizer *optimizer = &context->optimizers.list[k];
        for (size_t i = 0; i < optimizer->n_params; i++) {
            struct amp__param *param = optimizer->params[i];
            if (!param->tied_to) continue;
            AMP_RETURN_IF(param->tied_to->listed_by == k + 1, AMP_ERR_INVALID_ARGUMENT,
                          "optimizer %zu: %s and %s are one tensor: list it once", k, param->tied_to->name,
                          param->name);
            param->tied_to->listed_by = k + 1;
            optimizer->params[i] = param->tied_to;
        }
    }
    return AMP_OK;
}

amp_status amp__collect_ties(amp_context *context) {
    struct amp__keyed *sorted = amp__alloc(context->params.n, sizeof *sorted);
    if (!sorted) return amp__fail_memory();
    size_t n = 0;
    for (size_t i = 0; i < context->params.n; i++) {
        struct amp__param *param = context->params.list[i];
        amp__param_prefetch_ahead(context->params.list, context->params.n, i);
        if (param->address && param->size) sorted[n++] = (struct amp__keyed){ (uintptr_t)param->address, param };
    }
    size_t tied = 0;
    amp_status status = amp__sort_keyed(sorted, n);
    if (status == AMP_OK) status = compare_neighbours(context, sorted, n, &tied);
    if (status == AMP_OK && tied) status = resolve_ties(context);
    if (status == AMP_OK && tied) {
        tied = 0;
        for (size_t i = 0; i < context->params.n; i++)
            if (context->params.list[i]->tied_to) sorted[tied++].value = context->params.list[i];
        remove_tied(context);
        while (tied--) amp__param_destroy(sorted[tied].value);
    }
    amp__free(sorted);
    return status;
}

/* ---- parameters that come later ---- */

static amp_status retype_if_low(const amp_context *context, struct amp__param *param, bool in_optimizer);
static amp_status make_master(struct amp__param *param, bool split, bool alone);
static amp_status split_all(const amp_context *context, size_t first);

static amp_status add_late(amp_context *context, struct amp__optimizer *optimizer, const amp_param *params, size_t i) {
    const size_t number = amp__optimizer_number(optimizer) + 1;
    amp_param given;
    AMP_RETURN_IF(nth(params, i)->struct_size != params->struct_size, AMP_ERR_ABI_MISMATCH,
                  "amp_add_params: params[%zu].struct_size differs from params[0]'s", i);
    AMP_TRY(
        amp__copy_struct(&given, sizeof given, sizeof(amp_param), nth(params, i), params->struct_size, "amp_param"));
    AMP_RETURN_IF(!given.tensor, AMP_ERR_INVALID_ARGUMENT, "amp_add_params: params[%zu] has no tensor", i);
    struct amp__param *param = amp__param_of_handle(&context->params, given.tensor);
    AMP_RETURN_IF(param && param->listed_by == number, AMP_ERR_INVALID_ARGUMENT,
                  "amp_add_params: the optimizer has %s already", param->name);
    if (!param) {
        AMP_TRY(
            new_param(context, &optimizer->host, given.tensor, given.name, "added.", context->params.n + i, &param));
        param->module_kind = given.module_kind;
        context->params.has_norm |= given.module_kind == AMP_MODULE_BATCH_NORM;
        param->in_model = true;
        AMP_TRY(inspect(context, param, true));
    } else if ((amp__is_low(param->dtype) || param->emulated) && !param->has_master &&
               context->policy.properties.master_weights) {
        AMP_TRY(make_master(param, context->policy.properties.split_masters, optimizer->optim || param->emulated));
    }
    AMP_TRY(check_trained(&optimizer->host, param));
    param->listed_by = number;
    param->in_optimizer = true;
    param->master.held_by_host |= optimizer->holds;
    optimizer->params[optimizer->n_params++] = param;
    return AMP_OK;
}

/* listed_by says whether this optimizer has a parameter. It is already right if the last one to grow was the same. */
static void mark_listed(amp_context *context, const struct amp__optimizer *optimizer) {
    const size_t number = amp__optimizer_number(optimizer) + 1;
    if (context->params.listed_for == number) return;
    for (size_t i = 0; i < context->params.n; i++) context->params.list[i]->listed_by = 0;
    for (size_t i = 0; i < optimizer->n_params; i++) optimizer->params[i]->listed_by = number;
    context->params.listed_for = number;
}

amp_status amp__collect_late(amp_context *context, struct amp__optimizer *optimizer, const amp_param *params,
                             size_t n) {
    const size_t first_new = context->params.n;
    mark_listed(context, optimizer);
    for (size_t i = 0; i < n; i++) AMP_TRY(add_late(context, optimizer, params, i));
    if (first_new < context->params.n) AMP_TRY(amp__apart_check(&context->params, first_new));
    AMP_TRY(amp__params_index(&context->params, first_new));
    for (size_t i = first_new; i < context->params.n; i++) {
        AMP_TRY(retype_if_low(context, context->params.list[i], true));
        AMP_TRY(amp__apart_moved(&context->params, context->params.list[i]));
    }
    AMP_TRY(amp__places_flush(&context->devices));
    return split_all(context, first_new);
}

/* A master that a frozen parameter was given stays: it is the parameter widened, and no harm. */
void amp__collect_undo(amp_context *context, struct amp__optimizer *optimizer, size_t context_params,
                       size_t optimizer_params) {
    char text[512];
    snprintf(text, sizeof text, "%s", amp_last_error());
    optimizer->n_params = optimizer_params;
    context->params.listed_for = 0;
    amp__apart_forget(&context->params.apart);
    amp__params_remove(&context->params, context_params);
    for (size_t i = context->params.n; i-- > context_params;) (void)amp__param_undo_retype(context->params.list[i]);
    (void)amp__fail(AMP_OK, "%s", text);
    (void)amp__params_tell_left(context, context_params, AMP_OK);
    for (size_t i = context->params.n; i-- > context_params;) amp__param_destroy(context->params.list[i]);
    context->params.n = context_params;
}

/* ---- re-typing ---- */

static bool must_retype(const amp_context *context, const struct amp__param *param) {
    return amp__retypes(&context->policy.properties) && param->dtype == AMP_FLOAT32 && param->in_model &&
           !(context->policy.properties.keep_batchnorm_fp32 && param->module_kind == AMP_MODULE_BATCH_NORM);
}

/* For a parameter that came in 16 bits, or that is frozen so far. The host's own step gets the master in its place.
 * alone: nothing is swapped, as in libamp's own steps and for an emulated block. */
static amp_status make_master(struct amp__param *param, bool split, bool alone) {
    AMP_RETURN_IF(!param->host->swap_data && !param->master.held_by_host && !alone, AMP_ERR_MISSING_HOOK,
                  "%s is %s already (AMP_MODEL_LOW_PARAMS), and its host has no hook swap_data, which puts the FP32 "
                  "master in its place for the step: give the hook, or FP32 parameters, or set "
                  "amp_config.master_weights to AMP_OFF", param->name, amp__dtype_name(param->dtype));
    return amp__param_make_master(param, split);
}

static amp_status retype_if_low(const amp_context *context, struct amp__param *param, bool in_optimizer) {
    const amp_dtype type = context->policy.properties.cast_model_type;
    const bool split = context->policy.properties.split_masters;
    const bool keep_master = context->policy.properties.master_weights && in_optimizer;
    const enum amp__keep keep = !keep_master ? AMP__KEEP_NOTHING : split ? AMP__KEEP_SPLIT : AMP__KEEP_MASTER;
    if (keep_master && amp__is_low(param->dtype) && !param->has_master)
        return make_master(param, split, param->gradient.may_be_left);
    if (!must_retype(context, param)) return AMP_OK;
    if (amp__keeps_block(&context->policy.properties, param->host)) return amp__param_look(param, type);
    return context->policy.properties.emulate ? amp__param_emulate(param, type, keep_master)
                                       : amp__param_retype(param, type, keep);
}

amp_status amp__params_tell_left(const amp_context *context, size_t first, amp_status status) {
    char why[AMP__ERROR_SIZE / 2], list[AMP__ERROR_SIZE / 2 - 200] = "";
    amp__text left = { list, sizeof list, 0 };
    bool by_libc = false;
    snprintf(why, sizeof why, "%s", amp_last_error());
    for (size_t i = first; i < context->params.n; i++) {
        const size_t before = left.length;
        amp__param_tell_left(context->params.list[i], &left);
        by_libc |= left.length > before && !amp__host_owns_memory(context->params.list[i]->host);
    }
    if (!left.length) return status;
    return amp__fail(status, "%s; swap_data refused the way back too, so these stay as they are: %s%s%s", why, list,
                     left.length >= sizeof list ? "..." : "",
                     by_libc ? ". libamp's blocks are the host's now: free() them when it can" : "");
}

/* The first error is the one to report. */
static amp_status undo_all(amp_context *context, amp_status status) {
    char text[AMP__ERROR_SIZE];
    snprintf(text, sizeof text, "%s", amp_last_error());
    amp__places_drop(&context->devices);
    for (size_t i = context->params.n; i--;) (void)amp__param_undo_retype(context->params.list[i]);
    (void)amp__fail(status, "%s", text);
    return amp__params_tell_left(context, 0, status);
}

/* Before the commit, so that it can be undone. */
static amp_status split_all(const amp_context *context, size_t first) {
    for (size_t i = first; i < context->params.n && context->policy.properties.split_masters; i++) {
        struct amp__param *param = context->params.list[i];
        struct amp__elements now;
        if (!amp__is_split(param) || !param->master.fp32.data) continue;
        AMP_TRY(amp__param_elements(param, &now));
        amp__master_split(param, now.data);
    }
    return amp__places_flush(&context->devices);
}

amp_status amp__retype_all(amp_context *context) {
    for (size_t i = 0; i < context->params.n && amp__may_be_low(&context->policy.properties); i++) {
        struct amp__param *param = context->params.list[i];
        const amp_status status = retype_if_low(context, param, param->in_optimizer);
        if (status != AMP_OK) return undo_all(context, status);
    }
    amp_status status = amp__places_flush(&context->devices);
    if (status == AMP_OK && amp__retypes(&context->policy.properties))
        status = amp__places_count_unfit(&context->devices, &context->params);
    if (status == AMP_OK) status = split_all(context, 0);
    return status == AMP_OK ? AMP_OK : undo_all(context, status);
}

void amp__retype_commit(amp_context *context) {
    uint64_t unfit = 0;
    char names[512] = "";
    amp__text text = { names, sizeof names, 0 };
    for (size_t i = 0; i < context->params.n && amp__retypes(&context->policy.properties); i++) {
        struct amp__param *param = context->params.list[i];
        amp__param_commit_retype(param);
        if (param->unfit)
            amp__text_add(&text, "%s%s (%llu)", unfit ? ", " : "", param->name, (unsigned long long)param->unfit);
        unfit += param->unfit;
        if (param->unwhole && !amp__is_python(context)) /* whose buffers libamp's Python checks */
            amp__find(context, AMP__WHOLE_NUMBERS_ROUNDED, param->name, "%s: %llu of its %llu whole numbers change in "
                      "%s", param->name, (unsigned long long)param->unwhole, (unsigned long long)param->size,
                      amp__dtype_name(param->dtype));
    }
    if (!unfit) return;
    const amp_dtype low = context->policy.properties.cast_model_type;
    amp__find(context, AMP__WEIGHTS_INFINITE, "", "%llu weight%s too large for %s became infinite, in %s%s",
              (unsigned long long)unfit, AMP__S(unfit), amp__dtype_name(low), names,
              text.length >= sizeof names ? "..." : "");
}
