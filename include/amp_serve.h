/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices without a backend of libamp, served by the host: amp_serve registers functions that work on lists of tensors
 * and on device memory, and libamp does the rest. Masters, brackets, loss scalers, clipping, fused optimizers,
 * checkpoints and the functions of amp_device.h then work on tensors of device type AMP_DEVICE_SERVED. libamp.torch
 * serves each device of PyTorch in this way, with PyTorch operators. Experimental: this header may change in any
 * release before 1.0.
 *
 * The view (amp_tensor_view) of such a tensor has device = { AMP_DEVICE_SERVED, id } with a device number of the
 * server. libamp reads and writes no element there. It adds byte offsets to the addresses of blocks and compares
 * addresses, so addresses of different tensors must differ. Split masters, amp_device_pack and products are not
 * available.
 */
#ifndef AMP_SERVE_H
#define AMP_SERVE_H

#include "amp_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The device type of a served device. */
enum {
    AMP_DEVICE_SERVED = 12 /* for amp_device.type, DLPack's kDLExtDev */
};

/* Kinds of amp_served_lists. Results have the bits of the CPU functions in amp_kernels.h, except for the order of sums.
 * found_inf is set by non-finite results, not by sources. */
enum {
    AMP_SERVE_CAST = 0,      /* dst = src: spans[0], spans[1]. No effect if *only_if is 0 */
    AMP_SERVE_ZERO = 1,      /* dst = +0 */
    AMP_SERVE_SCALE = 2,     /* dst = src * factors[0] */
    AMP_SERVE_AXPBY = 3,     /* dst = factors[0] * spans[1] + factors[1] * spans[2] */
    AMP_SERVE_CHECK = 4,     /* checks spans[0] * factors[0] * factors[1], and computes its norm and norms */
    AMP_SERVE_OPTIM = 5,     /* one step of `rule` on `tensors`, as amp_device_optim, except that an entry without
                                gradient data (data NULL, size 0) is a parameter without a gradient: nothing of it is
                                written, and its steps[i] stays */
    AMP_SERVE_RECONCILE = 6, /* dst (FP32) = src where dst rounded to `low` differs from src, or for all of tensor i if
                                norms[i] is 0 */
    AMP_SERVE_ADD = 7, /* as AXPBY, but found_inf is set only by a result for which the element of spans[2] is finite */
    AMP_SERVE_CLAMP = 8,     /* dst = src clamped to [-factors[0].value, factors[0].value] */
    AMP_SERVE_ROUND = 9, /* dst = src rounded to `low`, both FP32; found_inf is set by finite elements that overflow */
    AMP_SERVE_STATISTICS = 10 /* adds the statistics of spans[0][i] to statistics[i], as amp_device_statistics */
};

/* A call of amp_server.lists. Borrowed. Data pointers are device addresses, lists are in host memory. */
typedef struct amp_served_lists {
    uint32_t struct_size;
    int32_t kind; /* AMP_SERVE_CAST to AMP_SERVE_STATISTICS */
    int32_t id;   /* device number */
    amp_dtype low; /* 16-bit type of RECONCILE and ROUND: AMP_FLOAT16 or AMP_BFLOAT16 */
    void *stream; /* stream from the hook current_stream */
    size_t n;     /* length of each list */
    const amp_span *spans[3]; /* dst, then sources (NULL for absent ones) */
    amp_factor factors[2];    /* factors in the order of the formula */
    float *found_inf;    /* set above 0 by a non-finite result, and otherwise left alone (may be NULL) */
    uint32_t *first;     /* with found_inf: lowered to the least base + i of a tensor with a non-finite result; may be
                            NULL */
    uint32_t base;       /* number of the first tensor */
    float *norm, *norms; /* CHECK: receive the norm of all and of each, may be NULL. RECONCILE: reads norms */
    const float *only_if; /* condition of CAST (may be NULL) */
    amp_statistics *statistics;         /* results of STATISTICS */
    const amp_optim *rule;              /* rule of OPTIM */
    const amp_optim_tensors *tensors;   /* tensors of OPTIM (moments that the rule lacks are NULL) */
} amp_served_lists;

/* Kinds of amp_served_memory. */
enum {
    AMP_SERVE_ALLOC = 0,      /* allocates a block of `bytes` into made */
    AMP_SERVE_FREE = 1,       /* frees dst, which work on the stream may still use */
    AMP_SERVE_FILL = 2,       /* writes `value` to each byte of dst */
    AMP_SERVE_IN = 3,         /* copies from host memory src to dst; src may change after the call */
    AMP_SERVE_OUT = 4,        /* copies from src to host memory dst, and waits */
    AMP_SERVE_FETCH = 5, /* starts a copy of src to the host. made: handle of the copy, NULL before the first one */
    AMP_SERVE_ARRIVED = 6,    /* sets arrived to 1 if the last copy of handle `made` is complete. Does not wait */
    AMP_SERVE_FETCHED = 7,    /* writes the last copy of handle `made` to host memory dst, and waits for it */
    AMP_SERVE_FETCH_FREE = 8, /* frees handle `made` */
    AMP_SERVE_CAPTURING = 9,  /* sets capturing to 1 if the stream is being captured in a graph */
    AMP_SERVE_SCALER = 10     /* updates the loss scaler at the end of a bracket: `end` */
};

