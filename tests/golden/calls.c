/* SPDX-License-Identifier: Apache-2.0 */
/* Of the golden program: raw buffers inside structs, calls without slots, the gate, diagnostics, the table for dlopen,
 * and the kernels alone. Devices are left out: their numbers need one. */
#include "calls.h"

#include <amp_all.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 40 };

static int failed;

/* A call's name and its status. */
static void say(const char *call, amp_status status) {
    printf("%s: %s\n", call, amp_status_name(status));
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s: %s\n", call, amp_status_name(status), amp_last_error());
    failed = 1;
}

static void bytes(const char *of, const void *data, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    printf("%s: %016llx\n", of, (unsigned long long)hash);
}

static void fill(float *x, int n, int seed) {
    for (int i = 0; i < n; i++) x[i] = (float)((i * 37 + seed * 11) % 64 - 32) / 48.0f;
}

static amp_span span(void *data, uint64_t size, amp_dtype dtype) {
    amp_span made;
    memset(&made, 0, sizeof made);
    made.data = data, made.size = size, made.dtype = dtype;
    return made;
}

/* ---- the kernels alone ---- */

static void lists(void) {
    float x[N], y[N], norm = 0.0f, found = 0.0f;
    uint16_t half[N], brain[N];
    int64_t index = 0;
    fill(x, N, 1);
    const amp_span wide = span(x, N, AMP_FLOAT32), other = span(y, N, AMP_FLOAT32);
    const amp_span low = span(half, N, AMP_FLOAT16), random = span(brain, N, AMP_BFLOAT16);
    say("cast_list", amp_cast_list(&low, &wide, 1)), bytes("fp16", half, sizeof half);
    say("cast_random", amp_cast_random(&random, &wide, 1, 5)), bytes("bf16 at random", brain, sizeof brain);
    say("scale_list", amp_scale_list(&other, &low, 1, 0.3f, &found)), bytes("scaled", y, sizeof y);
    say("axpby_list", amp_axpby_list(&other, 2.0f, &wide, -0.7f, &low, 1, &found)), bytes("sum", y, sizeof y);
    say("l2norm_list", amp_l2norm_list(&wide, 1, &norm, NULL)), bytes("norm", &norm, sizeof norm);
    say("clip_norm_list", amp_clip_norm_list(&other, &wide, 1, 0.5f, &norm)), bytes("clipped", y, sizeof y);
    say("first_nonfinite", amp_first_nonfinite(&wide, 1, &index)), printf("index %d\n", (int)index);
    say("check_list", amp_check_list(&low, 1, 0.5f, 1.0f, &norm, NULL, &found)), bytes("norm", &norm, sizeof norm);
}

static void statistics(void) {
    static amp_statistics seen = AMP_STATISTICS_INIT;
    amp_losses losses;
    float x[N];
    fill(x, N, 2);
    const amp_span wide = span(x, N, AMP_FLOAT32);
    say("statistics_list", amp_statistics_list(&wide, 1, &seen));
    bytes("statistics", &seen.elements, sizeof seen - offsetof(amp_statistics, elements));
    say("statistics_losses", amp_statistics_losses(&seen, AMP_FLOAT16, 0x1p-20f, &losses));
    printf("losses %d %d %d\n", (int)losses.zeros, (int)losses.subnormals, (int)losses.infinities);
}

static void packs(void) {
    enum { ELEMENTS = 300, MOST = 1024 };
    static float x[ELEMENTS], y[ELEMENTS];
    static uint32_t packed[MOST / 4];
    static const int32_t bits[] = { 8, 4, 2, 1 };
    fill(x, ELEMENTS, 3);
    for (int i = 0; i < 4; i++) {
        amp_pack_args in = AMP_PACK_ARGS_INIT;
        amp_unpack_args out = AMP_UNPACK_ARGS_INIT;
        in.bits = out.bits = bits[i], in.seed = 9, in.src = span(x, ELEMENTS, AMP_FLOAT32);
        in.packed = packed, out.packed = packed, out.dst = span(y, ELEMENTS, AMP_FLOAT32);
        const uint64_t size = amp_pack_bytes(ELEMENTS, bits[i]);
        if (size > MOST) exit(2);
        say("pack", amp_pack(&in)), bytes("packed", packed, (size_t)size);
        say("unpack", amp_unpack(&out)), bytes("unpacked", y, sizeof y);
    }
}

