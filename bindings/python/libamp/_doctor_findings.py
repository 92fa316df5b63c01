# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor in any PyTorch training: their table, with remedies in the words of the script's framework."""

from __future__ import annotations

# The frameworks that a remedy can name. "torch" is the default: a framework without a remedy of its own uses it.
FRAMEWORKS = {
    "torch": "PyTorch",
    "accelerate": "accelerate",
    "lightning": "Lightning",
    "transformers": "transformers",
    "libamp": "libamp and Apex",
}

# code: (title, reason, {framework: remedy}). docs/reference/doctor-findings.md is generated from it, by
# tests/docs/check_mistakes.py . --write. A code is never reused.
FAULTS: dict[str, tuple[str, str, dict[str, str]]] = {
    "AMP-D01": (
        "updates are lost in 16-bit weights",
        "A step smaller than half the distance to the next 16-bit number rounds to nothing: at 1.0 that is 0.002 in "
        "bf16. The gradients come, the optimizer steps, and the weight keeps its first value. The loss still falls, "
        "through the weights that move, so nothing else shows it.",
        {
            "torch": "keep the parameters in FP32 and lower the activations alone: no .to(torch.bfloat16) on the "
            "model, and with torch.autocast(device, dtype=torch.bfloat16) around the forward",
            "accelerate": "load the model in FP32 and let Accelerator(mixed_precision='bf16') lower the activations",
            "lightning": "Trainer(precision='bf16-mixed') in place of 'bf16-true', and no .bfloat16() on the module",
            "transformers": "load the trained model with dtype=torch.float32 (torch_dtype in older versions) and set "
            "TrainingArguments(bf16=True)",
            "libamp": "opt_level='O2' or 'O5' with FP32 masters in place of 'O3', or stochastic_weights=True",
        },
    ),
    "AMP-D02": (
        "gradients underflow in fp16",
        "fp16 holds nothing between 0 and 6e-8. Many gradients at this loss scale are 0, and those that are left are "
        "at the last few numbers above it, where one or two bits remain.",
        {
            "torch": "let the loss scale grow: torch.amp.GradScaler with its defaults, updated once a step, or use "
            "bfloat16, which needs no scale",
            "accelerate": "use mixed_precision='bf16', or a GradScalerKwargs with a larger init_scale",
            "lightning": "use precision='bf16-mixed', or '16-mixed' with the default GradScaler",
            "transformers": "use bf16=True in place of fp16=True",
            "libamp": "use loss_scale='dynamic', or O4 or O5, which need no scale",
        },
    ),
    "AMP-D03": (
        "fp16 without a loss scale",
        "Gradients below 6e-8 become 0 in fp16, and those below 6e-5 lose bits. A loss scale moves them into its "
        "range.",
        {
            "torch": "use scaler = torch.amp.GradScaler(); scaler.scale(loss).backward(); scaler.step(optimizer); "
            "scaler.update(), or bfloat16",
            "accelerate": "use Accelerator(mixed_precision='fp16'), which has a scaler, and accelerator.backward(loss)",
            "lightning": "Trainer(precision='16-mixed'), which has a scaler, in place of '16-true' or an autocast of "
            "the module's own",
            "transformers": "TrainingArguments(fp16=True) and a model loaded in FP32, in place of a model in fp16",
            "libamp": "loss_scale='dynamic', and backward inside amp.scale_loss",
        },
    ),
    "AMP-D04": (
        "the optimizer's steps are all skipped",
        "Each skipped step had an infinite or NaN gradient. If that stays so after the scale was halved again and "
        "again, the forward or the loss overflows at any scale, and nothing is trained.",
        {
            "torch": "mend the first cause: keep that module in FP32 with torch.autocast(device, enabled=False) and "
            "inputs cast by .float(), or use bfloat16",
            "libamp": "mend the first cause: amp.culprit() names it; register_float_function keeps an op in FP32",
        },
    ),
    "AMP-D05": (
        "the loss scale fell to its floor",
        "Overflows go on at a scale of 1 or less. They come from the forward, which the scale does not change, and "
        "small gradients are lost meanwhile.",
        {
            "torch": "find the op that overflows and keep it in FP32 with torch.autocast(device, enabled=False), or "
            "use bfloat16",
            "transformers": "use bf16=True in place of fp16=True: models that were trained in bf16 overflow in fp16",
            "libamp": "find the op with amp.observe(model) and amp.culprit(), or use O4 or O5",
        },
    ),
    "AMP-D06": (
        "the loss scale never changes",
        "A dynamic scale is halved after an overflow and doubled after many good steps. This one is not: overflows "
        "repeat at the same scale, or it never reaches the scale that the gradients need.",
        {
            "torch": "make one GradScaler before the loop, and call scaler.update() once after the steps of each "
            "iteration, without an argument",
            "libamp": "loss_scale='dynamic', and one amp.initialize before the loop",
        },
    ),
    "AMP-D07": (
        "gradients are clipped before they are unscaled",
        "They still carry the loss scale, so the limit is too tight by that factor, and the step is a fraction of the "
        "wanted one.",
        {
            "torch": "call scaler.unscale_(optimizer), then clip: during backward it is too early",
            "accelerate": "call accelerator.clip_grad_norm_(parameters, limit), under accelerator.sync_gradients",
            "lightning": "Trainer(gradient_clip_val=limit), or self.clip_gradients in configure_gradient_clipping",
            "transformers": "TrainingArguments(max_grad_norm=limit) in place of a clip of the script's own",
            "libamp": "clip after the block: clip_grad_norm_(amp.master_params(optimizer), limit)",
        },
    ),
    "AMP-D08": (
        "the scheduler goes on after skipped steps",
        "The learning rate follows the scheduler's count. Each skipped step that it counts is a step that the "
        "training never makes, most of them in warm-up.",
        {
            "torch": "ask whether the scale fell: scale = scaler.get_scale(); scaler.update(); "
            "if scaler.get_scale() >= scale: scheduler.step()",
            "accelerate": "give the scheduler to accelerator.prepare, or ask accelerator.optimizer_step_was_skipped",
            "lightning": "return the scheduler from configure_optimizers and let the Trainer step it",
            "transformers": "give the scheduler to the Trainer by optimizers=(optimizer, scheduler)",
            "libamp": "if amp.stepped(optimizer): scheduler.step()",
        },
    ),
    "AMP-D09": (
        "backward runs inside autocast",
        "Ops of the backward, and of custom Functions in it, are then cast by autocast's lists once more. torch "
        "advises against it: backward ops run in the types that their forward ops chose.",
        {
            "torch": "end the autocast block after the loss, and call backward outside of it",
            "accelerate": "call accelerator.backward(loss) outside of accelerator.autocast()",
            "lightning": "leave autocast and backward to the Trainer's precision",
        },
    ),
    "AMP-D10": (
        "gradients are unscaled twice",
        "They are divided by the loss scale a second time, and are too small by that factor.",
        {
            "torch": "call scaler.unscale_(optimizer) once between backward and scaler.step, and do not divide "
            "gradients by the scale: scaler.step divides those that nobody has unscaled",
            "accelerate": "do not call unscale_: accelerator.clip_grad_norm_ and optimizer.step do",
            "lightning": "do not call unscale_: the Trainer's precision does",
            "libamp": "do not divide by the scale: the end of the block does",
        },
    ),
    "AMP-D11": (
        "the scaler steps and is not updated",
        "Without scaler.update() the scale never changes, and the state of the last iteration decides on the next: "
        "unscaled gradients, overflows found.",
        {"torch": "call scaler.update() once after the steps of each iteration"},
    ),
    "AMP-D12": (
        "the optimizer steps on scaled gradients",
        "optimizer.step() uses gradients that carry the loss scale, and steps after overflows too. Adam hides the "
        "factor, except in its epsilon and in weight decay.",
        {
            "torch": "call scaler.step(optimizer) in place of optimizer.step()",
            "accelerate": "step the optimizer that accelerator.prepare returned",
            "lightning": "step the optimizer that self.optimizers() returns, after self.manual_backward(loss)",
            "libamp": "step after the block of amp.scale_loss, with the optimizer that amp.initialize returned",
        },
    ),
    "AMP-D13": (
        "backward runs on the unscaled loss",
        "The scaler divides gradients by a scale that nothing multiplied them with: they are too small by that factor, "
        "and small ones are lost in fp16.",
        {
            "torch": "call scaler.scale(loss).backward() in place of loss.backward()",
            "accelerate": "accelerator.backward(loss) in place of loss.backward()",
            "lightning": "self.manual_backward(loss) in place of loss.backward()",
            "libamp": "with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()",
        },
    ),
    "AMP-D14": (
        "the batch has infinity or NaN",
        "The numbers were not finite before the model touched them. Every gradient of that step is lost, and without "
        "a scaler the weights are.",
        {
            "torch": "mend or drop the sample where the data is read: torch.nan_to_num, or a check in the Dataset. "
            "A std of 0 in a normalization and a log of 0 are the usual sources",
        },
    ),
    "AMP-D15": (
        "a weight became infinite or NaN",
        "A step wrote it: the gradient was not finite and nothing skipped the step, or the update overflowed. All "
        "later forwards are lost.",
        {
            "torch": "load the last good checkpoint; use a GradScaler with fp16, clip gradients, and look at the loss "
            "of the step before it",
            "lightning": "load the last good checkpoint; gradient_clip_val and detect_anomaly of the Trainer help",
            "transformers": "load the last good checkpoint; set max_grad_norm, and bf16=True in place of fp16=True",
        },
    ),
    "AMP-D16": (
        "an op turns finite numbers into infinity or NaN",
        "Its inputs were finite and its result is not: it overflows (beyond 65504 in fp16), divides by 0, or takes "
        "the logarithm or root of 0 or less.",
        {
            "torch": "compute it in FP32: with torch.autocast(device, enabled=False), and inputs cast by .float(); or "
            "bound its input with clamp",
            "libamp": "amp.register_float_function(module, name) keeps it in FP32",
        },
    ),
    "AMP-D17": (
        "a constant is too large for fp16",
        "fp16 ends at 65504. A mask of -1e9 becomes -infinity, and a row that is masked wholly gives NaN in softmax.",
        {
            "torch": "use torch.finfo(scores.dtype).min, or scaled_dot_product_attention with a boolean mask",
            "transformers": "use torch.finfo(scores.dtype).min, or attn_implementation='sdpa'",
        },
    ),
    "AMP-D18": (
        "an epsilon is 0 in fp16",
        "fp16 has no number between 0 and 6e-8 (half of that rounds to 0). An epsilon of 1e-8 protects no division, "
        "logarithm or root in it.",
        {
            "torch": "compute that line in FP32 (.float()), or use an epsilon of 1e-6 or more; for an optimizer of "
            "fp16 weights keep the weights in FP32, or use eps=1e-4",
        },
    ),
    "AMP-D19": (
        "an op runs in 16 bits that autocast does not protect",
        "Sums, exponentials and powers of 16-bit numbers lose small terms or overflow. autocast runs its own list of "
        "them in FP32. This one is not on the list of this device, or is in the model's own 16 bits.",
        {
            "torch": "cast its input: op(x.float()), inside torch.autocast(device, enabled=False) if other ops follow",
            "libamp": "amp.register_float_function(module, name) keeps it in FP32",
        },
    ),
    "AMP-D20": (
        "a Function gets 16-bit numbers without custom_fwd",
        "autocast does not cast the arguments of a torch.autograd.Function. Without custom_fwd its forward gets "
        "whatever types the ops before it chose, and its backward runs without the state of autocast.",
        {
            "torch": "decorate it: @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.float32) on forward, "
            "@torch.amp.custom_bwd(device_type=device) on backward",
        },
    ),
    "AMP-D21": (
        "an average of weights stands still in 16 bits",
        "With a decay of 0.999 an average moves by a thousandth of a difference in a step. 16 bits round that away: "
        "it keeps its first value, or lags far behind.",
        {
            "torch": "keep the average in FP32: AveragedModel(model.float()), or a copy whose parameters are FP32, and "
            "update it from FP32 weights",
            "lightning": "keep the module in FP32 ('bf16-mixed' in place of 'bf16-true'): the callback then averages "
            "in FP32",
            "libamp": "average amp.master_params(optimizer) or model.state_dict(), which are FP32",
        },
    ),
    "AMP-D22": (
        "the optimizer's state is in 16 bits",
        "The second moment changes by (1 - beta2) of a difference in a step: in bf16 less than a half of its last bit, "
        "so it never falls. In fp16 squares of gradients below 2.4e-4 are 0.",
        {
            "torch": "keep the parameters in FP32 with autocast around the forward: the state has the parameters' type",
            "accelerate": "load the model in FP32 and let Accelerator(mixed_precision='bf16') lower the activations",
            "lightning": "Trainer(precision='bf16-mixed') in place of 'bf16-true'",
            "transformers": "load the trained model with dtype=torch.float32 and set TrainingArguments(bf16=True)",
            "libamp": "opt_level='O2' or 'O5' in place of 'O3'",
        },
    ),
    "AMP-D23": (
        "parameters with gradients are in no optimizer",
        "Backward computes their gradients and nothing uses them: they keep their first values.",
        {
            "torch": "give them to the optimizer (add_param_group for those made later), or requires_grad_(False), "
            "which also saves their backward",
            "accelerate": "make the optimizer after all layers exist, then accelerator.prepare both",
            "lightning": "return an optimizer of self.parameters() in configure_optimizers",
            "libamp": "optimizer.add_param_group, or requires_grad_(False) before amp.initialize",
        },
    ),
    "AMP-D24": (
        "batch norm computes its statistics in 16 bits",
        "Running statistics move by a tenth of a difference in a step, and a 16-bit variance loses small ones. "
        "Evaluation then uses statistics that the training never had.",
        {
            "torch": "keep the model in FP32 with autocast around the forward, or call .float() on each batch norm "
            "after model.half() or model.bfloat16()",
            "lightning": "Trainer(precision='bf16-mixed') in place of 'bf16-true'",
            "libamp": "keep_batchnorm_fp32=True",
        },
    ),
    "AMP-D25": (
        "16 bits ruin a buffer",
        "Positions above 2048 (fp16) or 256 (bf16) change, neighbours become equal, and rotary frequencies drift: "
        "far tokens get the angles of others.",
        {
            "torch": "convert parameters alone, and compute the buffer in FP32 after the conversion: "
            "for p in model.parameters(): p.data = p.data.bfloat16()",
            "transformers": "load the model in FP32 with bf16=True, or with from_pretrained(dtype=...), which leaves "
            "inv_freq in FP32, in place of model.bfloat16()",
            "libamp": "name it in keep_buffers_fp32 of amp.initialize",
        },
    ),
    "AMP-D26": (
        "the loss is not finite",
        "Its gradients are infinity or NaN. The iteration after it is watched op by op for the cause, and there it was "
        "not seen: it ended before, ran compiled, or did not repeat.",
        {
            "torch": "run again without torch.compile, or with torch.autograd.set_detect_anomaly(True) around that "
            "iteration",
            "lightning": "run again with Trainer(detect_anomaly=True)",
            "libamp": "run again with amp.observe(model): amp.culprit() names the first op",
        },
    ),
}

