/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers of libamp: SGD, Adam, AdamW, LAMB, NovoGrad, Adagrad and LARC, for FP32 parameters, 16-bit parameters with
 * FP32 masters, and 16-bit parameters alone. One pass over each tensor unscales the gradient, updates moments and
 * parameter and writes the 16-bit parameter. Gradients are not written. There are two ways to use them:
 *
 *     amp_optim_list(&rule, &tensors)          plain memory, no policy, no context
 *     amp_optimizer.fused = &fused             an optimizer for amp_initialize, stepped by amp_fused_step
 *
 * Numbers. Moments and arithmetic are FP32 with one rounding an operation, no contraction, and IEEE 754 division and
 * square root: the same bits for every instruction set. Values that depend only on the rule and the step are computed
 * in double and rounded once: beta^t by binary powering, 1 - beta^t, norms, trust ratios. docs/reference/numerics.md
 * has the order of operations.
 *
 * In the formulas g is the unscaled gradient, p the parameter, d the weight decay, t the number of the step from 1,
 * corr1 = 1 - beta1^t and corr2 = 1 - beta2^t (both 1 without AMP_OPTIM_BIAS_CORRECTION). Terms with d = 0 are left
 * out.
 */
#ifndef AMP_OPTIM_H
#define AMP_OPTIM_H

#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

/* The update rules, each with its formula, moments and source. */
typedef int32_t amp_optim_kind;
enum {
    /* Stochastic gradient descent:
     *
     *     g += d * p
     *     m = momentum * m + (1 - dampening) * g     (at t = 1: m = g)
     *     p -= lr * m                                (NESTEROV: lr * (g + momentum * m))
     *
     * Without momentum p -= lr * g. DECAY_AFTER_MOMENTUM adds d * p to the factor of lr instead of g. moments[0]: m
     * (none if momentum is 0). Source: torch.optim.SGD, Apex FusedSGD (there the last tensor of the list determines the
     * first step, here each tensor has its own). */
    AMP_OPTIM_SGD = 1,
    /* Adam:
     *
     *     g += d * p
     *     m = beta1 * m + (1 - beta1) * g
     *     v = beta2 * v + (1 - beta2) * g^2
     *     p -= lr * (m / corr1) / (sqrt(v / corr2) + eps)
     *
     * AMSGRAD takes the root of the largest v so far. moments[0]: m, [1]: v, [2]: the largest v (AMSGRAD only). Source:
     * Kingma and Ba, arXiv:1412.6980, Reddi et al., 2018, torch.optim.Adam, Apex FusedAdam(adam_w_mode=False), which
     * has no AMSGRAD. */
    AMP_OPTIM_ADAM = 2,
    /* Adam with d * p added to the factor of lr instead of g. Source: Loshchilov and Hutter, arXiv:1711.05101,
     * torch.optim.AdamW, Apex FusedAdam. */
    AMP_OPTIM_ADAMW = 3,
    /* LAMB:
     *
     *     g *= max_grad_norm / norm of all g                     (if that norm is above max_grad_norm; 0: never)
     *     m = beta1 * m + k * g                                  (k = 1 - beta1, or 1 without GRAD_AVERAGING)
     *     v = beta2 * v + (1 - beta2) * g^2
     *     u = (m / corr1) / (sqrt(v / corr2) + eps) + d * p      (without DECOUPLED: g += d * p instead)
     *     p -= lr * r * u                                        (r = norm of p / norm of u, per tensor)
     *
     * r is 1 if either norm is 0, or if d = 0 without NVLAMB. moments as Adam. Source: You et al., arXiv:1904.00962,
     * Apex FusedLAMB, which overwrites the gradient with u and keeps moments in the type of the parameter. */
    AMP_OPTIM_LAMB = 4,
    /* NovoGrad, with DECOUPLED:
     *
     *     n = sqrt(beta2 * n^2 + (1 - beta2) * norm(g)^2)        (per tensor; at t = 1 n = norm(g) unless INIT_ZERO)
     *     m = beta1 * m + k * g                                  (k as in LAMB)
     *     p -= lr * ((m / corr1) / (n / sqrt(corr2) + eps) + d * p)
     *
     * without DECOUPLED, as in the paper:
     *
     *     n as above
     *     m = beta1 * m + k * (g / (n / sqrt(corr2) + eps) + d * p)
     *     p -= lr * m / corr1
     *
     * As in Apex, corr2 divides n even if n started as norm(g), so the first steps are smaller by sqrt(corr2).
     * moments[0]: m, [1]: n, one element. The L2 norm only. Source: Ginsburg et al., arXiv:1905.11286 (no DECOUPLED,
     * BIAS_CORRECTION or GRAD_AVERAGING), Apex FusedNovoGrad (reg_inside_moment means no DECOUPLED). */
    AMP_OPTIM_NOVOGRAD = 5,
    /* Adagrad:
     *
     *     g += d * p                                 (not with DECOUPLED)
     *     h = h + g^2
     *     p -= lr * g / (sqrt(h) + eps)              (DECOUPLED: lr * (g / (sqrt(h) + eps) + d * p))
     *
     * moments[0]: h. Source: Duchi et al., 2011, Apex FusedAdagrad, torch.optim.Adagrad with lr_decay 0. */
    AMP_OPTIM_ADAGRAD = 6,
    /* SGD on r * (g + d * p) with a trust ratio per tensor:
     *
     *     r = trust_coefficient * norm(p) / (norm(g) + d * norm(p) + eps)      (with CLIP: min(r / lr, 1))
     *
     * r = 1 if either norm is 0. moments[0] as SGD. Source: You et al., arXiv:1708.03888, Apex LARC over SGD, which
     * also drops the weight decay if a norm is 0. */
    AMP_OPTIM_LARC = 7
};

