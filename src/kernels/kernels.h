/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel table: one function pointer per kernel and combination of types. The scalar reference (ref/) fills it and
 * is the specification. Files for an instruction set overwrite the slots that they compute faster, with equal results.
 *
 * Contract of every kernel: any n from 0 on. Pointers are aligned for their element type only. No read or write outside
 * [0, n), no allocation, no global, no lock. dst may be exactly a source of the same type, without any other overlap.
 * Casts do not depend on the floating-point environment and raise no flag. Arithmetic kernels expect the default
 * environment (fpenv.h), which their callers set once per list.
 */
#ifndef AMP_KERNELS_KERNELS_H
#define AMP_KERNELS_KERNELS_H

#include "amp_kernels.h"
#include "common/common.h"
#include "kernels/cpu.h"

/* Tables are indexed by amp_dtype. Index 0 (AMP_DTYPE_DEFAULT) stays NULL. */
#define AMP__TYPES (AMP_FLOAT64 + 1)

/* dst = src in the type of dst: to nearest even, subnormals kept, overflow to infinity. A NaN becomes quiet and keeps
 * its sign and the upper bits of its payload. The same type: a copy of the bits. */
#define AMP__CAST(name) void name(void *dst, const void *src, size_t n)

/* The same for n entries of the same two types: dst[i] and src[i] have equal sizes. So many short ones take no longer
 * than they have to. */
#define AMP__CAST_LIST(name) void name(const amp_span *dst, const amp_span *src, size_t n)

/* dst = src * scale in float (in double if src is fp64), then as cast. *nonfinite |= 1 if an element of dst is infinite
 * or NaN afterwards, which the reference reads off dst's exponent bits. */
#define AMP__SCALE(name) void name(void *dst, const void *src, size_t n, float scale, uint32_t *nonfinite)
/* For n entries, as AMP__CAST_LIST. */
#define AMP__SCALE_LIST(name)                                                                                          \
    void name(const amp_span *dst, const amp_span *src, size_t n, float scale, uint32_t *nonfinite)

/* dst = src clamped to [-limit, limit] in float (in double if src is fp64), then as cast. A NaN stays NaN. For n
 * entries, as AMP__CAST_LIST. */
#define AMP__CLAMP_LIST(name) void name(const amp_span *dst, const amp_span *src, size_t n, float limit)

/* Zeros. */
#define AMP__ZERO(name) void name(void *dst, size_t bytes)

/* dst = a * x + b * y, each of the three operations rounded to float (to double if x or y is fp64), then as cast.
 * *nonfinite as above. */
#define AMP__AXPBY(name)                                                                                               \
    void name(void *dst, float a, const void *x, float b, const void *y, size_t n, uint32_t *nonfinite)

/*
 * The sum of squares of at most AMP__SUM_BLOCK elements, to the last bit. lane[j], j < 16, is a double from +0 on.
 *     fp32, fp64    lane[j] = lane[j] + (double)src[i] * (double)src[i] for i mod 16 = j, in rising order of i
 *     fp16, bf16    the same for stretches of AMP__SUM_STRETCH elements (the last may be shorter) that are not tame:
 *                   with an |x| above 2^60, infinite or NaN, or below 2^-60 without being 0. In others every square is
 *                   exact in float. A stripe is 128 elements of a stretch, 8 rows of 16 (+0 behind the end), in float:
 *                       even[j] = ((row 0 + row 2) + row 4) + row 6 of the squares, odd[j] likewise from row 1 on
 *                       lane[j] = lane[j] + (double)(even[j] + odd[j])
 *     for w = 8, 4, 2, 1:  lane[j] = lane[j] + lane[j + w], j < w;  the result is lane[0]
 * A tensor's sum adds, from 0 on and in order, the sums of its blocks of AMP__SUM_BLOCK elements; a list's sum adds
 * those of its tensors. So vectors of any width up to 16 and any number of threads reproduce it.
 */
