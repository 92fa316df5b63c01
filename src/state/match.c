/* SPDX-License-Identifier: Apache-2.0 */
/* The match of the tensors of a state file with their targets, by name. */
#include "context/params.h"
#include "optim/optim.h"
#include "state/load.h"

#include <stdlib.h>
#include <string.h>

amp_status amp__load_of_part(const struct load *load, size_t i, amp_status status) {
    return status == AMP_OK || load->n_parts == 1
               ? status : amp__fail_prefix(status, "%.300s", load->parts[i].source->path);
}

static int by_name(const void *a, const void *b) {
    const struct target *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *name, const void *entry) {
    return strcmp(name, ((const struct target *)entry)->name);
}

/* Names without a match, for one message. */
struct names {
    amp__text text;
    char buffer[400];
    size_t n;
};

static void add_name(struct names *names, const char *name) {
    names->text.data = names->buffer;
    names->text.capacity = sizeof names->buffer;
    if (names->n++ < 8) amp__text_add(&names->text, "%s%.60s", names->n > 1 ? ", " : "", name);
    else if (names->n == 9) amp__text_add(&names->text, ", ...");
}

/* From the part that has them. */
static amp_status get_steps(const struct load *load, const struct amp__state_own *own, uint64_t *steps) {
    amp_status status = AMP_ERR_CONFLICT;
    for (size_t i = 0; i < load->n_parts && status == AMP_ERR_CONFLICT; i++)
        status = amp__state_get_steps(&load->parts[i].header, own, steps);
    return status;
}

static amp_status list_scales(struct load *load, const struct target *codes) {
    char *name = amp__state_scale_name(codes->name);
    if (!name) return amp__fail_memory();
    load->targets[load->n_targets++] = (struct target){ .name = name, .param = codes->param, .moment = codes->scales,
                                                        .place = codes->place,
                                                        .size = amp__optim_blocks(codes->size), .optional = true };
    return AMP_OK;
}

static amp_status list_moments(struct load *load, size_t i) {
    const struct amp__state_own *own = &load->owns[i];
    AMP_TRY(get_steps(load, own, &load->steps[i]));
    for (int k = 0; k < AMP__MOMENTS; k++) {
        struct target target = { .param = own->param, .moment = own->state->moments[k], .place = own->state->place,
                                 .size = amp__optim_moment_size(own->rule, k, own->state->size) };
        if (k < 2 && own->state->codes[k])
            target.codes = own->state->codes[k], target.scales = own->state->scales[k], target.second = k == 1;
        if (!is_of_optimizer(&target)) continue;
        char *name = amp__state_moment_name(own, k);
        if (!name) return amp__fail_memory();
        target.name = name;
        load->targets[load->n_targets++] = target;
        if (target.codes) AMP_TRY(list_scales(load, &target));
    }
    return AMP_OK;
}

/* Finds for each moment in 8 bits whether the file has its scales. */
static amp_status match_scales(struct load *load) {
    for (size_t i = 0; i < load->n_targets; i++) {
        struct target *target = &load->targets[i];
        if (!target->codes) continue;
        char *name = amp__state_scale_name(target->name);
        if (!name) return amp__fail_memory();
        const struct target *found = bsearch(name, load->targets, load->n_targets, sizeof *load->targets, compare_name);
        target->scaled = found && found->tensor;
        amp__free(name);
    }
    return AMP_OK;
}

/* All that could have a value here, by name: the file may hold more than is trained now (an inference context). */
static amp_status list_candidates(struct load *load) {
    AMP_TRY(amp__state_owns(load->context, &load->owns, &load->n_owns));
    load->targets = amp__alloc(load->params->n + 2 * AMP__MOMENTS * load->n_owns, sizeof *load->targets);
    load->steps = amp__alloc(load->n_owns, sizeof *load->steps);
    if (!load->targets || !load->steps) return amp__fail_memory();
    for (size_t i = 0; i < load->params->n; i++) {
        struct amp__param *param = load->params->list[i];
        if (amp__state_holds(param))
            load->targets[load->n_targets++] = (struct target){ .name = param->name,
                                                                .param = param,
                                                                .place = param->place };
    }
    for (size_t i = 0; i < load->n_owns; i++) AMP_TRY(list_moments(load, i));
    qsort(load->targets, load->n_targets, sizeof *load->targets, by_name);
    return AMP_OK;
}

