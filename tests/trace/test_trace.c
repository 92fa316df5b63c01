/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_config.trace: what is written, by whom and how much. That each line is what docs/reference/trace.schema.json says
 * is seen by check_trace.py, which reads what this program leaves in the folder that is its argument.
 */
#include "../support/leave.h"
#include "../scaling/bracket.h"
#include "levels.h"

#include <amp_observe.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *folder = ".";

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s.jsonl", folder, name);
    return path;
}

static char text[1 << 20];

static const char *content(const char *path) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static int count(const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) n++;
    return n;
}

static void start(struct rig *rig, const char *path, amp_level level) {
    rig_init(rig, 0);
    rig_wire(rig, CONFIG(level, .trace = path));
}

static void steps(struct rig *rig, int n) {
    for (int i = 0; i < n; i++) ck_ok(net_train_step(&rig->net, 0.5));
}

TEST_TIMES(a_training_is_told, N_EACH_LEVEL) {
    struct rig rig;
    char name[32];
    snprintf(name, sizeof name, "level%d", _i);
    start(&rig, path_of(name), each_level[_i]);
    ck_assert_int_eq(bracket(&rig, INF), level_is_dynamic(each_level[_i]) ? AMP_SKIP : AMP_STEP);
    steps(&rig, 3);
    rig_end(&rig);
    content(path_of(name));
    ck_assert_msg(strncmp(text, "{\"kind\":\"start\",\"context\":1,", 28) == 0, "%.60s", text);
    ck_assert_int_eq(count("\"kind\":\"wired\""), 1);
    ck_assert_int_eq(count("\"kind\":\"bracket\""), 4);
    ck_assert_int_eq(count("\"action\":\"skip\""), level_is_dynamic(each_level[_i]));
    ck_assert_int_eq(count("\"kind\":\"op\"") > 0, level_casts_ops(each_level[_i]));
    ck_assert_ptr_nonnull(strstr(text, "\"brackets\":4,\"skipped\":"));
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
}

/* What only the host knows: a loss, given or read, a remark, and the line of a call. */
TEST(a_loss_and_a_remark_of_the_host_are_told) {
    float x[4] = { 1, 2, 3, INFINITY };
    const amp_observed_value values[] = { { "x", NULL, { x, 4, AMP_FLOAT32, 0 }, 0, 0 },
                                          { "out", NULL, { x, 4, AMP_FLOAT32, 0 }, 1, 0 } };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    struct rig rig;
    start(&rig, path_of("host"), AMP_O1);
    ck_ok(amp_observe(rig.context, &options));
    call.op = "linear", call.where = "fc", call.line = "net.c:41", call.values = values, call.n_values = 2;
    ck_ok(amp_observe_remark(rig.context, "gate", "products in \"FP32\""));
    ck_ok(amp_observe_call(rig.context, &call));
    ck_ok(amp_observe_loss(rig.context, 0, 2.5));
    bracket(&rig, INF);
    ck_ok(amp_observe_loss(rig.context, 0, NAN));
    bracket(&rig, 1.0);
    bracket(&rig, 1.0);
    ck_assert_int_eq(amp_observe_loss(rig.context, 1, 1.0), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_observe_loss(NULL, 0, 1.0), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_observe_remark(rig.context, "", "words"), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_observe_remark(rig.context, "gate", NULL), AMP_ERR_INVALID_ARGUMENT);
    rig_end(&rig);
    content(path_of("host"));
    ck_assert_int_eq(count("\"value\":2.5"), 1);
    ck_assert_int_eq(count("\"value\":null"), 1);
    ck_assert_int_eq(count("\"message\":\"products in \\\"FP32\\\"\",\"about\":\"gate\""), 1);
    ck_assert_int_eq(count("\"product\":true,\"mxfp8\":[3,"), 1);
    ck_assert_int_gt(count("\"line\":\"net.c:41\"}"), 0);
    ck_assert_int_eq(count("\"cause\":\"input\""), 1);
    ck_assert_int_eq(count("\"line\":\"net.c:41\",\"arguments\""), 1);
}