#define AMP__SUM_LANES 16
#define AMP__SUM_BLOCK 65536
#define AMP__SUM_STRETCH 1024
#define AMP__SUM_ROWS 8 /* of a stripe */
#define AMP__SUM_STRIPE (AMP__SUM_ROWS * AMP__SUM_LANES)
#define AMP__SUM_SQUARES(name) double name(const void *src, size_t n)

/* Adds the counts of amp_statistics for at most AMP__SUM_BLOCK elements to *s, and one sum each to its sums, of x and
 * of x * x, in the order of AMP__SUM_SQUARES for 16 bits: also of fp32, whose squares are each rounded to float in a
 * stretch that is tame. fp64: in that for fp64. */
#define AMP__STATISTICS(name) void name(const void *src, size_t n, amp_statistics *s)

/* The largest magnitude, as the bits of the elements' type: those of infinities and NaNs are above all others. 0 of no
 * element. */
#define AMP__LARGEST(name) uint64_t name(const void *src, size_t n)

/* 1 if an element is infinite or NaN, else 0. */
#define AMP__NONFINITE(name) uint32_t name(const void *src, size_t n)

/* c[i * ld + j] += a[p * rows + i] * b[p * cols + j] in float, for p from 0 to depth - 1, for one tile with the size
 * given beside the kernel. Product and sum may be one operation. a and b are panels packed by matmul.c, without
 * overlap. */
#define AMP__TILE_ROWS_MAX 16
#define AMP__TILE_COLS_MAX 64
#define AMP__TILE(name) void name(float *c, size_t ld, const float *a, const float *b, size_t depth)

/* The sum of squares of x = src[i] * scale * factor, both products rounded to float (to double if src is fp64), in
 * AMP__SUM_SQUARES's order. *nonfinite |= 1 if an x is infinite or NaN. */
#define AMP__CHECK(name) double name(const void *src, size_t n, float scale, float factor, uint32_t *nonfinite)

/* dst[i] (bf16) = src[i] by amp__round_bf16 (random.h) with the random bits of element first + i under `key`, then as
 * cast. */
#define AMP__CAST_RANDOM(name) void name(uint16_t *dst, const float *src, size_t n, uint64_t key, uint64_t first)

/*
 * Split masters (amp_optim.h), elements [begin, end) of one tensor, whose arrays begin with element 0. Integers alone.
 *     split          low[i] = src[i] rounded as cast, rest[i] = the lower half of its bits. Bits of ties are 0 but for
 *                    elements whose rest is 0x8000 and whose upper half is even. begin is a multiple of 32, end too or
 *                    the tensor's end: words of ties are written whole, and rest[end] = 0 where end is odd
 *     join           dst[i] = the master, as amp__join (ref/convert.h) has it
 *     join_squares   AMP__SUM_SQUARES of what join gives, of at most AMP__SUM_BLOCK elements
 */
#define AMP__SPLIT(name)                                                                                               \
    void name(void *low, uint16_t *rest, uint32_t *ties, const float *src, size_t begin, size_t end)
#define AMP__JOIN(name)                                                                                                \
    void name(float *dst, const void *low, const uint16_t *rest, const uint32_t *ties, size_t begin, size_t end)
#define AMP__JOIN_SQUARES(name)                                                                                        \
    double name(const void *low, const uint16_t *rest, const uint32_t *ties, size_t begin, size_t end)

