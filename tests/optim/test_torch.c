/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's optimizers, replayed: test_torch FILE (data/torch.txt; its format and how it was made: record_torch.py).
 *
 * Tolerance. torch multiplies and divides in another order than libamp (AdamW scales the parameter first, Adam divides
 * by the root of a correction), so that each step is a handful of roundings away, of the parameter and of the update;
 * and what is away after one step stays. An update's own error is relative, but where momentum and gradient cancel:
 * there it is that of the larger terms. So after t steps |difference| <= t * (4 * 2^-24 * |p| + 16 * 2^-24 * largest
 * update so far), p the largest magnitude of the parameter: four and sixteen roundings where the formulas have two and
 * eight.
 */
#include "rules.h"

#include <math.h>

enum { LONGEST = 64 };

static const char *path;

struct run {
    char name[64];
    amp_optim rule;
    int size, steps;
    float param[LONGEST], grad[LONGEST], want[LONGEST], moments[3][LONGEST], before[LONGEST];
    uint64_t count;
};

static bool read_words(FILE *file, const char *what, float *out, int n) {
    char key[16];
    if (fscanf(file, "%15s", key) != 1 || strcmp(key, what)) return false;
    for (int i = 0; i < n; i++) {
        uint32_t word;
        if (fscanf(file, "%8x", &word) != 1) return false;
        memcpy(&out[i], &word, sizeof word);
    }
    return true;
}

static bool read_run(FILE *file, struct run *run) {
    amp_optim *rule = &run->rule;
    *run = (struct run){ .rule = AMP_OPTIM_INIT };
    if (fscanf(file, " run %63s %d %u %lf %lf %lf %lf %lf %lf %lf %d %d", run->name, &rule->kind, &rule->flags,
               &rule->lr, &rule->weight_decay, &rule->momentum, &rule->dampening, &rule->beta1, &rule->beta2,
               &rule->eps, &run->size, &run->steps) != 12)
        return false;
    ck_assert(run->size > 0 && run->size <= LONGEST && run->steps > 0);
    ck_assert_msg(read_words(file, "param", run->param, run->size), "%s: no parameter", run->name);
    return true;
}

static void step(struct run *run) {
    const uint64_t n = (uint64_t)run->size;
    const amp_span param = { run->param, n, AMP_FLOAT32, 0 }, grad = { run->grad, n, AMP_FLOAT32, 0 };
    amp_span moments[3];
    amp_optim_tensors list = AMP_OPTIM_TENSORS_INIT;
    list.n = 1, list.param = &param, list.grad = &grad, list.steps = &run->count;
    for (int k = 0; k < 3; k++) {
        moments[k] = (amp_span){ run->moments[k], n, AMP_FLOAT32, 0 };
        list.moments[k] = &moments[k];
    }
    ck_ok(amp_optim_list(&run->rule, &list));
}

static void replay(FILE *file, struct run *run) {
    double largest = 0.0, update = 0.0;
    for (int t = 1; t <= run->steps; t++) {
        memcpy(run->before, run->param, sizeof run->before);
        ck_assert_msg(read_words(file, "grad", run->grad, run->size), "%s: no gradient %d", run->name, t);
        ck_assert_msg(read_words(file, "param", run->want, run->size), "%s: no parameter %d", run->name, t);
        step(run);
        for (int i = 0; i < run->size; i++) {
            largest = fmax(largest, fabs((double)run->want[i]));
            update = fmax(update, fabs((double)run->param[i] - (double)run->before[i]));
        }
        const double bound = t * (4.0 * largest + 16.0 * update) * 0x1p-24;
        for (int i = 0; i < run->size; i++) {
            const double error = fabs((double)run->param[i] - (double)run->want[i]);
            ck_assert_msg(error <= bound, "%s: step %d: [%d] is %.9g, torch has %.9g: %g away, bound %g", run->name, t,
                          i, (double)run->param[i], (double)run->want[i], error, bound);
        }
    }
}

TEST(steps_are_torchs) {
    struct run run;
    char line[256];
    int runs = 0, comments = 0;
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    for (int c; (c = fgetc(file)) == '#'; comments++) ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    ck_assert_int_eq(fseek(file, -1, SEEK_CUR), 0);
    for (; read_run(file, &run); runs++) replay(file, &run);
    ck_assert_int_eq(feof(file) != 0, 1);
    ck_assert_int_ge(runs, 11);
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc != 2) return EXIT_FAILURE;
    path = argv[1];
    return suite_run();
}
