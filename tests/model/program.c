/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int n;
    bool batch_norm, wide;
} shapes[PARAMS] = { { "weight", 4, false, false }, { "gamma", 4, true, false },  { "wide", 4, false, true },
                     { "bias", 4, false, false },   { "empty", 0, false, false }, { "late", 4, false, false } };

int32_t program_host_step(struct optimizer *optimizer) {
    optimizer->program->ran = true;
    for (size_t k = 0; k < optimizer->n; k++) {
        struct fake_tensor *param = optimizer->params[k];
        for (int64_t i = 0; param->grad && i < param->shape[0]; i++)
            fake_set(param, i, (double)((float)fake_get(param, i) - program_rate * (float)fake_get(param->grad, i)));
    }
    return 1;
}

static void host_zero_grad(struct optimizer *optimizer) {
    for (size_t k = 0; k < optimizer->n; k++) {
        struct fake_tensor *param = optimizer->params[k];
        if (!param->grad) continue;
        if (optimizer->program->host.options & FAKE_NO_SET_GRAD) fake_fill(param->grad, 0.0);
        else fake_put_grad(param, NULL);
    }
}

static void describe_optimizer(struct program *program, struct optimizer *optimizer, enum param first, size_t n) {
    optimizer->program = program;
    optimizer->n = n;
    for (size_t k = 0; k < n; k++) optimizer->params[k] = program->params[first + k];
    optimizer->step = (amp_fn)program_host_step;
    optimizer->zero_grad = (amp_fn)host_zero_grad;
    optimizer->step_op = (amp_op){
        .struct_size = sizeof(amp_op), .name = "step", .schema = "step(pointer self) -> int32", .slot = &optimizer->step
    };
    optimizer->zero_grad_op = (amp_op){ .struct_size = sizeof(amp_op), .name = "zero_grad",
                                        .slot = &optimizer->zero_grad, .schema = "zero_grad(pointer self) -> void" };
    optimizer->optimizer = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .self = optimizer, .n_params = n,
                                            .host = &program->host.hooks, .params = optimizer->params,
                                            .steps = &optimizer->step_op, .n_steps = 1,
                                            .zero_grads = &optimizer->zero_grad_op, .n_zero_grads = 1 };
}

static void make_host(struct program *program, const struct sequence *sequence) {
    fake_init(&program->host, sequence->options);
    for (int k = 0; k < PARAMS; k++) {
        struct param_model *p = &program->m.params[k];
        const amp_dtype type = shapes[k].wide ? AMP_FLOAT64 : AMP_FLOAT32;
        struct fake_tensor *param = program->params[k] = fake_new(&program->host, type, shapes[k].n, 0.0);
        *p = (struct param_model){
            .name = shapes[k].name, .n = shapes[k].n, .type = type, .batch_norm = shapes[k].batch_norm
        };
        for (int i = 0; i < p->n; i++) {
            fake_set(param, i, 0.1 * (k + 1) + 0.013 * i);
            p->host[i] = fake_get(param, i);
        }
        if (!(sequence->options & FAKE_NO_SET_GRAD) || sequence->options & LATE_BUFFERS) continue;
        fake_put_grad(param, fake_new(&program->host, type, p->n, 0.0));
        p->grad = (struct grad){ .handle = ++program->m.handles, .version = 1, .type = type };
    }
    program->tied = fake_alias(program->params[WEIGHT]);
}

bool program_start(struct program *program, const struct sequence *sequence) {
    memset(program, 0, sizeof *program);
    make_host(program, sequence);
    for (int k = 0; k < LATE; k++)
        program->described[k] = (amp_param){ sizeof(amp_param), shapes[k].batch_norm, program->params[k],
                                             shapes[k].name };
    program->described[LATE] = (amp_param){ sizeof(amp_param), 0, program->tied, "tied" };
    program->model = (amp_model){ .struct_size = sizeof(amp_model), .host = &program->host.hooks,
                                  .params = program->described, .n_params = LATE + 1 };
    describe_optimizer(program, &program->optimizers[0], WEIGHT, 3);
    describe_optimizer(program, &program->optimizers[1], BIAS, 2);
    amp_model *models[] = { &program->model };
    amp_optimizer *optimizers[] = { &program->optimizers[0].optimizer, &program->optimizers[1].optimizer };
    for (size_t k = 0; k < LOSSES; k++) program->scaled[k] = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    model_init(&program->m, &sequence->config, sequence->options);
    return amp_initialize_many(models, 1, optimizers, 2, &sequence->config, &program->context) == AMP_OK;
}

void program_finish(struct program *program) {
    if (program->context) (void)amp_shutdown(program->context);
    for (int k = 0; k < PARAMS; k++) fake_release(program->params[k]);
    fake_release(program->tied);
    fake_destroy(&program->host);
}

/* ---- comparing ---- */

