/* SPDX-License-Identifier: Apache-2.0 */
/* Events as JSON Lines in a file: docs/reference/trace.md has the objects. */
#ifndef AMP_TRACE_H
#define AMP_TRACE_H

#include "amp_diagnostics.h"
#include "common/common.h"

struct amp__trace;

/* The kind of a line, which limits its part of a bounded file, so that the end of a training has room. */
enum amp__trace_room { AMP__WHILE_IT_TRAINS, AMP__AT_ITS_END, AMP__ITS_SURVEY, AMP__ITS_LAST };

/* Opens the file of the configuration, or of the environment variable AMP_TRACE, and writes the first line. *out: NULL
 * without either. AMP_ERR_IO, AMP_ERR_NO_MEMORY. */
amp_status amp__trace_open(amp_context *context, struct amp__trace **out);
/* Initialize is over. */
void amp__trace_wired(amp_context *context);
/* Each event, whoever else hears it. NULL: nothing to do. */
void amp__trace_event(amp_context *context, const amp_event *event);
/* Returns true if there is a trace and the last bracket has a line, so that its observations get lines too. */
bool amp__trace_follows(const amp_context *context);
/* The unscaled loss of the next decision of loss_id, and a remark of the host. Without a trace: nothing. */
void amp__trace_loss(amp_context *context, uint32_t loss_id, double loss);
void amp__trace_remark(amp_context *context, const char *about, const char *text);
/* Brackets so far, of all losses. */
uint64_t amp__trace_brackets(const amp_context *context);
/* Begins a line of this kind (context/trace_line.h), and writes it, where there is room. The context has a trace. Of
 * AMP__ITS_SURVEY there is one in a context. */
void amp__trace_begin(amp__text *line, const char *kind, const amp_context *context);
void amp__trace_end(amp__text *line, const amp_context *context);
void amp__trace_end_in(amp__text *line, const amp_context *context, enum amp__trace_room room);
/* Writes the counters of the ops, while they are wired. */
void amp__trace_ops(amp_context *context);
/* The last line. */
void amp__trace_close(amp_context *context);

#endif