/* All rules as a list: constant, value, name, title, the rule that shares its arithmetic, PyTorch names of its
 * moments. */
#define AMP_OPTIM_MAP(X)                                                                                               \
    X(SGD, 1, sgd, "SGD", sgd, "momentum_buffer", NULL, NULL)                                                          \
    X(ADAM, 2, adam, "Adam", adam, "exp_avg", "exp_avg_sq", "max_exp_avg_sq")                                          \
    X(ADAMW, 3, adamw, "AdamW", adam, "exp_avg", "exp_avg_sq", "max_exp_avg_sq")                                       \
    X(LAMB, 4, lamb, "LAMB", lamb, "exp_avg", "exp_avg_sq", NULL)                                                      \
    X(NOVOGRAD, 5, novograd, "NovoGrad", novograd, "exp_avg", "exp_avg_sq", NULL)                                      \
    X(ADAGRAD, 6, adagrad, "Adagrad", adagrad, "sum", NULL, NULL)                                                      \
    X(LARC, 7, larc, "LARC", sgd, "momentum_buffer", NULL, NULL)

/* Flags of amp_optim, each with the rules that accept it. */
enum {
    AMP_OPTIM_NESTEROV = 1u << 0,             /* SGD, LARC, with momentum above 0 and dampening 0 */
    AMP_OPTIM_DECAY_AFTER_MOMENTUM = 1u << 1, /* SGD (Apex: wd_after_momentum) */
    AMP_OPTIM_BIAS_CORRECTION = 1u << 2,      /* Adam, AdamW, LAMB, NovoGrad */
    AMP_OPTIM_AMSGRAD = 1u << 3,              /* Adam, AdamW */
    AMP_OPTIM_DECOUPLED = 1u << 4,            /* LAMB, NovoGrad, Adagrad (Apex: adam_w_mode, adagrad_w_mode) */
    AMP_OPTIM_GRAD_AVERAGING = 1u << 5,       /* LAMB, NovoGrad */
    AMP_OPTIM_NVLAMB = 1u << 6,               /* LAMB: trust ratio even without weight decay */
    AMP_OPTIM_INIT_ZERO = 1u << 7,            /* NovoGrad: n starts as 0 */
    AMP_OPTIM_CLIP = 1u << 8                  /* LARC: trust ratio of at most 1 / lr */
};

/* A rule with its hyperparameters. Zeros and missing flags are taken literally, so start with amp_optim_defaults. */
typedef struct amp_optim {
    uint32_t struct_size;
    amp_optim_kind kind; /* AMP_OPTIM_SGD, ... */
    uint32_t flags; /* AMP_OPTIM_* of this rule (others are an error) */
    int32_t reserved;
    double lr;                /* learning rate of every rule, at least 0 */
    double weight_decay;      /* weight decay of every rule, at least 0 */
    double momentum;          /* SGD, LARC: at least 0 */
    double dampening;         /* SGD, LARC: dampening of the gradient, finite */
    double beta1, beta2;      /* Adam, AdamW, LAMB, NovoGrad: at least 0, below 1 */
    double eps;               /* all but SGD: at least 0 */
    double max_grad_norm;     /* LAMB: at least 0 */
    double trust_coefficient; /* LARC: above 0 */
} amp_optim;