/*
 * The fused optimizers (amp_optim.h has the rules): one step of elements [begin, end) of one tensor. Everything is
 * float arithmetic in the order written here, one rounding an operation; terms with weight_decay 0 are left out.
 *
 *     g = (grad[i] * inv_scale) * factor
 *     p = param[i]; where param is NULL: low[i] widened, or with rest joined
 *     sgd       before (!decay_after): g = g + weight_decay * p;  g = g * ratio
 *               momentum != 0: m = first ? g : beta1 * m + rest1 * g;  g = nesterov ? g + beta1 * m : m
 *               decay_after: g = g + weight_decay * p;  u = g
 *     adam      !decoupled: g = g + weight_decay * p;  m = beta1 * m + rest1 * g;  v = beta2 * v + (rest2 * g) * g
 *               w = v, or where moments[2] is: w = !(v <= w) ? v : w;
 *               u = (m / correction1) / (sqrt(w / correction2) + eps)
 *               decoupled: u = u + weight_decay * p
 *     adagrad   !decoupled: g = g + weight_decay * p;  h = h + g * g;  u = g / (sqrt(h) + eps);  decoupled: as adam
 *     novograd  !decoupled: g = g / denominator;  g = g + weight_decay * p;  m = beta1 * m + rest1 * g;
 *               u = m / correction1
 *               decoupled: m = beta1 * m + rest1 * g;  u = (m / correction1) / denominator;  u = u + weight_decay * p
 *     all       p = p - lr * u;  param[i] = p, low[i] = p rounded as cast, or with rest split, or if stochastic (bf16
 *               alone) by amp__round_bf16 with the random bits of element before + i under low_key
 *
 *     adam8     moments in 8 bits (bytes.h): codes[0] signed, of m; codes[1] unsigned, of sqrt(v); a scale for each
 *               AMP__BYTES_BLOCK codes. begin is a multiple of it, and so is end, or it is the tensor's end
 *               !decoupled: g = g + weight_decay * p;  m = beta1 * (codes[0][i] * scale) + rest1 * g
 *               z = codes[1][i] * scale;  v = beta2 * (z * z) + (rest2 * g) * g;  z = sqrt(the lesser of v and FLT_MAX)
 *               u = (m * (1 / correction1)) / (z * (1 / sqrt(correction2)) + eps);  decoupled: as adam
 *               then the block's scales from its largest |m| and z, and codes by amp__bytes_code, with the random bits
 *               of element before + i under `key`. A block with an infinite or NaN m or a NaN z: NaN scales, codes 0
 *
 *     lamb_moments   g = g * ratio; m and v of adam, written; no p; squares[0] and [1]: the sums of squares of p and of
 *                    adam's u over at most AMP__SUM_BLOCK elements, in AMP__SUM_SQUARES's order
 *     lamb_apply     u again from m, v and p; then as `all`
 */
struct amp__update {
    const void *grad;
    float *param;      /* NULL: low is the parameter */
    void *low;         /* may be NULL */
    uint16_t *rest;    /* NULL: none; else low is bf16 and both are the parameter, with */
    uint32_t *ties;    /* these: see AMP__SPLIT */
    float *moments[3]; /* in the order of amp_optim.h */
    uint8_t *codes[2]; /* adam8, in place of moments */
    float *scales[2];
    uint64_t key;      /* of the step's random numbers (random.h) */
    uint64_t before;   /* elements of the whole parameter before this tensor */
    uint64_t low_key;  /* the same as key for stochastic */
    amp_dtype grad_type, low_type; /* fp32, fp16, bf16; fp16, bf16 */
    float inv_scale, factor;
    float lr, weight_decay, beta1, rest1, beta2, rest2, eps, correction1, correction2;
    float ratio, denominator;
    bool first, nesterov, decay_after, decoupled;
    bool stochastic; /* low, bf16, is the parameter, and is rounded stochastically */
    bool stream; /* low goes past the caches, if it can: see struct amp__kernels. Only beside a param */
};
#define AMP__UPDATE(name) void name(const struct amp__update *u, size_t begin, size_t end)
#define AMP__UPDATE_SQUARES(name) void name(const struct amp__update *u, size_t begin, size_t end, double squares[2])

