/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON Lines, docs/reference/trace.md. A line is one write at the end of the file, so that a program that is killed
 * leaves whole lines, and nothing is kept in memory. A file belongs to one process: another one that was given the same
 * name, a rank or a child, takes a name of its own beside it. It is bounded: each time half of the room that is left is
 * used, a sixteenth as many of the brackets that stepped get a line; the next line says how many had none.
 */
#include "context/trace.h"
#include "amp_gate.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "context/reporting.h"
#include "context/trace_line.h"
#include "opt_levels/lists.h"
#include "system/system.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 1000, DEFAULT_BYTES = 64 << 20, LEAST_BYTES = 16 << 10 };
/* No survey's line and no end's is longer: for these there is room whatever was written before. */
enum { SURVEY_BYTES = 3 << 10, END_BYTES = 512 };

/* Contexts of a process that were given one name share the file, one after the other too: it stays in the list. */
struct file {
    struct file *next;
    char *wanted, *name; /* requested name, and actual name */
    uint32_t users, ends; /* of them those that began, and will say how they ended */
    int fd; /* -1: no users, or no more lines */
    uint64_t bytes, limit;
};

static struct {
    pthread_mutex_t mutex;
    struct amp__forkable forkable;
    struct file *first;
    uint64_t contexts;
} traces = { .mutex = PTHREAD_MUTEX_INITIALIZER };

struct amp__trace {
    struct file *file;
    uint64_t number; /* of the context in this process, from 1 on */
    uint64_t brackets, skips;
    uint64_t stride, left_out; /* one in so many brackets with a step has a line, and brackets since the last line */
    uint32_t thinned;          /* number of times that half of the remaining room was used */
    uint64_t lost;             /* lines that there was no room for */
    bool began;                /* its line "start" is there */
    uint32_t n_losses;
    double losses[];           /* by loss_id: the host's loss of the coming decision (NaN: unknown, infinity: none that
                                  is finite) */
};

/* The parent's are not the child's. */
static void forget_in_child(void) {
    for (struct file *file = traces.first; file; file = file->next) {
        if (file->fd >= 0) amp__lines_close(file->fd);
        file->fd = -1;
        *file->wanted = '\0';
    }
}

/* ---- the file ---- */

static const char *rank_of_process(void) {
    static const char *const names[] = { "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID" };
    for (size_t i = 0; i < AMP_COUNT(names); i++) {
        const char *rank = getenv(names[i]);
        if (rank && *rank && strlen(rank) < 10 && strspn(rank, "0123456789") == strlen(rank)) return rank;
    }
    return NULL;
}

/* "run.jsonl" -> "run.rank3.jsonl", "run.rank3.2.jsonl": additions precede the extension. */
static void make_name(char *name, size_t capacity, const char *wanted, const char *rank, int number) {
    const char *slash = strrchr(wanted, '/'), *dot = strrchr(wanted, '.');
    if (!dot || dot == wanted || (slash && dot <= slash + 1)) dot = wanted + strlen(wanted);
    amp__text text = { name, capacity, 0 };
    amp__text_add(&text, "%.*s", (int)(dot - wanted), wanted);
    if (rank) amp__text_add(&text, ".rank%s", rank);
    if (number > 1) amp__text_add(&text, ".%d", number);
    amp__text_add(&text, "%s", dot);
}

/* Opens the first name that no living process writes to. An older file is overwritten. */
static int open_own(struct file *file, size_t capacity) {
    for (int number = 1; number <= NAMES; number++) {
        make_name(file->name, capacity, file->wanted, rank_of_process(), number);
        const int fd = amp__lines_open(file->name);
        if (fd == AMP__FILE_TAKEN) continue;
        if (fd >= 0 && !amp__lines_empty(fd)) return amp__lines_close(fd), -1;
        return fd;
    }
    errno = EBUSY;
    return -1;
}

