/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three sharded optimizers with a parameter each have saved theirs; one with all three, or one of the three, loads.
 * Input: how many parts and which, a byte each; who loads; then damage to one of them, in pairs of a place and what is
 * turned there, behind right checksums or before. The three whole parts of one save are taken and give the values of a
 * run that had all parameters; a part that is missing, there twice or damaged is refused, and then nothing has changed.
 */
#include "state_parts.h"

#include "../optim/fused.h"
#include "../support/fakenet.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PARAMS = 3, MOST_PARTS = 4, ROOM = 16384, STEPS = 3 };

struct state {
    char bytes[ROOM];
    size_t size;
};

static struct rig savers[PARAMS], straight; /* which also loads */
static struct state saved[PARAMS];

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, amp_last_error());
    abort();
}

static void start(struct rig *rig, int first, int last) {
    rig_init(rig, FAKE_RETAINS);
    for (int k = 0; k < PARAMS; k++) fake_fill(rig->net.trained[k], 0.1 * (k + 1));
    rig->net.optimizer.params = (void *const *)(rig->net.trained + first);
    rig->net.optimizer.n_params = (size_t)(last - first);
    rig->net.optimizer.flags = AMP_OPTIMIZER_SHARDED;
    ck_ok(fused_config(rig, optim_of(AMP_OPTIM_ADAM, 0.125), CONFIG(AMP_O2, .init_scale = 64.0f, .window = 3)));
    for (int step = 0; step < STEPS; step++) {
        (void)bracket(rig, step == 1 ? INF : 0.01 * (step + 1), 0);
        ck_ok(amp_fused_step(&rig->net.optimizer, NULL));
        for (int k = 0; k < PARAMS; k++) fake_put_grad(rig->net.trained[k], NULL);
    }
}

static void save(struct rig *rig, struct state *state) {
    need(amp_state_save_memory(rig->context, AMP_STATE_SAFETENSORS, state->bytes, ROOM, &state->size) == AMP_OK,
         "save");
}

static void start_all(void) {
    if (straight.context) return;
    start(&straight, 0, PARAMS);
    for (int k = 0; k < PARAMS; k++) start(&savers[k], k, k + 1), save(&savers[k], &saved[k]);
}

/* A file without a name. Its path is read, as any other. */
static int file_of(const struct state *state, char path[64]) {
    FILE *file = tmpfile();
    need(file && fwrite(state->bytes, 1, state->size, file) == state->size && !fflush(file), "a temporary file");
    const int descriptor = dup(fileno(file));
    fclose(file);
    snprintf(path, 64, "/proc/self/fd/%d", descriptor);
    return descriptor;
}

/* Turns bits; nothing where the input has no more. */
static bool damage(struct state *state, const uint8_t *input, size_t size) {
    static struct state was;
    was = *state;
    if (size < 3) return false;
    for (size_t i = 1; i + 1 < size; i += 2)
        state->bytes[(size_t)(input[i] << 8 | input[i + 1]) % state->size] ^= (char)(1 << i / 2 % 8);
    if (input[0] & 1) write_checksums(state->bytes, state->size);
    if (input[0] & 2) state->size -= input[1] % state->size;
    return was.size != state->size || memcmp(was.bytes, state->bytes, state->size) != 0;
}

/* Every parameter of the net, the others' too. */
static void values(const struct rig *rig, double to[PARAMS][NET_SIZE]) {
    for (int k = 0; k < PARAMS; k++)
        for (int i = 0; i < NET_SIZE; i++) to[k][i] = fake_get(rig->net.trained[k], i);
}

void load_parts(const uint8_t *input, size_t size) {
    static struct state part, before, after;
    double were[PARAMS][NET_SIZE], are[PARAMS][NET_SIZE], right[PARAMS][NET_SIZE];
    char names[MOST_PARTS][64];
    const char *paths[MOST_PARTS];
    int descriptors[MOST_PARTS], times[PARAMS] = { 0 };
    start_all();
    if (size < 2) return;
    const size_t n = input[0] % (MOST_PARTS + 1);
    const int loader = input[1] % (PARAMS + 1); /* 0: who has all three */
    struct rig *rig = loader ? &savers[loader - 1] : &straight;
    input += 2, size -= 2;
    bool damaged = false;
    for (size_t i = 0; i < n; i++) {
        const unsigned which = i < size ? input[i] : (unsigned)i;
        part = saved[which % PARAMS];
        times[which % PARAMS]++;
        if (which & 0x80 && !damaged && size > n) damaged = damage(&part, input + n, size - n);
        descriptors[i] = file_of(&part, names[i]);
        paths[i] = names[i];
    }
    save(rig, &before), values(rig, were), values(&straight, right);
    const amp_status status = amp_state_load_parts(rig->context, paths, n);
    for (size_t i = 0; i < n; i++) close(descriptors[i]);
    save(rig, &after), values(rig, are);
    const bool whole = times[0] == 1 && times[1] == 1 && times[2] == 1,
               twice = times[0] > 1 || times[1] > 1 || times[2] > 1;
    if (status != AMP_OK) {
        need(*amp_last_error(), "refused without words");
        need(before.size == after.size && !memcmp(before.bytes, after.bytes, after.size),
             "refused parts changed the state");
        need(!memcmp(were, are, sizeof are), "refused parts changed a parameter");
        need(damaged || !whole, "the parts of one save were refused");
    } else {
        need(!twice && (loader || whole), "parts that are not one save's were taken");
        if (!damaged && whole) need(!memcmp(right, are, sizeof are), "what was loaded is not what was saved");
        need(amp_state_load_memory(rig->context, after.bytes, after.size) == AMP_OK || loader || damaged,
             "what was loaded cannot be saved and loaded again");
    }
    if (damaged && status == AMP_OK) { /* as it was, for the next input */
        for (int k = 0; k < PARAMS; k++) rig_end(&savers[k]);
        rig_end(&straight);
        memset(&straight, 0, sizeof straight);
    }
}
