/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp: automatic mixed precision behind one C ABI.
 *
 * The host (any training framework that can call C) keeps its tensors, its autograd, its kernels and its
 * optimizer. It describes them once, and libamp wires the policy of an opt level into the host's own function
 * pointers:
 *
 *     amp_initialize(&model, &optimizer, AMP_O1);           once
 *
 *     amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;        every iteration
 *     amp_scale_loss_begin(&optimizer, loss, &scaled);
 *     host_backward(scaled.loss);
 *     amp_scale_loss_end(&scaled);
 *     host_optimizer->step(host_optimizer);                 the host's own slot, wired: steps or skips
 *
 *     amp_shutdown(model.amp);                              every slot and every parameter as before
 *
 * Reading order: statuses, tensors, the host's hooks, ops, model and optimizer, configuration, initialize, the
 * bracket, direct calls, scopes, masters, checkpoints, diagnostics, the table for dlopen.
 *
 * Ownership words. "Borrowed": valid during the call only, unless a longer time is stated. "Kept": the pointer must
 * stay valid until amp_shutdown. "Moves": the other side must now give it back or release it.
 *
 * Errors. Every fallible function returns an amp_status; on anything but AMP_OK nothing has changed, nothing has
 * leaked, out-parameters are untouched and amp_last_error() says in words what was wrong, where, and what to do.
 * The one exception is amp_scale_loss_end, which closes its bracket whatever it returns.
 *
 * Threads. Different contexts are independent. Within one context, wrapped ops, amp_op_target, amp_cast_args, scopes
 * and the diagnostics may run on any number of threads at once; initialize, shutdown, brackets and steps of one
 * context are the business of one thread at a time, while no other thread runs that context's ops (brackets: while
 * no other thread opens or closes one).
 */
#ifndef AMP_H
#define AMP_H

#include <stddef.h>
#include <stdint.h>

/* The header's version; amp_version() has the library's. */
#define AMP_VERSION_MAJOR 0
#define AMP_VERSION_MINOR 1
#define AMP_VERSION_PATCH 0
#define AMP_SOVERSION 0   /* 0: the header may still change between releases */
#define AMP_API_VERSION 1 /* of the table that amp_get_api returns */

/* What libamp exports. Define AMP_STATIC before including the header to link the static library. */
#if defined(AMP_STATIC) || !defined(__GNUC__)
#define AMP_API
#else
#define AMP_API __attribute__((visibility("default")))
#endif

/* The returned status must not be ignored. */
#if defined(__GNUC__)
#define AMP_MUST_CHECK __attribute__((warn_unused_result))
#else
#define AMP_MUST_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statuses ---------------------------------------------------------------------------------------------------- */

/* What a call that can fail returns: AMP_OK, or a negative value. Hooks of the host may use any negative value. */
typedef int32_t amp_status;

/* One list: the constants, amp_status_name and amp_status_text all come from it. Values are fixed for ever. */
#define AMP_STATUS_MAP(X)                                                                                              \
    X(AMP_OK, 0, "success")                                                                                            \
    X(AMP_ERR_INVALID_ARGUMENT, -1, "an argument is invalid")                                                          \
    X(AMP_ERR_NO_MEMORY, -2, "out of memory")                                                                          \
    X(AMP_ERR_ABI_MISMATCH, -3, "a structure's size does not fit this libamp")                                         \
    X(AMP_ERR_WRONG_STATE, -4, "the call is not allowed in this state")                                                \
    X(AMP_ERR_UNSUPPORTED, -5, "not supported")                                                                        \
    X(AMP_ERR_HOST_FAILED, -6, "a hook of the host failed")                                                            \
    X(AMP_ERR_MISSING_HOOK, -7, "a hook that is needed here is missing")                                               \
    X(AMP_ERR_SCHEMA, -8, "an op's schema is malformed")                                                               \
    X(AMP_ERR_NOT_FOUND, -9, "no such name")                                                                           \
    X(AMP_ERR_CONFLICT, -10, "two settings contradict each other")                                                     \
    X(AMP_ERR_READ_ONLY, -11, "a slot lies in read-only memory")                                                       \
    X(AMP_ERR_CLOSURE_DENIED, -12, "the system denies executable closures")                                            \
    X(AMP_ERR_BANNED, -13, "the op is banned in low precision")                                                        \
    X(AMP_ERR_TOO_MANY_SKIPS, -14, "too many steps were skipped in a row")                                             \
    X(AMP_ERR_SLOT_TAKEN, -15, "somebody else wrote over a wrapped slot")                                              \
    X(AMP_ERR_BACKEND, -16, "a backend is missing or failed")                                                          \
    X(AMP_ERR_IO, -17, "a file cannot be read or written")                                                             \
    X(AMP_ERR_BAD_FILE, -18, "a file is damaged, or not what it should be")                                            \
    X(AMP_ERR_NO_DEVICE, -19, "a backend loads, but has no device here")

/* The constants. */
enum {
#define AMP_STATUS_CONSTANT(name, value, text) name = value,
    AMP_STATUS_MAP(AMP_STATUS_CONSTANT)
#undef AMP_STATUS_CONSTANT
    AMP_STATUS_LAST_ = -19 /* the least of them; not a status of its own */
};

/* "AMP_ERR_NO_MEMORY" and "out of memory"; never NULL, also for unknown values. */
AMP_API const char *amp_status_name(amp_status status);
AMP_API const char *amp_status_text(amp_status status);

/* This thread's last error in words: what was wrong, where, what to do. "" if there was none. The text is the
 * thread's own and holds until its next failing call. */
AMP_API const char *amp_last_error(void);

/* The library's version: "0.1.0". */
AMP_API const char *amp_version(void);

/* ---- Small types -------------------------------------------------------------------------------------------------- */

/* A function pointer of the host of whatever type; cast it back to its real type before calling. */
typedef void (*amp_fn)(void);

/* All state lives in a context, made by one initialize and ended by amp_shutdown. */
typedef struct amp_context amp_context;

/* The type of a tensor's elements. */
typedef int32_t amp_dtype;
enum {
    AMP_DTYPE_DEFAULT = 0,   /* none: the default, or the present type stays */
    AMP_FLOAT32 = 1,         /* IEEE binary32 */
    AMP_FLOAT16 = 2,         /* IEEE binary16 */
    AMP_BFLOAT16 = 3,        /* the upper half of a binary32 */
    AMP_FLOAT64 = 4,         /* IEEE binary64 */
    AMP_DTYPE_OTHER = 5,     /* integers, booleans, anything that libamp leaves alone */
    AMP_DTYPE_UNCHANGED = 6  /* cast_model_type only: do not touch the model (Apex: cast_model_type=False) */
};

/* A setting that is on, off, or not given. */
typedef int32_t amp_switch;
enum {
    AMP_DEFAULT = 0, /* the level's property, or the default stated with the setting */
    AMP_OFF = 1,     /* off */
    AMP_ON = 2       /* on */
};

/* Opt levels. O0..O3 as in Apex; O4 and O5 are O1 and O2 with bfloat16 and no loss scaling, as in ROCm's fork. One list: the
 * constant, its value (from 1: a zeroed structure is no level), words; the level's 16-bit type and its properties, which
 * amp_config can override: cast_model_type, patch_ops, keep_batchnorm_fp32, master_weights (1: on) and loss_scale. */
#define AMP_LEVEL_MAP(X)                                                                                               \
    X(AMP_O0, 1, "everything in FP32: the reference", AMP_FLOAT16, AMP_FLOAT32, 0, 0, 0, 1.0f)                         \
    X(AMP_O1, 2, "ops cast by the lists, fp16, dynamic scaling; the model stays FP32",                                 \
      AMP_FLOAT16, AMP_DTYPE_UNCHANGED, 1, 0, 0, AMP_DYNAMIC)                                                          \
    X(AMP_O2, 3, "the model in fp16 but for batch norm, FP32 masters, dynamic scaling",                                \
      AMP_FLOAT16, AMP_FLOAT16, 0, 1, 1, AMP_DYNAMIC)                                                                  \
    X(AMP_O3, 4, "all in fp16", AMP_FLOAT16, AMP_FLOAT16, 0, 0, 0, 1.0f)                                               \
    X(AMP_O4, 5, "O1 in bfloat16, without scaling", AMP_BFLOAT16, AMP_DTYPE_UNCHANGED, 1, 0, 0, 1.0f)                  \
    X(AMP_O5, 6, "O2 in bfloat16, without scaling", AMP_BFLOAT16, AMP_BFLOAT16, 0, 1, 1, 1.0f)

/* The levels. */
typedef int32_t amp_level;
enum {
#define AMP_LEVEL_CONSTANT(name, value, text, ...) name = value,
    AMP_LEVEL_MAP(AMP_LEVEL_CONSTANT)
#undef AMP_LEVEL_CONSTANT
};

/* "O1" -> AMP_O1. The letter O, not the digit zero. */
AMP_API AMP_MUST_CHECK amp_status amp_level_from_name(const char *name, amp_level *level);

