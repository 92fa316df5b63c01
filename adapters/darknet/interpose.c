/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdarknet.so calls darknet's functions by name through its PLT, and so does the program: preloaded, the entries of
 * route.c come first, which lead here where darknet's were meant. These are the fewest that see everything:
 * train_network*, network_predict*, load_weights and save_weights end in them, and every product of every layer is a
 * gemm_cpu.
 */
#include "adapter.h"

#include <amp_call.h>
#include <amp_diagnostics.h>
#include <amp_state.h>
#include <amp_train.h>

#include <dlfcn.h>
#include <unistd.h>

/* ---- what comes behind us ---- */

static void *search(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function)
        stop("%s: libdarknet.so was here, and is gone", name);
    return function;
}

/* The next definition of `function`, by its own type. */
#define NEXT(function)                                                                                                 \
    __extension__({                                                                                                    \
        static __typeof__(&function) next_one;                                                                         \
        if (!__atomic_load_n(&next_one, __ATOMIC_RELAXED))                                                             \
            __atomic_store_n(&next_one, (__typeof__(&function))search(#function), __ATOMIC_RELAXED);                   \
        next_one;                                                                                                      \
    })

bool darknet_has(const char *name) { return dlsym(RTLD_DEFAULT, name) != NULL; }

/* ---- passes ---- */

static _Thread_local struct wired *current; /* the network whose pass runs on this thread */

gemm_fn gemm_cpu; /* it is not in darknet.h */
gemm_fn ours_gemm_cpu;

gemm_fn *darknet_gemm(void) { return NEXT(gemm_cpu); }

void ours_gemm_cpu(int TA, int TB, int M, int N, int K, float ALPHA, float *A, int lda, float *B, int ldb,
                     float BETA, float *C, int ldc) {
    gemm_fn *product = current ? product_of(current, A, B, C) : darknet_gemm();
    product(TA, TB, M, N, K, ALPHA, A, lda, B, ldb, BETA, C, ldc);
}

columns_fn im2col_cpu, col2im_cpu; /* neither are these */
columns_fn ours_im2col_cpu, ours_col2im_cpu;

void ours_im2col_cpu(float *image, int channels, int height, int width, int ksize, int stride, int pad,
                       float *columns) {
    columns_fn *function = options()->fast ? im2col : NEXT(im2col_cpu);
    function(image, channels, height, width, ksize, stride, pad, columns);
}

void ours_col2im_cpu(float *columns, int channels, int height, int width, int ksize, int stride, int pad,
                       float *image) {
    columns_fn *function = options()->fast ? col2im : NEXT(col2im_cpu);
    function(columns, channels, height, width, ksize, stride, pad, image);
}

__typeof__(forward_network) ours_forward_network, ours_backward_network, ours_update_network;
__typeof__(save_weights_upto) ours_save_weights_upto;
__typeof__(load_weights_upto) ours_load_weights_upto;
__typeof__(free_layer) ours_free_layer;

/* One pass over a network. In a scope weights are packed once for all images of the batch. */
static void pass(struct wired *w, network *net, void (*function)(network *)) {
    struct wired *outer = current;
    amp_scope scope;
    must(amp_scope_enter(w->model.amp, &scope), "a pass");
    current = w;
    function(net);
    current = outer;
    must(amp_scope_leave(&scope), "a pass");
}

void ours_forward_network(network *net) {
    if (!options()->on) {
        NEXT(forward_network)(net);
        return;
    }
    struct wired *w = enter(net);
    pass(w, net, NEXT(forward_network));
    must(amp_check(w->model.amp), "forward_network");
    leave(w);
}

static void multiply(float *values, int n, float factor) {
    if (!values || factor == 1) return;
    for (int i = 0; i < n; i++) values[i] *= factor;
}

/*
 * What backward starts from stands in the layers' deltas: forward has cleared them all, then cost, softmax, yolo and
 * their like wrote theirs, or the program did. So all of them are multiplied, and net->delta too, where a program
 * collects the gradient of its input. Afterwards they are divided, so that the program sees what it would see.
 */
static void scale_deltas(network *net, float factor) {
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        const bool shared = i > 0 && l->delta == net->layers[i - 1].delta; /* dropout works in place */
        if (!shared) multiply(l->delta, l->outputs * l->batch * (l->steps > 0 ? l->steps : 1), factor);
    }
    multiply(net->delta, net->inputs * net->batch, factor);
}

void ours_backward_network(network *net) {
    if (!options()->on) {
        NEXT(backward_network)(net);
        return;
    }
    struct wired *w = enter(net);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    must(amp_scale_loss_begin(&w->optimizer, NULL, &scaled), "backward_network");
    const float factor = amp_seed_factor(&scaled);
    scale_deltas(net, factor);
    w->backward = true;
    pass(w, net, NEXT(backward_network));
    w->backward = false;
    must(amp_scale_loss_end(&scaled), "backward_network");
    scale_deltas(net, 1 / factor);
    leave(w);
}

void ours_update_network(network *net) {
    if (!options()->on) {
        NEXT(update_network)(net);
        return;
    }
    struct wired *w = enter(net);
    amp_step_info info = AMP_STEP_INFO_INIT;
    must(amp_step_begin(&w->optimizer, &info), "update_network");
    if (info.action == AMP_STEP) NEXT(update_network)(net);
    must(amp_step_end(&w->optimizer), "update_network");
    leave(w);
}

/* ---- weights: the loss scale lies beside them ---- */

static void name_state(char *path, size_t size, const char *weights) {
    if ((size_t)snprintf(path, size, "%s.amp.json", weights) >= size) stop("%s: the name is too long", weights);
}

void ours_save_weights_upto(network *net, char *filename, int cutoff) {
    char path[4096];
    if (!options()->on) {
        NEXT(save_weights_upto)(net, filename, cutoff);
        return;
    }
    struct wired *w = enter(net);
    name_state(path, sizeof path, filename);
    NEXT(save_weights_upto)(net, filename, cutoff);
    const amp_status status = amp_state_save(w->model.amp, path, AMP_STATE_APEX);
    if (status == AMP_ERR_UNSUPPORTED) tell("the loss scale is not saved: %s", amp_last_error());
    else must(status, "save_weights");
    leave(w);
}

void ours_load_weights_upto(network *net, char *filename, int start, int cutoff) {
    char path[4096];
    if (!options()->on) {
        NEXT(load_weights_upto)(net, filename, start, cutoff);
        return;
    }
    struct wired *w = enter(net);
    name_state(path, sizeof path, filename);
    NEXT(load_weights_upto)(net, filename, start, cutoff);
    must(amp_masters_reconcile(w->model.amp), "load_weights");
    if (access(path, F_OK) == 0) must(amp_state_load(w->model.amp, path), "load_weights");
    leave(w);
}

void ours_free_layer(layer l) {
    if (options()->on) unwire_layer(&l);
    NEXT(free_layer)(l);
}
