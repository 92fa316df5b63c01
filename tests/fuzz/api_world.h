/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fuzz_api plays with: two nets on one fake host, a third model and a third optimizer that share tables and
 * parameters with them, and up to three contexts over any of these. The input is read as a program.
 */
#ifndef TEST_API_WORLD_H
#define TEST_API_WORLD_H

#include "../support/fakenet.h"

#include <stddef.h>
#include <string.h>

enum { NETS = 2, MODELS = 3, OPTIMIZERS = 3, CONTEXTS = 3, LOSSES = 4, FRAMES = 2, SCOPES = 6, LATE = 2 };
enum { ALL_PARAMS = NETS * NET_PARAMS + LATE, MAX_TENSORS = 4 };

/* The input, byte by byte; zeros when it is over. */
struct input {
    const uint8_t *at, *end;
};
uint8_t next_byte(struct input *input);
static inline unsigned below(struct input *input, unsigned n) { return next_byte(input) % n; }
double next_value(struct input *input); /* one of a table of numbers, infinities and NaN among them */

/* All of the host's that an error must leave as it was, bit for bit. */
struct snapshot {
    amp_fn slots[NETS][N_NET_OPS + 3], extra_slot;
    amp_context *model_amp[MODELS], *optimizer_amp[OPTIMIZERS];
    struct {
        amp_dtype dtype, grad_dtype; /* grad_dtype AMP_DTYPE_DEFAULT: no gradient */
        uint64_t values[NET_SIZE], grads[NET_SIZE];
    } params[ALL_PARAMS];
};
enum { SNAPSHOT_NAN = 1 }; /* stands for each of them */

struct bracket {
    amp_scaled_loss scaled;
    bool open, delay, over_delayed; /* it decides nothing; an earlier one left gradients scaled */
    bool whole; /* whole: nothing but backward has touched the gradients since begin */
    amp_context *context;
    uint32_t loss_id;
    unsigned optimizers; /* bits */
    bool fresh[NETS];    /* backward made gradients in it, and nobody dropped them */
    struct fake_tensor *loss;
    struct snapshot before;
    amp_record record;
};

struct scope {
    amp_scope saved;
    amp_context *context;
    int step_of; /* an optimizer between amp_step_begin and its end; -1: a scope of the program's */
};

struct world {
    struct input input;
    struct fake host;
    struct net nets[NETS];
    amp_param params[NET_PARAMS + 1]; /* of net 0: its alias too, so that weights are tied */
    struct fake_tensor *alias, *late[LATE];
    amp_model model; /* on the table of net 0 */
    amp_optimizer optimizer;
    amp_op extra_step_op;
    amp_fn extra_step, original_extra_step;
    void *extra_params[2];
    amp_model *models[MODELS];
    amp_optimizer *optimizers[OPTIMIZERS];

    amp_context *contexts[CONTEXTS];
    amp_config configs[CONTEXTS]; /* as given to initialize */
    struct bracket brackets[LOSSES];
    amp_cast_frame frames[FRAMES];
    amp_context *frame_context[FRAMES];
    void *frame_tensors[FRAMES][2];
    struct fake_tensor *frame_owned[FRAMES];
    struct scope scopes[SCOPES];
    unsigned n_scopes;
    amp_scope captured;
    amp_context *captured_context;
    bool has_captured;

    char state[16384];
    size_t state_size;
    uint64_t first_values[ALL_PARAMS][NET_SIZE];
    bool changed[ALL_PARAMS]; /* a step, a load, the host or a type without a master changed the values */
    bool overflowed[OPTIMIZERS]; /* a bracket of it said SKIP or failed, and no step that is known of has followed */
    bool checks_delayed;         /* of any bracket, at any time */
    bool refused_end;         /* a shutdown failed: what it left behind is the host's */
};

void world_open(struct world *world, struct input input);
/* Ends everything in the right order and looks at the books. */
void world_close(struct world *world);

struct fake_tensor *world_param(const struct world *world, size_t i);
static inline bool optimizer_holds(const struct world *world, size_t i, const void *tensor) {
    for (size_t k = 0; k < world->optimizers[i]->n_params; k++)
        if (world->optimizers[i]->params[k] == tensor) return true;
    return false;
}

void snapshot_take(const struct world *world, struct snapshot *snapshot);
void snapshot_same(const struct snapshot *taken, const struct world *world, const char *who);
void snapshot_same_grads(const struct snapshot *before, const struct world *world, unsigned optimizers,
                         const char *who);

/* Fails the run with a message. */
void need(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The status is one of the list, and an error has words. */
amp_status checked(amp_status status, const char *who);
/* The same for a call that must change nothing where it fails. */
amp_status unchanged(const struct world *world, const struct snapshot *before, amp_status status, const char *who);

/* Allocation number `n` from now on fails, once; 0: none. */
void break_allocation(uint64_t n);

/* Invariants that hold between any two calls. */
void world_check(struct world *world);
void bracket_closed(struct world *world, struct bracket *bracket, amp_status status, bool cancelled);
void world_shutdown(struct world *world, size_t i);

bool world_enabled(const struct world *world, const amp_context *context);

/* ---- what the input chooses ---- */

static inline amp_context *any_context(struct world *world) { return world->contexts[below(&world->input, CONTEXTS)]; }
static inline struct fake_tensor *any_param(struct world *world) {
    return world_param(world, below(&world->input, ALL_PARAMS));
}
static inline void host_changed(struct world *world) { memset(world->changed, true, sizeof world->changed); }
struct fake_tensor *new_tensor(struct world *world);

/* api_rest.c */
void call_op(struct world *world);
void call_scope(struct world *world);
void call_direct(struct world *world);
void call_target(struct world *world);
void call_ends(struct world *world);
void call_save(struct world *world);
void call_load(struct world *world);
void call_explain(struct world *world);

/* fuzz_api.c: one call of the program; false: the input is over */
bool world_step(struct world *world);

#endif