static amp_status limit_of_files(uint64_t *limit) {
    const char *text = getenv("AMP_TRACE_BYTES");
    const size_t length = text ? strlen(text) : 0;
    *limit = DEFAULT_BYTES;
    if (!length) return AMP_OK;
    AMP_RETURN_IF(length > 18 || strspn(text, "0123456789") != length, AMP_ERR_INVALID_ARGUMENT, "AMP_TRACE_BYTES: "
                  "\"%.40s\" is no number of bytes: digits alone, %d at least", text, LEAST_BYTES);
    *limit = strtoull(text, NULL, 10);
    if (*limit < LEAST_BYTES) *limit = LEAST_BYTES;
    return AMP_OK;
}

/* Of this process already: it goes on where it ended. */
static struct file *known_file(const char *wanted) {
    struct file *file = traces.first;
    while (file && strcmp(file->wanted, wanted) != 0) file = file->next;
    if (!file || file->users) return file;
    file->fd = amp__lines_open(file->name);
    return file->fd < 0 ? NULL : file;
}

static amp_status open_file(const char *wanted, struct file **out) {
    struct file *file = known_file(wanted);
    const size_t length = strlen(wanted) + 1, capacity = length + 32; /* .rank123456789.1000 */
    uint64_t limit;
    *out = file;
    if (file) return file->users++, AMP_OK;
    AMP_TRY(limit_of_files(&limit));
    file = amp__alloc(1, sizeof *file + length + capacity);
    if (!file) return amp__fail_memory();
    *file = (struct file){ .wanted = (char *)(file + 1), .users = 1, .limit = limit };
    file->name = memcpy(file->wanted, wanted, length);
    file->name += length;
    file->fd = open_own(file, capacity);
    if (file->fd < 0) {
        const int error = errno;
        char buffer[128] = "";
        amp__free(file);
        return amp__fail(AMP_ERR_IO, "the trace %.200s cannot be written: %s (amp_config.trace, or AMP_TRACE in the "
                         "environment)", wanted, error == ENXIO ? "it is a FIFO without a reader"
                                                                 : amp__system_text(error, buffer, sizeof buffer));
    }
    file->next = traces.first;
    traces.first = *out = file;
    return AMP_OK;
}

static void close_file(struct file *file) {
    if (--file->users || file->fd < 0) return;
    amp__lines_close(file->fd);
    file->fd = -1;
}

/* Writes a line. An incomplete one is removed. */
static bool write_line(struct file *file, amp__text *line, uint64_t limit) {
    line->data[line->length++] = '\n';
    if (file->fd < 0 || file->bytes + line->length > limit) return false;
    if (amp__lines_add(file->fd, file->bytes, line->data, line->length)) return file->bytes += line->length, true;
    amp__lines_close(file->fd);
    file->fd = -1;
    return false;
}

/* ---- lines ---- */

static void begin_line(amp__text *line, const char *kind, const struct amp__trace *trace) {
    amp__text_add(line, "{\"kind\":\"%s\",\"context\":%llu", kind, (unsigned long long)trace->number);
}

/* Returns the limit of the file for such a line: without the room for surveys and ends still to come, one of each for
 * each context that began in it, and without an eighth for other lines at an end. Under the lock. */
static uint64_t room_for(const struct file *file, enum amp__trace_room room) {
    uint64_t kept = (uint64_t)file->ends * (SURVEY_BYTES + END_BYTES);
    if (room == AMP__ITS_SURVEY) kept -= SURVEY_BYTES;
    else if (room == AMP__ITS_LAST) kept -= SURVEY_BYTES + END_BYTES;
    else if (room == AMP__WHILE_IT_TRAINS && kept < file->limit / 8) kept = file->limit / 8;
    return kept < file->limit ? file->limit - kept : 0;
}

static void end_line(amp__text *line, struct amp__trace *trace, enum amp__trace_room room) {
    const int saved = errno;
    amp__text_add(line, "}");
    pthread_mutex_lock(&traces.mutex);
    trace->lost += !trace->began || !write_line(trace->file, line, room_for(trace->file, room));
    pthread_mutex_unlock(&traces.mutex);
    errno = saved;
}

