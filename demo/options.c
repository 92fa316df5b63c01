/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include "digits.h"
#include "packing.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one table: what there is, how it reads, what it says of itself ---- */

struct spec {
    const char *name, *value; /* value: what it is called in the list; NULL: none is taken */
    int (*read)(const struct spec *spec, const char *text, void *field); /* 0 if the text is no such value */
    size_t field;
    double low, high;     /* of numbers */
    const char *expected; /* a value, in words */
    const char *help;
    int not_in_sweep; /* what the sweep varies or fixes itself */
};

static int read_level(const struct spec *spec, const char *text, void *field);
static int read_int(const struct spec *spec, const char *text, void *field);
static int read_number(const struct spec *spec, const char *text, void *field);
static int read_loss_scale(const struct spec *spec, const char *text, void *field);
static int read_switch(const struct spec *spec, const char *text, void *field);
static int read_masters(const struct spec *spec, const char *text, void *field);
static int read_bits(const struct spec *spec, const char *text, void *field);
static int read_optimizer(const struct spec *spec, const char *text, void *field);
static int read_device(const struct spec *spec, const char *text, void *field);
static int read_text(const struct spec *spec, const char *text, void *field);

#define FIELD(name) offsetof(struct options, name)
#define A_SCALE "a number greater than 0, such as 1024 or 2^10"

static const struct spec specs[] = {
    { "--level", "LEVELS", read_level, 0, 0, 0, "FP32 or O0 to O5, several with commas",
      "FP32 (no libamp at all) or O0 to O5, several with commas; default: all", 1 },
    { "--epochs", "N", read_int, FIELD(epochs), 1, 10000, "a whole number from 1 to 10000",
      "default 15; in a sweep 10", 0 },
    { "--batch", "N", read_int, FIELD(batch), 2, DIGITS_TRAIN, "a whole number from 2 to 1197", "default 32", 1 },
    { "--lr", "RATE", read_number, FIELD(lr), 1e-30, 1e30, "a number greater than 0",
      "rate at the start, decaying as a cosine; default 0.05, Adam 0.005", 1 },
    { "--optimizer", "NAME", read_optimizer, FIELD(optimizer), 0, 0, "sgd or adam",
      "sgd (momentum 0.9; default) or adam", 1 },
    { "--seed", "N", read_int, FIELD(seed), 0, 1e9, "a whole number from 0 to 1000000000", "the first; default 1", 0 },
    { "--seeds", "N", read_int, FIELD(seeds), 1, 100, "a whole number from 1 to 100",
      "how many, each a training of its own; default 3", 1 },
    { "--loss-scale", "SCALE", read_loss_scale, FIELD(loss_scale), 0x1p-149, 0x1p127, "dynamic, or " A_SCALE,
      "dynamic or a number; default: the level's", 1 },
    { "--init-scale", "SCALE", read_number, FIELD(init_scale), 0x1p-149, 0x1p127, A_SCALE,
      "of the dynamic loss scale; default 2^16", 1 },
    { "--max-scale", "SCALE", read_number, FIELD(max_scale), 0x1p-149, 0x1p127, A_SCALE,
      "of the dynamic loss scale; default 2^24", 1 },
    { "--loss-multiplier", "M", read_number, FIELD(loss_multiplier), 0x1p-60, 0x1p60,
      "a number from 2^-60 to 2^60, such as 0.001 or 2^-16",
      "multiply the loss and divide the rate: 2^-16 makes fp16 gradients underflow", 0 },
    { "--keep-batchnorm-fp32", "on|off", read_switch, FIELD(keep_batchnorm_fp32), 0, 0, "on or off",
      "default: the level's", 1 },
    { "--master-weights", "on|off|split|stochastic", read_masters, FIELD(master_weights), 0, 0,
      "on, off, split or stochastic",
      "default: the level's; split: O5, as bfloat16 and the 16 bits that it lacks", 1 },
    { "--activations", "8|4|2", read_bits, FIELD(activations), 2, 8, "8, 4 or 2",
      "bits of what is kept for backward; default: as it is (on the CPU)", 0 },
    { "--device", "NAME", read_device, FIELD(device), 0, 0, "cpu or cuda",
      "cpu (default), or cuda: the first NVIDIA GPU, by the framework's own kernels and cuBLASLt", 0 },
    { "--gate", NULL, NULL, FIELD(gate), 0, 0, NULL,
      "measure what 16 bits gain here, and run in FP32 what would be slower", 1 },
    { "--host-kernels", NULL, NULL, FIELD(host_kernels), 0, 0, NULL,
      "16-bit ops and optimizer by the host's own code, not by libamp's", 0 },
    { "--fp32-kernels", NULL, NULL, FIELD(fp32_kernels), 0, 0, NULL,
      "FP32 convolution and linear layer by libamp's code too: O0 is no longer the host's own bits", 0 },
    { "--sweep", NULL, NULL, FIELD(sweep), 0, 0, NULL,
      "batch sizes x rates x FP32, half the manual way, O1, O2, O3", 0 },
    { "--survey", NULL, NULL, FIELD(survey), 0, 0, NULL,
      "an epoch at O0, looked at: which level this training fits, and what stands in the way of the others", 1 },
    { "--ops", NULL, NULL, FIELD(ops), 0, 0, NULL, "print what each level decided for each op, and its counters", 1 },
    { "--json", NULL, NULL, FIELD(json), 0, 0, NULL, "print results.json on stdout instead of the table", 0 },
    { "--quiet", NULL, NULL, FIELD(quiet), 0, 0, NULL, "no progress and no events", 0 },
    { "--output", "DIR", read_text, FIELD(output), 0, 0, "a folder",
      "where results.json and curves.svg go (a sweep has no curves); default .", 0 },
    { "--data", "FILE", read_text, FIELD(data), 0, 0, "a file",
      "the digits; default digits.csv.gz beside this program", 0 },
    { "--help", NULL, NULL, FIELD(help), 0, 0, NULL, "this list", 0 },
};

