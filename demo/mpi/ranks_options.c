/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "usage: mpirun -n RANKS train_mpi [options] digits.csv.gz\n"
                            "  --level O2       O0 to O5\n"
                            "  --wire fp32      gradients are sent as fp32, fp16 or bf16\n"
                            "  --steps 148      of 32 images\n"
                            "  --sharded        each rank updates a part of the parameters\n"
                            "  --save PATH      libamp's state at the end, a file a rank\n"
                            "  --load PATH      and at the start, of any number of ranks\n"
                            "  --overflow STEP  a gradient of the last rank is infinite\n"
                            "  --kill STEP      the last rank dies\n"
                            "  --hang STEP      the last rank stands still\n"
                            "  --timeout 600    seconds until the others end the job then\n";

static int complain(const char *what, const char *word) {
    fprintf(stderr, "train_mpi: %s %s\n%s", what, word, usage);
    return -1;
}

static int parse_number(const char *word, int *number) {
    char *end;
    *number = (int)strtol(word, &end, 10);
    return *word && !*end && *number >= 0 ? 0 : complain("no number:", word);
}

static int parse_wire(const char *word, amp_dtype *wire) {
    static const struct {
        const char *name;
        amp_dtype dtype;
    } types[] = { { "fp32", AMP_FLOAT32 }, { "fp16", AMP_FLOAT16 }, { "bf16", AMP_BFLOAT16 } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, word) != 0) continue;
        *wire = types[i].dtype;
        return 0;
    }
    return complain("fp32, fp16 or bf16, not", word);
}

static int parse_option(struct ranks_options *options, const char *name, const char *word) {
    int seconds = 0;
    if (!strcmp(name, "--level"))
        return amp_level_from_name(word, &options->level) == AMP_OK ? 0 : complain("no level:", word);
    if (!strcmp(name, "--wire")) return parse_wire(word, &options->wire);
    if (!strcmp(name, "--steps")) return parse_number(word, &options->steps);
    if (!strcmp(name, "--overflow")) return parse_number(word, &options->overflow);
    if (!strcmp(name, "--kill")) return parse_number(word, &options->kill);
    if (!strcmp(name, "--hang")) return parse_number(word, &options->hang);
    if (!strcmp(name, "--save")) options->save = word;
    else if (!strcmp(name, "--load")) options->load = word;
    else if (strcmp(name, "--timeout") != 0) return complain("no option:", name);
    else if (parse_number(word, &seconds) != 0) return -1;
    else options->timeout = seconds;
    return 0;
}

int ranks_options_parse(struct ranks_options *options, int argc, char **argv) {
    *options = (struct ranks_options){
        .level = AMP_O2, .wire = AMP_FLOAT32, .steps = 148, .overflow = -1, .kill = -1, .hang = -1, .timeout = 600.0
    };
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--sharded")) options->sharded = 1;
        else if (strncmp(argv[i], "--", 2) != 0) options->data = argv[i];
        else if (i + 1 == argc) return complain("nothing after", argv[i]);
        else if (parse_option(options, argv[i], argv[i + 1]) != 0) return -1;
        else i++;
    }
    return options->data ? 0 : complain("no", "digits.csv.gz");
}