/* A context that has no room for its end does not begin. */
static void begin(struct amp__trace *trace, amp__text *line) {
    pthread_mutex_lock(&traces.mutex);
    trace->began = true;
    trace->file->ends++;
    pthread_mutex_unlock(&traces.mutex);
    end_line(line, trace, AMP__WHILE_IT_TRAINS);
    pthread_mutex_lock(&traces.mutex);
    trace->began = !trace->lost;
    trace->file->ends -= !trace->began;
    pthread_mutex_unlock(&traces.mutex);
}

static void write_start(const amp_context *context, struct amp__trace *trace) {
    const struct amp__properties *p = &amp__policy_of(context)->properties;
    const char *rank = rank_of_process();
    AMP__LINE(line);
    begin_line(&line, "start", trace);
    amp__text_add(&line, ",\"version\":1");
    amp__line_string(&line, "libamp", amp_version());
    amp__line_number(&line, "pid", amp__process_number());
    if (rank) amp__line_number(&line, "rank", strtoull(rank, NULL, 10)); /* 07 is no number of JSON's */
    else amp__text_add(&line, ",\"rank\":null");
    amp__line_string(&line, "level", amp__level_name(p->level));
    amp__line_string(&line, "type", amp__dtype_name(p->low));
    amp__text_add(&line, ",\"dynamic\":%s", p->scaler.dynamic ? "true" : "false");
    amp__line_float(&line, "scale", p->scaler.init_scale);
    amp__line_number(&line, "losses", p->num_losses);
    begin(trace, &line);
}

amp_status amp__trace_open(amp_context *context, struct amp__trace **out) {
    const struct amp__properties *p = &amp__policy_of(context)->properties;
    const char *wanted = p->trace ? p->trace : amp__trusted_getenv("AMP_TRACE"); /* not to a file of root's */
    *out = NULL;
    if (!wanted || !*wanted || !p->enabled) return AMP_OK;
    struct amp__trace *trace = amp__alloc(1, sizeof *trace + p->num_losses * sizeof trace->losses[0]);
    if (!trace) return amp__fail_memory();
    for (; trace->n_losses < p->num_losses; trace->n_losses++) trace->losses[trace->n_losses] = NAN;
    traces.forkable.in_child = forget_in_child;
    amp_status status = amp__fork_add(&traces.forkable, &traces.mutex);
    if (status == AMP_OK) {
        pthread_mutex_lock(&traces.mutex);
        status = open_file(wanted, &trace->file);
        trace->number = ++traces.contexts;
        pthread_mutex_unlock(&traces.mutex);
    }
    if (status != AMP_OK) {
        amp__free(trace);
        return status;
    }
    trace->stride = 1;
    *out = trace;
    write_start(context, trace);
    return AMP_OK;
}

/* The rule of the gate for products, which initialize has set: null where it holds no call back. */
static void add_gate(amp__text *line, const amp_context *context) {
    const struct amp__models *models = amp__models_of(context);
    const char *low = amp__dtype_name(amp__policy_of(context)->properties.low);
    const struct amp__op *product = NULL;
    char rule[160];
    for (size_t i = 0; i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops && !product; j++)
            if (models->list[i].ops[j].gate.applies && models->list[i].ops[j].flags & AMP_OP_MATMUL)
                product = &models->list[i].ops[j];
    if (product) {
        const uint64_t least = product->gate.least;
        const char *where = product->gate.unit && product->gate.unit[0] ? product->gate.unit : "converted to fp32";
        if (least == AMP_GATE_ALWAYS) snprintf(rule, sizeof rule, "products in %s (%s)", low, where);
        else if (least == AMP_GATE_NEVER) snprintf(rule, sizeof rule, "products in fp32: %s is slower here", low);
        else
            snprintf(rule, sizeof rule, "products in %s from an edge of %llu on (%s), smaller ones in fp32", low,
                     (unsigned long long)least, where);
    }
    amp__line_string(line, "gate", product ? rule : NULL);
}

