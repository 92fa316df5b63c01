/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of libamp.so and a backend plugin, libamp_<name>.so. A plugin exports one function,
 * AMP__BACKEND_SYMBOL, which only returns a constant table. The loader reads the head of the table, which never
 * changes, and calls init only if both were built from the same version. Any change here must raise AMP__BACKEND_ABI.
 */
#ifndef AMP_KERNELS_BACKEND_H
#define AMP_KERNELS_BACKEND_H

#include "amp_device.h"
#include "scaler/rules.h"

#define AMP__BACKEND_ABI 13
#define AMP__BACKEND_MAGIC UINT32_C(0x21706d61) /* "amp!" */

/* Every backend that libamp knows, by name. */
#define AMP__BACKEND_MAP(X)                                                                                            \
    X(onednn)                                                                                                          \
    X(cuda)

enum { AMP__DEVICE_CPU = 1, AMP__DEVICE_CUDA = 2 }; /* kDLCPU, kDLCUDA */

/* Functions of libamp for a plugin, for the life of the process. A plugin does not link to libamp. */
struct amp__backend_host {
    /* Sets the last error of the thread and returns `status`. */
    amp_status (*fail)(amp_status status, const char *text);
    /* conversion of libamp between floating types, without overlap */
    void (*cast)(amp_dtype dst_type, void *dst, amp_dtype src_type, const void *src, size_t n);
    /* d = activation(alpha * sums + beta * c + bias) in the type of d for a block of d: rows i0 to i0 + rows, columns
     * j0 to j0 + cols. sums: op(a) * op(b) of the block, with ld elements between rows, overwritten. For batch 1. */
    void (*finish)(const amp_matmul_args *args, float *sums, size_t ld, size_t i0, size_t rows, size_t j0, size_t cols);
};

/* A checked call over lists in device memory, with the names of amp_device.h. */
enum {
    AMP__LIST_CAST,
    AMP__LIST_ZERO,
    AMP__LIST_SCALE,
    AMP__LIST_AXPBY,
    AMP__LIST_CHECK,
    AMP__LIST_OPTIM,
    AMP__LIST_RECONCILE, /* dst (FP32) = src where dst rounded differs from src, or everywhere if norms[i] is 0. src:
                            16-bit, or FP32 with values of `low` */
    AMP__LIST_ADD, /* AXPBY with found_inf only where the last list was finite */
    AMP__LIST_CLAMP, /* dst = src, within factors[0].value of 0 */
    AMP__LIST_ROUND, /* dst = src rounded to `low`, both FP32, with found_inf if a finite element overflows */
    AMP__LIST_STATISTICS,
    AMP__LIST_SPLIT, /* dst (bf16) and its remainder = src (FP32). The remainder is the third span, of 16 bits */
    AMP__LIST_JOIN,  /* dst, FP32, becomes src, bf16, and its remainder, the third */
    AMP__LIST_PACK,  /* arguments in `pack` or `unpack` */
};
struct amp__list_call {
    int32_t kind; /* AMP__LIST_... */
    void *stream;
    size_t n;
    const amp_span *spans[3];            /* dst and the sources (CHECK: src) */
    amp_factor factors[2];               /* in the order of the arguments */
    float *found_inf, *norm, *norms;     /* on the device */
    amp_statistics *statistics;          /* STATISTICS: there too */
    const amp_optim *rule;               /* OPTIM: of libamp's size */
    const amp_optim_tensors *tensors;    /* tensors of OPTIM (moments that the rule lacks are NULL) */
    uint32_t *first;      /* with found_inf: lowered to the least base + i of a tensor with a non-finite result (may be
                             NULL) */
    uint32_t base;
    const float *only_if; /* CAST: nothing happens unless it is not 0 (NULL: it happens) */
    bool passes_over;     /* OPTIM: a tensor without gradient data is not updated, nor is its step count */
    amp_dtype low; /* ROUND, RECONCILE: fp16 or bf16 */
    const amp_pack_args *pack;     /* PACK: one of these, of libamp's size */
    const amp_unpack_args *unpack;
};