/*
 * Packed tensors (amp_pack.h; pack.h has a group's header): elements [begin, end) of one; begin is a multiple of
 * AMP_PACK_GROUP, and so is end, or it is size.
 *     r       amp__pack_random of element e of a group, row = e / 16, lane = e % 16, and amp__pack_key
 *     codes   as amp__pack_plan says; all 0 in a group that is not finite, 0 behind the last element
 * pack returns what it saw: AMP__PACK_NONFINITE_SEEN, AMP__PACK_INEXACT (of 1 bit; of a group that is not finite, too).
 */
struct amp__pack {
    const void *src;
    void *packed;
    size_t size;
    uint64_t seed;
    amp_dtype type; /* fp32, fp16, bf16 */
    int32_t bits;
};
struct amp__unpack {
    void *dst;
    const void *packed;
    size_t size;
    amp_dtype type;
    int32_t bits;
    bool stream; /* past the caches */
};
enum { AMP__PACK_NONFINITE_SEEN = 1, AMP__PACK_INEXACT = 2 };
#define AMP__PACK(name) uint32_t name(const struct amp__pack *p, size_t begin, size_t end)
#define AMP__UNPACK(name) void name(const struct amp__unpack *u, size_t begin, size_t end)

typedef AMP__CAST(amp__cast_fn);
typedef AMP__CAST_LIST(amp__cast_list_fn);
typedef AMP__SCALE(amp__scale_fn);
typedef AMP__SCALE_LIST(amp__scale_list_fn);
typedef AMP__CLAMP_LIST(amp__clamp_list_fn);
typedef AMP__ZERO(amp__zero_fn);
typedef AMP__AXPBY(amp__axpby_fn);
typedef AMP__SUM_SQUARES(amp__sum_squares_fn);
typedef AMP__STATISTICS(amp__statistics_fn);
typedef AMP__LARGEST(amp__largest_fn);
typedef AMP__NONFINITE(amp__nonfinite_fn);
typedef AMP__TILE(amp__tile_fn);
typedef AMP__CHECK(amp__check_fn);
typedef AMP__PACK(amp__pack_fn);
typedef AMP__UNPACK(amp__unpack_fn);
typedef AMP__CAST_RANDOM(amp__cast_random_fn);
typedef AMP__SPLIT(amp__split_fn);
typedef AMP__JOIN(amp__join_fn);
typedef AMP__JOIN_SQUARES(amp__join_squares_fn);
typedef AMP__UPDATE(amp__update_fn);
typedef AMP__UPDATE_SQUARES(amp__update_squares_fn);

struct amp__tile {
    amp__tile_fn *fn;
    size_t rows, cols;
};

/*
 * Every group of the table: X(set, type, group, number of types that index it). `set` is passed to X.
 *
 * "Past the caches": the same with dst never src, for more data than the caches hold. Stores need not read the old
 * contents, and the caches keep theirs. The caller must not need dst again soon.
 */
#define AMP__KERNEL_MAP(X, set)                                                                                        \
    X(set, amp__cast_fn *, cast, 2)             /* [dst][src] */                                                       \
    X(set, amp__cast_fn *, cast_stream, 2)      /* cast past the caches */                                             \
    X(set, amp__cast_list_fn *, cast_list, 2)   /* [dst][src] */                                                       \
    X(set, amp__scale_list_fn *, scale_list, 2) /* [dst][src] */                                                       \
    X(set, amp__scale_fn *, scale_stream, 2)    /* scale past the caches */                                            \
    X(set, amp__clamp_list_fn *, clamp_list, 2) /* [dst][src] */                                                       \
    X(set, amp__zero_fn *, zero_stream, 0)      /* memset to 0 past the caches */                                      \
    X(set, amp__axpby_fn *, axpby, 3)           /* [dst][x][y] */                                                      \
    X(set, amp__sum_squares_fn *, sum_squares, 1)                                                                      \
    X(set, amp__statistics_fn *, statistics, 1)                                                                        \
    X(set, amp__largest_fn *, largest, 1)                                                                              \
    X(set, amp__nonfinite_fn *, nonfinite, 1)                                                                          \
    X(set, struct amp__tile, tile, 0)                                                                                  \
    X(set, amp__check_fn *, check, 1)                                                                                  \
    X(set, amp__pack_fn *, pack, 0)                                                                                    \
    X(set, amp__unpack_fn *, unpack, 0)                                                                                \
    X(set, amp__cast_random_fn *, cast_random, 0)                                                                      \
    X(set, amp__split_fn *, split, 0)                                                                                  \
    X(set, amp__join_fn *, join, 0)                                                                                    \
    X(set, amp__join_squares_fn *, join_squares, 0)                                                                    \
    AMP__UPDATE_MAP(X, set)

