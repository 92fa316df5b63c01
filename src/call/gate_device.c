/* SPDX-License-Identifier: Apache-2.0 */
/* The gate on GPUs: obstacles to tensor cores, or slow shapes, are counted for each op, with advice. */
#include "call/gate.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/policy.h"
#include "kernels/matmul.h"

bool amp__gate_lacks_cores(const struct amp__op *op, int32_t device) {
    int32_t capability = 0;
    return amp__device_tensor_cores(device, amp__policy_of(op->context)->properties.low, &capability) == 0;
}

void amp__gate_count(struct amp__op *op, const struct amp__gate_product *product) {
    int32_t capability = 0;
    if (amp__device_tensor_cores(product->device, amp__policy_of(op->context)->properties.low, &capability) == 0) {
        atomic_store_explicit(&op->gate.capability, capability, memory_order_relaxed);
        atomic_fetch_add_explicit(&op->tally.no_tensor_cores, 1, memory_order_relaxed);
        return;
    }
    for (unsigned i = 0; i < 3; i++)
        if ((uint64_t)product->extents[i] % 8) { /* no whole 16 bytes of a 16-bit type */
            atomic_store_explicit(&op->gate.misfit, 4 * (uint64_t)product->extents[i] + i, memory_order_relaxed);
            atomic_fetch_add_explicit(&op->tally.unaligned, 1, memory_order_relaxed);
            return;
        }
}

static void explain_cores(const struct amp__op *op, amp__text *text) {
    const uint64_t calls = atomic_load(&op->tally.no_tensor_cores);
    const int32_t capability = atomic_load(&op->gate.capability);
    const amp_dtype low = amp__policy_of(op->context)->properties.low;
    if (!calls) return;
    amp__text_add(text, "; %llu call%s on a GPU without tensor cores for %s (compute capability %d.%d): ",
                  (unsigned long long)calls, calls == 1 ? "" : "s", amp__dtype_name(low), (int)capability / 10,
                  (int)capability % 10);
    if (low == AMP_BFLOAT16 && capability >= 70) amp__text_add(text, "it has them for fp16, O1");
    else if (op->gate.applies) amp__text_add(text, "nothing to do, fp32 inputs run in fp32");
    else amp__text_add(text, "amp_config.gate AMP_ON runs them in fp32");
}

static void explain_misfit(const struct amp__op *op, amp__text *text) {
    const uint64_t calls = atomic_load(&op->tally.unaligned);
    const uint64_t misfit = atomic_load(&op->gate.misfit), extent = misfit / 4;
    if (!calls) return;
    amp__text_add(text,
                  "; %llu call%s on a GPU had a dimension that is no multiple of 8, the last %c = %llu: pad it "
                  "to %llu for the speed of tensor cores",
                  (unsigned long long)calls, calls == 1 ? "" : "s", "mnk"[misfit % 4], (unsigned long long)extent,
                  (unsigned long long)((extent + 7) / 8 * 8));
}

void amp__gate_explain_device(const struct amp__op *op, amp__text *text) {
    explain_cores(op, text);
    explain_misfit(op, text);
}
