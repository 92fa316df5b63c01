/* SPDX-License-Identifier: Apache-2.0 */
#include "context/devices.h"
#include "context/environment.h"
#include "context/findings.h"
#include "context/log.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/report.h"
#include "kernels/backend.h"
#include "kernels/cpu.h"
#include "kernels/matmul.h"
#include "kernels/threads.h"
#include "system/system.h"

#include <stdlib.h>

static bool is_switch(const char *text) { return amp__switch_parse(text) >= 0; }
static bool is_threads(const char *text) { return amp__threads_read(text, &(int32_t){ 0 }); }
static bool is_mask(const char *text) { return amp__cpu_read_mask(text, &(uint32_t){ 0 }); }
static bool is_backend(const char *text) { return amp__matmul_read_backend(text, &(int32_t){ 0 }); }

static const struct {
    const char *name;
    bool (*knows)(const char *text);
    const char *allowed;
    bool secure; /* not read by programs that change their user */
} variables[] = {
    { "AMP_LOG", amp__log_knows, "off, error, warn, info or trace", false },
    { "AMP_VERIFY", is_switch, "1, true, yes or on, or 0, false, no or off", false },
    { "AMP_NUM_THREADS", is_threads, "a number of threads, or 0 for one per processor", false },
    { "AMP_CPU_MASK", is_mask, "a number, or names out of sse2, avx2, avx512, neon and none, separated by commas",
      false },
    { "AMP_MATMUL_BACKEND", is_backend, "auto, builtin or onednn", true },
    { "AMP_BACKEND_PATH", amp__backend_path_is_good, "absolute names of folders that exist, separated by colons",
      true },
};

/* No machine with several GPUs has run libamp so far, and no GPU the kernels that round at random. */
static void check_untried(amp_context *context) {
    struct amp__devices *devices = amp__devices_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    size_t decide = 0, rounds = 0;
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct amp__optim *optim = optimizers->list[i].optim;
        decide += optimizers->list[i].host.reduce_on_device != NULL;
        rounds += optim && (optim->codes || optim->stochastic) && optim->n_devices;
    }
    if (devices->n_places > 1)
        (void)amp__warn(context, "experimental: parameters on %zu GPUs, which no machine has tried with libamp: "
                        "compare a short training with one on a single GPU", devices->n_places);
    if (decide)
        (void)amp__warn(context, "experimental: ranks that decide on their GPUs (reduce_on_device), which no machine "
                        "has tried with libamp: compare a short training with one that has the hook reduce");
    if (rounds)
        (void)amp__warn(context, "experimental: moments in 8 bits and stochastic weights on a GPU, which no GPU has "
                        "run so far: compare a short training with one without them");
}

void amp__environment_check(amp_context *context) {
    for (size_t i = 0; i < AMP_COUNT(variables); i++) {
        const char *text = variables[i].secure ? amp__trusted_getenv(variables[i].name) : getenv(variables[i].name);
        if (!text || !*text || variables[i].knows(text)) continue;
        amp__find(context, AMP__VARIABLE_UNKNOWN, variables[i].name, "%s is \"%.200s\", which libamp does not know: "
                  "use %s", variables[i].name, text, variables[i].allowed);
    }
    check_untried(context);
}
