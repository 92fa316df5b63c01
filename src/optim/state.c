/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an optimizer of libamp: the rules of its groups, and moments and steps of each parameter. */
#include "optim/optim.h"

#include <stdio.h>
#include <string.h>

static amp_status copy_groups(struct amp__optim *optim, const amp_fused *given, const char *what) {
    const uint32_t stride = given->groups->struct_size;
    optim->groups = amp__alloc(given->n_groups, sizeof *optim->groups);
    optim->powers = amp__alloc(given->n_groups, sizeof *optim->powers);
    if (!optim->groups || !optim->powers) return amp__fail_memory();
    for (size_t i = 0; i < given->n_groups; i++) {
        const amp_optim *group = (const amp_optim *)(const void *)((const char *)given->groups + i * stride);
        char name[128];
        snprintf(name, sizeof name, "%s, group %zu", what, i);
        AMP_RETURN_IF(group->struct_size != stride, AMP_ERR_ABI_MISMATCH,
                      "%s: its struct_size differs from group 0's: all elements of an array have one size", name);
        AMP_TRY(amp__optim_check(group, name, &optim->groups[i]));
        AMP_RETURN_IF(optim->groups[i].kind != optim->groups[0].kind, AMP_ERR_CONFLICT,
                      "%s is of another kind than group 0: make them two optimizers", name);
    }
    optim->n_groups = given->n_groups;
    return AMP_OK;
}

static amp_status copy_state(struct amp__optim *optim, const amp_fused *given, const char *what) {
    optim->codes = given->flags & AMP_FUSED_STATE_8BIT;
    optim->seed = given->seed;
    for (size_t i = 0; optim->codes && i < optim->n_groups; i++)
        AMP_RETURN_IF(!amp__optim_codes(&optim->groups[i]), AMP_ERR_INVALID_ARGUMENT,
                      "%s, group %zu: AMP_FUSED_STATE_8BIT is for Adam and AdamW without AMP_OPTIM_AMSGRAD", what, i);
    return AMP_OK;
}

static amp_status fill_optim(struct amp__optim *optim, const amp_fused *given, size_t n_params, const char *what) {
    AMP_TRY(copy_groups(optim, given, what));
    AMP_TRY(copy_state(optim, given, what));
    AMP_TRY(amp__optim_grow(optim, n_params));
    for (size_t i = 0; i < n_params; i++) {
        const uint32_t group = given->group_of ? given->group_of[i] : 0;
        AMP_RETURN_IF(group >= given->n_groups, AMP_ERR_INVALID_ARGUMENT,
                      "%s: group_of[%zu] is %u, and there are %zu group%s", what, i, (unsigned)group, given->n_groups,
                      AMP__S(given->n_groups));
        optim->states[i].group = group;
    }
    return AMP_OK;
}

amp_status amp__optim_new(const amp_fused *given, size_t n_params, const char *what, struct amp__optim **out) {
    amp_fused fused;
    AMP_TRY(amp__copy_struct(&fused, sizeof fused, sizeof fused, given, given->struct_size, "amp_fused"));
    AMP_RETURN_IF(fused.flags & ~(uint32_t)AMP_FUSED_STATE_8BIT, AMP_ERR_INVALID_ARGUMENT, "%s: unknown flags 0x%x",
                  what, (unsigned)fused.flags);
    AMP_RETURN_IF(!fused.groups || !fused.n_groups, AMP_ERR_INVALID_ARGUMENT, "%s has no groups: it needs one at least",
                  what);
    struct amp__optim *optim = amp__alloc(1, sizeof *optim);
    if (!optim) return amp__fail_memory();
    const amp_status status = fill_optim(optim, &fused, n_params, what);
    if (status == AMP_OK) *out = optim;
    else amp__optim_destroy(optim);
    return status;
}

amp_status amp__optim_grow(struct amp__optim *optim, size_t n) {
    const size_t twice = 2 * optim->n, capacity = n < twice ? twice : n; /* parameters may come one by one */
    if (n > optim->capacity) {
        void *states = amp__grow(optim->states, optim->n, capacity, sizeof *optim->states);
        if (!states) return amp__fail_memory();
        optim->states = states;
        void *work = amp__grow(optim->work, optim->n, capacity, sizeof *optim->work);
        if (!work) return amp__fail_memory();
        optim->work = work;
        optim->capacity = capacity;
    }
    optim->n = n;
    return AMP_OK;
}