void amp__trace_wired(amp_context *context) {
    struct amp__params *params = amp__params_of(context);
    const struct amp__models *models = amp__models_of(context);
    struct amp__trace *trace = amp__reporting_of(context)->trace;
    uint64_t elements = 0, low = 0, masters = 0, trained = 0, ops = 0;
    if (!trace) return;
    for (size_t i = 0; i < params->n; i++) {
        const struct amp__param *param = params->list[i];
        elements += param->size;
        trained += param->in_optimizer ? param->size : 0;
        low += amp__is_low(param->dtype) ? param->size : 0;
        masters += param->has_master ? param->size : 0;
    }
    for (size_t i = 0; i < models->n; i++) ops += models->list[i].n_ops;
    AMP__LINE(line);
    begin_line(&line, "wired", trace);
    amp__line_string(&line, "language", amp__is_python(context) ? "python" : "c");
    amp__line_number(&line, "models", models->n);
    amp__line_number(&line, "optimizers", amp__optimizers_of(context)->n);
    amp__line_number(&line, "ops", ops);
    amp__line_number(&line, "params", params->n);
    amp__line_number(&line, "elements", elements);
    amp__line_number(&line, "trained", trained);
    amp__line_number(&line, "low", low);
    amp__line_number(&line, "masters", masters);
    add_gate(&line, context);
    end_line(&line, trace, AMP__WHILE_IT_TRAINS);
}

enum { THINNER = 16 }; /* more than 2: else all brackets together would find room for as many lines as the first half */

static bool has_a_line(struct amp__trace *trace, bool skips) {
    pthread_mutex_lock(&traces.mutex);
    const uint64_t room = room_for(trace->file, AMP__WHILE_IT_TRAINS), used = trace->file->bytes;
    pthread_mutex_unlock(&traces.mutex);
    if (used < room && room - used < (room >> trace->thinned) / 2) trace->thinned++, trace->stride *= THINNER;
    return skips || trace->left_out + 1 >= trace->stride;
}

static void write_bracket(struct amp__trace *trace, const amp_event *event) {
    const bool skips = event->action == AMP_SKIP;
    trace->brackets++;
    trace->skips += skips;
    if (!has_a_line(trace, skips)) {
        trace->left_out++;
        return;
    }
    AMP__LINE(line);
    begin_line(&line, "bracket", trace);
    amp__line_number(&line, "n", trace->brackets);
    amp__line_number(&line, "loss", event->loss_id);
    amp__line_string(&line, "action", skips ? "skip" : "step");
    amp__line_float(&line, "scale", event->scale_before);
    amp__line_float(&line, "next", event->scale_after);
    amp__line_string(&line, "overflow", event->first_nonfinite);
    if (!isnan(trace->losses[event->loss_id])) amp__line_double(&line, "value", trace->losses[event->loss_id]);
    amp__line_number(&line, "left_out", trace->left_out);
    end_line(&line, trace, AMP__WHILE_IT_TRAINS);
    trace->left_out = 0;
    trace->losses[event->loss_id] = NAN;
}

void amp__trace_loss(amp_context *context, uint32_t loss_id, double loss) {
    struct amp__trace *trace = amp__reporting_of(context)->trace;
    if (trace && loss_id < trace->n_losses) trace->losses[loss_id] = isnan(loss) ? (double)INFINITY : loss;
}

bool amp__trace_follows(const amp_context *context) {
    const struct amp__trace *trace = amp__reporting_of(context)->trace;
    return trace && !trace->left_out;
}
uint64_t amp__trace_brackets(const amp_context *context) {
    const struct amp__trace *trace = amp__reporting_of(context)->trace;
    return trace ? trace->brackets : 0;
}

void amp__trace_begin(amp__text *line, const char *kind, const amp_context *context) {
    begin_line(line, kind, amp__reporting_of(context)->trace);
}

