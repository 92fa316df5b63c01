/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp's own optimizers: SGD, Adam, AdamW, LAMB, NovoGrad, Adagrad and LARC, for FP32 parameters, for 16-bit
 * parameters with FP32 masters, and for 16-bit parameters alone. One pass over each tensor unscales the gradient,
 * updates moments and parameter and writes the 16-bit parameter; the gradient is only read. Two ways to use them:
 *
 *     amp_optim_list(&rule, &tensors)          plain memory, no policy, no context
 *     amp_optimizer.fused = &fused             an optimizer that amp_initialize accepts and amp_fused_step steps
 *
 * Numbers. Moments and arithmetic are FP32, each operation rounded once, none contracted, division and square root as
 * in IEEE 754: the same bits for every instruction set. What depends on the rule and the step alone is computed in
 * double and rounded once: beta^t by binary powering, 1 - beta^t, norms, trust ratios. docs/reference/numerics.md has
 * the order of operations.
 *
 * Below, g is the gradient unscaled, p the parameter, d the weight decay, t the number of the step from 1 on, and
 * corr1 = 1 - beta1^t, corr2 = 1 - beta2^t, or 1 without AMP_OPTIM_BIAS_CORRECTION. Terms with d = 0 are left out.
 */
#ifndef AMP_OPTIM_H
#define AMP_OPTIM_H

#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

/* Whose rule; each says what its moments are and where it comes from. */
typedef int32_t amp_optim_kind;
enum {
    /* g += d * p;  m = momentum * m + (1 - dampening) * g, at t = 1 m = g;  p -= lr * m, with NESTEROV
     * lr * (g + momentum * m). Without momentum p -= lr * g. DECAY_AFTER_MOMENTUM adds d * p to what lr multiplies
     * instead. moments[0] (unless momentum is 0): m. Source: torch.optim.SGD; Apex FusedSGD, whose first step is
     * decided by the last tensor of the list: here it is each tensor's own. */
    AMP_OPTIM_SGD = 1,
    /* g += d * p;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2;
     * p -= lr * (m / corr1) / (sqrt(v / corr2) + eps). AMSGRAD: the largest v so far under the root.
     * moments[0]: m, [1]: v, [2] (AMSGRAD): the largest v. Source: Kingma and Ba, arXiv:1412.6980; Reddi et al., 2018;
     * Apex FusedAdam(adam_w_mode=False), which refuses AMSGRAD; torch.optim.Adam. */
    AMP_OPTIM_ADAM = 2,
    /* Adam, but d * p is added to what lr multiplies, and not to g. Source: Loshchilov and Hutter, arXiv:1711.05101;
     * Apex FusedAdam; torch.optim.AdamW. */
    AMP_OPTIM_ADAMW = 3,
    /* g *= max_grad_norm / norm of all g, where that norm is above max_grad_norm (0: never);
     * m = beta1 * m + k * g, k = 1 - beta1, or 1 without GRAD_AVERAGING;  v as in Adam;
     * u = (m / corr1) / (sqrt(v / corr2) + eps) + d * p (without DECOUPLED: g += d * p instead);  p -= lr * r * u,
     * r = norm of p / norm of u per tensor; 1 where either is 0, or where d = 0 and not NVLAMB.
     * moments as Adam. Source: You et al., arXiv:1904.00962; Apex FusedLAMB, which overwrites the gradient with u and
     * keeps moments in the parameter's type. */
    AMP_OPTIM_LAMB = 4,
    /* n = sqrt(beta2 * n^2 + (1 - beta2) * norm(g)^2) per tensor, at t = 1 n = norm(g) unless INIT_ZERO;
     * DECOUPLED: m = beta1 * m + k * g, p -= lr * ((m / corr1) / (n / sqrt(corr2) + eps) + d * p); else the paper's
     * rule: m = beta1 * m + k * (g / (n / sqrt(corr2) + eps) + d * p), p -= lr * m / corr1. k as in LAMB. corr2 divides
     * n also where n began as norm(g), which is Apex's: the first steps are small, by sqrt(corr2). moments[0]: m, [1]:
     * n, one element. The L2 norm only. Source: Ginsburg et al., arXiv:1905.11286 (without DECOUPLED, BIAS_CORRECTION
     * and GRAD_AVERAGING); Apex FusedNovoGrad, whose reg_inside_moment is: not DECOUPLED. */
    AMP_OPTIM_NOVOGRAD = 5,
    /* g += d * p (DECOUPLED: not);  h = h + g^2;  p -= lr * g / (sqrt(h) + eps) (DECOUPLED: + d * p in what lr
     * multiplies). moments[0]: h. Source: Duchi et al., 2011; Apex FusedAdagrad; torch.optim.Adagrad with
     * lr_decay 0. */
    AMP_OPTIM_ADAGRAD = 6,
    /* SGD on r * (g + d * p), r = trust_coefficient * norm(p) / (norm(g) + d * norm(p) + eps) per tensor, with CLIP
     * min(r / lr, 1); r = 1 where either norm is 0. moments[0] as SGD. Source: You et al., arXiv:1708.03888; Apex LARC
     * over SGD, which there leaves out the weight decay as well where a norm is 0. */
    AMP_OPTIM_LARC = 7
};

