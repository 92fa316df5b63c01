/* SPDX-License-Identifier: Apache-2.0 */
/* The table for hosts that dlopen: one dlsym, every entry there and the right one, versions refused in words, and the
 * library still in place after dlclose. Argument: the shared library. */
#include "amp_all.h"

#include "../support/typed.h"
#include "test.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *library;

typedef const amp_api *(*get_api_fn)(uint32_t);

static void *open_library(void) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(handle != NULL, "%s", dlerror());
    return handle;
}

/* POSIX: a pointer from dlsym converts to a function pointer, though ISO C has no cast for it. */
static amp_fn function(void *handle, const char *name) {
    union {
        void *object;
        amp_fn call;
    } symbol = { dlsym(handle, name) };
    ck_assert_msg(symbol.object != NULL, "%s", dlerror());
    return symbol.call;
}

static get_api_fn get_api(void *handle) { return (get_api_fn)function(handle, "amp_get_api"); }

/* Members of amp_api in their order, with the exported function each of them is. */
#define MEMBERS(X)                                                                                                     \
    X(status_name, "amp_status_name")                                                                                  \
    X(status_text, "amp_status_text")                                                                                  \
    X(last_error, "amp_last_error")                                                                                    \
    X(library_version, "amp_version")                                                                                  \
    X(level_from_name, "amp_level_from_name")                                                                          \
    X(register_op, "amp_register")                                                                                     \
    X(initialize, "amp_initialize")                                                                                    \
    X(initialize_many, "amp_initialize_many")                                                                          \
    X(shutdown, "amp_shutdown")                                                                                        \
    X(scale_loss_begin, "amp_scale_loss_begin")                                                                        \
    X(scale_loss_begin_many, "amp_scale_loss_begin_many")                                                              \
    X(scale_loss_end, "amp_scale_loss_end")                                                                            \
    X(scale_loss_cancel, "amp_scale_loss_cancel")                                                                      \
    X(step_begin, "amp_step_begin")                                                                                    \
    X(step_end, "amp_step_end")                                                                                        \
    X(op_target, "amp_op_target")                                                                                      \
    X(cast_args, "amp_cast_args")                                                                                      \
    X(cast_done, "amp_cast_done")                                                                                      \
    X(tape_done, "amp_tape_done")                                                                                      \
    X(cache_clear, "amp_cache_clear")                                                                                  \
    X(scope_enter, "amp_scope_enter")                                                                                  \
    X(scope_leave, "amp_scope_leave")                                                                                  \
    X(scope_capture, "amp_scope_capture")                                                                              \
    X(scope_adopt, "amp_scope_adopt")                                                                                  \
    X(master_params, "amp_master_params")                                                                              \
    X(clip_grad_norm, "amp_clip_grad_norm")                                                                            \
    X(masters_reconcile, "amp_masters_reconcile")                                                                      \
    X(get_op_stats, "amp_get_op_stats")                                                                                \
    X(get_record, "amp_get_record")                                                                                    \
    X(explain, "amp_explain")                                                                                          \
    X(check, "amp_check")                                                                                              \
    X(clip_grad_value, "amp_clip_grad_value")                                                                          \
    X(add_params, "amp_add_params")                                                                                    \
    X(scale, "amp_scale")                                                                                              \
    X(unscale, "amp_unscale")                                                                                          \
    X(state_save, "amp_state_save")                                                                                    \
    X(state_save_memory, "amp_state_save_memory")                                                                      \
    X(state_load, "amp_state_load")                                                                                    \
    X(state_load_memory, "amp_state_load_memory")                                                                      \
    X(buffer_host, "amp_buffer_host")                                                                                  \
    X(wrap_table, "amp_wrap_table")                                                                                    \
    X(fused_step, "amp_fused_step")                                                                                    \
    X(fused_zero_grad, "amp_fused_zero_grad")                                                                          \
    X(fused_get, "amp_fused_get")                                                                                      \
    X(fused_set, "amp_fused_set")                                                                                      \
    X(gate_set, "amp_gate_set")                                                                                        \
    X(gate_measure, "amp_gate_measure")                                                                                \
    X(op_class, "amp_op_class")                                                                                        \
    X(class_target, "amp_class_target")                                                                                \
    X(cast_to, "amp_cast_to")                                                                                          \
    X(get_list_ops, "amp_get_list_ops")                                                                                \
    X(scope_current, "amp_scope_current")                                                                              \
    X(config_resolve, "amp_config_resolve")                                                                            \
    X(masters_write_back, "amp_masters_write_back")                                                                    \
    X(seed_factor, "amp_seed_factor")                                                                                  \
    X(get_findings, "amp_get_findings")                                                                                \
    X(health, "amp_health")                                                                                            \
    X(verify_step, "amp_verify_step")                                                                                  \
    X(observe, "amp_observe")                                                                                          \
    X(observe_stop, "amp_observe_stop")                                                                                \
    X(get_observations, "amp_get_observations")                                                                        \
    X(get_culprit, "amp_get_culprit")                                                                                  \
    X(survey, "amp_survey")                                                                                            \
    X(is_observing, "amp_is_observing")                                                                                \
    X(observe_call, "amp_observe_call")                                                                                \
    X(get_memory, "amp_get_memory")                                                                                    \
    X(predict_memory, "amp_predict_memory")                                                                            \
    X(state_load_parts, "amp_state_load_parts")                                                                        \
    X(weights_release, "amp_weights_release")                                                                          \
    X(weights_restore, "amp_weights_restore")                                                                          \
    X(get_config, "amp_get_config")                                                                                    \
    X(get_gate_rows, "amp_get_gate_rows")                                                                              \
    X(observe_loss, "amp_observe_loss")                                                                                \
    X(observe_remark, "amp_observe_remark")                                                                            \
    X(observe_moments, "amp_observe_moments")

