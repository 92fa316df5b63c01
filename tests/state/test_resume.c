/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run that is saved, ended, and gone on with in a new process is the run that was never interrupted: the demo's
 * network on the digits, every level, SGD with momentum and Adam, the model loaded before and after libamp's state. The
 * host keeps its model and its optimizer in a file of its own, as hosts do. Arguments: the digits.
 */
#include "amp_state.h"
#include "../support/levels.h"
#include "resume_host.h"

#include "test.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS_BEFORE = 6, STEPS_AFTER = 7, WINDOW = 4 }; /* saved in mid-window; the scale grows at step 8 */
enum order { MODEL_THEN_STATE, STATE_THEN_MODEL, MODEL_BEFORE_INITIALIZE, N_ORDERS };

static const char *program, *digits_path;

/* A low scale grows in the second part; a high one has overflowed in the first and does again. */
static amp_config config_of(amp_level level, bool high) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    config.window = WINDOW;
    config.init_scale = high ? 65536.0F : 1024.0F;
    return config;
}

static void name_file(char path[128], const char *folder, const char *what) {
    snprintf(path, 128, "%s/%s", folder, what);
}

/* ---- the second process ---- */

static int resume(amp_level level, bool adam, bool high, enum order order, const char *folder) {
    char model[128], state[128], result[128];
    struct run run;
    const amp_config config = config_of(level, high);
    name_file(model, folder, "host.bin");
    name_file(state, folder, "amp.safetensors");
    name_file(result, folder, "resumed.bin");
    if (run_open(&run, digits_path, adam, 999) != 0) return 2; /* other weights than the first process began with */
    if (order == MODEL_BEFORE_INITIALIZE && run_load_host(&run, model) != 0) return 3;
    if (run_initialize(&run, &config) != 0) return 4;
    if (order == MODEL_THEN_STATE && run_load_host(&run, model) != 0) return 5;
    if (amp_state_load(run.adapter.model.amp, state) != AMP_OK) {
        fprintf(stderr, "%s\n", amp_last_error());
        return 6;
    }
    if (order == STATE_THEN_MODEL && run_load_host(&run, model) != 0) return 7;
    if (run_train(&run, STEPS_BEFORE, STEPS_AFTER) != 0) return 8;
    if (run_dump(&run, result) != 0) return 9;
    return run_close(&run) == 0 ? 0 : 10;
}

static int in_new_process(amp_level level, bool adam, bool high, enum order order, const char *folder) {
    char words[4][16];
    int status;
    snprintf(words[0], sizeof words[0], "%d", (int)level);
    snprintf(words[1], sizeof words[1], "%d", (int)adam);
    snprintf(words[2], sizeof words[2], "%d", (int)order);
    snprintf(words[3], sizeof words[3], "%d", (int)high);
    const pid_t child = fork();
    if (!child) {
        execl(program, program, digits_path, words[0], words[1], words[2], words[3], folder, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- the first process ---- */

static void check_equal(const char *a, const char *b) {
    static char x[1 << 20], y[1 << 20];
    FILE *one = fopen(a, "rb"), *two = fopen(b, "rb");
    ck_assert(one && two);
    const size_t n = fread(x, 1, sizeof x, one), m = fread(y, 1, sizeof y, two);
    fclose(one);
    fclose(two);
    ck_assert_uint_gt(n, 10000);
    ck_assert_uint_eq(n, m);
    for (size_t i = 0; i < n; i++) ck_assert_msg(x[i] == y[i], "byte %zu of %zu differs", i, n);
}

TEST_TIMES(resume_is_bit_exact, 24) {
    const amp_level level = AMP_O0 + _i / 4;
    const bool adam = _i % 2, high = _i / 2 % 2;
    char folder[] = "resume-XXXXXX", model[128], state[128], straight[128], resumed[128];
    struct run run;
    const amp_config config = config_of(level, high);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    name_file(model, folder, "host.bin");
    name_file(state, folder, "amp.safetensors");
    name_file(straight, folder, "straight.bin");
    name_file(resumed, folder, "resumed.bin");
    ck_assert_int_eq(run_open(&run, digits_path, adam, 1), 0);
    ck_assert_int_eq(run_initialize(&run, &config), 0);
    ck_assert_int_eq(run_train(&run, 0, STEPS_BEFORE), 0);
    ck_assert_msg(amp_state_save(run.adapter.model.amp, state, AMP_STATE_SAFETENSORS) == AMP_OK, "%s",
                  amp_last_error());
    ck_assert_int_eq(run_save_host(&run, model), 0);
    const float scale = run_scale(&run);
    ck_assert_int_eq(run_train(&run, STEPS_BEFORE, STEPS_AFTER), 0);
    const bool dynamic = level_is_dynamic(level);
    if (dynamic && !high) ck_assert_float_gt(run_scale(&run), scale);
    if (dynamic && high) ck_assert_uint_gt(run_skipped(&run), 0);
    ck_assert_int_eq(run_dump(&run, straight), 0);
    ck_assert_int_eq(run_close(&run), 0);
    for (int order = 0; order < N_ORDERS; order++) {
        if (getenv("AMP_TEST_SHORT") && order != _i % N_ORDERS) continue; /* sanitizer builds: one order a case */
        ck_assert_msg(in_new_process(level, adam, high, (enum order)order, folder) == 0, "order %d", order);
        check_equal(straight, resumed);
        unlink(resumed);
    }
    unlink(model);
    unlink(state);
    unlink(straight);
    ck_assert_int_eq(rmdir(folder), 0);
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 7) return EXIT_FAILURE;
    program = argv[0];
    digits_path = argv[1];
    if (argc == 7)
        return resume(atoi(argv[2]), atoi(argv[3]) != 0, atoi(argv[5]) != 0, (enum order)atoi(argv[4]), argv[6]);
    return suite_run();
}