/* What the policy does with an op. */
typedef int32_t amp_class;
enum {
    AMP_BY_LIST = 0,          /* whatever the named cast list says about the op's name */
    AMP_LOWER = 1,            /* floating arguments become the level's 16-bit type */
    AMP_FP32 = 2,             /* floating arguments become FP32 */
    AMP_PROMOTE = 3,          /* floating arguments become the widest type among them */
    AMP_PROMOTE_SEQUENCE = 4, /* the tensors of the list arguments become their widest type */
    AMP_BANNED = 5,           /* refuses 16-bit arguments, saying what to use instead */
    AMP_LEAVE = 6             /* runs as it comes */
};

/* What a bracket decided for the step that follows. An overflow is a decision, not an error. */
typedef int32_t amp_action;
enum {
    AMP_STEP = 0,          /* the optimizer steps */
    AMP_SKIP = 1,          /* it does not: a gradient was not finite */
    AMP_STEP_ON_DEVICE = 2 /* the flag is in device memory */
};

/* ---- Tensors ------------------------------------------------------------------------------------------------------ */

/* Numbers of DLPack's DLDeviceType: 1 CPU, 2 CUDA, ... */
typedef struct amp_device {
    int32_t type; /* DLDeviceType */
    int32_t id;   /* which of them */
} amp_device;

/* A borrowed description of a handle's elements, never stored. Same layout and codes as DLPack's DLTensor: a host may
 * pass a DLTensor. strides in elements; NULL means compact row-major. code 0 int, 1 uint, 2 float, 4 bfloat. */
typedef struct amp_tensor_view {
    void *data;        /* the block that byte_offset counts from */
    amp_device device; /* where the elements are */
    int32_t ndim;      /* dimensions; 0: one element */
    struct {
        uint8_t code;   /* kind of number */
        uint8_t bits;   /* of one lane */
        uint16_t lanes; /* 1 */
    } dtype;              /* the type of the elements */
    int64_t *shape;       /* ndim extents */
    int64_t *strides;     /* ndim strides in elements, or NULL */
    uint64_t byte_offset; /* from data to the first element */
} amp_tensor_view;

/* A block of elements that can be put under a handle (see swap_data). `owner` is the host's own word for the block
 * and is only carried along. A block made by the host's alloc is freed by whoever holds it, with the host's free.
 * Without alloc, blocks come from libamp's allocator and the host must never free one: libamp takes it back. So a host
 * whose step drops its gradients, which free their blocks, needs alloc and free. */
typedef struct amp_storage {
    void *data;       /* the elements */
    void *owner;      /* the host's own word */
    uint64_t bytes;   /* at data */
    amp_dtype dtype;  /* what they hold */
    int32_t reserved; /* 0 */
} amp_storage;

/* What an allocation is for; hosts may use it for accounting. */
typedef int32_t amp_purpose;
enum {
    AMP_FOR_PARAMETER = 1, /* a parameter's 16-bit elements */
    AMP_FOR_MASTER = 2,    /* its FP32 master */
    AMP_FOR_GRADIENT = 3   /* a gradient */
};

/* How values of several ranks become one; see the hook reduce. */
typedef int32_t amp_reduction;
enum {
    AMP_REDUCE_MAX = 1, /* the greatest */
    AMP_REDUCE_SUM = 2  /* the sum */
};

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

/* A pointer to float inside a struct, with the extents of what it points to; or a tensor handle inside one. What is found
 * there is replaced for the time of the call and put back. A buffer that is emitted twice has the same role each time, and
 * gets one temporary. */
typedef struct amp_field {
    uint32_t struct_size;
    amp_role role;   /* what the op does with the buffer */
    float **address; /* where the pointer is */
    int64_t size;    /* elements, compact; 0 or *address NULL: nothing there */
    const char *name; /* for messages; borrowed; NULL: none */
    void **tensor; /* instead of address: where a handle lies; *tensor NULL: none. READ is what the policy may cast, UPDATE
                      and WRITE keep their handles; neither SCRATCH nor SEED */
} amp_field;

#define AMP_FIELD_INIT { (uint32_t)sizeof(amp_field), 0, NULL, 0, NULL, NULL }

/* Tells libamp of one field; `emit_self` is what `visit` was given. */
typedef amp_status (*amp_emit)(void *emit_self, const amp_field *field);

/* ---- Events ------------------------------------------------------------------------------------------------------- */

/* What an event is about, and which members of amp_event speak of it. Later versions may have more kinds: ignore those
 * that you do not know. */
typedef int32_t amp_event_kind;
enum {
    AMP_EVENT_LOG = 1,          /* message */
    AMP_EVENT_WARNING = 2,      /* message: something the user should look at */
    AMP_EVENT_SKIP = 3,         /* a step was skipped: loss_id, scale_before, scale_after, message */
    AMP_EVENT_SCALE_CHANGE = 4, /* the loss scale changed: loss_id, scale_before, scale_after */
    AMP_EVENT_ERROR = 5,        /* an error was kept inside a wrapped call: status, message */
    AMP_EVENT_BRACKET = 6       /* a bracket has decided, whatever it decided: loss_id, action, scale_before, scale_after,
                                   first_nonfinite; before the events of its skip and its scale change */
};

/* What the hook `event` is told. Borrowed. Members that the kind does not name are 0. */
typedef struct amp_event {
    uint32_t struct_size;
    amp_event_kind kind; /* AMP_EVENT_* */
    amp_status status;   /* of an error */
    uint32_t loss_id;    /* whose scale */
    float scale_before;  /* that the gradients carried */
    float scale_after;   /* that the next ones will carry */
    const char *message; /* borrowed; never NULL. Skips and scale changes come each and every time, but with words only
                            the first ten of a kind and loss, then every one whose number is a power of two; "" else */
    amp_context *context; /* whose event it is */
    amp_action action;    /* AMP_STEP or AMP_SKIP */
    int32_t reserved;     /* 0 */
    const char *first_nonfinite; /* parameter whose gradient was the first non-finite one in this bracket; NULL: all
                                    were finite here. Valid until amp_shutdown */
} amp_event;

/* ---- The host's hooks --------------------------------------------------------------------------------------------- */

/* Flags of amp_host. */
enum {
    /* The host's tape holds its own references to what its ops received, so that temporaries may be released as soon
     * as the op has returned. Without it they live until amp_tape_done or until every optimizer of the context has
     * stepped or skipped. */
    AMP_HOST_TAPE_RETAINS_INPUTS = 1u << 0,
    /* A host that seeds backward itself reads the scale where it lives, from *amp_scaled_loss.scale in the memory of a device,
     * and not from seed_factor. Without it libamp waits until it knows the scale. */
    AMP_HOST_SEEDS_ON_DEVICE = 1u << 1
};

/*
 * No hook is required by itself; what needs a missing one refuses by its name. docs/hosts.md has the table of which
 * level needs which. `self` is passed back untouched. A handle is the host's tensor: only the host interprets it.
 * Hooks returning amp_status report failure with AMP_ERR_HOST_FAILED (or any negative status). Hooks are called on the
 * thread that made the call into libamp; ops that a hook calls run as they come.
 */
