/* SPDX-License-Identifier: Apache-2.0 */
/* amp_observe over a device's memory: what is seen there is what the CPU sees of the same training, and observed
 * trainings have the same bits. */
#include "host_run.h"

#include "../kernels/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ITERATIONS = 6, SEEN = 64 };

static const struct kind kinds[] = {
    { "O0 fused", AMP_O0, STEP_FUSED, false, false, 1, 0.0f },
    { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f },
    { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
    { "O2 knows", AMP_O2, STEP_KNOWS, false, false, 2, 0.0f },
    { "O5 there", AMP_O5, STEP_THERE, false, false, 1, 0.0f },
    { "O1 fused, fixed", AMP_O1, STEP_FUSED, false, true, 1, 0.0f },
    { "O2 fused, mixed", AMP_O2, STEP_FUSED, true, false, 1, 0.0f },
};

struct seen {
    size_t n;
    uint32_t what[SEEN];
    char names[SEEN][16];
    amp_dtype types[SEEN];
    amp_statistics total[SEEN];
};

static void keep_seen(amp_context *context, struct seen *seen) {
    static amp_observation found[SEEN];
    found[0] = (amp_observation)AMP_OBSERVATION_INIT;
    ck_assert_int_eq(amp_get_observations(context, found, SEEN, &seen->n), AMP_OK);
    ck_assert_uint_le(seen->n, SEEN);
    for (size_t i = 0; i < seen->n; i++) {
        seen->what[i] = found[i].what;
        seen->types[i] = found[i].dtype;
        seen->total[i] = *found[i].total;
        snprintf(seen->names[i], sizeof seen->names[i], "%s", found[i].name);
    }
}

/* seen NULL: it is not observed. */
static void train(const struct kind *kind, bool on_cpu, bool overflows, struct seen *seen, float *weights) {
    struct host *host = host_new(on_cpu, kind->mixed && !on_cpu, kind->fixed, kind->stepping);
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_context *context = NULL;
    options.every = 1;
    config.level = kind->level;
    config.init_scale = 256.0f; /* no gradient overflows at once: a device that decides alone shows those too */
    ck_assert_msg(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context) == AMP_OK, "%s", amp_last_error());
    if (seen) ck_assert_msg(amp_observe(context, &options) == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < ITERATIONS; i++) run_iterate(host, kind, overflows && i == 2 ? INFINITY : 0.25f);
    if (seen) keep_seen(context, seen);
    host_clear(host);
    host_read(host, weights, ELEMENTS);
    ck_assert_msg(amp_shutdown(context) == AMP_OK, "%s", amp_last_error());
    host_free(host);
}

/* A device adds in another order; `there` gets the CPU's sums. */
static void near_sums(amp_statistics *there, const amp_statistics *here) {
    const double n = (double)here->elements, bound = n * 0x1p-52 * sqrt(n * here->sum_squares);
    ck_assert(fabs(there->sum - here->sum) <= bound);
    ck_assert(fabs(there->sum_squares - here->sum_squares) <= n * 0x1p-52 * here->sum_squares);
    there->sum = here->sum, there->sum_squares = here->sum_squares;
}

TEST_TIMES(test_the_device_shows_what_the_cpu_does, sizeof kinds / sizeof *kinds) {
    const struct kind *kind = &kinds[_i];
    static float weights[ELEMENTS];
    static struct seen here, there;
    unsigned kinds_seen = 0;
    train(kind, true, false, &here, weights);
    train(kind, false, false, &there, weights);
    for (size_t i = 0, j = 0; i < here.n; i++, j = 0) {
        kinds_seen |= here.what[i];
        while (j < there.n && (there.what[j] != here.what[i] || strcmp(there.names[j], here.names[i]) != 0)) j++;
        ck_assert_msg(j < there.n, "%s: %s (%u) is missing", kind->name, here.names[i], (unsigned)here.what[i]);
        ck_assert_int_eq(there.types[j], here.types[i]);
        near_sums(&there.total[j], &here.total[i]);
        ck_assert_msg(!memcmp(&there.total[j], &here.total[i], sizeof here.total[i]), "%s: %s (%u): %llu elements up "
                      "to %a which are %a together, not %llu up to %a, %a", kind->name, here.names[i],
                      (unsigned)here.what[i], (unsigned long long)there.total[j].elements, there.total[j].largest,
                      there.total[j].sum, (unsigned long long)here.total[i].elements, here.total[i].largest,
                      here.total[i].sum);
    }
    ck_assert_uint_eq(there.n, here.n);
    const unsigned all = AMP_SEE_WEIGHTS | AMP_SEE_SCALED | AMP_SEE_GRADIENTS | AMP_SEE_UPDATES;
    ck_assert_uint_eq(kinds_seen & all, all);
}

TEST_TIMES(test_observed_trainings_have_the_same_bits, sizeof kinds / sizeof *kinds) {
    static float plain[ELEMENTS], observed[ELEMENTS];
    static struct seen seen;
    train(&kinds[_i], false, true, NULL, plain);
    train(&kinds[_i], false, true, &seen, observed);
    for (size_t i = 0; i < host_elements(); i++)
        ck_assert_msg(!memcmp(&plain[i], &observed[i], sizeof plain[i]), "%s: element %zu", kinds[_i].name, i);
}


TEST_FIXTURE(device_lazily, device_at_once)