#define AMP_OPTIM_INIT { (uint32_t)sizeof(amp_optim), 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0 }

/* Fills *rule with the Apex defaults for `kind`. rule->struct_size must be set before.
 *
 *     SGD        lr 1e-3 (Apex has no default), momentum 0
 *     LARC       as SGD, trust_coefficient 0.02, eps 1e-8, CLIP
 *     Adam       lr 1e-3, betas 0.9 and 0.999, eps 1e-8, BIAS_CORRECTION
 *     AdamW      as Adam
 *     LAMB       as Adam, eps 1e-6, weight decay 0.01, max_grad_norm 1, GRAD_AVERAGING, DECOUPLED
 *     NovoGrad   as Adam, GRAD_AVERAGING, DECOUPLED
 *     Adagrad    lr 1e-2, eps 1e-10 */
AMP_API AMP_MUST_CHECK amp_status amp_optim_defaults(amp_optim_kind kind, amp_optim *rule);

/* ---- Plain calls ------------------------------------------------------------------------------------------------- */

/*
 * The tensors of one step. Tensor i is grad[i], param[i], low[i], moments[k][i] and steps[i]. All spans of a tensor
 * have the same size, except moments[1][i] of NovoGrad, which has one element. CPU memory without overlap, borrowed.
 */
typedef struct amp_optim_tensors {
    uint32_t struct_size;
    float grad_factor; /* finite factor of the gradient beside *inv_scale, applied after it (0 means 1), such as a
                          clipping factor */
    size_t n;              /* number of tensors, the length of each list */
    const amp_span *grad;  /* fp32, fp16 or bf16, read only */
    const amp_span *param; /* FP32 parameters or masters, or 16-bit parameters without masters */
    /* 16-bit parameters, which receive the rounded masters; NULL, or data NULL in an entry: none */
    const amp_span *low;
    const amp_span *moments[3]; /* FP32, initially 0 (moments that the rule lacks are ignored) */
    uint64_t *steps; /* number of steps applied before, initially 0, increased by 1 (NULL: `step` is used for all) */
    const float *found_inf;     /* if not 0, or NaN: nothing is written and no step is counted (NULL: 0) */
    const float *inv_scale;     /* factor of the gradients, 1 / loss scale (NULL: 1) */
    /* Norms of the unscaled gradients times grad_factor, from amp_check_list; NULL: LAMB, NovoGrad and LARC compute
     * them in another pass over the gradients. */
    const float *grad_norm;  /* norm over all tensors, for LAMB */
    const float *grad_norms; /* norm of each tensor, for NovoGrad and LARC */
    /* Remainders of split masters (below): with remainders[i], param[i] is bf16, both together are the FP32 master, and
     * low[i] has no data. NULL, or NULL in an entry: no split master. */
    void *const *remainders;
    size_t n_steps; /* length of steps: n, or 1 for a count shared by all tensors (0 means n) */
    uint64_t step;  /* number of this step from 1, counted by the caller, if steps is NULL */
    /* Scales of moments in 8 bits (below): with scales[0][i] and scales[1][i], moments[0][i] and moments[1][i] are
     * codes, one byte an element, of type AMP_DTYPE_OTHER. NULL, or NULL in an entry: FP32. */
    float *const *scales[2];
    const uint64_t *keys; /* key of each tensor's random numbers, from amp_optim_key (NULL: i) */
    const uint64_t *before; /* elements of the whole parameter before each tensor, if tensors are shards (NULL: 0) */
    uint32_t flags; /* AMP_TENSORS_* */
    int32_t reserved;
} amp_optim_tensors;

#define AMP_OPTIM_TENSORS_INIT                                                                                         \
    { (uint32_t)sizeof(amp_optim_tensors), 0.0f, 0, NULL, NULL, NULL, { NULL, NULL, NULL }, NULL, NULL, NULL, NULL,    \
      NULL, NULL, 0, 0, { NULL, NULL }, NULL, NULL, 0, 0 }

/* Flags of amp_optim_tensors. */
enum {
    /* bf16 parameters without masters are rounded up or down at random, with probabilities that keep their mean, so
     * steps below half a unit are not lost. Random numbers as for moments in 8 bits. Experimental on GPUs. */
    AMP_TENSORS_STOCHASTIC = 1u << 0
};

