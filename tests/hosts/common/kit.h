/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of every host do: levels and their references, comparisons, and trainings told of as functions. */
#ifndef KIT_H
#define KIT_H

#include "asserts.h"
#include "problem.h"

/* What each host trains with at a level: the problem's static scale where the level scales. */
amp_config kit_config(amp_level level);
/* The same without libamp. */
void kit_reference(amp_level level, struct curve *curve);

/* Equal as numbers: zeros of either sign are one. */
void ck_same(const float *a, const float *b, int n, const char *what);
void ck_same_curves(const struct curve *a, const struct curve *b);
void ck_learned(const struct curve *curve);
/* Nothing was found, and the last line of amp_health says so. */
void ck_sound(amp_context *context);

/* What a framework itself would save. */
struct kit_state {
    float params[PARAM_FLOATS], momentum[PARAM_FLOATS];
};

/* A host's training, for tests that every host has to pass. */
struct kit_host {
    amp_context *(*start)(const amp_config *config);
    int (*iterate)(int step, float *loss); /* 0: the step was skipped; loss NULL: it is not wanted */
    void (*finish)(float *params);         /* NULL: they are not wanted */
    void (*read)(struct kit_state *state);
    void (*write)(const struct kit_state *state);
};

/* All steps, none of them skipped and nothing failed. */
void kit_train(const struct kit_host *host, amp_config config, struct curve *curve);
/* At a level, bit for bit as the casts written by hand; and it learns. */
void kit_agrees(const struct kit_host *host, amp_level level);
/* At a scale that is far too large steps are skipped, change nothing, and the training gets there all the same. */
void kit_overflow(const struct kit_host *host, amp_level level);
/* Saved in mid-window and resumed, to the bit. */
void kit_resume(const struct kit_host *host, amp_level level);
/* 200 steps of what is wired as it should be, resumed in their middle and begun with overflows where the level skips:
 * nothing is found, nobody is warned. */
void kit_sound(const struct kit_host *host, amp_level level);

#endif