void amp__trace_end_in(amp__text *line, const amp_context *context, enum amp__trace_room room) {
    end_line(line, amp__reporting_of(context)->trace, room);
}

void amp__trace_end(amp__text *line, const amp_context *context) {
    amp__trace_end_in(line, context, AMP__WHILE_IT_TRAINS);
}

static void begin_told(amp__text *line, const struct amp__trace *trace, const char *as, const char *code) {
    begin_line(line, "told", trace);
    amp__line_number(line, "n", trace->brackets);
    amp__line_string(line, "as", as);
    amp__line_string(line, "code", code);
}

void amp__trace_remark(amp_context *context, const char *about, const char *text) {
    struct amp__trace *trace = amp__reporting_of(context)->trace;
    if (!trace) return;
    AMP__LINE(line);
    begin_told(&line, trace, "note", NULL);
    amp__line_string(&line, "status", NULL);
    amp__line_string(&line, "message", text);
    amp__line_string(&line, "about", about);
    end_line(&line, trace, AMP__WHILE_IT_TRAINS);
}

static const char *name_of(amp_event_kind kind) {
    return kind == AMP_EVENT_ERROR ? "error" : kind == AMP_EVENT_WARNING ? "warning" : "note";
}

void amp__trace_event(amp_context *context, const amp_event *event) {
    struct amp__trace *trace = amp__reporting_of(context)->trace;
    if (!trace || amp__progress_of(context)->verifying) return;
    if (event->kind == AMP_EVENT_BRACKET) {
        write_bracket(trace, event);
    } else if (event->kind != AMP_EVENT_SKIP && event->kind != AMP_EVENT_SCALE_CHANGE && *event->message) {
        AMP__LINE(line);
        begin_told(&line, trace, name_of(event->kind), event->code);
        amp__line_string(&line, "status", event->status == AMP_OK ? NULL : amp_status_name(event->status));
        amp__line_string(&line, "message", event->message);
        end_line(&line, trace, AMP__WHILE_IT_TRAINS);
    }
}

static void write_op(struct amp__trace *trace, size_t model, const struct amp__op *op) {
    AMP__LINE(line);
    begin_line(&line, "op", trace);
    amp__line_number(&line, "model", model);
    amp__line_string(&line, "name", op->name);
    amp__line_number(&line, "index", op->index);
    amp__line_string(&line, "class", amp__class_name(op->op_class));
    amp__line_number(&line, "calls", amp__op_calls(op));
    amp__line_number(&line, "passed", amp__op_passed(op));
    amp__line_number(&line, "casts", op->tally.casts);
    amp__line_number(&line, "cache_hits", amp__op_hits(op));
    amp__line_number(&line, "failures", op->tally.failures);
    end_line(&line, trace, AMP__ITS_SURVEY); /* which is there by now */
}

void amp__trace_ops(amp_context *context) {
    struct amp__reporting *reporting = amp__reporting_of(context);
    const struct amp__models *models = amp__models_of(context);
    for (size_t i = 0; reporting->trace && i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++)
            if (models->list[i].ops[j].wrapped) write_op(reporting->trace, i, &models->list[i].ops[j]);
}

void amp__trace_close(amp_context *context) {
    struct amp__reporting *reporting = amp__reporting_of(context);
    struct amp__trace *trace = reporting->trace;
    if (!trace) return;
    AMP__LINE(line);
    begin_line(&line, "end", trace);
    amp__line_number(&line, "brackets", trace->brackets);
    amp__line_number(&line, "skipped", trace->skips);
    amp__line_number(&line, "left_out", trace->left_out);
    amp__line_number(&line, "lost", trace->lost);
    end_line(&line, trace, AMP__ITS_LAST);
    pthread_mutex_lock(&traces.mutex);
    trace->file->ends -= trace->began;
    close_file(trace->file);
    pthread_mutex_unlock(&traces.mutex);
    amp__free(trace);
    reporting->trace = NULL;
}