/* Those of the fused optimizers. */
#define AMP__UPDATE_MAP(X, set)                                                                                        \
    X(set, amp__update_fn *, sgd, 0)                                                                                   \
    X(set, amp__update_fn *, adam, 0)                                                                                  \
    X(set, amp__update_fn *, adam8, 0)                                                                                 \
    X(set, amp__update_fn *, adagrad, 0)                                                                               \
    X(set, amp__update_fn *, novograd, 0)                                                                              \
    X(set, amp__update_fn *, lamb_apply, 0)                                                                            \
    X(set, amp__update_squares_fn *, lamb_moments, 0)

#define AMP__INDEX_0
#define AMP__INDEX_1 [AMP__TYPES]
#define AMP__INDEX_2 [AMP__TYPES][AMP__TYPES]
#define AMP__INDEX_3 [AMP__TYPES][AMP__TYPES][AMP__TYPES]

struct amp__kernels {
#define AMP__MEMBER(set, type, group, n_types) type group AMP__INDEX_##n_types;
    AMP__KERNEL_MAP(AMP__MEMBER, )
#undef AMP__MEMBER
};

/* Declares a group of a set in the layout of the table, with 0 where the set has no better kernel. */
#define AMP__DECLARE_TABLE(set, type, group, n_types) extern type const amp__##set##_##group AMP__INDEX_##n_types;

/* The codes of a packed tensor's group, and its groups' headers. */
static inline uint32_t *amp__pack_codes(void *packed, int32_t bits, uint64_t group) {
    return (uint32_t *)packed + group * (uint64_t)bits * 8;
}
static inline uint32_t *amp__pack_headers(void *packed, int32_t bits, uint64_t size) {
    return amp__pack_codes(packed, bits, size / 256 + (size % 256 != 0));
}

/* Fills every slot with the best kernel that needs nothing beyond `cpu_flags`. Pure: flags in, table out. */
void amp__kernels_init(struct amp__kernels *k, uint32_t cpu_flags);

/* The two arrays of a tensor's remainder (amp_optim.h). */
static inline uint16_t *amp__rest_of(void *remainder) { return remainder; }
static inline uint32_t *amp__ties_of(void *remainder, uint64_t size) {
    return (uint32_t *)remainder + ((size_t)size + 1) / 2;
}
/* A split master's sum of squares. split.c */
double amp__join_squares(const amp_span *low, void *remainder);

/* One tensor's sum of squares of src * scale * factor, as defined above. In the default environment. norms.c */
double amp__check_span(const amp_span *span, float scale, float factor, uint32_t *nonfinite);

/* amp_pack but for its context: args is whole. pack.c */
struct amp_pack_args;
amp_status amp__pack(const struct amp_pack_args *args);

/* Returns the factor that brings a list of this norm to max_norm: max_norm / (norm + 1e-6), at most 1, and 1 if the
 * norm is not finite. Source: torch.nn.utils.clip_grad_norm_. lists.c */
float amp__clip_factor(float norm, float max_norm);

/* Returns the table of the process for the instruction sets of this machine within the mask (amp_set_cpu_mask). Never
 * fails, and a table never changes: a call uses one table to its end. */
const struct amp__kernels *amp__kernels_get(void);

/* Bytes that the caches may hold for one thread. */
size_t amp__cache_bytes(void);

#endif