/* All of them, as data: constant, value, name, title, whose arithmetic it has, and torch's names of its moments. */
#define AMP_OPTIM_MAP(X)                                                                                               \
    X(SGD, 1, sgd, "SGD", sgd, "momentum_buffer", NULL, NULL)                                                          \
    X(ADAM, 2, adam, "Adam", adam, "exp_avg", "exp_avg_sq", "max_exp_avg_sq")                                          \
    X(ADAMW, 3, adamw, "AdamW", adam, "exp_avg", "exp_avg_sq", "max_exp_avg_sq")                                       \
    X(LAMB, 4, lamb, "LAMB", lamb, "exp_avg", "exp_avg_sq", NULL)                                                      \
    X(NOVOGRAD, 5, novograd, "NovoGrad", novograd, "exp_avg", "exp_avg_sq", NULL)                                      \
    X(ADAGRAD, 6, adagrad, "Adagrad", adagrad, "sum", NULL, NULL)                                                      \
    X(LARC, 7, larc, "LARC", sgd, "momentum_buffer", NULL, NULL)

/* amp_optim.flags: what a rule may have that another has not. */
enum {
    AMP_OPTIM_NESTEROV = 1u << 0,             /* SGD, LARC; needs momentum above 0 and dampening 0 */
    AMP_OPTIM_DECAY_AFTER_MOMENTUM = 1u << 1, /* SGD; Apex: wd_after_momentum */
    AMP_OPTIM_BIAS_CORRECTION = 1u << 2,      /* Adam, AdamW, LAMB, NovoGrad */
    AMP_OPTIM_AMSGRAD = 1u << 3,              /* Adam, AdamW */
    AMP_OPTIM_DECOUPLED = 1u << 4,            /* LAMB, NovoGrad, Adagrad; Apex: adam_w_mode, adagrad_w_mode */
    AMP_OPTIM_GRAD_AVERAGING = 1u << 5,       /* LAMB, NovoGrad */
    AMP_OPTIM_NVLAMB = 1u << 6,               /* LAMB: the ratio also without weight decay */
    AMP_OPTIM_INIT_ZERO = 1u << 7,            /* NovoGrad */
    AMP_OPTIM_CLIP = 1u << 8                  /* LARC */
};

/* A rule with its numbers. Here 0 is 0 and no flag is no flag: begin with amp_optim_defaults. */
typedef struct amp_optim {
    uint32_t struct_size;
    amp_optim_kind kind; /* AMP_OPTIM_SGD, ... */
    uint32_t flags; /* AMP_OPTIM_*; one that is not the kind's is refused */
    int32_t reserved;
    double lr;                /* all: at least 0 */
    double weight_decay;      /* all: at least 0 */
    double momentum;          /* SGD, LARC: at least 0 */
    double dampening;         /* SGD, LARC */
    double beta1, beta2;      /* Adam, AdamW, LAMB, NovoGrad: from 0 on, below 1 */
    double eps;               /* all but SGD: at least 0 */
    double max_grad_norm;     /* LAMB: 0 or above */
    double trust_coefficient; /* LARC: above 0 */
} amp_optim;

#define AMP_OPTIM_INIT { (uint32_t)sizeof(amp_optim), 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0 }