static amp_status make_moment(struct amp__place *place, size_t bytes, float **out) {
    void *made = NULL;
    if (place) {
        AMP_TRY(amp__place_alloc(place, bytes, &made));
        *out = made;
        return amp__place_zero(place, made, bytes);
    }
    *out = amp__alloc_aligned(bytes);
    if (!*out) return amp__fail_memory();
    memset(*out, 0, bytes);
    return AMP_OK;
}

/* The codes, then the scales from the next cache line on. */
static size_t scales_at(uint64_t size) { return ((size_t)size + 63) / 64 * 64; }

static amp_status make_codes(struct amp__optim_state *state, const char *name, uint64_t size) {
    AMP_RETURN_IF(state->place && state->place->device.type == AMP__DEVICE_SERVED, AMP_ERR_UNSUPPORTED,
                  "%s is on a served device, and AMP_FUSED_STATE_8BIT has kernels for CPUs and CUDA: leave the flag "
                  "out", name);
    for (int k = 0; k < 2; k++) {
        float *block = NULL;
        AMP_TRY(make_moment(state->place, scales_at(size) + amp__optim_blocks(size) * sizeof(float), &block));
        state->codes[k] = (uint8_t *)(void *)block;
        state->scales[k] = block + scales_at(size) / sizeof *block;
    }
    return AMP_OK;
}

amp_status amp__optim_attach(struct amp__optim *optim, size_t i, const char *name, uint64_t size,
                             struct amp__place *place) {
    struct amp__optim_state *state = &optim->states[i];
    const amp_optim *rule = amp__optim_rule(optim, i);
    const bool codes = optim->codes && size >= AMP_STATE_LEAST;
    state->place = place;
    state->key = amp_optim_key(optim->seed, name);
    if (codes) AMP_TRY(make_codes(state, name, size));
    for (int k = 0; k < AMP__MOMENTS; k++) {
        if (codes || !amp__optim_moment(rule, k)) continue;
        const size_t bytes = (size_t)amp__optim_moment_size(rule, k, size) * sizeof(float);
        AMP_TRY(make_moment(place, bytes, &state->moments[k]));
    }
    state->size = size;
    return AMP_OK;
}

uint64_t amp__optim_moment_bytes(const struct amp__optim *optim, size_t i, int k, bool codes) {
    const struct amp__optim_state *state = &optim->states[i];
    const amp_optim *rule = amp__optim_rule(optim, i);
    codes = codes && amp__optim_codes(rule) && state->size >= AMP_STATE_LEAST;
    if (k < 2 && (codes || state->codes[k])) return state->size + sizeof(float) * amp__optim_blocks(state->size);
    return state->moments[k] ? sizeof(float) * amp__optim_moment_size(rule, k, state->size) : 0;
}

static void clear_on_device(struct amp__optim_on_device *part, size_t n_groups) {
    amp__place_free(part->place, part->steps);
    for (size_t k = 0; part->lists && k <= n_groups; k++) amp_device_list_close(part->lists[k]);
    void *blocks[] = { part->which,     part->first, part->spans,    part->remainders, part->scales[0],
                       part->scales[1], part->keys,  part->elements, part->lists };
    for (size_t i = 0; i < AMP_COUNT(blocks); i++) amp__free(blocks[i]);
}

void amp__optim_on_device_free(struct amp__optim_on_device *devices, size_t n, size_t n_groups) {
    while (n--) clear_on_device(&devices[n], n_groups);
    amp__free(devices);
}

void amp__optim_shrink(struct amp__optim *optim, size_t n) {
    for (; optim->n > n; optim->n--) {
        struct amp__optim_state *state = &optim->states[optim->n - 1];
        void *blocks[] = { state->moments[0], state->moments[1], state->moments[2], state->codes[0], state->codes[1] };
        for (size_t k = 0; k < AMP_COUNT(blocks); k++)
            if (state->place) amp__place_free(state->place, blocks[k]);
            else amp__free(blocks[k]);
        memset(state, 0, sizeof *state);
    }
}

void amp__optim_destroy(struct amp__optim *optim) {
    if (!optim) return;
    amp__optim_on_device_free(optim->devices, optim->n_devices, optim->n_groups);
    amp__optim_shrink(optim, 0);
    amp__free(optim->groups);
    amp__free(optim->powers);
    amp__free(optim->states);
    amp__free(optim->work);
    amp__free(optim);
}
