/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a parameter that comes late share memory with another? Where all lie is kept in a tree, so that parameters may
 * come one by one. The host may move the others: a few are looked at each time, the one that is in the way always, and
 * all of them when there are twice as many as at the last look.
 */
#include "context/build.h"
#include "context/params.h"

#include <search.h>

/* Where elements lie; of parameters that overlap (old ones, by the host's doing) all of it, under the name of one. */
struct block {
    uintptr_t begin, end;
    const struct amp__param *param;
};

/* Blocks that overlap are equal. */
static int compare(const void *a, const void *b) {
    const struct block *x = a, *y = b;
    return x->end <= y->begin ? -1 : y->end <= x->begin ? 1 : 0;
}

static const struct block *find(const struct amp__apart *apart, const struct block *block) {
    const void *const *node = tfind(block, &apart->root, compare);
    return node ? *node : NULL;
}

static void remove_block(struct amp__apart *apart, const struct block *there) {
    (void)tdelete(there, &apart->root, compare);
    amp__free((void *)(uintptr_t)there);
}

static amp_status insert(struct amp__apart *apart, struct block block) {
    if (block.begin == block.end) return AMP_OK;
    for (const struct block *there; (there = find(apart, &block));) {
        if (there->begin < block.begin) block.begin = there->begin;
        if (there->end > block.end) block.end = there->end;
        remove_block(apart, there);
    }
    struct block *kept = amp__alloc(1, sizeof *kept);
    if (!kept) return amp__fail_memory();
    *kept = block;
    if (tsearch(kept, &apart->root, compare)) return AMP_OK;
    amp__free(kept);
    return amp__fail_memory();
}

void amp__apart_forget(struct amp__apart *apart) {
    while (apart->root) remove_block(apart, *(const struct block *const *)apart->root);
    apart->looked = 0;
}

static struct block block_at(const struct amp__param *param) {
    const uintptr_t begin = (uintptr_t)param->address;
    return (struct block){ begin, begin ? begin + (uintptr_t)param->size * amp__dtype_size(param->dtype) : 0, param };
}

/* *moved: it is elsewhere than at the last look. */
static amp_status look(struct amp__param *param, bool *moved) {
    struct amp__elements now = { .data = NULL };
    if (!param->size || !param->host->view) return AMP_OK;
    AMP_TRY(amp__param_layout(param, param->tensor, param->name, &now));
    if (now.strides) now.data = NULL; /* its gaps may be another's */
    *moved |= now.data != param->address;
    param->address = now.data;
    return AMP_OK;
}

static amp_status look_at_all(struct amp__params *params, size_t n) {
    struct amp__apart *apart = &params->apart;
    bool moved = false;
    amp__apart_forget(apart);
    for (size_t i = 0; i < n; i++) {
        AMP_TRY(look(params->list[i], &moved));
        AMP_TRY(insert(apart, block_at(params->list[i])));
    }
    apart->looked = n + 1;
    return AMP_OK;
}

enum { SAMPLE = 8 };

static amp_status must_look(struct amp__params *params, size_t n, bool *must) {
    struct amp__apart *apart = &params->apart;
    *must = !apart->looked || n + 1 > 2 * apart->looked;
    for (size_t k = 0; k < SAMPLE && k < n && !*must; k++)
        AMP_TRY(look(params->list[apart->next++ % n], must));
    return AMP_OK;
}

static amp_status check_one(struct amp__params *params, size_t n_old, struct amp__param *param, bool *fresh) {
    const struct block block = block_at(param), *there = find(&params->apart, &block);
    if (block.begin == block.end) return AMP_OK;
    if (there && !*fresh) { /* is it still there? */
        *fresh = true;
        const size_t first = n_old;
        AMP_TRY(look_at_all(params, first));
        for (size_t i = first; params->list[i] != param; i++)
            AMP_TRY(insert(&params->apart, block_at(params->list[i])));
        there = find(&params->apart, &block);
    }
    AMP_RETURN_IF(there, AMP_ERR_CONFLICT, "amp_add_params: %s shares memory with %s: add that handle, or give it "
                  "storage of its own", param->name, there->param->name);
    return insert(&params->apart, block);
}

amp_status amp__apart_check(struct amp__params *params, size_t first_new) {
    bool fresh = false;
    AMP_TRY(must_look(params, first_new, &fresh));
    if (fresh) AMP_TRY(look_at_all(params, first_new));
    for (size_t i = first_new; i < params->n; i++)
        AMP_TRY(check_one(params, first_new, params->list[i], &fresh));
    return AMP_OK;
}

amp_status amp__apart_moved(struct amp__params *params, struct amp__param *param) {
    const struct block before = block_at(param), *there = find(&params->apart, &before);
    bool moved = false;
    AMP_TRY(look(param, &moved));
    if (!moved) return AMP_OK;
    if (there) remove_block(&params->apart, there);
    return insert(&params->apart, block_at(param));
}