static void updates(void) {
    float param[N], grad[N], first[N] = { 0 }, second[N] = { 0 };
    uint16_t low[N];
    uint64_t steps = 0;
    amp_optim rule = AMP_OPTIM_INIT;
    amp_optim_tensors tensors = AMP_OPTIM_TENSORS_INIT;
    fill(param, N, 4), fill(grad, N, 5);
    const amp_span grads = span(grad, N, AMP_FLOAT32), params = span(param, N, AMP_FLOAT32);
    const amp_span lows = span(low, N, AMP_BFLOAT16);
    const amp_span moments[2] = { span(first, N, AMP_FLOAT32), span(second, N, AMP_FLOAT32) };
    say("optim_defaults", amp_optim_defaults(AMP_OPTIM_ADAMW, &rule));
    tensors.n = 1, tensors.grad = &grads, tensors.param = &params, tensors.low = &lows, tensors.steps = &steps;
    tensors.moments[0] = &moments[0], tensors.moments[1] = &moments[1];
    for (int i = 0; i < 3; i++) say("optim_list", amp_optim_list(&rule, &tensors));
    bytes("parameters", param, sizeof param), bytes("copies", low, sizeof low), bytes("moments", second, sizeof second);
}

static void split(void) {
    uint32_t rest[N];
    uint16_t low[N];
    float x[N], joined[N];
    void *remainder = rest;
    fill(x, N, 6);
    if (amp_remainder_bytes(N) > sizeof rest) exit(2);
    const amp_span lows = span(low, N, AMP_BFLOAT16), wide = span(x, N, AMP_FLOAT32);
    const amp_span out = span(joined, N, AMP_FLOAT32);
    say("split_list", amp_split_list(&lows, &remainder, &wide, 1));
    bytes("halves", low, sizeof low), bytes("remainders", rest, (size_t)amp_remainder_bytes(N));
    say("join_list", amp_join_list(&out, &lows, &remainder, 1)), bytes("joined", joined, sizeof joined);
}

/* Small integers: each sum is exact, in any order. */
static void product(void) {
    float a[12], b[12], d[9];
    char text[256];
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    for (int i = 0; i < 12; i++) a[i] = (float)(i - 5), b[i] = (float)(7 - i);
    args.m = args.n = 3, args.k = 4, args.transpose_b = 1, args.a = a, args.b = b, args.d = d;
    args.a_dtype = args.b_dtype = args.d_dtype = AMP_FLOAT32, args.backend = AMP_MATMUL_BUILTIN;
    args.activation = AMP_ACTIVATION_RELU;
    say("matmul", amp_matmul(&args)), bytes("product", d, sizeof d);
    say("matmul_explain", amp_matmul_explain(&args, text, sizeof text, NULL));
}

/* ---- raw buffers inside structs ---- */

typedef struct layer {
    float *weights, *updates, *output;
    int32_t n;
    void (*forward)(struct layer l, const float *input);
} layer;