typedef struct amp_host {
    uint32_t struct_size; /* sizeof(amp_host); AMP_HOST_INIT sets it */
    uint32_t flags;       /* AMP_HOST_* */
    void *self;           /* passed to every hook */

    /* Describe the handle's elements. *view is zeroed before; shape and strides must stay valid until the next view on
     * this thread. Fails for tensors without plain elements (sparse). */
    amp_status (*view)(void *self, void *tensor, amp_tensor_view *view);
    /* The logical type, cheap: asked at every wrapped call. Without it the view's type is taken. */
    amp_dtype (*dtype)(void *self, void *tensor);
    /* A copy in another type, recorded on the host's tape, so that backward returns a gradient in the source's type.
     * *out moves to libamp, which ends it with `release`. */
    amp_status (*cast)(void *self, void *tensor, amp_dtype to, void **out);
    /* Give up a handle that had moved to libamp. Cannot fail. */
    void (*release)(void *self, void *tensor);
    /* A number that names the tensor's storage, the same for every handle on it. 0: none. */
    uint64_t (*id)(void *self, void *tensor);
    /* A number that changes whenever the elements change in place. Where it may stand still, leave the hook out or call
     * amp_cache_clear and amp_masters_reconcile after such writes: docs/hosts.md. */
    uint64_t (*version)(void *self, void *tensor);
    /* Does the tape record on this thread now? Without it: yes. */
    int32_t (*grad_enabled)(void *self);
    /* A parameter's gradient, *grad = NULL if it has none. The handle stays the host's. */
    amp_status (*grad)(void *self, void *tensor, void **grad);
    /* Put `grad` (NULL: none) in the gradient's place. The handle that was there moves to libamp, which gives it back
     * with another set_grad or ends it with `release`; the reference to `grad` moves to the host. */
    amp_status (*set_grad)(void *self, void *tensor, void *grad);
    /* Put *storage under the handle and return in *storage what was there; shape, strides and handle stay, and element 0
     * is the block's first. The type may change. Called for parameters and buffers, whose views are compact, and for
     * gradients, whose strides may leave gaps: then the block is as long as they reach. */
    amp_status (*swap_data)(void *self, void *tensor, amp_storage *storage);
    /* loss * factor, recorded on the tape. *out moves to libamp. */
    amp_status (*scale)(void *self, void *loss, float factor, void **out);
    /* Memory for `bytes` bytes (never 0) on `device`, aligned for its elements: fill data, owner and bytes. */
    amp_status (*alloc)(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage);
    /* End a block that alloc made. Cannot fail. */
    void (*free)(void *self, amp_storage *storage);
    /* Told of skips, scale changes, warnings and kept errors. Must not call libamp. */
    void (*event)(void *self, const amp_event *event);
    /* Combine `n` values over the ranks of a distributed host, in place, the same result on every rank. Called once by
     * every amp_scale_loss_end and amp_scale_loss_cancel of a bracket without AMP_DELAY_UNSCALE, with AMP_REDUCE_MAX,
     * whatever happened on the rank: an overflow, an error or a cancel on one makes all of them skip. Called once by every
     * amp_clip_grad_norm of an optimizer with AMP_OPTIMIZER_SHARDED, with AMP_REDUCE_SUM. Every rank must make these calls
     * in the same order. Without the hook each rank decides alone. */
    amp_status (*reduce)(void *self, amp_reduction reduction, double *values, size_t n);
    /* The FP32 buffers behind the structs of a call, and the handles in them: emit each that the op reads or writes. Hosts
     * with the hook cast are asked twice a call, the first time for the handles' types. op is its descriptor's name.
     * args[i] is the address of argument i's value; where that is a struct by value, of the copy that
     * the op will get. Roles may differ from call to call. A failing emit's status is returned. */
    amp_status (*visit)(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self);
    /* The stream (cudaStream_t) on which the host works on `device` on this thread now: all that libamp does there is put
     * on it, so that it comes after what the host has started and before what it starts next. Not NULL, CUDA's legacy
     * default stream. Needed where parameters are in a device's memory. */
    amp_status (*current_stream)(void *self, amp_device device, void **stream);
    /* loss * *factor as `scale` does, with the factor in the memory of the loss's device, to be read in the order of its
     * stream. Without it a bracket whose scale lives on a device waits for the scale. */
    amp_status (*scale_by)(void *self, void *loss, const float *factor, void **out);
    /* Are there other ranks to ask now? 0: `reduce` is left out, and what ends is decided here. Asked where `reduce` would be
     * called; every rank must answer alike. Without it: yes, where there is `reduce`. */
    int32_t (*has_ranks)(void *self);
} amp_host;