static amp_status match_part(struct load *load, struct amp__header *header, struct names *unknown) {
    const struct target *end = load->targets + load->n_targets;
    for (size_t i = 0; i < header->n_tensors; i++) {
        struct amp__state_tensor *tensor = &header->tensors[i];
        struct target *found = load->n_targets ? bsearch(tensor->name, load->targets, load->n_targets,
                                                         sizeof *load->targets, compare_name) : NULL;
        if (!found) {
            if (amp__state_is_moment(tensor->name)) load->n_foreign++;
            else if (!amp__state_is_scale(tensor->name)) add_name(unknown, tensor->name);
            continue;
        }
        const bool twice = (found > load->targets && !by_name(found - 1, found)) ||
                           (found + 1 < end && !by_name(found, found + 1));
        AMP_RETURN_IF(twice, AMP_ERR_CONFLICT, "two parameters are named %s, and the file has one value of that name",
                      found->name);
        AMP_RETURN_IF(found->tensor, AMP_ERR_CONFLICT, "%s is in a part before as well: they are not of one save",
                      found->name);
        found->tensor = tensor;
        tensor->user = 1 + (size_t)(found - load->targets);
    }
    return AMP_OK;
}

static amp_status match_tensors(struct load *load) {
    struct names unknown = { .n = 0 }, missing = { .n = 0 };
    for (size_t i = 0; i < load->n_parts; i++)
        AMP_TRY(amp__load_of_part(load, i, match_part(load, &load->parts[i].header, &unknown)));
    for (size_t i = 0; i < load->n_targets; i++)
        if (!load->targets[i].tensor && !load->targets[i].optional && load->targets[i].param->in_optimizer)
            add_name(&missing, load->targets[i].name);
    AMP_RETURN_IF(unknown.n || missing.n, AMP_ERR_CONFLICT,
                  "the state is of another model: %zu parameter%s in the file but not here (%s), %zu trained here but "
                  "not in the file (%s)", unknown.n, AMP__S(unknown.n), unknown.buffer, missing.n,
                  missing.buffer);
    return AMP_OK;
}

static amp_status check_target(struct target *target) {
    struct amp__elements now;
    const struct amp__state_tensor *tensor = target->tensor;
    if (is_of_optimizer(target)) {
        const uint64_t saved = (tensor->end - tensor->begin) / 4;
        AMP_RETURN_IF(tensor->end - tensor->begin != 4 * target->size, AMP_ERR_CONFLICT,
                      "%s has %llu element%s in the file and %llu here: it is another optimizer's", target->name,
                      (unsigned long long)saved, AMP__S(saved), (unsigned long long)target->size);
        return AMP_OK;
    }
    AMP_TRY(amp__state_elements(target->param, &now));
    bool same = tensor->ndim == now.ndim && tensor->end - tensor->begin == 4 * now.size;
    for (int32_t i = 0; same && i < now.ndim; i++) same = tensor->shape[i] == now.shape[i];
    char theirs[200] = "", ours[200] = "";
    amp__text their_text = { theirs, sizeof theirs, 0 }, our_text = { ours, sizeof ours, 0 };
    for (int32_t i = 0; !same && i < tensor->ndim; i++)
        amp__text_add(&their_text, i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    for (int32_t i = 0; !same && i < now.ndim; i++)
        amp__text_add(&our_text, i ? ", %lld" : "%lld", (long long)now.shape[i]);
    AMP_RETURN_IF(!same, AMP_ERR_CONFLICT, "%s has shape [%s] in the file and [%s] here", target->param->name, theirs,
                  ours);
    target->elements = now.data;
    return AMP_OK;
}

amp_status amp__load_match(struct load *load) {
    AMP_TRY(list_candidates(load));
    AMP_TRY(match_tensors(load));
    AMP_TRY(match_scales(load));
    for (size_t i = 0; i < load->n_targets; i++)
        if (load->targets[i].tensor) AMP_TRY(check_target(&load->targets[i]));
    return AMP_OK;
}
