/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For hosts without tensors: raw FP32 buffers, structs in schemas, the hook visit, emulation. docs/start/c-host.md is
 * the guide, docs/reference/buffers.md the reference.
 */
#ifndef AMP_RAW_H
#define AMP_RAW_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Parameters that are raw buffers ----------------------------------------------------------------------------- */

/*
 * A tensor for hosts that have only memory: with amp_buffer_host() as amp_model.host and amp_optimizer.host, a
 * parameter is the address of an amp_buffer, and the host writes no hook. Buffers may be slices of one allocation.
 * Gradients are fixed buffers that backward adds to. The structure is kept.
 *
 * At O2, O3 and O5 the storage of an amp_buffer cannot be exchanged. If no op takes handles and an op has a 16-bit
 * implementation, ops get 16-bit copies of the FP32 block, which is the master at O2 and O5
 * (docs/reference/buffers.md). Otherwise these levels need amp_config.emulate.
 */
typedef struct amp_buffer {
    uint32_t struct_size; /* sizeof(amp_buffer); AMP_BUFFER_INIT sets it */
    amp_dtype dtype;      /* AMP_FLOAT32, ... */
    void *data;           /* the elements, kept, at a fixed address */
    int64_t size;         /* number of elements */
    struct amp_buffer *grad; /* the gradient (NULL: not trained) */
} amp_buffer;

#define AMP_BUFFER_INIT { (uint32_t)sizeof(amp_buffer), AMP_FLOAT32, NULL, 0, NULL }

/* The hooks for amp_buffer, valid for the life of the process. Copy the structure to add hooks: event, reduce, or grad
 * if gradients are not fixed (docs/reference/buffers.md). */
AMP_API const amp_host *amp_buffer_host(void);

/* For inference at O2, O3 or O5 with 16-bit copies: gives the whole pages of the FP32 blocks back to the system, so
 * that only the copies remain. *bytes (may be NULL): the memory released. Ops may still be called with the addresses:
 * ops with a 16-bit implementation get the copy, others a widened temporary. Any other access before
 * amp_weights_restore or amp_shutdown ends the program (SIGSEGV, or EFAULT in a system call), so that zeros are never
 * taken for weights. File-backed pages, shared pages and pages with other data stay. Only for contexts without
 * optimizers, and not while ops run. AMP_ERR_CONFLICT: a named weight is infinite in 16 bits, or another context has
 * the same parameters; no change. */
AMP_API AMP_MUST_CHECK amp_status amp_weights_release(amp_context *context, uint64_t *bytes);
/* Makes the FP32 blocks accessible again, with the values of the copies. No effect if nothing is released. amp_shutdown
 * calls it first, and stops if it fails (AMP_ERR_NO_MEMORY). */
AMP_API AMP_MUST_CHECK amp_status amp_weights_restore(amp_context *context);

/* ---- Structs in schemas ------------------------------------------------------------------------------------------ */

/*
 * A struct that schemas name: `struct layer l` by value, or `struct layer *l`. The registers of a struct passed by
 * value depend on its members, so a struct of at most 64 bytes that is passed or returned by value needs them; a larger
 * one needs size and alignment only.
 *
 *     struct vec { float x, y; int32_t n; };
 *     amp_struct vec = AMP_STRUCT_INIT;
 *     vec.name = "vec";
 *     vec.size = sizeof(struct vec);
 *     vec.alignment = _Alignof(struct vec);
 *     vec.members = "float, float, int32";
 *
 * members: types in schema notation, in the order of the struct, separated by commas. A name behind a type may be used
 * in extents (`float x[l.n]`). "float[4]" is an array, "{float, float}" a nested struct, "pointer" any pointer. The
 * resulting size and alignment are compared with the given ones. Larger structs, and those passed by pointer only, may
 * list some members, each with its offsetof: "@72 int64 batch, @80 uint16 width". amp_initialize copies the structure.
 */
typedef struct amp_struct {
    uint32_t struct_size; /* sizeof(amp_struct); AMP_STRUCT_INIT sets it. The stride of arrays, the same in all
                             entries */
    uint32_t flags;       /* 0 */
    const char *name;     /* its tag, without the word struct */
    uint64_t size;        /* sizeof (0: unknown, for a struct passed by pointer only) */
    uint32_t alignment;   /* _Alignof, at most 16 for a struct passed by value */
    uint32_t reserved;    /* 0 */
    const char *members;  /* its members (NULL: unknown) */
} amp_struct;

#define AMP_STRUCT_INIT AMP_SIZED_(amp_struct)

/* ---- The hook visit ---------------------------------------------------------------------------------------------- */

/* The hook visit emits every FP32 buffer and handle inside the structs of a call that the op reads or writes. On hosts
 * with the hook cast it runs twice in a call, first for the types of handles. op: the name in the descriptor. args[i]:
 * the address of the value of argument i; for a struct by value, of the copy for the op. Roles may differ from call to
 * call. If emit fails, visit must return its status. */

/* The use of a buffer by an op. */
typedef int32_t amp_role;
enum {
    AMP_ROLE_READ = 1,    /* read only */
    AMP_ROLE_UPDATE = 2,  /* read and written (a registered gradient is accumulated) */
    AMP_ROLE_WRITE = 3,   /* written only */
    AMP_ROLE_SCRATCH = 4, /* workspace: the op gets a private copy, which is dropped */
    AMP_ROLE_KEEP = 5,    /* never changed by libamp: labels, masks, running statistics */
    AMP_ROLE_SEED = 6     /* the seed of backward in an op with AMP_OP_SEEDS, multiplied by the loss scale */
};

/* A pointer to float, or a handle, inside a struct. libamp replaces it during the call and restores it. A buffer
 * emitted twice must have the same role both times, and gets one temporary. */
typedef struct amp_field {
    uint32_t struct_size;
    amp_role role;   /* the use by the op */
    float **address; /* address of the pointer */
    int64_t size;    /* number of elements, compact (0 or *address NULL: no buffer) */
    const char *name; /* for messages, borrowed (may be NULL) */
    void **tensor; /* instead of address: address of a handle; *tensor NULL: no handle. READ handles may be cast, UPDATE
                      and WRITE handles stay; SCRATCH and SEED are not allowed */
} amp_field;

#define AMP_FIELD_INIT AMP_SIZED_(amp_field)

/* ---- Emulation --------------------------------------------------------------------------------------------------- */

/*
 * amp_config.emulate, for hosts with FP32 only, gives the values of a level in FP32 storage. An op without a 16-bit
 * implementation runs on inputs rounded to the 16-bit type, and its results are rounded. At O1 and O4 this applies to
 * the ops of class AMP_LOWER. At O2, O3 and O5 it applies to every op but those of class AMP_LEAVE, inside a described
 * forward, an entered scope or an open bracket (without a described forward: always). Parameters are rounded in the
 * block of the host, except for batch norm, and masters are separate, without need of swap_data. With handles, `cast`
 * rounds in FP32 storage and `dtype` returns the logical type. Without `dtype`, AMP_LOWER always rounds.
 */

#ifdef __cplusplus
}
#endif

#endif /* AMP_RAW_H */
