/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a context, and their tables: by handle, and by the host's id. */
#ifndef AMP_CONTEXT_PARAMS_H
#define AMP_CONTEXT_PARAMS_H

#include "context/policy.h"
#include "master/param.h"

struct amp__handle_entry {
    void *handle;
    struct amp__param *param;
};

struct amp__id_entry {
    uint64_t id;
    struct amp__param *param;
};

/* apart.c: memory of parameters, for those that come late. Zeros: not known yet. */
struct amp__apart {
    void *root;    /* of a tree of blocks */
    size_t looked; /* 1 + the parameters at the last look at all of them */
    size_t next;   /* the next parameter of those that are looked at in turn */
};
struct amp__params {
    struct amp__param **list;
    size_t n, capacity;
    struct amp__handle_entry *by_handle; /* open addressing, with an entry for each handle of a tie */
    struct amp__id_entry *by_id;         /* open addressing */
    size_t table_mask, table_used;       /* size of both tables - 1; handles in them */
    struct amp__apart apart;
    size_t listed_for; /* 1 + the optimizer of amp__param.listed_by (0: none) */
    bool has_norm;     /* a parameter of batch norm */
};

amp_status amp__params_init(struct amp__params *params, size_t expected);
/* Prefetches the entry of this handle. */
void amp__params_prefetch(const struct amp__params *params, const void *tensor);
amp_status amp__params_insert(struct amp__params *params, void *handle, struct amp__param *param);
/* The ids of the parameters from this index on, by all their handles; the list is final that far. */
amp_status amp__params_index(struct amp__params *params, size_t from);
void amp__params_remove(struct amp__params *params, size_t from); /* all handles of the parameters from this index on */
struct amp__param *amp__param_of_handle(const struct amp__params *params, const void *tensor);
/* By handle, else by the host's id: another handle on a parameter's storage is that parameter. */
struct amp__param *amp__param_find(const struct amp__params *params, const amp_host *host, void *tensor);

/* ---- apart.c ---- */

void amp__apart_forget(struct amp__apart *apart);
/* Parameters from this index on share no memory with any other. */
amp_status amp__apart_check(struct amp__params *params, size_t first_new);
/* A parameter that was re-typed may lie elsewhere. */
amp_status amp__apart_moved(struct amp__params *params, struct amp__param *param);

/* A 16-bit model on a host that cannot exchange storage: its ops read 16-bit copies of its FP32 block, which is the
 * master itself where the level has masters (docs/reference/buffers.md). */
static inline bool amp__keeps_block(const struct amp__properties *properties, const amp_host *host) {
    return amp__retypes(properties) && !properties->emulate && !host->swap_data;
}
/* Returns true for parameters of batch norm in a 16-bit model with FP32 blocks as parameters. */
static inline bool amp__param_stays_fp32(const struct amp__policy *policy, const struct amp__param *param) {
    const struct amp__properties *properties = &policy->properties;
    return param && param->module_kind == AMP_MODULE_BATCH_NORM && properties->keep_batchnorm_fp32 &&
           (amp__emulates_model(properties) || amp__keeps_block(properties, param->host));
}

#endif