#define N_SPECS (sizeof specs / sizeof specs[0])

/* ---- values ---- */

static void add_level(struct options *options, const char *label, amp_level level) {
    for (int i = 0; i < options->n_levels; i++)
        if (options->levels[i] == level) return;
    options->labels[options->n_levels] = label;
    options->levels[options->n_levels++] = level;
}

static void add_all_levels(struct options *options) {
#define LABEL(level, ...) &#level[4], /* "O1" of AMP_O1 */
    static const char *const labels[] = { "FP32", AMP_LEVEL_MAP(LABEL) };
#undef LABEL
    for (int i = 0; i < OPTIONS_LEVELS; i++) add_level(options, labels[i], i); /* levels are 1, 2, ... */
}

/* libamp knows the names of its levels, and what was probably meant. */
static int read_level(const struct spec *spec, const char *text, void *field) {
    struct options all = { .n_levels = 0 };
    char *list = strdup(text), *rest = list, *name;
    int ok = list != NULL;
    (void)spec;
    add_all_levels(&all);
    while (ok && (name = strsep(&rest, ",")) != NULL) {
        amp_level level = 0;
        if (strcmp(name, "FP32") != 0 && strcmp(name, "fp32") != 0 && amp_level_from_name(name, &level) != AMP_OK) {
            fprintf(stderr, "train: %s\n", amp_last_error());
            ok = 0;
        } else {
            add_level(field, all.labels[level], level);
        }
    }
    free(list);
    return ok;
}

/* "0.5", "1e-3" or "2^-16" */
static int parse_number(const char *text, double *value) {
    const int power = strncmp(text, "2^", 2) == 0;
    char *end;
    *value = strtod(power ? text + 2 : text, &end);
    if (end == text || end == text + 2 * power || *end != '\0') return 0;
    if (power) *value = *value == rint(*value) ? exp2(*value) : NAN;
    return isfinite(*value);
}

static int read_number(const struct spec *spec, const char *text, void *field) {
    double value;
    if (!parse_number(text, &value) || value < spec->low || value > spec->high) return 0;
    *(double *)field = value;
    return 1;
}

static int read_int(const struct spec *spec, const char *text, void *field) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || (double)value < spec->low || (double)value > spec->high) return 0;
    *(int *)field = (int)value;
    return 1;
}

static int read_loss_scale(const struct spec *spec, const char *text, void *field) {
    if (strcmp(text, "dynamic") != 0) return read_number(spec, text, field);
    *(double *)field = (double)AMP_DYNAMIC;
    return 1;
}

static int read_choice(const char *text, const char *const names[2], int first, int *value) {
    for (int i = 0; i < 2; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *value = first + i;
        return 1;
    }
    return 0;
}

static int read_switch(const struct spec *spec, const char *text, void *field) {
    static const char *const names[2] = { "off", "on" };
    (void)spec;
    return read_choice(text, names, AMP_OFF, field);
}

static int read_masters(const struct spec *spec, const char *text, void *field) {
    const int stochastic = !strcmp(text, "stochastic");
    if (!stochastic && strcmp(text, "split") != 0) return read_switch(spec, text, field);
    *(int *)field = stochastic ? AMP_STOCHASTIC : AMP_SPLIT;
    return 1;
}

static int read_bits(const struct spec *spec, const char *text, void *field) {
    return read_int(spec, text, field) && amp_pack_bytes(1, *(int *)field);
}

static int read_optimizer(const struct spec *spec, const char *text, void *field) {
    static const char *const names[2] = { "sgd", "adam" };
    (void)spec;
    return read_choice(text, names, RUN_SGD, field);
}