/* Applies one step of the rule to every tensor. AMP_ERR_INVALID_ARGUMENT, AMP_ERR_ABI_MISMATCH: nothing is written. */
AMP_API AMP_MUST_CHECK amp_status amp_optim_list(const amp_optim *rule, const amp_optim_tensors *tensors);

/*
 * Split masters: an FP32 master m stored as the bf16 parameter p, its rounded value, and a remainder of 16 bits. The
 * remainder takes 2 1/8 bytes an element, where a separate master takes 4. No bit is lost: a step on both gives the
 * bits of a step on the FP32 master and its bf16 copy.
 *
 * A remainder is one block, aligned to 4 bytes. First uint16_t rest[size], padded to a multiple of 2 elements: the
 * lower halves of the masters. Then uint32_t ties[(size + 31) / 32]: bit i % 32 of word i / 32 is 1 if m is halfway
 * between two bf16 numbers and was rounded down. As integers m = (p << 16) + rest with rest signed, or (p << 16) - rest
 * if that bit is set and rest is -0x8000. A write to p is a write to m: the remainder is added to the new p. If the sum
 * is not a valid number (p is 0 and m beyond it, or p is odd and m halfway), m is p.
 */

/* Returns the bytes of a remainder for `size` elements, or 0 if size is too large. */
AMP_API uint64_t amp_remainder_bytes(uint64_t size);
/* Splits FP32 values: dst[i] (bf16) = src[i] (fp32) rounded as by amp_cast_list, remainders[i] = the rest. Every byte
 * of a remainder is written. A NaN stays NaN. */
AMP_API AMP_MUST_CHECK amp_status amp_split_list(const amp_span *dst, void *const *remainders, const amp_span *src,
                                                 size_t n);
/* Joins split values: dst[i] (fp32) = src[i] (bf16) with remainders[i], exactly. */
AMP_API AMP_MUST_CHECK amp_status amp_join_list(const amp_span *dst, const amp_span *src, void *const *remainders,
                                                size_t n);

/*
 * Moments in 8 bits, for Adam and AdamW without AMSGRAD: 2 1/32 bytes an element instead of 8. Experimental on GPUs:
 * the kernels give the CPU's bytes in an emulator, and no GPU has run them. A block of 256 elements has a scale for
 * each moment:
 *
 *     m       = code * scale, code from -127 to 127 (int8_t)
 *     sqrt(v) = code * scale, code from 0 to 255 (uint8_t); 0 only if v is 0
 *
 * The code is rounded up or down at random, with probabilities that keep its mean. To nearest, small changes would
 * vanish; upward, v would grow without end. Random numbers are a function of the tensor's key, the number of steps
 * before this one and the element, so every device, instruction set, number of threads and resumed run writes the same
 * bytes, and a skipped step uses none. A block with an infinite or NaN moment gets NaN scales.
 */
#define AMP_STATE_BLOCK 256  /* elements of a block */
#define AMP_STATE_LEAST 4096 /* smaller parameters of amp_fused and of Python's optimizers keep FP32 moments */

/* Converts a moment between 8 bits and FP32. second: the values are v, else m. With keep_scales the scales are read,
 * and the codes are the exact ones if the values come from these scales (a checkpoint). Otherwise scales are written,
 * and values are rounded to nearest. codes: `size` bytes; scales: one for each block. */
AMP_API AMP_MUST_CHECK amp_status amp_encode_moment(uint8_t *codes, float *scales, const float *values, uint64_t size,
                                                    int32_t second, int32_t keep_scales);
AMP_API AMP_MUST_CHECK amp_status amp_decode_moment(float *values, const uint8_t *codes, const float *scales,
                                                    uint64_t size, int32_t second);

/* Returns the key of a parameter's random numbers. Ranks that should write equal bytes use equal seeds and names. */
AMP_API uint64_t amp_optim_key(uint64_t seed, const char *name);

/* Checks gradients before a step, without writing them. *norm: the L2 norm of all src * scale * factor. norms[i]: that
 * of src[i]. *found_inf: set to 1.0f if a product is non-finite, and otherwise left alone. Each pointer may be NULL.
 * Each product is rounded to float (fp64: to double), and the norms have the bits of amp_l2norm_list on the products as
 * fp32 (fp64) tensors. Source: Apex multi_tensor_unscale_l2norm. */