/* Fills *rule with Apex's defaults for `kind`: SGD and LARC lr 1e-3, momentum 0, LARC trust_coefficient 0.02, eps 1e-8,
 * CLIP; Adam, AdamW lr 1e-3, betas 0.9 and 0.999, eps 1e-8, BIAS_CORRECTION; LAMB the same with eps 1e-6, weight decay
 * 0.01, max_grad_norm 1, GRAD_AVERAGING, DECOUPLED; NovoGrad as Adam with GRAD_AVERAGING and DECOUPLED; Adagrad lr
 * 1e-2, eps 1e-10. (Apex has no default lr for SGD.) rule->struct_size is set before. */
AMP_API AMP_MUST_CHECK amp_status amp_optim_defaults(amp_optim_kind kind, amp_optim *rule);

/* ---- Plain calls ------------------------------------------------------------------------------------------------- */

/*
 * Tensor i is grad[i], param[i], low[i], moments[k][i], steps[i]; all spans of a tensor have one size, but NovoGrad's
 * moments[1][i], which has one element. CPU memory; nothing overlaps.
 */
typedef struct amp_optim_tensors {
    uint32_t struct_size;
    float grad_factor; /* multiplied after *inv_scale, as a clipping factor is; finite; 0 means 1 */
    size_t n;              /* tensors: entries of each list */
    const amp_span *grad;  /* fp32, fp16 or bf16; only read */
    const amp_span *param; /* FP32 parameters or masters; or 16-bit parameters that have no master */
    /* the 16-bit parameter that becomes the rounded master; NULL, or entries with data NULL: none */
    const amp_span *low;
    const amp_span *moments[3]; /* FP32, 0 at first; those that the rule has not are ignored */
    uint64_t *steps;            /* steps applied so far, 0 at first; advanced by 1; NULL: `step` holds for all */
    const float *found_inf;     /* not 0, or NaN: nothing is written and no step advances; NULL: 0 */
    const float *inv_scale;     /* what gradients are multiplied with: 1 / loss scale; NULL: 1 */
    /* Norms of the unscaled gradients (times grad_factor) where the caller has them, from amp_check_list; NULL: they
     * cost LAMB, NovoGrad and LARC a pass over the gradients. */
    const float *grad_norm;  /* of all, LAMB's */
    const float *grad_norms; /* of each, NovoGrad's and LARC's */
    /* The remainders of split masters (below): with remainders[i] param[i] is bf16, and the two are the FP32 master;
     * low[i] then has no data. NULL, or entries NULL: none. */
    void *const *remainders;
    size_t n_steps; /* entries of steps: n, or 1 that is every tensor's; 0 means n */
    uint64_t step;  /* with steps NULL: the number of this step, from 1 on; the caller counts */
} amp_optim_tensors;

#define AMP_OPTIM_TENSORS_INIT                                                                                         \
    { (uint32_t)sizeof(amp_optim_tensors), 0.0f, 0, NULL, NULL, NULL, { NULL, NULL, NULL }, NULL, NULL, NULL, NULL,    \
      NULL, NULL, 0, 0 }

/* One step of every tensor. AMP_ERR_INVALID_ARGUMENT, AMP_ERR_ABI_MISMATCH: nothing was written. */
AMP_API AMP_MUST_CHECK amp_status amp_optim_list(const amp_optim *rule, const amp_optim_tensors *tensors);

/*
 * Split masters: an FP32 master m kept as the bf16 parameter p that it rounds to and a remainder of 16 bits, which take
 * 2 1/8 bytes an element beside p where a master takes 4. No bit is lost: a step of the two is a step of the FP32
 * master, to the last bit, with its bf16 copy.
 *
 * A remainder is one block: uint16_t rest[size], to a multiple of 2 elements, the lower halves of the masters; then
 * uint32_t ties[(size + 31) / 32], whose bit i % 32 of word i / 32 says of an m halfway between two bf16 numbers that
 * it was rounded down. As integers m = (p << 16) + rest, rest signed, or - rest where that bit is set and rest is
 * -0x8000. Aligned to 4 bytes. Whoever writes p writes m: what was a remainder is added to the new p; where that would
 * be no number (p is 0 and m beyond it, or p is odd and m halfway) m is p.
 */

