/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For hosts without tensors: raw FP32 buffers, structs in schemas, the hook visit, emulation. docs/start/c-host.md
 * leads through such hosts, docs/reference/buffers.md has the rest.
 */
#ifndef AMP_RAW_H
#define AMP_RAW_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Parameters that are raw buffers ----------------------------------------------------------------------------- */

/*
 * A ready-made handle for hosts that have no tensors, only memory: with amp_buffer_host() as amp_model.host and
 * amp_optimizer.host, a parameter is the address of an amp_buffer, and no hook needs to be written. The buffers may be
 * slices of one allocation. Gradients are fixed buffers that backward adds into. The structure is kept.
 * O2, O3 and O5 exchange the storage under handles, which is not possible with it. Where no op takes handles and one
 * has a 16-bit implementation, ops get 16-bit copies of the FP32 block instead, which at O2 and O5 is the master itself
 * (docs/guide/raw-storage.md). Else these levels need amp_config.emulate.
 */
typedef struct amp_buffer {
    uint32_t struct_size; /* sizeof(amp_buffer); AMP_BUFFER_INIT sets it */
    amp_dtype dtype;      /* AMP_FLOAT32, ... */
    void *data;           /* borrowed; stays where it is until amp_shutdown */
    int64_t size;         /* elements */
    struct amp_buffer *grad; /* NULL: not trained */
} amp_buffer;

#define AMP_BUFFER_INIT { (uint32_t)sizeof(amp_buffer), AMP_FLOAT32, NULL, 0, NULL }

/* Hooks over amp_buffer handles. Static: copy it to add hooks of your own (event, reduce; grad, where
 * gradients come and go: docs/reference/buffers.md). */
AMP_API const amp_host *amp_buffer_host(void);

/* Inference at O2, O3 or O5, where ops have 16-bit copies of the host's FP32 blocks: the copies become the only
 * ones, and what the blocks take in whole pages goes back to the system. *bytes (may be NULL): how much that is. The
 * addresses stay yours to pass to ops that are described: those with a 16-bit implementation get the copy, others a
 * widened temporary. Nobody else may read or write there until amp_weights_restore or amp_shutdown: it ends the
 * program (SIGSEGV; a system call fails with EFAULT), where zeros would be taken for weights. Pages of files, shared
 * ones, and those that other data share stay. In contexts without optimizers; not while ops run. AMP_ERR_CONFLICT:
 * weights that are infinite in 16 bits, named, or another context has the same parameters; nothing was done. */
AMP_API AMP_MUST_CHECK amp_status amp_weights_release(amp_context *context, uint64_t *bytes);
/* And back: the blocks are there again, what was given back with the copies' values. No-op where nothing is released.
 * amp_shutdown does it first, and does nothing else where it fails (AMP_ERR_NO_MEMORY). */
AMP_API AMP_MUST_CHECK amp_status amp_weights_restore(amp_context *context);

/* ---- Structs in schemas ------------------------------------------------------------------------------------------ */

/*
 * A struct that schemas name, `struct layer l` by value or `struct layer *l`. What a struct travels in depends on its
 * members, so those of a struct of at most 64 bytes that is passed or returned by value must be told; of a larger one
 * size and alignment are enough.
 *
 *     struct vec { float x, y; int32_t n; };
 *     amp_struct vec = AMP_STRUCT_INIT;
 *     vec.name = "vec";
 *     vec.size = sizeof(struct vec);
 *     vec.alignment = _Alignof(struct vec);
 *     vec.members = "float, float, int32";
 *
 * members: the types of the schema notation in the struct's order, separated by commas; the names behind them may be
 * used in extents (`float x[l.n]`). "float[4]" is an array, "{float, float}" a struct inside, "pointer" any pointer.
 * What the struct would then measure is compared with size and alignment. Of structs that are larger, or only passed by
 * pointer, some members will do, each with its offsetof: "@72 int64 batch, @80 uint16 width". Copied by amp_initialize.
 */
typedef struct amp_struct {
    uint32_t struct_size; /* sizeof(amp_struct); AMP_STRUCT_INIT sets it. In arrays, the stride: all must agree */
    uint32_t flags;       /* 0 */
    const char *name;     /* without the word struct */
    uint64_t size;        /* sizeof; 0 for a struct that is only ever passed by pointer: not known */
    uint32_t alignment;   /* _Alignof: at most 16 for a struct passed by value */
    uint32_t reserved;    /* 0 */
    const char *members;  /* NULL: not told */
} amp_struct;

#define AMP_STRUCT_INIT AMP_SIZED_(amp_struct)

/* ---- The hook visit ---------------------------------------------------------------------------------------------- */

/* The hook visit emits the FP32 buffers behind the structs of a call, and the handles in them, each that the op reads
 * or writes. Hosts with the hook cast are asked twice a call, the first time for the handles' types. op is the
 * descriptor's name. args[i] is the address of argument i's value; where that is a struct by value, of the copy that
 * the op will get. Roles may differ from call to call. A failing emit's status is returned. */

/* What an op does with a buffer that `visit` found. */
typedef int32_t amp_role;
enum {
    AMP_ROLE_READ = 1,    /* only read */
    AMP_ROLE_UPDATE = 2,  /* read and written; registered gradients are accumulators */
    AMP_ROLE_WRITE = 3,   /* only written */
    AMP_ROLE_SCRATCH = 4, /* workspace: the op gets a private copy, nobody sees what it leaves there */
    AMP_ROLE_KEEP = 5,    /* never touched: labels, masks, running statistics */
    AMP_ROLE_SEED = 6     /* the constant that backward starts from, of an op with AMP_OP_SEEDS: times the loss scale */
};

/* A pointer to float inside a struct, with the extents of what it points to; or a tensor handle inside one. What is
 * found there is replaced for the time of the call and put back. A buffer that is emitted twice has the same role each
 * time, and gets one temporary. */
typedef struct amp_field {
    uint32_t struct_size;
    amp_role role;   /* what the op does with the buffer */
    float **address; /* where the pointer is */
    int64_t size;    /* elements, compact; 0 or *address NULL: nothing there */
    const char *name; /* for messages; borrowed; NULL: none */
    void **tensor; /* instead of address: where a handle lies; *tensor NULL: none. READ is what the policy may cast,
                      UPDATE and WRITE keep their handles; neither SCRATCH nor SEED */
} amp_field;

#define AMP_FIELD_INIT AMP_SIZED_(amp_field)

/* ---- Emulation --------------------------------------------------------------------------------------------------- */

/*
 * amp_config.emulate, for hosts that know FP32 only: what the level would do to the model, in FP32 storage. Ops without
 * a 16-bit implementation run as they are, on inputs rounded through the level's 16-bit type, and what they return or
 * write is rounded. At O1 and O4 those that the policy lowers; at O2, O3 and O5 every op that runs in a described
 * forward, in an entered scope or while a bracket is open (without a described forward: every op), except those of
 * class AMP_LEAVE: parameters are rounded in the host's own block, batch norm's kept, and masters stand apart;
 * swap_data is not needed. Handles: `cast` rounds and keeps FP32 storage, and `dtype` tells the logical type; without
 * `dtype` lower always rounds.
 */

#ifdef __cplusplus
}
#endif

#endif /* AMP_RAW_H */
