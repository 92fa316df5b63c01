/* SPDX-License-Identifier: Apache-2.0 */
/* test_traces FILE: replays a trace, of an original or of its transcription, tick by tick. */
#include "replay.h"
#include "test.h"

#include <stdlib.h>

static const char *path;

static void replay(const struct run *run, unsigned index) {
    const struct amp__scaler_settings settings = settings_of(run->config, run->mode);
    struct overflows overflows = overflows_of(run);
    struct amp__scaler state;
    uint64_t checksum = CHECKSUM_INIT;
    amp__scaler_init(&state, &settings);
    for (unsigned step = 1; step <= run->steps; step++) {
        const bool overflow = next_overflow(&overflows);
        ck_assert_int_eq(amp__scaler_update(&state, &settings, overflow), overflow ? AMP_SKIP : AMP_STEP);
        mix_state(&checksum, run->mode, &state);
        if (step % SAMPLE_EVERY) continue;
        const uint32_t expected = run->samples[step / SAMPLE_EVERY - 1];
        ck_assert_msg(bits_of(state.scale) == expected, "run %u, seed %llu, step %u: scale bits %08x, not %08x",
                      index, (unsigned long long)run->seed, step, (unsigned)bits_of(state.scale), (unsigned)expected);
    }
    ck_assert_msg(checksum == run->checksum, "run %u, seed %llu: a step of the last %u, or a counter, differs", index,
                  (unsigned long long)run->seed, (unsigned)SAMPLE_EVERY);
}

TEST(every_step_of_a_trace) {
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    int32_t mode = 0;
    struct run run;
    unsigned runs = 0;
    uint64_t steps = 0;
    for (; read_run(file, &mode, &run); steps += run.steps) replay(&run, runs++);
    fclose(file);
    ck_assert_msg(steps >= 100000, "%s has only %llu steps", path, (unsigned long long)steps);
}

int main(int argc, char **argv) {
    if (argc != 2) return EXIT_FAILURE;
    path = argv[1];
    return suite_run();
}
