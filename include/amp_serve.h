/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that libamp has no backend for, served by the host: amp_serve registers functions that work on lists of
 * tensors and on memory there, and libamp decides everything else. Masters, brackets, loss scalers, clipping, fused
 * optimizers, checkpoints and the functions of amp_device.h then work on tensors of device type AMP_DEVICE_SERVED.
 * libamp.torch serves each device of PyTorch so, by torch's own operators. Experimental: this header may change in any
 * release before 1.0.
 *
 * A view (amp_tensor_view) of such a tensor has device = { AMP_DEVICE_SERVED, id }; id is the server's own number.
 * libamp reads and writes no element there. It adds byte offsets to addresses of blocks, and compares addresses;
 * addresses of different tensors must differ. Split masters, amp_device_pack and products need another backend.
 */
#ifndef AMP_SERVE_H
#define AMP_SERVE_H

#include "amp_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The type of a device that a server serves. */
enum {
    AMP_DEVICE_SERVED = 12 /* amp_device.type; DLPack's kDLExtDev */
};

/* amp_served_lists.kind. Results are the bits of the CPU's functions in amp_kernels.h, but for the order of sums. Where
 * found_inf is given, the results are checked, not the sources. */
enum {
    AMP_SERVE_CAST = 0,      /* dst = src: spans[0], spans[1]. Nothing happens where *only_if is 0 */
    AMP_SERVE_ZERO = 1,      /* dst = +0 */
    AMP_SERVE_SCALE = 2,     /* dst = src * factors[0] */
    AMP_SERVE_AXPBY = 3,     /* dst = factors[0] * spans[1] + factors[1] * spans[2] */
    AMP_SERVE_CHECK = 4,     /* spans[0] * factors[0] * factors[1] is checked; norm and norms are of it */
    AMP_SERVE_OPTIM = 5,     /* a step: `rule` and `tensors`, as amp_device_optim has them, but for one thing: an entry
                                whose gradient has no data (data NULL, size 0) is a parameter without one; nothing of
                                it is written, and its steps[i] stays */
    AMP_SERVE_RECONCILE = 6, /* dst, FP32, becomes src where dst rounded to `low` is not src; all of it where norms[i]
                                is 0 */
    AMP_SERVE_ADD = 7,       /* as AXPBY; a result is reported only where spans[2] was finite */
    AMP_SERVE_CLAMP = 8,     /* dst = src, within factors[0].value of 0 */
    AMP_SERVE_ROUND = 9,     /* dst = src rounded through `low`, both FP32; reports finite ones that overflow */
    AMP_SERVE_STATISTICS = 10 /* statistics[i] += the counts of spans[0][i], as amp_device_statistics */
};

/* A call over lists. Borrowed for the call; the addresses in it are the device's, those of lists the host's. */
typedef struct amp_served_lists {
    uint32_t struct_size;
    int32_t kind; /* AMP_SERVE_... */
    int32_t id;   /* of the device */
    amp_dtype low; /* RECONCILE, ROUND: AMP_FLOAT16 or AMP_BFLOAT16 */
    void *stream; /* the host's hook current_stream */
    size_t n;     /* entries of each list */
    const amp_span *spans[3]; /* dst and sources; NULL where there are fewer */
    amp_factor factors[2];    /* in the order of the formula */
    float *found_inf;    /* becomes above 0 where something is not finite, else stays; NULL: not wanted */
    uint32_t *first;     /* with found_inf: lowered to the least base + i of a tensor that is not finite; or NULL */
    uint32_t base;       /* the number of the first tensor */
    float *norm, *norms; /* CHECK: of all, of each; may be NULL. RECONCILE: norms, read */
    const float *only_if; /* CAST: may be NULL */
    amp_statistics *statistics;         /* STATISTICS */
    const amp_optim *rule;              /* OPTIM */
    const amp_optim_tensors *tensors;   /* OPTIM; moments that the rule does not have are NULL */
} amp_served_lists;

/* amp_served_memory.kind: work on memory. */
enum {
    AMP_SERVE_ALLOC = 0,      /* made = a block of `bytes` */
    AMP_SERVE_FREE = 1,       /* dst, which work on the stream may still use */
    AMP_SERVE_FILL = 2,       /* each byte at dst = value */
    AMP_SERVE_IN = 3,         /* dst = the host's src, which may change afterwards */
    AMP_SERVE_OUT = 4,        /* the host's dst = src; waits */
    AMP_SERVE_FETCH = 5,      /* starts a copy of src to the host; made: its handle, NULL before the first copy */
    AMP_SERVE_ARRIVED = 6,    /* arrived = is the last copy of handle `made` there? Does not wait */
    AMP_SERVE_FETCHED = 7,    /* the host's dst = the last copy of handle `made`; waits */
    AMP_SERVE_FETCH_FREE = 8, /* ends handle `made` */
    AMP_SERVE_CAPTURING = 9,  /* capturing = is the stream being recorded in a graph? */
    AMP_SERVE_SCALER = 10     /* the end of a bracket: `end` */
};