#define AMP_HOST_INIT                                                                                                  \
    { (uint32_t)sizeof(amp_host), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,     \
      NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* ---- Raw buffers -------------------------------------------------------------------------------------------------- */

/*
 * A ready-made handle for hosts that have no tensors, only memory: with amp_buffer_host() as amp_model.host and
 * amp_optimizer.host, a parameter is the address of an amp_buffer, and no hook needs to be written. The buffers may be
 * slices of one allocation. Gradients are fixed buffers that backward adds into. The structure is kept.
 * O2, O3 and O5 exchange storage, which is not possible with it, and need amp_config.emulate.
 */
typedef struct amp_buffer {
    uint32_t struct_size; /* sizeof(amp_buffer); AMP_BUFFER_INIT sets it */
    amp_dtype dtype;      /* AMP_FLOAT32, ... */
    void *data;           /* borrowed; stays where it is until amp_shutdown */
    int64_t size;         /* elements */
    struct amp_buffer *grad; /* NULL: not trained */
} amp_buffer;

#define AMP_BUFFER_INIT { (uint32_t)sizeof(amp_buffer), AMP_FLOAT32, NULL, 0, NULL }

/* Hooks over amp_buffer handles. Static: copy it to add hooks of your own (event, reduce). */
AMP_API const amp_host *amp_buffer_host(void);

/* ---- Ops ---------------------------------------------------------------------------------------------------------- */

/* Flags of amp_op. */
enum {
    AMP_OP_DIRECT = 1u << 0,          /* slot is NULL: the host calls amp_cast_args around the function */
    AMP_OP_RETURN_BORROWED = 1u << 1, /* the returned handle is not the caller's to release */
    AMP_OP_SEEDS = 1u << 2,           /* visit emits AMP_ROLE_SEED in calls of this op: while a bracket is open that buffer
                                         is shown times the loss scale, and seed_factor is 1. The same is said by a
                                         `float(seed) x[...]` in the schema. One bracket at a time then */
    AMP_OP_COPY = 1u << 3,            /* slot lies in a const table, which is never written: see amp_wrap_table */
    AMP_OP_MATMUL = 1u << 4,          /* what the op computes is amp_matmul's work in either type, or the host's own code that
                                         gains as much from 16 bits: what is known of amp_matmul holds for it. In FP32 that is
                                         `fp32`, or the original without one: where that is slower than amp_matmul, give the
                                         op an fp32 by amp_matmul, or leave the flag out. See the gate */
    AMP_OP_REGISTERED = 1u << 30      /* set by amp_register */
};

/*
 * One function pointer of the host. `schema` is PyTorch's operator-schema notation with C types (docs/schema.md):
 *
 *     linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor
 *     add_(Tensor(a!) self, Tensor other, float alpha) -> void
 *     cat(Tensor[] tensors, int32 n, int32 dim) -> Tensor
 *     step(pointer self) -> int32
 *     matmul(float(out a!) out[M,N], float a[M,K], float b[K,N], int32 M, int32 N, int32 K) -> void
 *     forward(struct layer l, struct network *net) -> void
 *
 * A schema that does not describe the real function is the host's bug and undefined behaviour, as with any C
 * prototype. Descriptors and strings are copied by amp_initialize; the slot (and what on_failure and on_skip point to)
 * is kept. A slot that gets no wrapper at the level is neither read nor written.
 */
typedef struct amp_op {
    uint32_t struct_size; /* sizeof(amp_op); AMP_OP_INIT sets it. In arrays, the stride: all must agree */
    uint32_t flags; /* AMP_OP_* */
    amp_class op_class; /* AMP_BY_LIST (0), or the class to use whatever the lists say. At the levels that cast no ops
                           (O0, O2, O3, O5, patch_ops OFF) every op is left alone, but for what emulate rounds */
    int32_t reserved;   /* 0 */
    const char *name;        /* as the lists know it, or the host's own */
    const char *aliases;     /* comma-separated further names for the lists, or NULL */
    const char *schema;      /* NULL for AMP_OP_DIRECT only */
    const char *backward_of; /* name of the forward op whose class this backward op shares, or NULL */
    amp_fn *slot;            /* where the host keeps its pointer; an empty slot (*slot == NULL) is passed over */
    amp_fn fp16;             /* implementation to call when all floating arguments have that type, or NULL; see below */
    amp_fn bf16;             /* the same for bfloat16 */
    amp_fn fp32;             /* the same for FP32, in the place of the host's own function */
    const void *on_failure; /* value of the return type when a cast failed and the op was not called; NULL: zeros */
    const void *on_skip;    /* steps: value of the return type when the step was skipped; NULL: zeros */
} amp_op;

#define AMP_OP_INIT                                                                                                    \
    { (uint32_t)sizeof(amp_op), 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/*
 * Implementations: functions of the op's own type that the wrapper calls instead of the original, decided call by call by the
 * type of the floating arguments once the policy is through with them. A call of more than one floating type, one in FP64, one
 * that libamp passes on unseen (amp_op_stats.passed), one whose casts failed, and one that works on nothing (no Tensor or buffer
 * argument, and visit emits nothing but what is KEEP, a seed or not there) take the original. AMP_OP_DIRECT: none is called.
 *
 *   fp16, bf16  all handles have that type, at any level and of any class; or the op has raw buffers, is of class AMP_LOWER,
 *               and that is the level's 16-bit type: it gets copies (docs/hosts.md, raw buffers).
 *   fp32        all handles and raw buffers are FP32, at any level and of any class: calls at O0 and others that no class casts;
 *               of AMP_LOWER, those that the gate holds back, and raw buffers without an implementation for the low type; of
 *               AMP_FP32, after the casts; AMP_PROMOTE, if FP32 is the widest. Under emulate it computes what the original
 *               would, on the rounded FP32 values. So a context with fp32 is the program whose slot held fp32 from the start,
 *               and at O0 it is bit-equal to that one. Leave it NULL where O0 shall be the host's own bits.
 */

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
 * members: the types of the schema notation in the struct's order, separated by commas; the names behind them may be used
 * in extents (`float x[l.n]`). "float[4]" is an array, "{float, float}" a struct inside, "pointer" any pointer. What the
 * struct would then measure is compared with size and alignment. Of structs that are larger, or only passed by pointer,
 * some members will do, each with its offsetof: "@72 int64 batch, @80 uint16 width". Copied by amp_initialize.
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

#define AMP_STRUCT_INIT { (uint32_t)sizeof(amp_struct), 0, NULL, 0, 0, 0, NULL }

/* ---- Model and optimizer ------------------------------------------------------------------------------------------ */

/* The kind of module a parameter or buffer belongs to. */
enum {
    AMP_MODULE_OTHER = 0,     /* any other */
    AMP_MODULE_BATCH_NORM = 1 /* batch norm: stays FP32 where keep_batchnorm_fp32 is on */
};

/* A parameter, or a floating buffer such as batch norm's running statistics, of a model. */
typedef struct amp_param {
    uint32_t struct_size;
    int32_t module_kind; /* AMP_MODULE_* */
    void *tensor;        /* handle, kept */
    const char *name;    /* copied; NULL: "param.<index>" */
} amp_param;

#define AMP_PARAM_INIT { (uint32_t)sizeof(amp_param), 0, NULL, NULL }

/* Flags of amp_model. */
enum {
    /* Parameters, the optimizers' too, may come in 16 bits and stay as they are; where the level has masters, those that an
     * optimizer lists get one, widened from them. Without it such a parameter is refused: its FP32 value is lost. */
    AMP_MODEL_LOW_PARAMS = 1u << 0
};

/* forward: optional op for the host's forward slot. A `self` argument in its schema is compared with `self`, so that
 * many models may share one slot. At O2, O3, O5 its floating tensor arguments are cast to the low type and its result
 * to FP32 (or cast_model_outputs); at every level it enters the context's scope. */
typedef struct amp_model {
    uint32_t struct_size;
    uint32_t flags; /* AMP_MODEL_* */
    const amp_host *host; /* copied, but for self */
    void *self;           /* what a `self` argument of forward is compared with */
    amp_op *ops;          /* the host's function table; borrowed */
    size_t n_ops;         /* entries of ops */
    const amp_param *params; /* parameters and floating buffers; borrowed */
    size_t n_params;      /* entries of params */
    amp_op *forward;      /* one op, or NULL */
    amp_context *amp;     /* written by initialize and shutdown; NULL before */
    const amp_struct *structs; /* that the schemas of ops and forward may name */
    size_t n_structs;          /* entries of structs */
    uint64_t registered;       /* amp_register's own; 0 */
} amp_model;

#define AMP_MODEL_INIT { (uint32_t)sizeof(amp_model), 0, NULL, NULL, NULL, 0, NULL, 0, NULL, NULL, NULL, 0, 0 }

/* Flags of amp_optimizer. */
enum {
    /* Each rank's optimizer lists a part of the parameters only: amp_clip_grad_norm adds the ranks' squared norms up, by
     * the hook reduce. Not where every rank has the whole averaged gradient: its norm is the whole one already. */
    AMP_OPTIMIZER_SHARDED = 1u << 0,
    /* The host's optimizer updates the masters themselves (amp_master_params: data), which it was given as tensors of its
     * own: nothing is exchanged around a step, and amp_step_end rounds the masters into the parameters. The FP32 gradient of
     * a bracket is in amp_master.grad, one block as long as the parameter lives. The hook grad tells of that block, once a
     * bracket has ended, as of a gradient of the parameter: a handle whose view is the block, or NULL where the host has
     * cleared it. The 16-bit gradient that backward made is left as it is, scaled: while amp_scale_loss_end runs, the hook
     * grad tells of it. Needs set_grad, which takes either kind, and NULL for both. */
    AMP_OPTIMIZER_HOLDS_MASTERS = 1u << 1,
    /* The host's step reads on the device whether to update: amp_step_info.found_inf, in the memory of the parameters' device
     * (as torch's fused optimizers take found_inf). Then no one waits for the bracket's decision. */
    AMP_OPTIMIZER_SKIPS_ON_DEVICE = 1u << 2
};

struct amp_fused; /* amp_optim.h */
struct amp_optim;

/* An optimizer of the host. steps, zero_grads: its slots, wired so that a step steps or skips and hands FP32 masters
 * to the host's optimizer, and zero_grad clears the masters' gradients too. Hosts without such slots call
 * amp_step_begin and amp_step_end. A tied parameter appears once. The structure itself is kept. */
typedef struct amp_optimizer {
    uint32_t struct_size;
    uint32_t flags; /* AMP_OPTIMIZER_* */
    const amp_host *host; /* copied, but for self; NULL: the first model's */
    void *self;           /* what a `self` argument of a step is compared with */
    void *const *params;  /* handles of the parameters that it updates; borrowed */
    size_t n_params;      /* entries of params */
    amp_op *steps;        /* step slots; borrowed */
    size_t n_steps;       /* entries of steps */
    amp_op *zero_grads;   /* zero_grad slots; borrowed */
    size_t n_zero_grads;  /* entries of zero_grads */
    amp_context *amp;     /* written by initialize and shutdown; NULL before */
    const amp_struct *structs; /* that the schemas of steps and zero_grads may name */
    size_t n_structs;          /* entries of structs */
    const struct amp_fused *fused; /* libamp's own optimizer in place of steps (amp_optim.h); NULL: the host has its own */
} amp_optimizer;

#define AMP_OPTIMIZER_INIT                                                                                             \
    { (uint32_t)sizeof(amp_optimizer), 0, NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, 0, NULL }

/* ---- Configuration ------------------------------------------------------------------------------------------------ */

#define AMP_DYNAMIC (-1.0f) /* loss_scale */
#define AMP_NEVER UINT32_MAX /* max_skips */

/* Whose cast lists. */
enum {
    AMP_LISTS_DEFAULT = 0, /* apex */
    AMP_LISTS_APEX = 1,    /* apex.amp.lists */
    AMP_LISTS_TORCH = 2    /* torch.autocast for CUDA devices */
};

/* Whose rule for the dynamic loss scale, tick by tick; docs/scaler.md has the rules. One list: the constant, its value, words;
 * the mode's name and whose rule it has; what these members of amp_config are in it where they are 0: init_scale, min_scale,
 * max_scale, growth, backoff (0: by 1 / growth), window, hysteresis, consecutive_hysteresis (1: on); and 1 if it multiplies in
 * FP32, by the float that is nearest to the factor. */
#define AMP_SCALER_MAP(X)                                                                                              \
    X(AMP_SCALER_APEX, 1, "ceiling 2^24. Source: apex/amp/scaler.py",                                                  \
      apex, apex, 0x1p16f, 0x1p-126f, 0x1p24f, 2.0, 0.5, 2000, 1, 1, 0)                                                \
    X(AMP_SCALER_TORCH, 2, "no ceiling but finiteness. Source: torch.amp.GradScaler, _amp_update_scale_",              \
      torch, torch, 0x1p16f, 0x1p-126f, 0x1.fffffep127f, 2.0, 0.5, 2000, 1, 1, 0)                                      \
    X(AMP_SCALER_MEGATRON, 3, "growth alone restores hysteresis. Source: megatron/core/optimizer/grad_scaler.py",      \
      megatron, apex, 0x1p32f, 1.0f, 0x1p127f, 2.0, 0.5, 1000, 2, 0, 1)                                                \
    X(AMP_SCALER_DEEPSPEED, 4, "windows from the last overflow. Source: deepspeed/runtime/fp16/loss_scaler.py",        \
      deepspeed, deepspeed, 0x1p16f, 1.0f, 0x1p127f, 2.0, 0.0, 1000, 2, 0, 0)                                          \
    X(AMP_SCALER_JMP, 5, "one factor up and down, floor 1. Source: jmp.DynamicLossScale",                              \
      jmp, torch, 0x1p15f, 1.0f, 0x1.fffffep127f, 2.0, 0.0, 2000, 1, 1, 1)                                             \
    X(AMP_SCALER_MXNET, 6, "each scale one iteration late. Source: mxnet/contrib/amp/loss_scaler.py",                  \
      mxnet, mxnet, 0x1p16f, 0x1p-126f, 0x1p24f, 2.0, 0.0, 2000, 1, 1, 0)

/* The constants. */
enum {
    AMP_SCALER_DEFAULT = 0, /* apex */
#define AMP_SCALER_CONSTANT(name, value, text, ...) name = value,
    AMP_SCALER_MAP(AMP_SCALER_CONSTANT)
#undef AMP_SCALER_CONSTANT
};

/*
 * Zero means default everywhere: the level's property, or the value stated here. Which property a level lets you
 * override follows Apex (frontend.py): those with patch_ops (O1, O4) take no cast_model_type but FP32 or UNCHANGED, no
 * keep_batchnorm_fp32 and no master_weights; patch_ops = ON belongs to them alone.
 */
typedef struct amp_config {
    uint32_t struct_size;
    amp_level level;                /* AMP_O0, ...; required */
    amp_switch enabled;             /* OFF: everything becomes a pass-through */
    amp_switch patch_ops;           /* Apex: patch_torch_functions */
    amp_switch keep_batchnorm_fp32; /* parameters and statistics of batch norm stay FP32 */
    amp_switch master_weights;      /* FP32 masters of 16-bit parameters */
    amp_switch cache;             /* cast each weight once per iteration; default ON */
    amp_dtype cast_model_type;    /* the parameters' type */
    amp_dtype cast_model_outputs; /* default: FP32 where the model is re-typed */
    int32_t lists;                /* AMP_LISTS_* */
    int32_t scaler;               /* AMP_SCALER_* */
    uint32_t num_losses;          /* loss scalers; default 1 */
    uint32_t window;              /* clean iterations before the scale grows; default: the mode's (apex: 2000) */
    uint32_t hysteresis;          /* overflows until the scale backs off; default: the mode's (apex: 1) */
    uint32_t max_skips;           /* skips in a row before end says AMP_ERR_TOO_MANY_SKIPS; default 100 */
    float loss_scale;             /* AMP_DYNAMIC, or a static scale > 0 */
    float init_scale;             /* dynamic; default: the mode's (apex: 2^16), within min_scale and max_scale */
    float min_scale;              /* dynamic: the floor; default: the mode's (apex: 2^-126) */
    float max_scale;              /* dynamic: the ceiling; default: the mode's (apex: 2^24) */
    amp_switch consecutive_hysteresis; /* ON: a clean iteration restores the hysteresis; OFF: only growth of the scale
                                          does; default: the mode's (apex: ON) */
    double growth;                /* default 2; megatron and jmp multiply in FP32, by the nearest float */
    double backoff;               /* default 0.5, or 1 / growth where the mode has one factor for both; 2^-149 at least */
    amp_switch emulate; /* ON, for hosts that know FP32 only: what the level would do to the model, in FP32 storage. Ops
                           without a 16-bit implementation run as they are, on inputs rounded through the level's
                           16-bit type, and what they return or write is rounded. At O1 and O4 those that the policy
                           lowers; at O2, O3 and O5 every op that runs in a described forward, in an entered scope or
                           while a bracket is open (without a described forward: every op), except those of class
                           AMP_LEAVE: parameters are rounded in the host's own block, batch norm's kept, and masters
                           stand apart; swap_data is not needed. Handles: `cast` rounds and keeps FP32 storage, and
                           `dtype` tells the logical type; without `dtype` lower always rounds */
    amp_switch gate;    /* may a call run in FP32 where the 16-bit type would be slower? See the gate, below */
} amp_config;

#define AMP_CONFIG_INIT                                                                                                \
    { (uint32_t)sizeof(amp_config), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* What a configuration comes to at its level, checked as amp_initialize_many checks it: *resolved is the same with every
 * member that has a default filled in. gate and emulate stay as they were given. */
AMP_API AMP_MUST_CHECK amp_status amp_config_resolve(const amp_config *config, amp_config *resolved);

/* ---- Initialize and shutdown -------------------------------------------------------------------------------------- */

/* Write `op_class` into every op of the model whose name or alias is `op`, and into those whose backward_of names it.
 * Before initialize. "name#index" picks one of several ops of that name (from 0). AMP_ERR_NOT_FOUND lists the nearest
 * names; AMP_ERR_CONFLICT if the op has another registration already. A large table is read once: names, aliases and
 * backward_of stay from the first registration to initialize. Source: Apex register_half_function and kin. */
AMP_API AMP_MUST_CHECK amp_status amp_register(amp_model *model, const char *op, amp_class op_class);

/* Wire one model and one optimizer (either may be NULL) for a level with all its defaults. */
AMP_API AMP_MUST_CHECK amp_status amp_initialize(amp_model *model, amp_optimizer *optimizer, amp_level level);

/* The same for several models and optimizers under one context, with overrides. *context may be wanted by callers
 * without models and optimizers (inference on direct calls); it is also written into each model and optimizer. All or
 * nothing: on an error no slot, no parameter and no descriptor has changed.
 * The models and optimizers are kept until amp_shutdown; their arrays are not. */
AMP_API AMP_MUST_CHECK amp_status amp_initialize_many(amp_model *const *models, size_t n_models,
                                                      amp_optimizer *const *optimizers, size_t n_optimizers,
                                                      const amp_config *config, amp_context **context);

/* Restore every slot bit for bit (the last context on it does), give the model its FP32 parameters back (the masters'
 * values) and free the context. NULL is a no-op. AMP_ERR_SLOT_TAKEN: somebody wrapped on top of a slot, named in the
 * message; that slot was left as it is and passes calls through; the context is gone all the same. AMP_ERR_READ_ONLY: the
 * same of a slot whose memory became read-only.
 * AMP_ERR_WRONG_STATE: a step or a wrapped call of this context is running on this thread; nothing was done. Open
 * brackets are cancelled. */
AMP_API amp_status amp_shutdown(amp_context *context);

/*
 * For tables of function pointers that cannot be written (`static const struct ops table`): describe the ops with slots
 * inside the table and the flag AMP_OP_COPY, initialize, and let the host call through a copy of its own:
 *
 *     static struct ops wired;                                       in place of `table`, wherever calls are made
 *     amp_wrap_table(context, &table, sizeof table, &wired);
 *
 * Fills `copy` with the `bytes` at `table`, wrappers in the place of the slots that a context has wired; one pointer is a
 * table of sizeof(amp_fn). One copy serves all contexts on the table: call this after each amp_initialize, in any order,
 * also while other threads call through the copy. amp_shutdown leaves copies as they are: without a context they pass calls
 * through, for the life of the process. AMP_ERR_NOT_FOUND: no op of `context` with AMP_OP_COPY has its slot in these bytes.
 */
AMP_API AMP_MUST_CHECK amp_status amp_wrap_table(amp_context *context, const void *table, size_t bytes, void *copy);

/* ---- The gate ----------------------------------------------------------------------------------------------------- */

/*
 * Low precision is not faster on every machine, nor at every size. The gate runs a call of an op of class AMP_LOWER in FP32
 * where the 16-bit type is not at least 1.05 times as fast, its casts included. It takes nothing but a narrowing back: it
 * looks only at calls whose floating arguments are all FP32 as they come, and then the op gets them untouched. A call with a
 * 16-bit argument keeps the policy's type. So there is work for it at O1 and O4 alone: at O2, O3 and O5 the values are 16-bit
 * before any op runs, at O0 nothing is lowered, and emulate is about values and not about speed. amp_config.gate says:
 *
 *   AMP_DEFAULT  the gate chooses between the implementations that an op carries: fp32, or else the original, and fp16 or bf16,
 *                for the level's type. No type depends on the machine: an op of handles returns the 16-bit type all the same (its FP32
 *                result is cast), one of raw buffers writes FP32 as ever, and amp_op_target answers alike everywhere. Values
 *                do: they were not rounded on the way in. What nothing is known of runs low.
 *   AMP_ON       the gate chooses the type: also of ops without an implementation, and of amp_cast_args. A call in FP32
 *                returns FP32. amp_op_target, which knows no sizes, answers AMP_DTYPE_DEFAULT for FP32 arguments of an op that
 *                runs low at no size here, and else the 16-bit type. What nothing is known of runs in FP32.
 *   AMP_OFF      never: the policy's type always.
 *
 * Each op has one number, the least size of a call that runs low, decided once. It is, in this order: what amp_gate_set
 * said; with AMP_OP_MATMUL what amp_gate_measure found, else what libamp's table knows of amp_matmul on the instruction set
 * and the backend that are in use at amp_initialize (docs/gate.md has it); else nothing is known. All but amp_gate_set speak
 * of CPUs. Calls on an NVIDIA GPU keep the policy's type, but where amp_gate_set has said nothing and the GPU has no tensor
 * cores for it: there ops with AMP_OP_MATMUL run in FP32. Such calls, and those with a dimension that is no multiple of 8,
 * which tensor cores multiply more slowly, are counted (amp_op_stats), and amp_explain says what to do. Calls on other devices
 * keep the policy's type.
 *
 * The size of a call with AMP_OP_MATMUL is the edge of the square product that does as many multiplications for each element
 * of its matrices: 3 / (1/m + 1/n + 1/k), rounded down. The shapes of handles tell m, n and k (matmul, linear, convolution),
 * those of raw buffers too: the two largest that are read and the largest that is written. The size of other calls is the
 * number of floating elements in their arguments. What cannot be seen has size 0.
 *
 * amp_op_stats.gated counts the calls that ran in FP32 for the gate's sake, and amp_explain has the decision. Checkpoints do
 * not have it: it belongs to the machine.
 */
#define AMP_GATE_ALWAYS UINT64_C(0)  /* least size: the 16-bit type always */
#define AMP_GATE_NEVER UINT64_MAX    /* least size: FP32 always */

/* The host's decision on an op of the context, "name" for all of that name or "name#index" for one: calls of size `least`
 * and more run low. Over whatever libamp knows, or will measure. For ops that the gate does not look at it is kept and not
 * used. Any thread; calls that have begun keep their type. AMP_ERR_NOT_FOUND: no op of that name. */
AMP_API AMP_MUST_CHECK amp_status amp_gate_set(amp_context *context, const char *op, uint64_t least);

/* The caller's clock, for libamp reads none: time in any unit that does not go back; `self` is passed through. */
typedef uint64_t (*amp_clock)(void *self);

/*
 * Times amp_matmul in the level's 16-bit type, casts included, against FP32, on this thread, and decides all ops of the
 * context with AMP_OP_MATMUL that amp_gate_set has not: the least size is the least edge from which on every edge that was
 * timed wins. Takes some tens of milliseconds, where there are no fast kernels half a second. The edges are 256, 128, 64, 32
 * and 16; for each seven times: the clock is asked, FP32 multiplies, the clock is asked twice, the 16-bit type multiplies,
 * the clock is asked; medians are compared. A clock that stands still lets nothing win; what one that goes back lets win
 * is chance. Nothing is timed, and AMP_OK, where the gate has nothing to do. AMP_ERR_NO_MEMORY: nothing was decided. Not while another thread is in the same function.
 */
AMP_API AMP_MUST_CHECK amp_status amp_gate_measure(amp_context *context, amp_clock clock, void *self);

/* ---- The bracket around backward ---------------------------------------------------------------------------------- */

/* `loss`: run backward from it. `scale`: the factor that the gradients carry, for hosts that seed backward
 * themselves. `seed_factor`: what the host must multiply its seed with: 1 if `loss` carries the scale already, or if an
 * op has a seed (AMP_OP_SEEDS), else *scale, or NaN where only a device knows that (AMP_HOST_SEEDS_ON_DEVICE). Exactly one
 * thing carries the scale. `action` is the decision, written by end: AMP_STEP_ON_DEVICE where it was made in the memory of
 * the parameters' device, see docs/hosts-device.md. priv is libamp's. */
typedef struct amp_scaled_loss {
    uint32_t struct_size;
    amp_action action;      /* the decision, written by end */
    void *loss;             /* borrowed until end or cancel */
    const float *scale;     /* host or device memory, see `device`; borrowed until end or cancel */
    const float *found_inf; /* != 0: an overflow was found; valid until the next begin with this loss_id */
    amp_device device;      /* where scale and found_inf are */
    float seed_factor;      /* what the host must multiply its seed with */
    int32_t reserved;
    void *priv[4];
} amp_scaled_loss;

#define AMP_SCALED_LOSS_INIT                                                                                           \
    { (uint32_t)sizeof(amp_scaled_loss), 0, NULL, NULL, NULL, { 0, 0 }, 0.0f, 0, { NULL, NULL, NULL, NULL } }

/* Open a bracket: gradients that exist are set aside (but at a static scale of 1 without masters, where backward may add to
 * them as they are; and fixed FP32 buffers in the CPU's memory are multiplied by the scale in place: see
 * docs/numerics.md), the loss is scaled. loss NULL: the host seeds backward itself. Source of the semantics:
 * apex.amp.scale_loss. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_begin(amp_optimizer *optimizer, void *loss, amp_scaled_loss *scaled);

/* Flags of a bracket. */
enum {
    /* Leave the gradients scaled for a later bracket with the same loss_id to unscale (Apex: delay_unscale). There they stay where
     * they are: backward adds to them, and what you do to gradients inside that bracket, as reducing them over ranks, is done to
     * the sum. It has the scale that they carry, should the scale of the loss have changed since; AMP_ERR_CONFLICT: those of its
     * optimizers carry different ones. (Where the scaler lives on a device the scale is the present one.) */
    AMP_DELAY_UNSCALE = 1u << 0,
    /* Unscale, but leave it to the next bracket with the same loss_id and without this flag to update the scale and to
     * decide (Apex: delay_overflow_check): over the gradients of all these brackets, for all their optimizers, over all
     * ranks. Such a bracket counts as one. It may have no backward at all; until it has ended, those optimizers do not
     * step. One scale change and at most one skip for a step of several brackets, and one exchange between ranks. */
    AMP_DELAY_OVERFLOW_CHECK = 1u << 1
};

/* The same for several optimizers and several losses. context may be NULL if n_optimizers > 0. Brackets may overlap if no
 * optimizer is in two of them and none shares a parameter with one in another: AMP_ERR_WRONG_STATE. AMP_ERR_CONFLICT: a gradient
 * still carries the scale of another loss (AMP_DELAY_UNSCALE), and it is not one static scale for both. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_begin_many(amp_context *context, amp_optimizer *const *optimizers,
                                                            size_t n_optimizers, uint32_t loss_id, uint32_t flags,
                                                            void *loss, amp_scaled_loss *scaled);

/* Close the bracket: unscale the new gradients (into FP32 master gradients where there are masters, else in place),
 * add what was set aside, update the scale, decide. (Gradients that only an amp_optimizer.fused lists are checked, and
 * stay scaled until its step: see amp_fused.) A gradient is not finite if any element is non-finite after the
 * multiplication and the conversion to its destination type. On an error that a wrapped call kept, the bracket is
 * closed as by cancel, the next step skips and that error is returned; AMP_ERR_TOO_MANY_SKIPS is returned after a
 * completed end and names the first gradient that was not finite. With the hook reduce all ranks decide alike; where
 * another rank had an error or cancelled, the action is AMP_SKIP and no scale moves. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_end(amp_scaled_loss *scaled);

/* Close the bracket as if backward had not happened: new gradients are dropped, those set aside are put back, and gradients that
 * brackets before it left scaled hold again what they held at its begin. With the hook
 * reduce, unless every rank cancels: no rank steps, this one neither. At a static scale of 1 without masters begin
 * sets nothing aside, and gradients stay as backward left them. */
AMP_API amp_status amp_scale_loss_cancel(amp_scaled_loss *scaled);

/* The scale on tensors of the host's choice, for gradient penalties and several backward passes. amp_scale multiplies on
 * the tape (*out moves to the caller, who ends it as any tensor of the host's); amp_unscale divides the elements in
 * place, unseen by any tape, and sets *found_inf (may be NULL) to 1.0f if one is not finite afterwards. Both use the
 * present scale of loss_id; inside a bracket that is the bracket's. On a device: the tensors of a call of amp_unscale are in one
 * memory, of a device that has parameters; nothing waits if found_inf is NULL or in that memory too (else it does, for that one
 * word), and amp_scale does not if the host has scale_by: then its tensor is on the device of the parameters, as a loss is.
 * AMP_ERR_CONFLICT: tensors in two memories. */
AMP_API AMP_MUST_CHECK amp_status amp_scale(amp_context *context, uint32_t loss_id, void *tensor, void **out);
AMP_API AMP_MUST_CHECK amp_status amp_unscale(amp_context *context, uint32_t loss_id, void *const *tensors, size_t n,
                                              float *found_inf);

/* What amp_step_begin tells. */
typedef struct amp_step_info {
    uint32_t struct_size;
    amp_action action;      /* AMP_STEP, or AMP_SKIP: do not update; AMP_STEP_ON_DEVICE with AMP_OPTIMIZER_SKIPS_ON_DEVICE:
                               update if *found_inf is 0, which only the device knows */
    const float *found_inf; /* != 0: an overflow was found; with AMP_STEP_ON_DEVICE, since the last step of this optimizer */
    float grad_scale;       /* what the gradients still carry: 1 */
    amp_device device;      /* where found_inf is */
    int32_t reserved;
} amp_step_info;

#define AMP_STEP_INFO_INIT { (uint32_t)sizeof(amp_step_info), 0, NULL, 0.0f, { 0, 0 }, 0 }

/* For hosts without a step slot. begin hands the masters to the optimizer under the parameters' handles unless
 * info->action is AMP_SKIP; end writes them back. Both are called in either case. */
AMP_API AMP_MUST_CHECK amp_status amp_step_begin(amp_optimizer *optimizer, amp_step_info *info);
AMP_API AMP_MUST_CHECK amp_status amp_step_end(amp_optimizer *optimizer);

/* ---- Direct calls: the policy without interception ----------------------------------------------------------------- */

/* The pure decision: the type that an op's floating arguments are to have, given the types they come in; the same on every
 * machine unless amp_config.gate is AMP_ON. *target = AMP_DTYPE_DEFAULT: leave them alone. `op` is an op of the context or any
 * name the lists know; names in neither are left alone. */
AMP_API AMP_MUST_CHECK amp_status amp_op_target(amp_context *context, const char *op, const amp_dtype *dtypes,
                                                size_t n, amp_dtype *target);

/* What amp_cast_args leaves for amp_cast_done. */
typedef struct amp_cast_frame {
    uint32_t struct_size;
    amp_dtype target; /* the type the arguments were given; AMP_DTYPE_DEFAULT: untouched */
    void *priv[4];
} amp_cast_frame;

#define AMP_CAST_FRAME_INIT { (uint32_t)sizeof(amp_cast_frame), 0, { NULL, NULL, NULL, NULL } }

/* Apply the context's policy to the arguments of a call that the host makes itself: entries of `tensors` (NULL
 * entries are passed over) are replaced by casts where the policy wants another type. amp_cast_done puts the original
 * handles back and ends the temporaries; tensors must stay valid until then. The thread's scope holds here as for a
 * wrapped call. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_args(amp_context *context, const char *op, void **tensors, size_t n,
                                                amp_cast_frame *frame);
AMP_API amp_status amp_cast_done(amp_cast_frame *frame);

/*
 * The same in parts, for hosts that know an op once and call it often (Python): the class by name, the decision by class
 * and types, which may both be remembered for the life of the context, and the casts for a decision that was made.
 */

/* What the policy does with an op, by the name that amp_op_target takes. *op_class is AMP_LEAVE for names that neither the
 * context nor its lists know, and never AMP_BY_LIST. */
AMP_API AMP_MUST_CHECK amp_status amp_op_class(amp_context *context, const char *op, amp_class *op_class);

/* amp_op_target for an op of this class. `into`: the floating type of a tensor that the call writes under its handle (its
 * own tensor in place, or an argument out), which keeps that type, as an (a!) in a schema; AMP_DTYPE_DEFAULT: none. The
 * gate has no say. `op` is for messages. AMP_PROMOTE_SEQUENCE: `dtypes` are those of the list's tensors. */
AMP_API AMP_MUST_CHECK amp_status amp_class_target(amp_context *context, const char *op, amp_class op_class,
                                                   amp_dtype into, const amp_dtype *dtypes, size_t n, amp_dtype *target);

/* amp_cast_args with the type decided: every floating tensor of another type is replaced. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_to(amp_context *context, amp_dtype target, void **tensors, size_t n,
                                              amp_cast_frame *frame);

/* Modules of PyTorch that a name of the lists stands for; amp_list_op.modules. */
enum {
    AMP_IN_FUNCTIONAL = 1u << 0, /* torch.nn.functional */
    AMP_IN_TORCH = 1u << 1,      /* torch */
    AMP_IN_TENSOR = 1u << 2,     /* methods of torch.Tensor, in place ones (name_) too */
    AMP_IN_VF = 1u << 3,         /* torch._VF, which recurrent modules call */
    AMP_IN_LINALG = 1u << 4,     /* torch.linalg, without linalg_ */
    AMP_IN_NN = 1u << 5,         /* torch._C._nn */
    AMP_IN_FFT = 1u << 6         /* torch.fft, without fft_ */
};

/* A name of a cast list. */
typedef struct amp_list_op {
    uint32_t struct_size;
    uint32_t modules; /* AMP_IN_*: where PyTorch has what is meant; 0: names of other hosts */
    const char *name; /* static */
    amp_class fp16;   /* its class where the low type is fp16 */
    amp_class bf16;   /* and where it is bfloat16 */
} amp_list_op;

#define AMP_LIST_OP_INIT { (uint32_t)sizeof(amp_list_op), 0, NULL, 0, 0 }

/* A cast list (AMP_LISTS_*) as data; capacity and count as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_list_ops(int32_t lists, amp_list_op *ops, size_t capacity, size_t *count);

/* End of a tape's life (a backward pass that is over, or a forward that is dropped): casts recorded on it go. */
AMP_API amp_status amp_tape_done(amp_context *context);

/* Drop every cached cast, and memory that is kept for those to come. Not while the host runs an op of this context. */
AMP_API amp_status amp_cache_clear(amp_context *context);

/* ---- Scopes -------------------------------------------------------------------------------------------------------- */

/* Whose policy holds on this thread. A value: it nests, may be left on an error path, and is left exactly once. */
typedef struct amp_scope {
    uintptr_t v[4]; /* libamp's own */
} amp_scope;

/* Calls on this thread belong to `context` from here on; NULL: to none (Apex: disable_casts). */
AMP_API AMP_MUST_CHECK amp_status amp_scope_enter(amp_context *context, amp_scope *scope);
AMP_API amp_status amp_scope_leave(amp_scope *scope);

/* Hand the present scope to another thread: capture here, adopt there (previous: what to leave with). A capture
 * includes whether the thread is inside an op, so that an op's workers run their calls as they come. */
AMP_API AMP_MUST_CHECK amp_status amp_scope_capture(amp_scope *scope);
AMP_API AMP_MUST_CHECK amp_status amp_scope_adopt(const amp_scope *captured, amp_scope *previous);

/* Whose policy holds on this thread: 1 if a scope was entered, with its context in *context (NULL: none); 0 if none was, with
 * NULL. Inside an op that is wrapped or runs its casts: 1 and NULL. */
AMP_API int32_t amp_scope_current(amp_context **context);

/* ---- Masters ------------------------------------------------------------------------------------------------------- */

/* One parameter as the optimizer sees it. */
typedef struct amp_master {
    uint32_t struct_size;
    amp_dtype dtype;  /* of data and grad */
    void *param;      /* the host's handle */
    const char *name; /* valid until amp_shutdown */
    void *data;       /* the FP32 master, or the parameter's own elements where it has none */
    void *grad;       /* unscaled gradient of the same type, or NULL; with AMP_OPTIMIZER_HOLDS_MASTERS the master's block */
    uint64_t size;    /* elements */
    int32_t is_master;           /* 1: data is a master */
    int32_t ndim;                /* dimensions of what has strides, else 0 */
    const int64_t *shape;        /* ndim extents */
    const int64_t *strides;      /* of data, in elements; NULL: one compact block, as every master is */
    const int64_t *grad_strides; /* of grad */
} amp_master;

#define AMP_MASTER_INIT { (uint32_t)sizeof(amp_master), 0, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL }

/* What the optimizer updates, as apex.amp.master_params: fills at most `capacity` entries (entry 0's struct_size is
 * the stride) and writes the number there are into *count. Pointers are valid until the next bracket or step; writing
 * through them is allowed. Outside brackets only. */
AMP_API AMP_MUST_CHECK amp_status amp_master_params(amp_optimizer *optimizer, amp_master *masters, size_t capacity,
                                                    size_t *count);

/* Scale the (master) gradients so that their global L2 norm is at most max_norm: by max_norm / (norm + 1e-6) where
 * that is below 1, as torch.nn.utils.clip_grad_norm_. *norm (may be NULL) is the norm before. Gradients with a
 * non-finite norm are left as they are. Between end and step. With AMP_OPTIMIZER_SHARDED the norm is that of all ranks'
 * parts, and every rank calls this, also when it will skip. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_grad_norm(amp_optimizer *optimizer, float max_norm, float *norm);

/* Bring every element of the (master) gradients into [-max_value, max_value], as torch.nn.utils.clip_grad_value_; a NaN
 * stays. Between end and step. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_grad_value(amp_optimizer *optimizer, float max_value);

/* More parameters for an optimizer, mid-run (torch: add_param_group): parameters of its model that were frozen, or new
 * ones in FP32, which get the level's type and a master as at initialize. The host's optimizer must know them already.
 * Outside brackets and steps, while no other thread runs this context's ops. All or nothing. */
AMP_API AMP_MUST_CHECK amp_status amp_add_params(amp_optimizer *optimizer, const amp_param *params, size_t n);

/* Tell libamp that parameters changed outside its step, for hosts without `version`: elementwise, master := parameter
 * wherever the parameter is not the rounded master. With `version` this happens by itself before each step. At every level,
 * what is kept of parameters (casts, packed raw buffers: docs/hosts.md) is let go. */
AMP_API AMP_MUST_CHECK amp_status amp_masters_reconcile(amp_context *context);

/* The other way, for who wrote masters between steps (an average of weights swapped in, sharpness-aware minimisation):
 * parameter := master, rounded, so that a forward before the next step computes with it. What changed in a parameter since
 * they last agreed, as `version` tells, goes into its master first. Parameters whose step is running are left to it. */
AMP_API AMP_MUST_CHECK amp_status amp_masters_write_back(amp_context *context);

/* ---- Checkpoints -------------------------------------------------------------------------------------------------- */

/*
 * What libamp knows and the host's own checkpoint does not: per loss scaler its state, the configuration, and in FP32
 * the values that the optimizers update, under the parameters' names: masters where there are masters, else the
 * parameters. The host saves its model and its optimizer as ever, and loads them before or after, in any order: where the
 * model's 16-bit parameter is the rounded master, the master stays. So a resumed run is the uninterrupted one, bit for
 * bit. docs/checkpoints.md has the format, what happens at another level, and the limits.
 *
 * All four functions may be called outside brackets and steps only, by the thread whose business those are, and while
 * no other thread runs this context's ops (AMP_ERR_WRONG_STATE where libamp can see it). AMP_ERR_UNSUPPORTED: this libamp was
 * built without a JSON library (Meson option `json`).
 */

/* The form of a state. */
typedef int32_t amp_state_format;
enum {
    AMP_STATE_SAFETENSORS = 0, /* everything, readable with the safetensors package */
    AMP_STATE_APEX = 1         /* scales alone: {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 12}, ...} */
};

/* Replace the file at `path` as a whole: a reader, or a machine that loses power, finds the old file or the new one. On
 * an error the old file is as it was and no other is left. (One exception, said in the message: the new file is in place
 * but its folder could not be synced.) Takes in first what the host changed in its parameters (amp_masters_reconcile).
 * Links are followed. A replaced file keeps its permissions (0777), and owner and group where this process may give files
 * away; else a warning event says whose it is now. Nobody but its owner can read it before all is written.
 * AMP_ERR_IO, AMP_ERR_NOT_FOUND: the path; AMP_ERR_CONFLICT: two parameters have one name. */
AMP_API AMP_MUST_CHECK amp_status amp_state_save(amp_context *context, const char *path, amp_state_format format);

/* The same into `capacity` bytes at `data`; *size is what was written. With data NULL and capacity 0 it is what would
 * be. A buffer that is too small is AMP_ERR_INVALID_ARGUMENT, with nothing written. */
AMP_API AMP_MUST_CHECK amp_status amp_state_save_memory(amp_context *context, amp_state_format format, void *data,
                                                        size_t capacity, size_t *size);

/*
 * Load a state of either format, checked as a whole before anything changes. Masters become the file's values, and the
 * parameters the same values rounded to their present type. The file and the context must agree on names and shapes of
 * what is trained (AMP_ERR_CONFLICT names what does not; Apex's form has scales alone). Scalers of the same mode take the
 * file's state, brought within the present limits; settings stay as they are configured now. What differs, the level for
 * one, comes as a warning event and a line of amp_explain.
 * AMP_ERR_BAD_FILE: damaged, hostile, or no state of libamp's; AMP_ERR_IO, AMP_ERR_NOT_FOUND: the path. Memory: at most
 * 64 times the header, which is at most 100 MB, and for files once the masters.
 */
AMP_API AMP_MUST_CHECK amp_status amp_state_load(amp_context *context, const char *path);
AMP_API AMP_MUST_CHECK amp_status amp_state_load_memory(amp_context *context, const void *data, size_t size);

/* ---- Diagnostics --------------------------------------------------------------------------------------------------- */

/* What became of an op. */
typedef struct amp_op_stats {
    uint32_t struct_size;
    uint32_t index;        /* among ops of the same name */
    const char *name;      /* valid until amp_shutdown */
    amp_class op_class;    /* what the policy does with it */
    amp_dtype last_target; /* type chosen at the last call, AMP_DTYPE_DEFAULT: none yet */
    uint64_t calls;        /* calls that the policy saw */
    uint64_t passed;       /* calls that ran as they came: no scope, another context's, inside an op, backward */
    uint64_t casts;        /* tensors cast */
    uint64_t cache_hits;   /* tensors taken from the cache */
    uint64_t failures;     /* calls whose casts failed */
    int32_t wrapped;       /* 1: the slot holds a wrapper */
    int32_t reserved;
    uint64_t overflowed; /* raw buffers: finite values that became infinite in the 16-bit type, */
    uint64_t zeroed;     /* values other than zero that became zero, */
    uint64_t subnormal;  /* and values that are subnormal in it; weights packed once are not counted */
    uint64_t gated;      /* calls that ran in FP32 because the gate found the 16-bit type slower */
    uint64_t no_tensor_cores; /* AMP_OP_MATMUL: calls on GPUs without tensor cores for the 16-bit type, */
    uint64_t unaligned;       /* and calls on others with a dimension that is no multiple of 8; 0 with the gate off */
} amp_op_stats;

#define AMP_OP_STATS_INIT { (uint32_t)sizeof(amp_op_stats), 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* One entry per op of the context, in the order given to initialize; capacity and count as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_op_stats(amp_context *context, amp_op_stats *stats, size_t capacity,
                                                   size_t *count);

/* The last bracket of a loss. */
typedef struct amp_record {
    uint32_t struct_size;
    amp_action action;     /* what it decided */
    float scale_before;    /* that its gradients carried */
    float scale_after;     /* that the next ones carry */
    uint64_t brackets;     /* decided so far with this loss_id: not those that delayed, failed or were cancelled */
    uint64_t skipped;      /* of them with an overflow */
    uint32_t skips_in_row; /* now */
    uint32_t unskipped;    /* clean brackets since the last overflow, or since the window was full */
    const char *first_nonfinite; /* parameter whose gradient was the first non-finite one at the last overflow;
                                    NULL: none yet. Valid until amp_shutdown */
} amp_record;

#define AMP_RECORD_INIT { (uint32_t)sizeof(amp_record), 0, 0.0f, 0.0f, 0, 0, 0, 0, NULL }

/* The record of loss_id, from 0 to num_losses - 1. Where the scaler lives on a device, waits for that, and counts what graphs
 * did that were replayed; AMP_ERR_WRONG_STATE while its stream is being captured. */
AMP_API AMP_MUST_CHECK amp_status amp_get_record(amp_context *context, uint32_t loss_id, amp_record *record);

/* Text for people: the level and its properties, warnings, and op -> class, which list, why, the gate's decision and who
 * multiplies (AMP_OP_MATMUL), one line each; for one op (by name) or all (NULL). Writes at most `capacity` bytes with a final
 * NUL; *length (may be NULL) is the full length without it. Call with text NULL and capacity 0 to measure. */
AMP_API AMP_MUST_CHECK amp_status amp_explain(amp_context *context, const char *op, char *text, size_t capacity,
                                              size_t *length);

/* The error that a wrapped call kept since the last check or end, now forgotten; AMP_OK if none. Where scalers live on a
 * device, waits for that, and AMP_ERR_TOO_MANY_SKIPS comes from here. */
AMP_API AMP_MUST_CHECK amp_status amp_check(amp_context *context);

/* ---- For hosts that dlopen ----------------------------------------------------------------------------------------- */

/* The functions of this header by their names. Append-only: a member never moves. */
typedef struct amp_api {
    uint32_t struct_size;
    uint32_t version; /* AMP_API_VERSION of the library */
    const char *(*status_name)(amp_status);
    const char *(*status_text)(amp_status);
    const char *(*last_error)(void);
    const char *(*library_version)(void);
    amp_status (*level_from_name)(const char *, amp_level *);
    amp_status (*register_op)(amp_model *, const char *, amp_class);
    amp_status (*initialize)(amp_model *, amp_optimizer *, amp_level);
    amp_status (*initialize_many)(amp_model *const *, size_t, amp_optimizer *const *, size_t, const amp_config *,
                                  amp_context **);
    amp_status (*shutdown)(amp_context *);
    amp_status (*scale_loss_begin)(amp_optimizer *, void *, amp_scaled_loss *);
    amp_status (*scale_loss_begin_many)(amp_context *, amp_optimizer *const *, size_t, uint32_t, uint32_t, void *,
                                        amp_scaled_loss *);
    amp_status (*scale_loss_end)(amp_scaled_loss *);
    amp_status (*scale_loss_cancel)(amp_scaled_loss *);
    amp_status (*step_begin)(amp_optimizer *, amp_step_info *);
    amp_status (*step_end)(amp_optimizer *);
    amp_status (*op_target)(amp_context *, const char *, const amp_dtype *, size_t, amp_dtype *);
    amp_status (*cast_args)(amp_context *, const char *, void **, size_t, amp_cast_frame *);
    amp_status (*cast_done)(amp_cast_frame *);
    amp_status (*tape_done)(amp_context *);
    amp_status (*cache_clear)(amp_context *);
    amp_status (*scope_enter)(amp_context *, amp_scope *);
    amp_status (*scope_leave)(amp_scope *);
    amp_status (*scope_capture)(amp_scope *);
    amp_status (*scope_adopt)(const amp_scope *, amp_scope *);
    amp_status (*master_params)(amp_optimizer *, amp_master *, size_t, size_t *);
    amp_status (*clip_grad_norm)(amp_optimizer *, float, float *);
    amp_status (*masters_reconcile)(amp_context *);
    amp_status (*get_op_stats)(amp_context *, amp_op_stats *, size_t, size_t *);
    amp_status (*get_record)(amp_context *, uint32_t, amp_record *);
    amp_status (*explain)(amp_context *, const char *, char *, size_t, size_t *);
    amp_status (*check)(amp_context *);
    amp_status (*clip_grad_value)(amp_optimizer *, float);
    amp_status (*add_params)(amp_optimizer *, const amp_param *, size_t);
    amp_status (*scale)(amp_context *, uint32_t, void *, void **);
    amp_status (*unscale)(amp_context *, uint32_t, void *const *, size_t, float *);
    amp_status (*state_save)(amp_context *, const char *, amp_state_format);
    amp_status (*state_save_memory)(amp_context *, amp_state_format, void *, size_t, size_t *);
    amp_status (*state_load)(amp_context *, const char *);
    amp_status (*state_load_memory)(amp_context *, const void *, size_t);
    const amp_host *(*buffer_host)(void);
    amp_status (*wrap_table)(amp_context *, const void *, size_t, void *);
    amp_status (*fused_step)(amp_optimizer *, amp_action *);
    amp_status (*fused_zero_grad)(amp_optimizer *);
    amp_status (*fused_get)(amp_optimizer *, size_t, struct amp_optim *);
    amp_status (*fused_set)(amp_optimizer *, size_t, const struct amp_optim *);
    amp_status (*gate_set)(amp_context *, const char *, uint64_t);
    amp_status (*gate_measure)(amp_context *, amp_clock, void *);
    amp_status (*op_class)(amp_context *, const char *, amp_class *);
    amp_status (*class_target)(amp_context *, const char *, amp_class, amp_dtype, const amp_dtype *, size_t, amp_dtype *);
    amp_status (*cast_to)(amp_context *, amp_dtype, void **, size_t, amp_cast_frame *);
    amp_status (*get_list_ops)(int32_t, amp_list_op *, size_t, size_t *);
    int32_t (*scope_current)(amp_context **);
    amp_status (*config_resolve)(const amp_config *, amp_config *);
    amp_status (*masters_write_back)(amp_context *);
} amp_api;

/* The table for hosts compiled against AMP_API_VERSION `version`, or NULL with amp_last_error saying whether this
 * libamp is too old or too new. Static: never freed. */
AMP_API const amp_api *amp_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif /* AMP_H */
