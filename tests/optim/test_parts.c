/* SPDX-License-Identifier: Apache-2.0 */
/* States in parts: several optimizers of which each has some of the parameters, saved each to its file, go on in others
 * that have other parts, as if one had had them all. */
#include "fused.h"
#include "../support/levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BEFORE = 5, AFTER = 6, PARAMS = 3 };

/* A rig that steps parameters first to last - 1, on the same gradients as all others. */
static void start(struct rig *rig, amp_level level, int first, int last) {
    rig_init(rig, 0);
    for (int k = 0; k < PARAMS; k++) fake_fill(rig->net.trained[k], 0.1 * (k + 1));
    rig->net.optimizer.params = (void *const *)(rig->net.trained + first);
    rig->net.optimizer.n_params = (size_t)(last - first);
    rig->net.optimizer.flags = AMP_OPTIMIZER_SHARDED;
    ck_ok(fused_config(rig, optim_of(AMP_OPTIM_ADAM, 0.125),
                       CONFIG(level, .loss_scale = AMP_DYNAMIC, .init_scale = 64.0f, .window = 3)));
}

/* What another rig's optimizer updates has a gradient here as well, which nobody takes: it goes. */
static void train(struct rig *rig, int from, int n) {
    for (int step = from; step < from + n; step++) {
        (void)bracket(rig, step % 5 == 3 ? INF : 0.01 * (step % 4 + 1), 0);
        ck_ok(amp_fused_step(&rig->net.optimizer, NULL));
        for (int k = 0; k < PARAMS; k++) fake_put_grad(rig->net.trained[k], NULL);
    }
}

/* Where n rigs that share the parameters begin and end theirs. */
static int bound(int rig, int n) { return rig * PARAMS / n; }

struct files {
    char folder[32], names[PARAMS][64];
    const char *paths[PARAMS];
};

static void files_begin(struct files *files) {
    strcpy(files->folder, "/tmp/libamp-parts-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(files->folder));
    for (int i = 0; i < PARAMS; i++) {
        snprintf(files->names[i], sizeof files->names[i], "%s/%d", files->folder, i);
        files->paths[i] = files->names[i];
    }
}

static void files_end(struct files *files) {
    for (int i = 0; i < PARAMS; i++) unlink(files->paths[i]);
    rmdir(files->folder);
}
#define FILES(name) __attribute__((cleanup(files_end))) struct files name; files_begin(&name)

static void save(const struct files *files, amp_level level, int n, int steps) {
    for (int i = 0; i < n; i++) {
        RIG(rig);
        start(&rig, level, bound(i, n), bound(i + 1, n));
        train(&rig, 0, steps);
        ck_ok(amp_state_save(rig.context, files->paths[i], AMP_STATE_SAFETENSORS));
    }
}

/* All parameters, the others' as well as its own, are the straight run's when loaded; its own stay so. */
static void compare(const struct rig *rig, const struct rig *straight, int first, int last) {
    for (int k = first; k < last; k++)
        for (int i = 0; i < NET_SIZE; i++)
            ck_assert_msg(fake_get(rig->net.trained[k], i) == fake_get(straight->net.trained[k], i), "parameter %d", k);
}

/* Saved by so many, loaded by so many. */
static const int splits[][2] = { { 1, 2 }, { 2, 3 }, { 3, 2 }, { 3, 1 } };
enum { N_SPLITS = sizeof splits / sizeof *splits };

TEST_TIMES(go_on_in_other_parts, N_SPLITS *N_EACH_LEVEL) {
    const amp_level level = each_level[_i / N_SPLITS];
    const int from = splits[_i % N_SPLITS][0], to = splits[_i % N_SPLITS][1];
    FILES(files);
    RIG(straight);
    save(&files, level, from, BEFORE);
    for (int i = 0; i < to; i++) {
        RIG(rig);
        start(&straight, level, 0, PARAMS);
        train(&straight, 0, BEFORE);
        start(&rig, level, bound(i, to), bound(i + 1, to));
        train(&rig, 0, 2); /* moments of its own, which the files' replace */
        ck_ok(amp_state_load_parts(rig.context, files.paths, (size_t)from));
        compare(&rig, &straight, 0, PARAMS);
        train(&straight, BEFORE, AFTER), train(&rig, BEFORE, AFTER);
        compare(&rig, &straight, bound(i, to), bound(i + 1, to));
        rig_end(&straight);
    }
    rig_init(&straight, 0);
}

static void refused(struct rig *rig, const char *const *paths, size_t n, amp_status status, const char *words) {
    double before[PARAMS];
    for (int k = 0; k < PARAMS; k++) before[k] = fake_get(rig->net.trained[k], 1);
    ck_refused(status, words, amp_state_load_parts(rig->context, paths, n));
    for (int k = 0; k < PARAMS; k++) ck_assert(fake_get(rig->net.trained[k], 1) == before[k]);
}

TEST(parts_of_one_save_alone) {
    FILES(files);
    RIG(rig);
    save(&files, AMP_O2, 3, BEFORE);
    start(&rig, AMP_O2, 0, PARAMS);
    const char *twice[] = { files.paths[0], files.paths[1], files.paths[2], files.paths[1] };
    refused(&rig, twice, 2, AMP_ERR_CONFLICT, "the state has no steps of gamma");
    refused(&rig, twice, 4, AMP_ERR_CONFLICT, "is in a part before as well");
    refused(&rig, twice, 0, AMP_ERR_INVALID_ARGUMENT, "there are no paths");
    RIG(other);
    start(&other, AMP_O2, 1, 2);
    train(&other, 0, BEFORE + 1);
    ck_ok(amp_state_save(other.context, files.paths[1], AMP_STATE_SAFETENSORS));
    refused(&rig, files.paths, 3, AMP_ERR_CONFLICT, "its loss scalers are not those of the first part");
    ck_says(files.paths[1]);
}

/* A bit of the last file, and a file that is gone: nothing was loaded of the others. */
TEST(damage_in_one_part) {
    FILES(files);
    RIG(rig);
    save(&files, AMP_O2, 3, BEFORE);
    start(&rig, AMP_O2, 0, PARAMS);
    FILE *file = fopen(files.paths[2], "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, -1, SEEK_END);
    const int last = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(last ^ 1, file);
    fclose(file);
    refused(&rig, files.paths, 3, AMP_ERR_BAD_FILE, "bytes are damaged");
    ck_says(files.paths[2]);
    unlink(files.paths[2]);
    refused(&rig, files.paths, 3, AMP_ERR_NOT_FOUND, "cannot open");
}