/* A loss scaler in the device's memory. docs/guide/loss-scaling.md has the rules; src/scaler/rules.h is their text. */
typedef struct amp_served_scaler {
    float scale;              /* of the next bracket */
    float next_scale;         /* AMP_SCALER_MXNET: of the one after it */
    uint32_t unskipped;       /* clean brackets since overflow or growth */
    uint32_t hysteresis_left; /* overflows until one backs off */
    uint32_t skips_in_row;    /* brackets */
    uint32_t reserved;        /* not used */
    uint64_t clean_run;       /* AMP_SCALER_DEEPSPEED: clean brackets since the last overflow */
    float gave_up;            /* above 0: a rank had an error or cancelled */
    float ended;              /* not changed by the end of a bracket */
    float found;              /* above 0: something was not finite */
    uint32_t first;           /* least number of a tensor that was not; else UINT32_MAX */
    float inverse;            /* 1 / scale, by double */
    float left;               /* `inverse` of the bracket that closed last */
    float found_inf;          /* that bracket's `found`, as 0 or 1 */
    float scale_before;       /* its scale */
    int32_t action;           /* AMP_STEP or AMP_SKIP */
    int32_t given_up;         /* 1: gave_up was set at its end */
    uint32_t first_nonfinite; /* `first` of the last overflow */
    uint32_t reserved2;       /* not used */
    uint64_t brackets, skipped; /* so far */
} amp_served_scaler;

/* The end of a bracket. */
typedef struct amp_served_end {
    amp_served_scaler *scaler; /* on the device */
    int32_t mode;              /* AMP_SCALER_... */
    int32_t dynamic;           /* 0: a static scale */
    float min_scale, max_scale; /* of a dynamic one */
    double growth;             /* factor after `window` clean brackets */
    double backoff;            /* factor after an overflow; 0: one over growth, as a quotient */
    uint32_t window;           /* clean brackets */
    uint32_t hysteresis;       /* overflows until one backs off */
    int32_t consecutive_hysteresis; /* 1: a clean bracket restores the hysteresis */
    int32_t check_finite;      /* 1: a static scale of 1 skips too */
    int32_t decides;           /* 0: the check is delayed; found stays for a later end */
    int32_t found_elsewhere;   /* 1: the host found something */
    float *skips;              /* on the device: skips[which[i]] becomes 1 where the bracket skips, i < n */
    const uint32_t *which;     /* the host's */
    size_t n;                  /* entries of which */
} amp_served_end;

/* Work on memory. Members that the kind does not name are 0. */
typedef struct amp_served_memory {
    uint32_t struct_size;
    int32_t kind; /* AMP_SERVE_... */
    int32_t id;   /* of the device */
    int32_t value; /* FILL: 0 to 255 */
    void *stream; /* the host's hook current_stream */
    void *dst;    /* as the kind has it */
    const void *src; /* likewise */
    size_t bytes;    /* of the block or the copy */
    void *made;      /* ALLOC: the block; of a copy to the host: its handle */
    int32_t arrived; /* ARRIVED: the answer */
    int32_t capturing; /* CAPTURING: the answer */
    const amp_served_end *end; /* SCALER */
} amp_served_memory;

/* The functions of a server; both are needed. A status other than AMP_OK fails libamp's call, with the server's words
 * in `text` (of `size` bytes, "" before the call). Any thread that calls libamp. They may call
 * libamp's kernels, and nothing else of it. */
typedef struct amp_server {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    void *self;        /* first argument of both functions */
    /* Starts work on lists. */
    amp_status (*lists)(void *self, const amp_served_lists *call, char *text, size_t size);
    /* Work on memory. */
    amp_status (*memory)(void *self, amp_served_memory *call, char *text, size_t size);
} amp_server;

/* A server without functions. */
#define AMP_SERVER_INIT { (uint32_t)sizeof(amp_server), 0, NULL, NULL, NULL }

/* Registers the process's only server, for the rest of its life; the structure is copied. Before the first tensor of
 * type AMP_DEVICE_SERVED reaches libamp. AMP_ERR_CONFLICT: there is one already. */
AMP_API AMP_MUST_CHECK amp_status amp_serve(const amp_server *server);

#ifdef __cplusplus
}
#endif

#endif /* AMP_SERVE_H */
