/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One training of the network on the digits, plain or under an opt level, and what it cost and gained. run.c is where
 * libamp is called; everything else of the program is options, progress and reports.
 */
#ifndef RUN_H
#define RUN_H

#include "digits.h"

#include <amp.h>
#include <amp_diagnostics.h>

enum run_optimizer { RUN_SGD, RUN_ADAM };

struct run_setup {
    const char *label; /* "FP32", "O1", ...; kept */
    amp_config config; /* config.level 0: plain FP32, without any call of libamp */
    int epochs, batch;
    int steps;  /* at most so many, then it ends; 0: all of the epochs */
    int tested; /* on so many images; 0: all that are for the test */
    double lr; /* at the start; it decays as a cosine over the epochs */
    enum run_optimizer optimizer;
    uint64_t seed; /* of the weights and of the order of the images */
    /* The loss is multiplied by this and the rate divided by it (Adam: its eps multiplied), which changes nothing but
     * the size of the gradients. 1: nothing is done. */
    double loss_multiplier;
    int host_kernels; /* 16-bit ops and the optimizer of O2 and O5 by the host's own code, not by libamp's */
    int fp32_kernels; /* FP32 ops by libamp's */
    mt_device device; /* MT_CUDA: mt_cuda_open has been called. Then no step waits for the device */
    int activations;  /* bits of what is kept for backward: 8, 4 or 2; 0: as it is */
    int gate;         /* measure from which sizes on 16 bits are faster, and let libamp's gate keep the rest in FP32 */
};

/* Who looks on; any function may be NULL. */
struct run_watch {
    void *self;
    void (*epoch)(void *self, int done, int epochs);
    void (*event)(void *self, const amp_event *event);
    void (*trained)(void *self, amp_context *context); /* once, before shutdown */
};

struct run_result {
    const char *label, *low_dtype; /* low_dtype: "fp16", "bf16" or "none" */
    uint64_t seed;
    int batch;
    double lr;
    double test_accuracy; /* percent */
    double train_loss;    /* mean of the last epoch; NaN or infinite as it comes */
    int steps, skipped;   /* steps: those skipped included */
    double loss_scale;    /* at the end; 1 without libamp */
    /* What the host's allocator held: after initialize, by initialize, and at most while training. */
    size_t param_bytes, master_bytes, grad_bytes, activation_peak_bytes;
    double seconds, samples_per_second; /* of the training alone; those of skipped steps count: their work was done */
    float *losses, *scales; /* at each step; scales: the one that the step was taken with */
    float *weights;         /* all parameters and statistics after shutdown, in FP32 */
    size_t n_weights;
    mt_device device;
    char health[32];  /* libamp's word on the wiring when all was done: "sound", or how many findings; "" without it */
    char error[1024]; /* after a failure: what was wrong */
};

/* 0, or -1 with result->error. Either way the result is ended with run_result_done. `watch` may be NULL. */
int run_training(const struct run_setup *setup, const struct digits *data, const struct run_watch *watch,
                 struct run_result *result);
void run_result_done(struct run_result *result);

/* Would libamp accept the setup? Initializes and shuts down. 0, or -1 with its words in `error`. */
int run_check(const struct run_setup *setup, char *error, size_t error_size);

#endif