TEST_TIMES(what_is_observed_is_told, N_EACH_LEVEL) {
    char name[32];
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 2;
    snprintf(name, sizeof name, "observed%d", _i);
    RIG_WITH(rig, 0, each_level[_i], .trace = path_of(name), .loss_scale = AMP_DYNAMIC, .init_scale = 1.0f);
    ck_ok(amp_observe(rig.context, &options));
    steps(&rig, 3);
    for (int i = 0; i < 2; i++) { /* the first of them is not observed */
        OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT32, 2.0);
        fake_release(net_binary(&rig.net, OP_matmul, a, a));
        ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
        net_zero_grad(&rig.net);
    }
    content(path_of(name));
    const bool casts = level_casts_ops(each_level[_i]);
    ck_assert_int_eq(count("\"n\":1,\"what\":\"scaled\""), 3);
    ck_assert_int_eq(count("\"n\":2,\"what\":\"scaled\""), 0);
    ck_assert_int_eq(count("\"n\":3,\"what\":\"weight\""), 3);
    ck_assert_int_eq(count("\"n\":1,\"what\":\"update\""), 3);
    ck_assert_int_eq(count("\"what\":\"output\"") > 0, casts);
    ck_assert_int_eq(count("\"kind\":\"culprit\""), 1);
    ck_assert_int_eq(count("\"kind\":\"call\",\"context\":1,\"n\":5,\"call\":1,\"op\":\"matmul\""), casts);
}

/* Remedies are in the language of the host, which the line "wired" has. */
TEST_TIMES(findings_and_errors_are_told, 2) {
    struct rig rig;
    rig_init(&rig, 0);
    if (_i) rig.host.hooks.flags |= AMP_HOST_IS_PYTHON;
    rig_wire(&rig, CONFIG(AMP_O1, .trace = path_of("told")));
    fake_set(rig.net.bias, 2, (double)NAN);
    for (int i = 0; i < 5; i++) {
        (void)bracket(&rig, INF);
        net_zero_grad(&rig.net);
    }
    rig_end(&rig);
    content(path_of("told"));
    ck_assert_ptr_nonnull(strstr(text, "\"as\":\"warning\",\"code\":\"AMP-M16\",\"status\":null,"
                                       "\"message\":\"AMP-M16 loss 0"));
    ck_assert_ptr_nonnull(strstr(text, _i ? "\"language\":\"python\"" : "\"language\":\"c\""));
    ck_assert_ptr_nonnull(strstr(text, _i ? "an update outside optimizer.step()" : "an update despite AMP_SKIP"));
    rig_init(&rig, 0);
    rig.net.ops[OP_linear].schema = "linear(Tensor x";
    ck_fails(AMP_ERR_SCHEMA, rig_config(&rig, &CONFIG(AMP_O1, .trace = path_of("told"))));
    content(path_of("told"));
    ck_assert_ptr_nonnull(strstr(text, "\"as\":\"error\",\"code\":null,\"status\":\"AMP_ERR_SCHEMA\""));
    ck_assert_int_eq(count("\"kind\":\"end\""), 2);
    rig_end(&rig);
}

/* Whatever bytes the host's names have, a line is JSON: what is no UTF-8 is told by U+FFFD, byte by byte. */
static const struct {
    const char *name, *told;
} hostile[] = {
    { "\"\\\n\x01\x7f</script>", "\\\"\\\\\\u000a\\u0001\\u007f</script>" },
    { "\xff\xc0\x80\xc1", "\\ufffd\\ufffd\\ufffd\\ufffd" },
    { "\xc3\xa9 \xe2\x82\xac \xe0\xa0\x80 \xed\x9f\xbf \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf",
      "\xc3\xa9 \xe2\x82\xac \xe0\xa0\x80 \xed\x9f\xbf \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf" },
    { "\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd" },         /* half of a surrogate pair */
    { "\xe0\x80\x80", "\\ufffd\\ufffd\\ufffd" },         /* longer than it need be, */
    { "\xf0\x80\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd" }, /* this too */
    { "\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd" }, /* beyond the last */
    { "\xf5\x80", "\\ufffd\\ufffd" },
    { "\xc3(\xe2\x82", "\\ufffd(\\ufffd\\ufffd" }, /* cut */
};

TEST_TIMES(hostile_names_are_strings, sizeof hostile / sizeof hostile[0]) {
    struct rig rig;
    char name[32];
    rig_init(&rig, 0);
    for (size_t i = 0; i < rig.net.model.n_params; i++) rig.net.params[i].name = hostile[_i].name;
    snprintf(name, sizeof name, "hostile%d", _i);
    rig_wire(&rig, CONFIG(AMP_O1, .trace = path_of(name)));
    (void)bracket(&rig, INF);
    rig_end(&rig);
    content(path_of(name));
    char wanted[256];
    snprintf(wanted, sizeof wanted, "\"overflow\":\"%s\"", hostile[_i].told);
    ck_assert_msg(strstr(text, wanted) != NULL, "%s: %s", wanted, text);
}

