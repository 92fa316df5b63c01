/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common parts of libamp: errors, allocation, dtypes. Depends on libc only. AMP_RETURN_IF has a check and its message
 * in one statement, AMP_TRY passes an error on. A function that fails leaves its message in the buffer of the thread
 * (amp_last_error) and changes nothing.
 */
#ifndef AMP_COMMON_H
#define AMP_COMMON_H

#include "amp.h"

#include <stdbool.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "libamp must not be built with -ffast-math: checks for infinity and NaN would be folded away"
#endif

#define AMP_PRINTF(at, first) __attribute__((format(printf, at, first)))
/* Calls function(&variable) at the end of the scope of the variable, also for an exception of a C++ host
 * (-fexceptions). The variable may otherwise be unused. */
#define AMP_CLEANUP(function) __attribute__((unused, cleanup(function)))
#define AMP_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define AMP__ONE_MORE(...) +1 /* enum { N = 0 A_LIST(AMP__ONE_MORE) }: how many lines a list X(...) has */

/* ---- errors (error.c) ---- */

/* The end of a noun after its number, for "%zu byte%s": "" for 1, "s" for all others. */
#define AMP__S(n) (&"s"[(n) == 1])

/* Sets the thread's message and returns `status`. */
amp_status amp__fail(amp_status status, const char *format, ...) AMP_PRINTF(2, 3);
/* The system's text for an errno, in `buffer` or static. */
const char *amp__system_text(int error, char *buffer, size_t size);
/* Puts "prefix" before the message of the thread and returns `status`, for callers that know the context of an
 * error. */
amp_status amp__fail_prefix(amp_status status, const char *format, ...) AMP_PRINTF(2, 3);
amp_status amp__fail_memory(void);

#define AMP_RETURN_IF(condition, status, ...)                                                                          \
    do {                                                                                                               \
        if (condition) return amp__fail((status), __VA_ARGS__);                                                        \
    } while (0)

#define AMP_TRY(expression)                                                                                            \
    do {                                                                                                               \
        const amp_status amp_try_status_ = (expression);                                                               \
        if (amp_try_status_ != AMP_OK) return amp_try_status_;                                                         \
    } while (0)

/* For functions with a clean-up label; needs a local `status`. */
#define AMP_TRY_GOTO(expression, label)                                                                                \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status != AMP_OK) goto label;                                                                              \
    } while (0)

/* ---- allocation (alloc.c) ---- */

/* Returns a zeroed array of count * size bytes, or NULL without memory or on overflow. count 0 gives a valid empty
 * block. */
void *amp__alloc(size_t count, size_t size);
/* Grows to `count` elements with zeros. After NULL the old block stays valid. */
void *amp__grow(void *block, size_t old_count, size_t count, size_t size);
void *amp__alloc_aligned(size_t bytes); /* 64-byte aligned, not zeroed. bytes 0 is rounded up */
void amp__free(void *block);            /* any of the above. NULL: no effect */
char *amp__strdup(const char *text);

/* Continues from `sum`. Equal for equal bytes, and for others with probability 2^-64, for any pattern. At the speed of
 * memory. */
uint64_t amp__sum64(uint64_t sum, const void *data, size_t bytes);

/* ---- growing text (text.c): for explain and messages ---- */

/* Writes like snprintf into a caller's buffer while counting the full length. */
typedef struct amp__text {
    char *data;
    size_t capacity, length;
} amp__text;
void amp__text_add(amp__text *text, const char *format, ...) AMP_PRINTF(2, 3);

/* ---- dtypes (dtype.c) ---- */

const char *amp__dtype_name(amp_dtype dtype); /* "fp16" */
size_t amp__dtype_size(amp_dtype dtype);      /* bytes (0 for OTHER) */
static inline bool amp__is_floating(amp_dtype dtype) { return dtype >= AMP_FLOAT32 && dtype <= AMP_FLOAT64; }
static inline bool amp__is_low(amp_dtype dtype) { return dtype == AMP_FLOAT16 || dtype == AMP_BFLOAT16; }
/* The narrowest type that holds both: fp16 with bf16 gives fp32, fp64 wins. Arguments floating or DEFAULT (neutral). */
amp_dtype amp__promote(amp_dtype a, amp_dtype b);

/* ---- tensor views (dtype.c) ---- */

amp_dtype amp__view_dtype(const amp_tensor_view *view);
/* Returns the number of elements. Fails on negative or overflowing extents, ndim out of 0..64, NULL shape with ndim >
 * 0. */
amp_status amp__view_size(const amp_tensor_view *view, uint64_t *size);
/* Are the elements one compact block in row-major order? (size as above) */
bool amp__view_is_compact(const amp_tensor_view *view);
/* In integers: an offset from anywhere must not be undefined behaviour. */
static inline void *amp__view_data(const amp_tensor_view *view) {
    return view->data ? (void *)((uintptr_t)view->data + (uintptr_t)view->byte_offset) : NULL;
}

/* ---- caller-filled structures (abi.c) ---- */

/*
 * Copies a structure of the caller, of `given` bytes (its struct_size), into one of `ours` bytes, with zeros for
 * missing members. `oldest`: its size in the first release. A larger structure is accepted if its unknown members are
 * zero.
 */
amp_status amp__copy_struct(void *dst, size_t ours, size_t oldest, const void *src, uint32_t given, const char *what);
/* Checks that `given` is a possible size of a structure with `oldest` bytes in the first release. */
amp_status amp__check_struct(uint32_t given, size_t oldest, const char *what);
/* The same, outwards: fills the caller's structure up to the smaller size, keeping its struct_size. */
amp_status amp__fill_struct(void *dst, uint32_t given, size_t oldest, const void *src, size_t ours, const char *what);

/* ---- switches of the environment (switch.c) ---- */

/* Parses a switch in upper or lower case. 1: "1", "true", "yes", "on". 0: "0", "false", "no", "off", "", NULL. -1:
 * other texts. */
int amp__switch_parse(const char *text);

/* ---- names (text.c) ---- */

/* Appends the nearest of `names` to `wanted` (edit distance, at most 3) to the text, after ", ", or nothing if none is
 * near. */
void amp__nearest_names(amp__text *text, const char *wanted, const char *const *names, size_t n);

#endif