/* A loss scaler in device memory. docs/guide/loss-scaling.md explains the rules, src/scaler/rules.h implements them. */
typedef struct amp_served_scaler {
    float scale;              /* scale of the next bracket */
    float next_scale;         /* scale of the bracket after the next, for AMP_SCALER_MXNET */
    uint32_t unskipped;       /* brackets without overflow since the last overflow or growth */
    uint32_t hysteresis_left; /* remaining overflows until the scale backs off */
    uint32_t skips_in_row;    /* number of skipped brackets in a row */
    uint32_t reserved;        /* not used */
    uint64_t clean_run;       /* brackets without overflow since the last one with, for AMP_SCALER_DEEPSPEED */
    float gave_up;            /* above 0: a rank had an error or cancelled */
    float ended;              /* left alone at the end of a bracket */
    float found;              /* above 0: an element was not finite */
    uint32_t first;           /* least number of a tensor with a non-finite element (UINT32_MAX: none) */
    float inverse;            /* 1 / scale, computed in double */
    float left;               /* `inverse` of the last closed bracket */
    float found_inf;          /* `found` of the last closed bracket, as 0 or 1 */
    float scale_before;       /* scale of the last closed bracket */
    int32_t action;           /* action of the last closed bracket: AMP_STEP or AMP_SKIP */
    int32_t given_up;         /* 1: gave_up was set at the end of the last closed bracket */
    uint32_t first_nonfinite; /* `first` of the last overflow */
    uint32_t reserved2;       /* not used */
    uint64_t brackets, skipped; /* number of brackets, and of skipped ones */
} amp_served_scaler;

/* Arguments for the end of a bracket. */
typedef struct amp_served_end {
    amp_served_scaler *scaler; /* the scaler, in device memory */
    int32_t mode;              /* AMP_SCALER_* */
    int32_t dynamic;           /* 0: a static scale */
    float min_scale, max_scale; /* bounds of a dynamic scale */
    double growth;             /* factor after `window` brackets without overflow */
    double backoff;            /* factor after an overflow (0: 1 / growth, by division) */
    uint32_t window;           /* number of brackets without overflow before growth */
    uint32_t hysteresis;       /* number of overflows until the scale backs off */
    int32_t consecutive_hysteresis; /* 1: a bracket without overflow restores the hysteresis */
    int32_t check_finite;      /* 1: overflows are skipped at a static scale of 1 too */
    int32_t decides;           /* 0: the check is delayed, and `found` stays for a later end */
    int32_t found_elsewhere;   /* 1: the host found a non-finite element */
    float *skips;              /* device memory: skips[which[i]] is set to 1 for i < n if the bracket skips */
    const uint32_t *which;     /* indices in skips, in host memory */
    size_t n;                  /* entries of which */
} amp_served_end;

/* A call of amp_server.memory. Members that the kind does not use are 0. */
typedef struct amp_served_memory {
    uint32_t struct_size;
    int32_t kind; /* AMP_SERVE_ALLOC to AMP_SERVE_SCALER */
    int32_t id;   /* device number */
    int32_t value; /* byte of FILL, 0 to 255 */
    void *stream; /* stream from the hook current_stream */
    void *dst;    /* destination, or the block to free */
    const void *src; /* source of a copy */
    size_t bytes;    /* size of the block or the copy */
    void *made;      /* block of ALLOC, or handle of a copy to the host */
    int32_t arrived; /* result of ARRIVED */
    int32_t capturing; /* result of CAPTURING */
    const amp_served_end *end; /* arguments of SCALER */
} amp_served_memory;

/* The functions of a server. Both are required. They run on any thread that calls libamp. A status other than AMP_OK
 * fails the call of libamp, with the message of the server in `text` (`size` bytes, "" before the call). Of libamp they
 * may call only the kernels. */
typedef struct amp_server {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    void *self;        /* first argument of both functions */
    /* Starts the work of a call on lists. */
    amp_status (*lists)(void *self, const amp_served_lists *call, char *text, size_t size);
    /* Does work on memory. */
    amp_status (*memory)(void *self, amp_served_memory *call, char *text, size_t size);
} amp_server;

/* A server without functions, with struct_size set. */
#define AMP_SERVER_INIT { (uint32_t)sizeof(amp_server), 0, NULL, NULL, NULL }

/* Registers the server of the process, for the rest of its life. The structure is copied. Call it before the first
 * tensor of type AMP_DEVICE_SERVED reaches libamp. AMP_ERR_CONFLICT: a server is already registered. */
AMP_API AMP_MUST_CHECK amp_status amp_serve(const amp_server *server);

#ifdef __cplusplus
}
#endif

#endif /* AMP_SERVE_H */