# Speed alone: never a fault, never counted by --strict. Numbers from 80 on.
ADVICE: dict[str, tuple[str, str, dict[str, str]]] = {
    "AMP-D80": (
        "a dimension is no multiple of 8",
        "Tensor cores work on tiles of 8 16-bit numbers. Other sizes are padded in each product, or take slower "
        "kernels.",
        {"torch": "round it up: a vocabulary of 50257 to 50304, an output of 10 padded to 16 if it matters"},
    ),
    "AMP-D81": (
        "products run in FP32 that could be TF32 or bf16",
        "This device multiplies TF32 and bf16 several times as fast as FP32. TF32 keeps the range of FP32 and 10 bits "
        "of the fraction.",
        {
            "torch": "call torch.set_float32_matmul_precision('high') for TF32, or put torch.autocast(device, "
            "dtype=torch.bfloat16) around the forward",
            "accelerate": "Accelerator(mixed_precision='bf16')",
            "lightning": "Trainer(precision='bf16-mixed')",
            "transformers": "TrainingArguments(bf16=True, tf32=True)",
            "libamp": "opt_level='O4'",
        },
    ),
}


def title(code: str) -> str:
    return (FAULTS.get(code) or ADVICE[code])[0]


def reason(code: str) -> str:
    return (FAULTS.get(code) or ADVICE[code])[1]


def remedy(code: str, framework: str = "torch") -> str:
    """Returns the remedy in the words of a framework of FRAMEWORKS."""
    remedies = (FAULTS.get(code) or ADVICE[code])[2]
    return remedies.get(framework, remedies["torch"])


def is_advice(code: str) -> bool:
    """Returns True for a finding about speed alone."""
    return code in ADVICE
