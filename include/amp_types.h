/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all of libamp's headers share: statuses, the types of elements, tensors and blocks of memory. amp.h includes it.
 */
#ifndef AMP_TYPES_H
#define AMP_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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

/* What the _INIT macros are made of: struct_size set, all else 0. */
#ifdef __cplusplus
extern "C++" {
template <class Structure> inline Structure amp_sized_() {
    Structure made = Structure();
    made.struct_size = (uint32_t)sizeof(Structure);
    return made;
}
}
#define AMP_SIZED_(type) amp_sized_<type>()
#else
#define AMP_SIZED_(type) { .struct_size = (uint32_t)sizeof(type) }
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

/* ---- Types and settings ------------------------------------------------------------------------------------------ */

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
    AMP_ON = 2,      /* on */
    AMP_SPLIT = 3    /* amp_config.master_weights alone: on, as bfloat16 parameters and 16-bit remainders */
};

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

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

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
    AMP_FOR_MASTER = 2,    /* its FP32 master, or the remainder of one that is split */
    AMP_FOR_GRADIENT = 3   /* a gradient */
};

/* How values of several ranks become one; see the hook reduce. */
typedef int32_t amp_reduction;
enum {
    AMP_REDUCE_MAX = 1, /* the greatest */
    AMP_REDUCE_SUM = 2  /* the sum */
};

#ifdef __cplusplus
}
#endif

#endif /* AMP_TYPES_H */