/* Bytes of a remainder; 0 for more elements than there can be. */
AMP_API uint64_t amp_remainder_bytes(uint64_t size);
/* dst[i] (bf16), remainders[i] = src[i] (fp32): as amp_cast_list rounds, and what that left. Every byte of a remainder
 * is written. A NaN comes back as one. */
AMP_API AMP_MUST_CHECK amp_status amp_split_list(const amp_span *dst, void *const *remainders, const amp_span *src,
                                                 size_t n);
/* dst[i] (fp32) = src[i] (bf16) with remainders[i]: exact. */
AMP_API AMP_MUST_CHECK amp_status amp_join_list(const amp_span *dst, const amp_span *src, void *const *remainders,
                                                size_t n);

/* The read-only pass before it. *norm (may be NULL) is the L2 norm of all src * scale * factor, norms[i] (norms may be
 * NULL) that of src[i]; *found_inf (may be NULL) is set to 1.0f if an element of them is non-finite, else left as it
 * is. The products are rounded to float each (fp64: to double); sums as in amp_l2norm_list, whose bits these are for
 * amp_scale_list's result. Source: Apex multi_tensor_unscale_l2norm. */
AMP_API AMP_MUST_CHECK amp_status amp_check_list(const amp_span *src, size_t n, float scale, float factor, float *norm,
                                                 float *norms, float *found_inf);

/* ---- An optimizer that libamp steps ------------------------------------------------------------------------------ */

/*
 * Put it into amp_optimizer.fused before amp_initialize, with the parameters as ever and no steps. Copied; moments are
 * libamp's, saved and loaded by amp_state_save and amp_state_load under "<parameter>.<moment>" in torch's names
 * (exp_avg, exp_avg_sq, max_exp_avg_sq, momentum_buffer, sum). Needs the hooks view and grad. Parameters in FP64 are
 * refused. All groups have one kind. Parameters of amp_add_params join group 0.
 *
 * The end of a bracket only reads the gradients, checks them and sums their squares; they stay scaled in the host's
 * hands until the step, which unscales on its way, and after it, until they are cleared. Until then the host may do to
 * them what is linear (average over ranks). amp_clip_grad_norm leaves a factor to the step. Whatever else looks at a
 * gradient finds it unscaled: amp_master_params, amp_clip_grad_value, another bracket, amp_shutdown. Not so gradients
 * to which earlier brackets' must be added, that would be unscaled in 16 bits (O3), or that other optimizers list too:
 * they are unscaled at the end, as ever. The numbers are the same.
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
    uint32_t flags;          /* 0 */
    const amp_optim *groups; /* rules; element 0's struct_size is the stride */
    size_t n_groups;         /* entries of groups; at least 1 */
    const uint32_t *group_of; /* the group of each parameter of amp_optimizer.params; NULL: all are in group 0 */
} amp_fused;

#define AMP_FUSED_INIT { (uint32_t)sizeof(amp_fused), 0, NULL, 0, NULL }

/* Step, or skip where the brackets decided so; *action (may be NULL) says which: AMP_STEP_ON_DEVICE where only the
 * device knows. Parameters without a gradient are passed over and their steps do not advance. Where brackets apply;
 * AMP_ERR_WRONG_STATE inside one. On an error no parameter has changed and the decision still stands, but for errors of
 * CUDA (AMP_ERR_BACKEND) among several groups or devices: those that were launched before it step. */
AMP_API AMP_MUST_CHECK amp_status amp_fused_step(amp_optimizer *optimizer, amp_action *action);

/* Clear the gradients: none where the host has set_grad, zeros in fixed buffers; masters' gradients too. */
AMP_API AMP_MUST_CHECK amp_status amp_fused_zero_grad(amp_optimizer *optimizer);

/* A group's rule, to read and to change between steps (schedules). The kind stays, and so does what decides on moments:
 * AMSGRAD, and whether SGD's and LARC's momentum is 0. */
AMP_API AMP_MUST_CHECK amp_status amp_fused_get(amp_optimizer *optimizer, size_t group, amp_optim *rule);
AMP_API AMP_MUST_CHECK amp_status amp_fused_set(amp_optimizer *optimizer, size_t group, const amp_optim *rule);

#ifdef __cplusplus
}
#endif

#endif /* AMP_OPTIM_H */