/* Two at once and one after them. */
TEST(contexts_share_a_file) {
    struct rig rigs[3];
    start(&rigs[0], path_of("shared"), AMP_O1);
    start(&rigs[1], path_of("shared"), AMP_O2);
    steps(&rigs[1], 1);
    steps(&rigs[0], 1);
    rig_end(&rigs[0]);
    rig_end(&rigs[1]);
    start(&rigs[2], path_of("shared"), AMP_O3);
    rig_end(&rigs[2]);
    content(path_of("shared"));
    ck_assert_int_eq(count("\"kind\":\"start\""), 3);
    ck_assert_int_eq(count("\"kind\":\"end\""), 3);
    ck_assert_int_eq(count("\"context\":3"), 3 + count("\"kind\":\"op\",\"context\":3"));
}

/* A bracket has a line, or the next line counts it. */
TEST_TIMES(it_stays_in_its_bound, 2) {
    const int n = _i ? 100000 : 300;
    struct rig rig;
    struct stat about;
    char name[32];
    snprintf(name, sizeof name, "bound%d", _i);
    setenv("AMP_TRACE_BYTES", "20000", 1);
    start(&rig, path_of(name), AMP_O1);
    unsetenv("AMP_TRACE_BYTES");
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
        net_zero_grad(&rig.net);
    }
    rig_end(&rig);
    ck_assert_int_eq(stat(path_of(name), &about), 0);
    ck_assert_int_le(about.st_size, 20000);
    ck_assert_int_ge(about.st_size, 9000);
    content(path_of(name));
    unsigned long told = 0, left_out = 0, lost = 0, all = 0;
    for (const char *at = text; (at = strstr(at, "\"left_out\":")) != NULL; at++, told++)
        left_out += strtoul(at + 11, NULL, 10);
    const char *end = strstr(text, "\"kind\":\"end\"");
    ck_assert_int_eq(sscanf(end, "\"kind\":\"end\",\"context\":1,\"brackets\":%lu", &all), 1);
    ck_assert_int_eq(sscanf(strstr(text, "\"lost\":"), "\"lost\":%lu", &lost), 1);
    ck_assert_uint_eq(all, (unsigned long)n);
    ck_assert_uint_eq(told - 1 + left_out, all); /* of the lines with it one is the end */
    ck_assert_uint_eq(lost, 0);
}

/* However many lines there are before them, and however many contexts: who began has a survey and an end. */
TEST(a_full_trace_ends_as_others_do) {
    enum { N = 8 };
    struct rig rigs[N];
    struct stat about;
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    options.every = 1;
    setenv("AMP_TRACE_BYTES", "20000", 1);
    for (int i = 0; i < N; i++) {
        start(&rigs[i], path_of("full"), AMP_O1);
        ck_ok(amp_observe(rigs[i].context, &options));
    }
    unsetenv("AMP_TRACE_BYTES");
    for (int i = 0; i < 50 * N; i++) steps(&rigs[i % N], 1);
    for (int i = 0; i < N; i++) rig_end(&rigs[i]);
    ck_assert_int_eq(stat(path_of("full"), &about), 0);
    ck_assert_int_le(about.st_size, 20000);
    content(path_of("full"));
    const int began = count("\"kind\":\"start\"");
    ck_assert_int_ge(began, 2);
    ck_assert_int_lt(began, N);
    ck_assert_int_eq(count("\"kind\":\"survey\""), began);
    ck_assert_int_eq(count("\"kind\":\"end\""), began);
}

static void end_child(pid_t child) {
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d", status);
}

TEST(a_child_writes_a_file_of_its_own) {
    struct rig rig, own;
    start(&rig, path_of("parent"), AMP_O1);
    steps(&rig, 1);
    const pid_t child = fork();
    if (!child) {
        steps(&rig, 5); /* of the parent's context nothing is told here */
        start(&own, path_of("parent"), AMP_O2);
        steps(&own, 1);
        rig_end(&own);
        leave(0);
    }
    end_child(child);
    steps(&rig, 1);
    rig_end(&rig);
    content(path_of("parent"));
    ck_assert_int_eq(count("\"kind\":\"bracket\""), 2);
    ck_assert_int_eq(count("\"level\":\"O2\""), 0);
    content(path_of("parent.2"));
    ck_assert_int_eq(count("\"level\":\"O2\""), 1);
    ck_assert_int_eq(count("\"kind\":\"bracket\""), 1);
}