bool program_fails(struct program *program, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(program->why, sizeof program->why, format, args);
    va_end(args);
    return false;
}

bool program_same(double a, double b) { return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a); }

static bool same_tensor(struct program *program, const struct fake_tensor *tensor, amp_dtype type,
                        const double *expected, const char *what, const char *name) {
    if (fake_dtype(tensor) != type)
        return program_fails(program, "%s%s has type %d, not %d", name, what, (int)fake_dtype(tensor), (int)type);
    for (int i = 0; i < tensor->shape[0]; i++)
        if (!program_same(fake_get(tensor, i), expected[i]))
            return program_fails(program, "%s%s[%d] is %a, not %a", name, what, i, fake_get(tensor, i), expected[i]);
    return true;
}

bool program_same_host(struct program *program) {
    for (int k = 0; k < PARAMS; k++) {
        const struct param_model *p = &program->m.params[k];
        const struct fake_tensor *param = program->params[k];
        if (!same_tensor(program, param, p->type, p->host, "", p->name)) return false;
        if (!param->grad != !p->grad.handle)
            return program_fails(program, "%s has %s gradient", p->name, param->grad ? "a" : "no");
        if (param->grad && !same_tensor(program, param->grad, p->grad.type, p->grad.v, ".grad", p->name)) return false;
    }
    if (program->tied->storage.data != program->params[WEIGHT]->storage.data)
        return program_fails(program, "the tie is broken");
    return true;
}

bool program_same_records(struct program *program) {
    for (uint32_t k = 0; k < program->m.config.num_losses; k++) {
        const amp_record *r = &program->m.losses[k].record;
        amp_record now = AMP_RECORD_INIT;
        if (amp_get_record(program->context, k, &now) != AMP_OK) return program_fails(program, "amp_get_record failed");
        const bool same_name = !now.first_nonfinite == !r->first_nonfinite &&
                               (!r->first_nonfinite || !strcmp(now.first_nonfinite, r->first_nonfinite));
        if (now.action != r->action || now.scale_before != r->scale_before || now.scale_after != r->scale_after ||
            now.brackets != r->brackets || now.skipped != r->skipped || now.skips_in_row != r->skips_in_row ||
            now.unskipped != r->unskipped || !same_name)
            return program_fails(program,
                                 "record %u: action %d scale %a -> %a, %" PRIu64 " brackets, %" PRIu64 " "
                                 "skipped, %u in a row, %u unskipped, %s; not %d, %a -> %a, %" PRIu64 ", %" PRIu64
                                 ", %u, %u, %s",
                                 k, (int)now.action, (double)now.scale_before, (double)now.scale_after, now.brackets,
                                 now.skipped, now.skips_in_row, now.unskipped,
                                 now.first_nonfinite ? now.first_nonfinite : "-", (int)r->action,
                                 (double)r->scale_before, (double)r->scale_after, r->brackets, r->skipped,
                                 r->skips_in_row, r->unskipped, r->first_nonfinite ? r->first_nonfinite : "-");
    }
    return true;
}

/* An element of what the optimizer updates, or of its gradient. */
static double shown(const void *data, amp_dtype type, int i) {
    struct fake_tensor view = { .storage = { .data = (void *)(uintptr_t)data, .dtype = type } };
    return fake_get(&view, i);
}

bool program_same_masters(struct program *program, unsigned k) {
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t n = 0;
    if (amp_master_params(&program->optimizers[k].optimizer, masters, 3, &n) != AMP_OK)
        return program_fails(program, "no masters");
    for (size_t j = 0; j < n; j++) {
        const struct param_model *p = program->m.params;
        while (p->name && strcmp(p->name, masters[j].name)) p++;
        if (!masters[j].grad != !p->grad.handle)
            return program_fails(program, "%s's master has %s gradient", p->name, masters[j].grad ? "a" : "no");
        for (int i = 0; i < p->n; i++) {
            const double value = shown(masters[j].data, masters[j].dtype, i),
                         expected = p->mastered ? p->master[i] : p->host[i];
            if (!program_same(value, expected))
                return program_fails(program, "%s's master[%d] is %a, not %a", p->name, i, value, expected);
            if (!masters[j].grad) continue;
            const double grad = shown(masters[j].grad, p->mastered ? AMP_FLOAT32 : p->grad.type, i);
            const double wanted = p->mastered ? p->exact[i] : p->grad.v[i];
            if (!program_same(grad, wanted))
                return program_fails(program, "%s's exact gradient[%d] is %a, not %a", p->name, i, grad, wanted);
        }
    }
    return true;
}

bool program_same_status(struct program *program, amp_status status, amp_status expected) {
    if (status == expected) return true;
    return program_fails(program, "%s instead of %s: %s", amp_status_name(status), amp_status_name(expected),
                         amp_last_error());
}
