/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mistakes that adapters make: table.inc has them, each one edit of an adapter that is right. There is such an adapter
 * for each kind of host; where it would do the right thing it asks whether `mistake(NAME)` is the one that is made.
 */
#ifndef MISTAKES_H
#define MISTAKES_H

#include "problem.h"

#include <amp.h>
#include <amp_diagnostics.h>
#include <amp_raw.h>

/* When libamp has to be heard at the latest. WITH_VERIFY: without that it may be silent; VERIFY_ALONE: without that it
 * breaks memory, and is not made; STEP_TWICE: by amp_verify_step alone. */
enum when { AT_INITIALIZE, AT_FIRST_BRACKET, WITHIN_10_STEPS, WITH_VERIFY, VERIFY_ALONE, STEP_TWICE, NEVER, N_WHENS };

enum mistake_id {
    NONE,
#define MISTAKE(kind, name, ...) name,
#define SILENT(kind, name, ...) name,
#include "table.inc"
#undef MISTAKE
#undef SILENT
    N_MISTAKES
};
extern enum mistake_id made; /* NONE: the adapter is right */
#define mistake(name) (made == (name))

/* A host and its adapter. What libamp's calls return goes through `hear`. */
struct mistaken {
    amp_context *(*start)(const amp_config *config); /* NULL: initialize refused */
    float (*pass)(int step);                         /* forward, and backward in a bracket; the loss */
    void (*step)(int step);                          /* what follows it */
    void (*finish)(float *params);                   /* shuts down and frees; params[PARAM_FLOATS] as they are then */
};
extern const struct mistaken host_raw, host_pairs, host_mill, host_loom, host_planned, host_tape, host_tableless;

/* listen.c. What libamp said since `heard` was last made empty, a line each. */
enum { HEARD_SIZE = 1 << 16 };
extern char heard[HEARD_SIZE];
/* The first failure since it was last made AMP_OK. */
extern amp_status heard_status;
/* Notes an error's words, and returns the status. */
amp_status hear(amp_status status);
/* The hook `event` of every adapter: notes warnings and errors. */
void hear_event(void *self, const amp_event *event);
/* Initializes, heard. */
amp_context *hear_initialize(amp_model *model, amp_optimizer *optimizer, const amp_config *config);

/* Where a mistake is one field that the hook visit emits otherwise: of this op, the nth of this name (NULL: any) that
 * had this role (0: any). */
struct tampered {
    enum mistake_id id;
    const char *op, *field;
    amp_role had;
    int nth;
    amp_role role; /* 0: as it had */
    int more;      /* elements; LEFT_OUT: the field is not emitted at all */
};
enum { LEFT_OUT = -1000000, NOT_SET = -1 /* a role */ };
/* Puts a visit in the place of the host's that makes the mistake, if it is one of these. */
void tamper(amp_host *host, const struct tampered *rows, size_t n);

#endif