static void layer_forward(layer l, const float *input) {
    for (int i = 0; i < l.n; i++) l.output[i] = input[i] * l.weights[i];
}

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    layer *l = args[0];
    float **const addresses[3] = { &l->weights, &l->output, (float **)args[1] };
    static const char *const names[3] = { "weights", "output", "input" };
    static const amp_role roles[3] = { AMP_ROLE_READ, AMP_ROLE_WRITE, AMP_ROLE_READ };
    (void)self, (void)op;
    for (int i = 0; i < 3; i++) {
        amp_field field = AMP_FIELD_INIT;
        field.role = roles[i], field.name = names[i], field.address = addresses[i], field.size = l->n;
        const amp_status status = emit(emit_self, &field);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

static void raw(void) {
    static float weights[N], updates_of[N], output[N], input[N];
    static layer l = { weights, updates_of, output, N, layer_forward };
    amp_host host = *amp_buffer_host();
    amp_struct structs[1] = { AMP_STRUCT_INIT };
    amp_buffer buffer = AMP_BUFFER_INIT, grad = AMP_BUFFER_INIT;
    amp_op op = AMP_OP_INIT;
    amp_param param = AMP_PARAM_INIT;
    amp_model model = AMP_MODEL_INIT, *models[1] = { &model };
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT, *optimizers[1] = { &optimizer };
    amp_config config = AMP_CONFIG_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    void *trained[1] = { &buffer };
    fill(weights, N, 7), fill(input, N, 8);
    host.visit = visit;
    structs[0].name = "layer", structs[0].size = sizeof l, structs[0].alignment = _Alignof(layer);
    structs[0].members = "pointer, pointer, pointer, int32 n, pointer";
    op.name = "linear", op.slot = (amp_fn *)&l.forward, op.schema = "forward(struct layer l, float x[l.n]) -> void";
    buffer.data = weights, buffer.size = grad.size = N, buffer.grad = &grad, grad.data = updates_of;
    param.tensor = &buffer, param.name = "weights";
    model.host = optimizer.host = &host, model.ops = &op, model.n_ops = 1, model.params = &param, model.n_params = 1;
    model.structs = structs, model.n_structs = 1, optimizer.params = trained, optimizer.n_params = 1;
    config.level = AMP_O2, config.emulate = AMP_ON, config.observe = AMP_ON;
    say("initialize_many", amp_initialize_many(models, 1, optimizers, 1, &config, NULL));
    options.every = 1;
    say("observe", amp_observe(model.amp, &options));
    say("begin", amp_scale_loss_begin(&optimizer, NULL, &scaled));
    l.forward(l, input);
    for (int i = 0; i < N; i++) updates_of[i] += output[i] * amp_seed_factor(&scaled) / 1024.0f;
    say("end", amp_scale_loss_end(&scaled));
    say("step_begin", amp_step_begin(&optimizer, &info));
    for (int i = 0; i < N && info.action == AMP_STEP; i++) weights[i] -= 0.5f * updates_of[i];
    say("step_end", amp_step_end(&optimizer));
    bytes("output", output, sizeof output), bytes("weights", weights, sizeof weights);

    amp_op_stats stats = AMP_OP_STATS_INIT;
    amp_memory memory = AMP_MEMORY_INIT;
    amp_observation observations[8];
    amp_culprit culprit = AMP_CULPRIT_INIT;
    amp_survey_result survey = AMP_SURVEY_RESULT_INIT;
    amp_finding finding = AMP_FINDING_INIT;
    size_t n = 0;
    for (int i = 0; i < 8; i++) observations[i] = (amp_observation)AMP_OBSERVATION_INIT;
    say("get_op_stats", amp_get_op_stats(model.amp, &stats, 1, &n));
    printf("%s %d: %d calls\n", stats.name, (int)stats.op_class, (int)stats.calls);
    say("get_memory", amp_get_memory(model.amp, &memory));
    printf("weights %d, masters %d\n", (int)memory.weights, (int)memory.masters);
    say("get_observations", amp_get_observations(model.amp, observations, 8, &n));
    for (size_t i = 0; i < n && i < 8; i++)
        printf("%u %s: %d elements, largest %a\n", (unsigned)observations[i].what, observations[i].name,
               (int)observations[i].total->elements, observations[i].total->largest);
    say("get_culprit", amp_get_culprit(model.amp, &culprit)), printf("cause %d\n", (int)culprit.bracket);
    say("survey", amp_survey(model.amp, &survey));
    printf("%d iterations, %d levels\n", (int)survey.iterations, (int)survey.n_levels);
    say("get_findings", amp_get_findings(model.amp, &finding, 1, &n));
    say("shutdown", amp_shutdown(model.amp));
}

/* ---- calls without slots, and lists ---- */

static void named(void) {
    amp_model model = AMP_MODEL_INIT, *models[1] = { &model };
    amp_config config = AMP_CONFIG_INIT, resolved = AMP_CONFIG_INIT;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_context *context = NULL;
    amp_list_op list[4];
    amp_gate_row row = AMP_GATE_ROW_INIT;
    amp_backend_info backend = AMP_BACKEND_INFO_INIT;
    amp_dtype types[2] = { AMP_FLOAT32, AMP_FLOAT32 }, target = 0;
    amp_class op_class = 0;
    amp_scope scope;
    size_t n = 0;
    void *none[1] = { NULL };
    model.host = amp_buffer_host(), config.level = AMP_O4;
    say("initialize_many", amp_initialize_many(models, 1, NULL, 0, &config, &context));
    say("get_config", amp_get_config(context, &resolved)), printf("losses %u\n", (unsigned)resolved.num_losses);
    say("op_target", amp_op_target(context, "linear", types, 2, &target)), printf("type %d\n", (int)target);
    say("op_class", amp_op_class(context, "softmax", &op_class)), printf("class %d\n", (int)op_class);
    say("scope_enter", amp_scope_enter(context, &scope));
    say("cast_to", amp_cast_to(context, AMP_BFLOAT16, none, 1, &frame)), say("cast_done", amp_cast_done(&frame));
    say("scope_leave", amp_scope_leave(&scope));
    for (int i = 0; i < 4; i++) list[i] = (amp_list_op)AMP_LIST_OP_INIT;
    say("get_list_ops", amp_get_list_ops(AMP_LISTS_APEX, list, 4, &n));
    printf("listed %d: %s %d\n", n > 100, list[3].name, (int)list[3].fp16);
    say("get_gate_rows", amp_get_gate_rows(&row, 1, &n)), printf("row of %s\n", row.who);
    say("get_backends", amp_get_backends(&backend, 1, &n)), printf("backend %s\n", backend.name);
    say("shutdown", amp_shutdown(context));
}

static void table(void) {
    const amp_api *api = amp_get_api(AMP_API_VERSION);
    amp_level level = 0;
    size_t rows = 0;
    if (!api || api->struct_size < sizeof *api || api->version < AMP_API_VERSION) {
        printf("the table is too small\n"), failed = 1;
        return;
    }
    say("level_from_name", api->level_from_name("O5", &level)), printf("level %d\n", (int)level);
    say("shutdown", api->shutdown(NULL));
    say("get_gate_rows", api->get_gate_rows(NULL, 0, &rows)), printf("rows %d\n", rows > 0);
}

int calls(void) {
    lists(), statistics(), packs(), updates(), split(), product();
    raw(), named(), table();
    return failed;
}