static int read_device(const struct spec *spec, const char *text, void *field) {
    static const char *const names[2] = { "cpu", "cuda" };
    int value = MT_CPU;
    (void)spec;
    if (!read_choice(text, names, MT_CPU, &value)) return 0;
    *(mt_device *)field = (mt_device)value;
    return 1;
}

static int read_text(const struct spec *spec, const char *text, void *field) {
    (void)spec;
    *(const char **)field = text;
    return *text != '\0' && *text != '-';
}

/* ---- the line ---- */

static void print_list(FILE *out) {
    fprintf(out, "options:\n");
    for (size_t i = 0; i < N_SPECS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", specs[i].name, specs[i].value ? specs[i].value : "");
        fprintf(out, "  %-29s %s\n", left, specs[i].help);
    }
}

void options_print_help(void) {
    printf("train: a small residual network on 1,797 handwritten digits, in FP32 and under libamp's opt levels\n");
    print_list(stdout);
}

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static int refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "train: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    print_list(stderr);
    return -1;
}

/* "--name=value" or "--name", whose length is *length; NULL if there is none of that name. */
static const struct spec *find_spec(const char *argument, size_t *length) {
    *length = strcspn(argument, "=");
    for (size_t i = 0; i < N_SPECS; i++)
        if (strlen(specs[i].name) == *length && strncmp(specs[i].name, argument, *length) == 0) return &specs[i];
    return NULL;
}

static void set_defaults(struct options *options) {
    if (options->n_levels == 0 && options->survey) add_level(options, "O0", AMP_O0);
    if (options->n_levels == 0) add_all_levels(options);
    if (options->epochs == 0) options->epochs = options->survey ? 1 : options->sweep ? 10 : 15;
    if (options->seeds == 0) options->seeds = options->survey || options->sweep ? 1 : 3;
    if (options->lr == 0.0) options->lr = options->optimizer == RUN_ADAM ? 0.005 : 0.05;
}

int options_parse(struct options *options, int argc, char **argv) {
    static char digits[4096];
    const struct spec *against_sweep = NULL;
    *options = (struct options){ .batch = 32, .seed = 1, .loss_multiplier = 1.0, .output = "." };
    options->data = beside_program(digits, sizeof digits, "digits.csv.gz");
    for (int i = 1; i < argc; i++) {
        size_t length;
        const struct spec *spec = find_spec(argv[i], &length);
        const char *value = argv[i][length] == '=' ? argv[i] + length + 1 : NULL;
        if (!spec) return refuse("there is no option '%s'", argv[i]);
        if (!spec->value && value) return refuse("%s takes no value", spec->name);
        if (spec->value && !value) value = ++i < argc ? argv[i] : NULL;
        if (spec->value && !value) return refuse("%s needs a value: %s", spec->name, spec->expected);
        if (!spec->value) *(int *)((char *)options + spec->field) = 1;
        else if (!spec->read(spec, value, (char *)options + spec->field))
            return refuse("%s: expected %s, not '%s'", spec->name, spec->expected, value);
        if (spec->not_in_sweep) against_sweep = spec;
    }
    if (options->sweep && against_sweep) return refuse("%s does not go with --sweep", against_sweep->name);
    if (options->loss_scale > 0.0 && (options->init_scale > 0.0 || options->max_scale > 0.0))
        return refuse("%s goes with a dynamic scale; --loss-scale is a static one here",
                      options->init_scale > 0.0 ? "--init-scale" : "--max-scale");
    if (options->activations && options->device != MT_CPU)
        return refuse("--activations does not go with --device cuda: minitape keeps what is there as it is");
    set_defaults(options);
    for (int i = 0; i < options->n_levels; i++)
        if (options->survey && !options->levels[i]) return refuse("--survey needs libamp: use a level, O0 to O5");
    return 0;
}

struct run_setup options_setup(const struct options *options, int level, int seed) {
    struct run_setup setup = { .label = options->labels[level],
                               .config = AMP_CONFIG_INIT,
                               .epochs = options->epochs,
                               .batch = options->batch,
                               .lr = options->lr,
                               .optimizer = (enum run_optimizer)options->optimizer,
                               .seed = (uint64_t)(options->seed + seed),
                               .loss_multiplier = options->loss_multiplier,
                               .host_kernels = options->host_kernels,
                               .fp32_kernels = options->fp32_kernels,
                               .device = options->device,
                               .activations = options->activations,
                               .gate = options->gate };
    setup.config.level = options->levels[level];
    setup.config.observe = options->survey ? AMP_ON : AMP_DEFAULT;
    setup.config.keep_batchnorm_fp32 = options->keep_batchnorm_fp32;
    setup.config.master_weights = options->master_weights;
    setup.config.loss_scale = (float)options->loss_scale;
    setup.config.init_scale = (float)options->init_scale;
    setup.config.max_scale = (float)options->max_scale;
    return setup;
}