AMP_API AMP_MUST_CHECK amp_status amp_check_list(const amp_span *src, size_t n, float scale, float factor, float *norm,
                                                 float *norms, float *found_inf);

/* ---- An optimizer that libamp steps ------------------------------------------------------------------------------ */

/*
 * An optimizer of libamp. Set amp_optimizer.fused to it before amp_initialize, with the parameters as usual and without
 * `steps`. The structure is copied. libamp owns the moments, and amp_state_save and amp_state_load store them as
 * "<parameter>.<moment>" with PyTorch names (exp_avg, exp_avg_sq, max_exp_avg_sq, momentum_buffer, sum). It needs the
 * hooks view and grad. FP64 parameters are an error. All groups have the same kind. Parameters of amp_add_params join
 * group 0.
 *
 * The end of a bracket only reads the gradients, checks them and sums their squares. They stay scaled in the memory of
 * the host until they are cleared, and the step unscales them as it reads. Until the step the host may apply linear
 * operations (an average over ranks). amp_clip_grad_norm leaves its factor to the step. amp_master_params,
 * amp_clip_grad_value, another bracket and amp_shutdown unscale the gradients first. Three kinds of gradients are
 * unscaled at the end of the bracket, as without `fused`: those added to gradients of earlier brackets, those that
 * would be unscaled in 16 bits (O3), and those that another optimizer lists too. The results are the same.
 *
 *     amp_optim rule = AMP_OPTIM_INIT;
 *     amp_fused fused = AMP_FUSED_INIT;
 *     amp_optim_defaults(AMP_OPTIM_ADAMW, &rule);
 *     fused.groups = &rule, fused.n_groups = 1;
 *     optimizer.fused = &fused;
 *     amp_initialize(&model, &optimizer, AMP_O2);
 *     ... begin, backward, end ...
 *     amp_fused_step(&optimizer, NULL);
 *     amp_fused_zero_grad(&optimizer);
 */
typedef struct amp_fused {
    uint32_t struct_size;
    uint32_t flags;          /* AMP_FUSED_* */
    const amp_optim *groups; /* rules, with the struct_size of element 0 as stride */
    size_t n_groups;         /* number of groups, at least 1 */
    const uint32_t *group_of; /* group of each parameter of amp_optimizer.params (NULL: group 0 for all) */
    uint64_t seed;            /* seed of random numbers, with the names of the parameters */
} amp_fused;

#define AMP_FUSED_INIT { (uint32_t)sizeof(amp_fused), 0, NULL, 0, NULL, 0 }

/* Flags of amp_fused. */
enum {
    /* Adam, AdamW without AMSGRAD: moments of parameters with AMP_STATE_LEAST elements or more are 8 bits. Checkpoints
     * have their values in FP32, and "<parameter>.<moment>.scale". A checkpoint of an optimizer with FP32 moments loads
     * into one with 8 bits, and back. Experimental on GPUs. Served devices are refused (AMP_ERR_UNSUPPORTED). */
    AMP_FUSED_STATE_8BIT = 1u << 0
};

/* Steps the optimizer, or skips if the brackets decided so. *action (may be NULL): the action taken, AMP_STEP_ON_DEVICE
 * if only the device knows. Parameters without a gradient are not updated and their step counts stay. Thread rule of
 * steps. AMP_ERR_WRONG_STATE: a bracket is open, or a step of an optimizer that shares a parameter with it. On an error
 * no parameter has changed and the decision stays, except after AMP_ERR_BACKEND with several groups or devices: steps
 * launched before the error take effect. */
AMP_API AMP_MUST_CHECK amp_status amp_fused_step(amp_optimizer *optimizer, amp_action *action);

/* Clears the gradients, those of masters too: removes them if the host has set_grad, else writes zeros. */
AMP_API AMP_MUST_CHECK amp_status amp_fused_zero_grad(amp_optimizer *optimizer);

/* Read (into a rule that starts as AMP_OPTIM_INIT) and write the rule of a group between steps, for schedules. The
 * kind, AMSGRAD, and momentum 0 or not of SGD and LARC cannot change, since they determine the moments. */
AMP_API AMP_MUST_CHECK amp_status amp_fused_get(amp_optimizer *optimizer, size_t group, amp_optim *rule);
AMP_API AMP_MUST_CHECK amp_status amp_fused_set(amp_optimizer *optimizer, size_t group, const amp_optim *rule);

#ifdef __cplusplus
}
#endif

#endif /* AMP_OPTIM_H */