static const struct {
    const char *variable, *value, *wanted, *file, *told; /* wanted, file: behind the folder */
} ranks[] = {
    { "RANK", "3", "run.jsonl", "run.rank3.jsonl", "3" },
    { "SLURM_PROCID", "12", "slurm.jsonl", "slurm.rank12.jsonl", "12" },
    { "RANK", "007", "zeros.jsonl", "zeros.rank007.jsonl", "7" },
    { "RANK", "3a", "letter.jsonl", "letter.jsonl", "null" },
    { "RANK", "", "empty.jsonl", "empty.jsonl", "null" },
    { "RANK", "12345678901", "long.jsonl", "long.jsonl", "null" },
    { "RANK", "4", "plain", "plain.rank4", "4" },
    { "RANK", "4", ".hidden", ".hidden.rank4", "4" },
};

TEST_TIMES(a_rank_stands_in_the_name, sizeof ranks / sizeof ranks[0]) {
    struct rig rig;
    char path[512], wanted[32];
    snprintf(path, sizeof path, "%s/%s", folder, ranks[_i].wanted);
    setenv(ranks[_i].variable, ranks[_i].value, 1);
    start(&rig, path, AMP_O1);
    rig_end(&rig);
    snprintf(path, sizeof path, "%s/%s", folder, ranks[_i].file);
    content(path);
    snprintf(wanted, sizeof wanted, "\"rank\":%s,", ranks[_i].told);
    ck_assert_ptr_nonnull(strstr(text, wanted));
}

TEST(what_is_killed_leaves_whole_lines) {
    const pid_t child = fork();
    if (!child) {
        struct rig rig;
        start(&rig, path_of("killed"), AMP_O1);
        steps(&rig, 20);
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    content(path_of("killed"));
    ck_assert_int_eq(count("\"kind\":\"bracket\""), 20);
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
}

/* ---- what cannot be written ---- */

TEST(a_file_that_cannot_be_is_refused) {
    RIG_INIT(rig, 0);
    ck_fails(AMP_ERR_IO, rig_config(&rig, &CONFIG(AMP_O2, .trace = "/nowhere/at/all.jsonl")));
    ck_says("the trace /nowhere/at/all.jsonl cannot be written: ");
    ck_dtype(rig.net.weight, AMP_FLOAT32);
}

TEST_TIMES(a_bound_that_is_no_number_is_refused, 4) {
    static const char *const bounds[] = { "64MiB", "-7", "1e6", "9999999999999999999" };
    RIG_INIT(rig, 0);
    setenv("AMP_TRACE_BYTES", bounds[_i], 1);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &CONFIG(AMP_O1, .trace = path_of("unbounded"))));
    unsetenv("AMP_TRACE_BYTES");
    ck_says("is no number of bytes");
    ck_assert_int_ne(access(path_of("unbounded"), F_OK), 0);
}

/* With a reader it is a file as any other, also when the reader has gone. */
TEST(a_fifo_without_a_reader_is_refused) {
    char name[512];
    snprintf(name, sizeof name, "%s", path_of("fifo"));
    (void)unlink(name);
    ck_assert_int_eq(mkfifo(name, 0600), 0);
    {
        RIG_INIT(rig, 0);
        ck_fails(AMP_ERR_IO, rig_config(&rig, &CONFIG(AMP_O1, .trace = name)));
        ck_says("a FIFO without a reader");
    }
    const int reader = open(name, O_RDONLY | O_NONBLOCK);
    ck_assert_int_ge(reader, 0);
    RIG(rig);
    start(&rig, name, AMP_O1);
    ck_assert_int_ge((int)read(reader, text, sizeof text), 2);
    ck_assert_int_eq(strncmp(text, "{\"kind\":\"start\"", strlen("{\"kind\":\"start\"")), 0);
    ck_assert_int_eq(close(reader), 0);
    steps(&rig, 3);
    (void)unlink(name); /* what is left in the folder is read as traces */
}

TEST(a_full_disk_ends_the_trace_and_nothing_else) {
    if (access("/dev/full", W_OK) != 0) return;
    RIG(rig);
    start(&rig, "/dev/full", AMP_O1);
    steps(&rig, 3);
}

TEST(the_environment_asks_for_it_and_off_is_off) {
    struct rig rig;
    setenv("AMP_TRACE", path_of("environment"), 1);
    rig_init(&rig, 0);
    rig_wire(&rig, CONFIG(AMP_O1, .enabled = AMP_OFF));
    rig_end(&rig);
    ck_assert_int_ne(access(path_of("environment"), F_OK), 0);
    rig_start(&rig, AMP_O1, 0);
    rig_end(&rig);
    content(path_of("environment"));
    ck_assert_int_eq(count("\n"), 3 + count("\"kind\":\"op\""));
}

int main(int argc, char **argv) {
    if (argc > 1) folder = argv[1];
    return suite_run();
}