#define COUNT(member, name) +1
enum { N_MEMBERS = 0 MEMBERS(COUNT) };

TEST(table_is_complete) {
    void *handle = open_library();
    const amp_api *api = get_api(handle)(AMP_API_VERSION);
    ck_assert_ptr_nonnull(api);
    ck_assert_uint_eq(api->version, AMP_API_VERSION);
    ck_assert_uint_eq(api->struct_size, sizeof(amp_api));
    /* A member added to the header must be added above. */
    ck_assert_uint_eq(sizeof(amp_api), offsetof(amp_api, status_name) + N_MEMBERS * sizeof(amp_fn));
#define IS_EXPORTED(member, name)                                                                                      \
    ck_assert_msg((amp_fn)api->member == function(handle, name), "%s is not %s", #member, name);
    MEMBERS(IS_EXPORTED)
}

TEST(table_works) {
    void *handle = open_library();
    const amp_api *api = get_api(handle)(AMP_API_VERSION);
    ck_assert_ptr_nonnull(api);
    amp_level level = 0;
    ck_assert_int_eq(api->level_from_name("O2", &level), AMP_OK);
    ck_assert_int_eq(level, AMP_O2);
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O1;
    amp_context *context = NULL;
    ck_assert_msg(api->initialize_many(NULL, 0, NULL, 0, &config, &context) == AMP_OK, "%s", api->last_error());
    ck_assert_ptr_nonnull(context);
    ck_assert_int_eq(api->shutdown(context), AMP_OK);
}

TEST(other_versions_are_refused_in_words) {
    void *handle = open_library();
    const char *(*last_error)(void) = (const char *(*)(void))function(handle, "amp_last_error");
    /* A host that asks for more is told that this libamp is older than it, and which version it has. */
    const struct {
        uint32_t version;
        int too_old;
    } cases[] = { { 0, 0 }, { AMP_API_VERSION + 1, 1 }, { UINT32_MAX, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_ptr_null(get_api(handle)(cases[i].version));
        char asked[16];
        snprintf(asked, sizeof asked, "%u", (unsigned)cases[i].version);
        ck_assert_msg(strstr(last_error(), asked) != NULL, "%s", last_error());
        ck_assert_msg((strstr(last_error(), "too old") != NULL) == cases[i].too_old, "%s", last_error());
    }
}

/* A host keeps wrapped pointers in its tables: unloading their code would crash its next call. */
TEST(library_stays_after_dlclose) {
    void *handle = open_library();
    const amp_api *api = get_api(handle)(AMP_API_VERSION);
    ck_assert_ptr_nonnull(api);
    ck_assert_int_eq(dlclose(handle), 0);
    ck_assert_ptr_nonnull(api->library_version());
    ck_assert_ptr_nonnull(dlopen(library, RTLD_NOW | RTLD_NOLOAD));
}

/* ---- live wraps ---- */

/* Wired, the library closed, called, the library opened anew, shut down, closed, and the copied pointer called. */
TEST(wraps_live_on_after_dlclose) {
    linear_fn slot = linear;
    struct tensor x = { AMP_FLOAT32 };
    struct setup setup;
    describe(&setup, &slot);
    for (int round = 0; round < 3; round++) {
        void *handle = open_library();
        const amp_api *api = get_api(handle)(AMP_API_VERSION);
        ck_assert_msg(api->initialize(&setup.model, NULL, AMP_O1) == AMP_OK, "%s", api->last_error());
        const linear_fn copy = slot;
        ck_assert_int_eq(slot(&x), AMP_FLOAT16);
        ck_assert_int_eq(dlclose(handle), 0);
        ck_assert_int_eq(slot(&x), AMP_FLOAT16);

        handle = open_library();
        api = get_api(handle)(AMP_API_VERSION);
        ck_assert_int_eq(api->shutdown(setup.model.amp), AMP_OK);
        ck_assert(slot == linear);
        ck_assert_int_eq(dlclose(handle), 0);
        ck_assert_int_eq(copy(&x), AMP_FLOAT32);
    }
}

/* ---- two copies ---- */

static int heard; /* AMP-M88, with both files */
static char second_file[64];

static void listen(void *self, const amp_event *event) {
    (void)self;
    if (event->kind == AMP_EVENT_WARNING && !strcmp(event->code ? event->code : "", "AMP-M88"))
        heard += strstr(event->message, library) && strstr(event->message, second_file);
}

static void copy_library(void) {
    char buffer[65536];
    size_t n;
    snprintf(second_file, sizeof second_file, "/tmp/libamp-second-XXXXXX");
    const int file = mkstemp(second_file);
    FILE *from = fopen(library, "rb"), *to = fdopen(file, "wb");
    ck_assert(from && to);
    while ((n = fread(buffer, 1, sizeof buffer, from)) > 0) ck_assert_uint_eq(fwrite(buffer, 1, n, to), n);
    ck_assert(!ferror(from) && !fclose(from) && !fclose(to));
}

static int linear_calls;
static int counted_linear(struct tensor *x) {
    linear_calls++;
    return linear(x);
}

static void calls_once(linear_fn slot, int dtype) {
    struct tensor x = { AMP_FLOAT32 };
    linear_calls = 0;
    ck_assert_int_eq(slot(&x), dtype);
    ck_assert_int_eq(linear_calls, 1);
}

/* Both wire the same slot and end in either order; a third time the first copy wires over what is left. The function is
 * called once by each call, and the second copy's initialize names both files. */
TEST(two_copies_are_heard_and_end_in_any_order) {
    copy_library();
    const amp_api *api[2] = { get_api(open_library())(AMP_API_VERSION) };
    linear_fn slot = counted_linear;
    struct setup setups[2];
    for (int i = 0; i < 2; i++) {
        describe(&setups[i], &slot);
        setups[i].host.event = listen;
    }
    ck_assert_int_eq(api[0]->initialize(&setups[0].model, NULL, AMP_O1), AMP_OK);
    ck_assert_int_eq(heard, 0);
    void *second = dlopen(second_file, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(second != NULL, "%s", dlerror());
    ck_assert_int_eq(remove(second_file), 0);
    api[1] = get_api(second)(AMP_API_VERSION);
    ck_assert_ptr_ne((void *)(uintptr_t)api[0], (void *)(uintptr_t)api[1]);
    ck_assert_int_eq(api[1]->initialize(&setups[1].model, NULL, AMP_O1), AMP_OK);
    ck_assert_int_eq(heard, 1);
    calls_once(slot, AMP_FLOAT16);

    /* the one below first: it leaves the slot, which is the other's, and says so */
    ck_assert_int_eq(api[0]->shutdown(setups[0].model.amp), AMP_ERR_SLOT_TAKEN);
    calls_once(slot, AMP_FLOAT16);
    ck_assert_int_eq(api[1]->shutdown(setups[1].model.amp), AMP_OK);
    calls_once(slot, AMP_FLOAT32);

    /* over what that left, and now the upper one first */
    ck_assert_int_eq(api[0]->initialize(&setups[0].model, NULL, AMP_O1), AMP_OK);
    ck_assert_int_eq(heard, 2);
    ck_assert_int_eq(api[1]->initialize(&setups[1].model, NULL, AMP_O1), AMP_OK);
    calls_once(slot, AMP_FLOAT16);
    ck_assert_int_eq(api[1]->shutdown(setups[1].model.amp), AMP_OK);
    calls_once(slot, AMP_FLOAT16);
    ck_assert_int_eq(api[0]->shutdown(setups[0].model.amp), AMP_OK);
    calls_once(slot, AMP_FLOAT32);

    slot = counted_linear; /* a slot of its own: every pointer is put back */
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(api[round]->initialize(&setups[round].model, NULL, AMP_O1), AMP_OK);
        ck_assert_int_eq(api[!round]->initialize(&setups[!round].model, NULL, AMP_O1), AMP_OK);
        ck_assert_int_eq(api[!round]->shutdown(setups[!round].model.amp), AMP_OK);
        ck_assert_int_eq(api[round]->shutdown(setups[round].model.amp), AMP_OK);
        ck_assert(slot == counted_linear);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return EXIT_FAILURE;
    library = argv[1];
    return suite_run();
}
