/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by all headers of libamp: statuses, element types, tensors and blocks of memory. amp.h includes it.
 */
#ifndef AMP_TYPES_H
#define AMP_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks exported functions. Define AMP_STATIC before including the header to link the static library. */
#if defined(AMP_STATIC) || !defined(__GNUC__)
#define AMP_API
#else
#define AMP_API __attribute__((visibility("default")))
#endif

/* Marks functions whose status must not be ignored. */
#if defined(__GNUC__)
#define AMP_MUST_CHECK __attribute__((warn_unused_result))
#else
#define AMP_MUST_CHECK
#endif

/* For the _INIT macros: sets struct_size, and all other members to 0. */
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

/* Result of a call that can fail: AMP_OK, or a negative value. Hooks of the host may return any negative value. */
typedef int32_t amp_status;

/* X(constant, value, text): the list behind amp_status_name and amp_status_text. Values never change. */
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
    X(AMP_ERR_SLOT_TAKEN, -15, "a wrapped slot was overwritten")                                                       \
    X(AMP_ERR_BACKEND, -16, "a backend is missing or failed")                                                          \
    X(AMP_ERR_IO, -17, "a file cannot be read or written")                                                             \
    X(AMP_ERR_BAD_FILE, -18, "a file is damaged or has other contents")                                                \
    X(AMP_ERR_NO_DEVICE, -19, "a backend loads, but has no device here")

/* The constants. */
enum {
#define AMP_STATUS_CONSTANT(name, value, text) name = value,
    AMP_STATUS_MAP(AMP_STATUS_CONSTANT)
#undef AMP_STATUS_CONSTANT
    AMP_STATUS_LAST_ = -19 /* the least value; no status of its own */
};

/* The name and the text of a status: "AMP_ERR_NO_MEMORY", "out of memory". Never NULL, also for unknown values. */
AMP_API const char *amp_status_name(amp_status status);
AMP_API const char *amp_status_text(amp_status status);

/* Describes the last error of this thread: the fault, its place and the remedy. "" if there was none. The text is valid
 * until the next failing call of the thread. */
AMP_API const char *amp_last_error(void);

/* The version of the library: "0.1.0". */
AMP_API const char *amp_version(void);

/* ---- Types and settings ------------------------------------------------------------------------------------------ */

/* A function pointer of any type. Cast it to its real type before calling. */
typedef void (*amp_fn)(void);

/* All state of one amp_initialize, until amp_shutdown. */
typedef struct amp_context amp_context;

/* The type of a tensor's elements. */
typedef int32_t amp_dtype;
enum {
    AMP_DTYPE_DEFAULT = 0,   /* no type: the default, or no change of type */
    AMP_FLOAT32 = 1,         /* IEEE binary32 */
    AMP_FLOAT16 = 2,         /* IEEE binary16 */
    AMP_BFLOAT16 = 3,        /* the upper half of a binary32 */
    AMP_FLOAT64 = 4,         /* IEEE binary64 */
    AMP_DTYPE_OTHER = 5,     /* integers, booleans and other types that libamp does not cast */
    AMP_DTYPE_UNCHANGED = 6  /* cast_model_type only: parameters keep their types (Apex: cast_model_type=False) */
};

/* A setting with a default. */
typedef int32_t amp_switch;
enum {
    AMP_DEFAULT = 0, /* the property of the level, or the default stated with the setting */
    AMP_OFF = 1,     /* off */
    AMP_ON = 2,      /* on */
    AMP_SPLIT = 3,   /* master_weights only: a master is the bfloat16 parameter and 16 further bits */
    AMP_STOCHASTIC = 4 /* master_weights only: none, and libamp's own optimizers round bfloat16 up or down at random */
};

/* The casts of an op. */
typedef int32_t amp_class;
enum {
    AMP_BY_LIST = 0,          /* the class that the cast list has for the name */
    AMP_LOWER = 1,            /* floating arguments to the 16-bit type of the level */
    AMP_FP32 = 2,             /* floating arguments to FP32 */
    AMP_PROMOTE = 3,          /* floating arguments to the widest type among them */
    AMP_PROMOTE_SEQUENCE = 4, /* tensors of list arguments to the widest type among them */
    AMP_BANNED = 5,           /* an error for 16-bit arguments, which names an alternative */
    AMP_LEAVE = 6             /* no casts */
};

/* The decision of a bracket for the next step. An overflow is no error. */
typedef int32_t amp_action;
enum {
    AMP_STEP = 0,          /* the optimizer steps */
    AMP_SKIP = 1,          /* the optimizer does not step: a gradient has an infinity or a NaN, or a call failed */
    AMP_STEP_ON_DEVICE = 2 /* the optimizer steps if found_inf, in device memory, is 0 */
};

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* A device, numbered as in DLPack: 1 CPU, 2 CUDA, ... */
typedef struct amp_device {
    int32_t type; /* DLDeviceType */
    int32_t id;   /* its number among devices of that type */
} amp_device;

/* The elements of a tensor; borrowed. Layout and codes are those of DLTensor in DLPack, so a host may pass one. */
typedef struct amp_tensor_view {
    void *data;        /* start of the block */
    amp_device device; /* device of the elements */
    int32_t ndim;      /* number of dimensions (0: one element) */
    struct {
        uint8_t code;   /* 0 int, 1 uint, 2 float, 4 bfloat */
        uint8_t bits;   /* bits of one lane */
        uint16_t lanes; /* 1 */
    } dtype;              /* the type of the elements */
    int64_t *shape;       /* ndim extents */
    int64_t *strides;     /* ndim strides in elements (NULL: compact row-major) */
    uint64_t byte_offset; /* from data to the first element */
} amp_tensor_view;

/* A block of elements for the hook swap_data. With the hook alloc, its present holder (host or libamp) frees it by the
 * hook free. Without alloc, blocks come from libamp, and the host must not free them; a host that frees blocks when its
 * gradients are dropped therefore needs alloc and free. */
typedef struct amp_storage {
    void *data;       /* the elements */
    void *owner;      /* private to the host, only returned by libamp */
    uint64_t bytes;   /* size of the block */
    amp_dtype dtype;  /* type of the elements */
    int32_t reserved; /* 0 */
} amp_storage;

/* The purpose of an allocation, for accounting by the host. */
typedef int32_t amp_purpose;
enum {
    AMP_FOR_PARAMETER = 1, /* 16-bit elements of a parameter */
    AMP_FOR_MASTER = 2,    /* an FP32 master, or the remainder of a split one */
    AMP_FOR_GRADIENT = 3   /* a gradient */
};

/* An operation over ranks, for the hook reduce. */
typedef int32_t amp_reduction;
enum {
    AMP_REDUCE_MAX = 1, /* the largest value */
    AMP_REDUCE_SUM = 2  /* the sum */
};

#ifdef __cplusplus
}
#endif

#endif /* AMP_TYPES_H */