/* Other work on a device, and its memory. */
enum {
    AMP__MEMORY_ALLOC,     /* made, of `bytes`, in the stream's order */
    AMP__MEMORY_FREE,      /* dst, in the stream's order */
    AMP__MEMORY_FILL,      /* each of `bytes` at dst becomes `value` */
    /* AMP_ERR_WRONG_STATE of these three: the stream is being captured. */
    AMP__MEMORY_IN,        /* copies `bytes` of host memory from src to dst. src may change afterwards */
    AMP__MEMORY_OUT,       /* copies `bytes` from src to host memory dst, and waits */
    AMP__MEMORY_FETCH,     /* `bytes` at src, as many for each fetch of a handle, on their way to the host */
    AMP__MEMORY_ARRIVED,   /* has the last fetch of this handle come? Does not wait */
    AMP__MEMORY_FETCHED,   /* writes the last fetch of this handle to host memory dst, and waits for it */
    AMP__MEMORY_FETCH_FREE, /* ends the handle */
    AMP__MEMORY_CAPTURING, /* is the stream being captured in a graph? */
    AMP__MEMORY_SCALER,    /* the end of a bracket on the device */
};

struct amp__memory_call {
    int32_t kind; /* AMP__MEMORY_... */
    void *stream;
    void *dst;
    const void *src;
    size_t bytes;
    uint8_t value;  /* FILL */
    void *made; /* block of ALLOC, or handle of FETCH, ARRIVED, FETCHED and FETCH_FREE (NULL before the first fetch) */
    bool capturing; /* CAPTURING */
    bool arrived;   /* ARRIVED */
    /* SCALER: amp__rule_end of scaler. If it skips, skips[which[i]] is set to 1 for i < n. */
    struct amp__device_scaler *scaler;
    const struct amp__scaler_settings *settings;
    bool decides, found_elsewhere;
    float *skips;
    const uint32_t *which;
    size_t n;
};

/* A checked product in device memory, with the names of amp_device.h. */
enum { AMP__PRODUCT_RUN, AMP__PRODUCT_MEASURE };
struct amp__device_product {
    int32_t kind;                        /* AMP__PRODUCT_... */
    void *list;                          /* result of list_open, or NULL: memory in the order of the stream */
    const amp_matmul_args *args;         /* as for matmul, but alpha and k may be 0, and device and stream are set */
    const amp_device_epilogue *epilogue; /* of libamp's size, with distances filled in, never NULL */
};

/* A communicator of the host's, with a stream beside the host's own. */
enum {
    AMP__COMM_REDUCE, /* `spans`, fp32, fp16, bf16 or fp64, combined over all ranks in place, on `stream` */
    AMP__COMM_FORK,   /* its stream goes on where `stream` is now */
    AMP__COMM_JOIN,   /* `stream` goes on where its stream is now */
    AMP__COMM_CHECK,  /* has the communicator failed since the last check? */
};
struct amp__comm_call {
    int32_t kind; /* AMP__COMM_... */
    amp_reduction reduction;
    void *stream;
    const amp_span *spans;
    size_t n;
};
struct amp__comm {
    void *comm;   /* the plugin's */
    void *stream; /* its stream */
    int32_t id, ranks; /* device number, and number of ranks */
};

