/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every mistake of the table is made, at each of its levels, and libamp is heard in time and with its code. What nobody
 * hears says so, and whether it trains otherwise than the right adapter does. The right adapters are not warned of.
 */
#include "mistakes.h"
#include "kit.h"
#include "levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WATCHED = 10, SAME = 0, OTHERWISE = 1 };

static const struct {
    const struct mistaken *calls;
    const char *name;
} hosts[] = {
    { &host_raw, "raw buffers" },           { &host_pairs, "struct pairs" }, { &host_mill, "static graph" },
    { &host_loom, "graph of constructors" }, { &host_planned, "planned-memory graph" }, { &host_tape, "tape" },
    { &host_tableless, "table-less" },
};
enum { RAW, PAIRS, MILL, LOOM, PLANNED, TAPE, TABLELESS, N_HOSTS = sizeof hosts / sizeof *hosts };

/* The table, and what was seen. */
static struct row {
    int host;
    const char *name, *what, *levels;
    enum when when;
    int trains;       /* silent ones: otherwise than the right adapter? */
    const char *says; /* a code or words, or others behind a |; silent ones: the reason */
    enum when seen;
} rows[N_MISTAKES] = {
#define MISTAKE(kind, name, what, levels, when, says) [name] = { kind, #name, what, levels, when, SAME, says, NEVER },
#define SILENT(kind, name, what, levels, when, trains, why)                                                            \
    [name] = { kind, #name, what, levels, when, trains, why, NEVER },
#include "table.inc"
#undef MISTAKE
#undef SILENT
};

static const char *const whens[N_WHENS] = { "at initialize", "at the first bracket", "within 10 steps",
                                            "with verify", "with verify alone", "by amp_verify_step", "never" };

/* ---- a life ---- */

struct life {
    bool began;
    float losses[WATCHED], params[PARAM_FLOATS];
    char said[HEARD_SIZE];
    size_t at_initialize, at_first; /* how much of it had been said then */
};

enum how { PLAINLY, VERIFYING, VERIFIED_FIRST };

static amp_status run(void *host, double *loss) {
    heard_status = AMP_OK;
    *loss = (double)((const struct mistaken *)host)->pass(0);
    return heard_status;
}

static bool has_dynamic_scale(amp_level level) {
    amp_config resolved = AMP_CONFIG_INIT, config = AMP_CONFIG_INIT;
    config.level = level;
    return amp_config_resolve(&config, &resolved) == AMP_OK && resolved.loss_scale == AMP_DYNAMIC;
}

/* The scale is one that skips nothing, at O0 too: there it would else be 1, and nothing wrong with it. */
static void live(const struct mistaken *host, enum mistake_id id, amp_level level, enum how how, struct life *life) {
    amp_config config = AMP_CONFIG_INIT;
    memset(life, 0, sizeof *life);
    made = id;
    heard[0] = '\0';
    config.level = level;
    config.window = 4; /* and the scale moves */
    config.verify = how == VERIFYING ? AMP_ON : AMP_OFF;
    if (level == AMP_O0) config.loss_scale = SCALE;
    else if (has_dynamic_scale(level)) config.init_scale = SCALE;
    amp_context *context = host->start(&config);
    life->began = context != NULL;
    life->at_initialize = strlen(heard);
    if (context && how == VERIFIED_FIRST) (void)hear(amp_verify_step(context, run, (void *)(uintptr_t)host));
    for (int step = 0; life->began && step < WATCHED; step++) {
        life->losses[step] = host->pass(step);
        host->step(step);
        if (!step) life->at_first = strlen(heard);
    }
    host->finish(life->params);
    strcpy(life->said, heard);
}

/* The line's end, where `words` stand in one that has `with` too (NULL: any); 0: there is none. */
static size_t find_line(const char *said, const char *with, const char *words) {
    for (const char *line = said, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char text[8192];
        snprintf(text, sizeof text, "%.*s", (int)(end - line), line);
        if (strstr(text, words) && (!with || strstr(text, with))) return (size_t)(end - said);
    }
    return 0;
}

/* The end of the first line with one of the words: "these|AMP-M01: those"; 0: there is none. */
static size_t find(const char *said, const char *words) {
    size_t first = 0;
    for (const char *from = words; *from;) {
        char one[256], *colon;
        const size_t n = strcspn(from, "|");
        snprintf(one, sizeof one, "%.*s", (int)n, from);
        const bool coded = !strncmp(one, "AMP_ERR_", 8) || !strncmp(one, "AMP-M", 5);
        const bool has_head = coded && (colon = strstr(one, ": "));
        if (has_head) *colon = '\0';
        const size_t end = has_head ? find_line(said, one, colon + 2) : find_line(said, NULL, one);
        if (end && (!first || end < first)) first = end;
        from += n + (from[n] == '|');
    }
    return first;
}

static enum when time_of(const struct life *life, size_t end) {
    return !end ? NEVER : end <= life->at_initialize ? AT_INITIALIZE : end <= life->at_first ? AT_FIRST_BRACKET
                                                                                            : WITHIN_10_STEPS;
}

static bool trains_alike(const struct life *a, const struct life *b) {
    return !memcmp(a->losses, b->losses, sizeof a->losses) && !memcmp(a->params, b->params, sizeof a->params);
}

/* ---- the tests ---- */

static struct life life, right;

TEST_TIMES(a_right_adapter_is_not_warned_of, N_HOSTS * N_EACH_LEVEL) {
    live(hosts[_i / N_EACH_LEVEL].calls, NONE, AMP_O0 + _i % N_EACH_LEVEL, PLAINLY, &right);
    ck_assert_msg(right.began && !*right.said, "%s: %s", hosts[_i / N_EACH_LEVEL].name, right.said);
    ck_assert_float_lt(right.losses[WATCHED - 1], right.losses[0]);
    for (enum how how = VERIFYING; how <= VERIFIED_FIRST; how++) {
        live(hosts[_i / N_EACH_LEVEL].calls, NONE, AMP_O0 + _i % N_EACH_LEVEL, how, &life);
        ck_assert_msg(!*life.said, "%s, %d: %s", hosts[_i / N_EACH_LEVEL].name, (int)how, life.said);
        ck_assert_msg(trains_alike(&life, &right), "%s trains otherwise, %d", hosts[_i / N_EACH_LEVEL].name, (int)how);
    }
}

static void make_heard(struct row *row, enum mistake_id id, amp_level level) {
    live(hosts[row->host].calls, id, level, PLAINLY, &life);
    const enum when seen = time_of(&life, find(life.said, row->says));
    ck_assert_msg(seen <= row->when, "%s (%s) at O%d: %s where \"%s\" is stated %s; it says:\n%s", row->name, row->what,
                  (int)(level - AMP_O0), whens[seen], row->says, whens[row->when], life.said);
    if (row->seen == NEVER || row->seen < seen) row->seen = seen;
    live(hosts[row->host].calls, id, level, VERIFYING, &life);
    ck_assert_msg(*life.said, "%s (%s) at O%d is not heard with verify", row->name, row->what, (int)(level - AMP_O0));
}

static void make_verified(struct row *row, enum mistake_id id, amp_level level) {
    live(hosts[row->host].calls, id, level, VERIFYING, &life);
    ck_assert_msg(find(life.said, row->says), "%s (%s) at O%d, with verify: \"%s\" is stated; it says:\n%s", row->name,
                  row->what, (int)(level - AMP_O0), row->says, life.said);
    if (row->when == VERIFY_ALONE) {
        row->seen = VERIFY_ALONE;
        return;
    }
    live(hosts[row->host].calls, id, level, PLAINLY, &life);
    const enum when seen = *life.said ? time_of(&life, 1) : WITH_VERIFY;
    if (row->seen == NEVER || row->seen < seen) row->seen = seen;
}

/* Everything else is silent. */
static void make_twice(struct row *row, enum mistake_id id, amp_level level) {
    live(hosts[row->host].calls, id, level, VERIFIED_FIRST, &life);
    ck_assert_msg(find(life.said, row->says), "%s (%s) at O%d, by amp_verify_step: \"%s\" is stated; it says:\n%s",
                  row->name, row->what, (int)(level - AMP_O0), row->says, life.said);
    for (enum how how = PLAINLY; how <= VERIFYING; how++) {
        live(hosts[row->host].calls, id, level, how, &life);
        ck_assert_msg(!*life.said, "%s at O%d is heard sooner: say so in the table:\n%s", row->name,
                      (int)(level - AMP_O0), life.said);
    }
    row->seen = STEP_TWICE;
}

/* Does it train otherwise than the right adapter? */
static bool make_silent(struct row *row, enum mistake_id id, amp_level level) {
    live(hosts[row->host].calls, NONE, level, PLAINLY, &right);
    for (enum how how = VERIFIED_FIRST + 1; how-- > PLAINLY;) {
        live(hosts[row->host].calls, id, level, how, &life);
        ck_assert_msg(!*life.said, "%s at O%d (%d) is heard after all: say so in the table:\n%s", row->name,
                      (int)(level - AMP_O0), (int)how, life.said);
    }
    return !life.began || !trains_alike(&life, &right);
}

/* With AMP_TEST_SHORT=1 (other compilers, sanitizers) at one of its levels. */
TEST_RANGE(a_mistake_is_heard, 1, N_MISTAKES) {
    const char *brief = getenv("AMP_TEST_SHORT");
    struct row *row = &rows[_i];
    bool differs = false;
    ck_assert_msg(*row->levels, "%s has no level", row->name);
    if (row->host >= N_HOSTS) return; /* amp_symbol.h does not know this machine; the table says so */
    const size_t n = strlen(row->levels), first = brief ? (size_t)_i % n : 0;
    for (const char *level = row->levels + first; level < row->levels + (brief ? first + 1 : n); level++) {
        if (row->when < WITH_VERIFY) make_heard(row, (enum mistake_id)_i, AMP_O0 + (*level - '0'));
        else if (row->when <= VERIFY_ALONE) make_verified(row, (enum mistake_id)_i, AMP_O0 + (*level - '0'));
        else if (row->when == STEP_TWICE) make_twice(row, (enum mistake_id)_i, AMP_O0 + (*level - '0'));
        else differs |= make_silent(row, (enum mistake_id)_i, AMP_O0 + (*level - '0'));
    }
    ck_assert_msg(row->when < NEVER || differs == row->trains || (brief && !differs), "%s: it trains %s", row->name,
                  differs ? "otherwise" : "the same");
}

/* ---- the table ---- */

static void print_row(const struct row *row) {
    printf("#   %-28s %-3s %-20s %s: ", row->name, row->levels, whens[row->seen], row->what);
    if (row->when == NEVER) printf("trains %s; ", row->trains ? "otherwise" : "the same");
    printf("%s\n", row->says);
}

static void print_table(void) {
    int counts[N_WHENS] = { 0 };
    for (int host = 0; host < N_HOSTS; host++) {
        printf("# %s\n", hosts[host].name);
        for (int i = 1; i < N_MISTAKES; i++)
            if (rows[i].host == host) print_row(&rows[i]);
    }
    if (N_HOSTS <= TABLELESS) printf("# no table-less hosts on this machine\n");
    for (int i = 1; i < N_MISTAKES; i++) counts[rows[i].seen] += rows[i].host < N_HOSTS;
    printf("# heard");
    for (int i = 0; i < N_WHENS; i++) printf("%s %s: %d", i ? "," : "", whens[i], counts[i]);
    printf("\n");
}

/* In one process, for the table to be counted. */
int main(void) {
    const int status = suite_run_here(NULL);
    print_table();
    return status;
}
