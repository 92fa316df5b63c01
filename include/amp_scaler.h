/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modes of the loss scale, for amp_config.scaler. amp.h includes it.
 */
#ifndef AMP_SCALER_H
#define AMP_SCALER_H

/* Modes of dynamic loss scaling; docs/guide/loss-scaling.md has their rules. X(constant, value, description, name, the
 * mode with the same rule, defaults of these members of amp_config: init_scale, min_scale, max_scale, growth, backoff
 * (0: 1 / growth), window, hysteresis, consecutive_hysteresis (1: on); and 1 if it multiplies in FP32, by the float
 * nearest to the factor). */
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

#endif /* AMP_SCALER_H */