/* The table of a plugin. Constant, for the life of the process. */
struct amp__backend {
    /* The head: the same in all versions. */
    uint32_t magic, abi; /* AMP__BACKEND_ABI of its build */
    const char *name;
    /* Called once, before any other function, from one thread. Writes the version of the library behind the plugin,
     * with the final 0. AMP_ERR_NO_DEVICE: no usable device. A failure sets the last error, and no other function is
     * called. */
    amp_status (*init)(const struct amp__backend_host *host, char *version, size_t size);
    /* May be NULL. Arguments are checked, with every ld filled in, batch at least 1, m, n, k and alpha not 0. In the
     * default floating-point environment, with at most `threads` threads. Any thread. After AMP_ERR_UNSUPPORTED and
     * AMP_ERR_NO_MEMORY nothing is written. */
    amp_status (*matmul)(const amp_matmul_args *args, int32_t threads);
    /* May be NULL: how matmul would do it, "bf16, brg:avx512_core_bf16", or its error. Computes nothing. */
    amp_status (*matmul_explain)(const amp_matmul_args *args, int32_t threads, char *text, size_t size);
    /* May be NULL: its mutexes (pthread_mutex_t), terminated by NULL, at most AMP__BACKEND_LOCKS. fork waits for them,
     * so that a child finds them free. They are held for short sections, never two, never during a call of libamp. */
    void *const *locks;
    /* May be NULL. Returns the unit for products of this type, as in the table of the gate (call/gate_table.inc):
     * "avx512_core_bf16", or "" if operands are converted to fp32. Static. */
    const char *(*matmul_unit)(amp_dtype type);
    /* May be NULL together with the other five and `where`: lists on device `id`. list_close ends a list of list_open.
     * list_run starts the work on call->stream. */
    amp_status (*list_open)(int32_t id, void **list);
    void (*list_close)(void *list);
    amp_status (*list_run)(void *list, const struct amp__list_call *call);
    /* Memory of device `id`, and the small work around it. memory_close waits. */
    amp_status (*memory_open)(int32_t id, void **memory);
    void (*memory_close)(void *memory);
    amp_status (*memory_run)(void *memory, struct amp__memory_call *call);
    /* May be NULL, and then all three are: products in a device's memory. Any thread, but one at a time for a list. */
    amp_status (*product)(const struct amp__device_product *call);
    /* Describes how it would be done, or fails. Computes nothing. The call has no stream. */
    amp_status (*product_explain)(const struct amp__device_product *call, char *text, size_t size);
    /* Returns 1 if the device multiplies this type by tensor cores, 0 if not, -1 if unknown. *capability, if known: 10
     * * major + minor. */
    int32_t (*tensor_cores)(int32_t id, amp_dtype type, int32_t *capability);
    /* Finds the memory of an address: { 2, id } for a device with memory that the CPU cannot touch, else { 1, 0 }, also
     * for managed and pinned memory. Any thread, also during capture. Does not wait. */
    amp_status (*where)(const void *address, amp_device *device);
    /* May be NULL, and then all three are: `given` is a ncclComm_t. comm_close waits for its stream. */
    amp_status (*comm_open)(void *given, struct amp__comm *made);
    void (*comm_close)(void *comm);
    amp_status (*comm_run)(void *comm, const struct amp__comm_call *call);
};

#define AMP__BACKEND_LOCKS 4

#define AMP__BACKEND_SYMBOL "amp_backend"
typedef const struct amp__backend *amp__backend_entry_fn(void);

/* ---- the loader (loader.c) ---- */

/* In the order of AMP__BACKEND_MAP. */
enum {
#define AMP__BACKEND_INDEX(name) AMP__BACKEND_##name,
    AMP__BACKEND_MAP(AMP__BACKEND_INDEX)
#undef AMP__BACKEND_INDEX
    AMP__BACKENDS
};

/* Returns the table of a backend, and loads it at the first call. NULL: unavailable, for the reason in *status (may be
 * NULL, which leaves the last error alone). Any thread, and without a lock after the first attempt. */
const struct amp__backend *amp__backend_get(int index, amp_status *status);
/* Returns the table of a backend only if it was loaded before, or if the process has loaded the driver of its devices,
 * since otherwise no address of such a device can exist. NULL otherwise, and in a forked child, where the loader cannot
 * be called. The last error stays. */
const struct amp__backend *amp__backend_in_use(int index);
/* AMP_BACKEND_PATH's value: is each of its entries an absolute name, and of a folder? */
bool amp__backend_path_is_good(const char *path);

#endif
