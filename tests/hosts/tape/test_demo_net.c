/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's network and data, in plain f32 or 16 bits throughout. */
#include "digits.h"
#include "net.h"

#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static const char *data_path;

/* ---- the network ---- */

static void convert_net(struct net *net, mt_dtype dtype) {
    for (int i = 0; i < net->n_list; i++) {
        mt_tensor *t = net->list[i].tensor;
        size_t n = mt_numel(t);
        mt_storage *s;
        if (net->list[i].is_norm || t->dtype == dtype) continue;
        s = mt_storage_new(n * mt_dtype_size(dtype), MT_MEM_PARAMETER);
        mt_convert(dtype, s->data, t->dtype, t->storage->data, n);
        mt_storage_free(mt_tensor_swap_storage(t, s, dtype));
    }
}

/* Most bytes of activations during one step of training. */
static size_t step_peak(mt_dtype dtype) {
    mt_tensor *x = mt_tensor_new(dtype, 4, (int[]){ 32, 1, 8, 8 }, MT_MEM_OTHER);
    mt_tensor *labels = mt_tensor_new(MT_I32, 1, (int[]){ 32 }, MT_MEM_OTHER);
    mt_rng rng = { 3 };
    struct net net;
    mt_tensor *loss;
    size_t peak;
    for (size_t i = 0; i < mt_numel(x); i++) mt_set(x, i, (double)mt_rng_normal(&rng));
    ck_assert_int_eq(net_init(&net, mt_ops_default(), 1), 0);
    net.dropout = 0.1f;
    convert_net(&net, dtype);
    mt_mem_reset_peak();
    loss = mt_then(x, net.forward(&net, x));
    loss = mt_then(loss, net_loss(&net, loss, labels));
    ck_assert_msg(loss != NULL, "%s", mt_error());
    ck_assert_int_eq(mt_backward(loss), 0);
    peak = mt_mem_peak(MT_MEM_ACTIVATION);
    for (int i = 0; i < net.n_list; i++) {
        const mt_tensor *t = net.list[i].tensor;
        ck_assert_int_eq(t->grad == NULL, net.list[i].is_buffer);
        ck_assert(!t->grad || t->grad->dtype == t->dtype);
    }
    mt_release(loss);
    mt_release(labels);
    net_done(&net);
    for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
    return peak;
}

TEST(sixteen_bits_halve_the_activations) {
    double wide = (double)step_peak(MT_F32);
    ck_assert_double_le((double)step_peak(MT_F16), 0.55 * wide);
    ck_assert_double_le((double)step_peak(MT_BF16), 0.55 * wide);
}

TEST(tensors_are_listed_by_name) {
    mt_tensor *params[NET_TENSORS];
    struct net net;
    ck_assert_int_eq(net_init(&net, mt_ops_default(), 1), 0);
    ck_assert_int_eq(net.n_list, NET_TENSORS);
    ck_assert_str_eq(net.list[0].name, "conv1.weight");
    ck_assert_str_eq(net.list[3].name, "bn1.running_mean");
    ck_assert(net.list[3].is_norm && net.list[3].is_buffer);
    ck_assert_str_eq(net.list[NET_TENSORS - 1].name, "head.bias");
    ck_assert_uint_eq(net_params(&net, params), NET_TENSORS - 2 * NET_CONVS);
    net_done(&net);
}

TEST(a_failing_operator_fails_the_network) {
    mt_tensor *wrong = mt_tensor_new(MT_F32, 4, (int[]){ 2, 3, 8, 8 }, MT_MEM_OTHER);
    struct net net;
    ck_assert_int_eq(net_init(&net, mt_ops_default(), 1), 0);
    ck_assert_ptr_null(net.forward(&net, wrong));
    ck_assert_ptr_nonnull(strstr(mt_error(), "3 channels"));
    mt_release(wrong);
    net_done(&net);
    ck_assert_uint_eq(mt_mem_now(MT_MEM_ACTIVATION), 0);
}

/* ---- the data ---- */

TEST(digits_are_split_evenly) {
    char error[256] = "";
    struct digits *d = digits_load(data_path, error, sizeof(error));
    int seen[DIGITS_COUNT] = { 0 }, per_class[DIGITS_CLASSES] = { 0 };
    ck_assert_msg(d != NULL, "%s", error);
    for (int i = 0; i < DIGITS_TRAIN; i++) seen[d->train[i]]++;
    for (int i = 0; i < DIGITS_TEST; i++) {
        seen[d->test[i]]++;
        per_class[d->label[d->test[i]]]++;
    }
    for (int i = 0; i < DIGITS_COUNT; i++) ck_assert_int_eq(seen[i], 1);
    for (int i = 0; i < DIGITS_CLASSES; i++) ck_assert_int_eq(per_class[i], DIGITS_TEST / DIGITS_CLASSES);
    ck_assert_float_eq(d->pixels[0][2], 5.0f / 16.0f);
    free(d);
}

TEST(an_epoch_serves_every_image_once) {
    char error[256] = "";
    struct digits *d = digits_load(data_path, error, sizeof(error));
    struct digits_epoch one, two;
    mt_tensor *x, *y;
    int served = 0, batches = 0, status;
    ck_assert_msg(d != NULL, "%s", error);
    digits_epoch_start(&one, d, 32, 9);
    digits_epoch_start(&two, d, 32, 10);
    ck_assert_int_ne(memcmp(one.order, two.order, sizeof(one.order)), 0);
    while ((status = digits_epoch_next(&one, &x, &y)) == 1) {
        served += y->shape[0];
        batches++;
        mt_release(x);
        mt_release(y);
    }
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(served, DIGITS_TRAIN);
    ck_assert_int_eq(batches, (DIGITS_TRAIN + 31) / 32);
    free(d);
}

/* Loads a file of this content and expects the error to contain `part`. */
static void check_bad_file(const void *content, size_t size, const char *part) {
    char path[] = "/tmp/digits-XXXXXX";
    char error[256] = "";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq((int)write(fd, content, size), (int)size);
    close(fd);
    ck_assert_ptr_null(digits_load(path, error, sizeof(error)));
    unlink(path);
    ck_assert_msg(strstr(error, path) != NULL, "no path: %s", error);
    ck_assert_msg(strstr(error, part) != NULL, "\"%s\" lacks \"%s\"", error, part);
}

TEST(bad_files_are_explained) {
    unsigned char buffer[100000];
    char error[256] = "";
    FILE *file = fopen(data_path, "rb");
    size_t size;
    ck_assert_ptr_nonnull(file);
    size = fread(buffer, 1, sizeof(buffer), file);
    fclose(file);
    check_bad_file(buffer, size / 2, "cannot read");
    check_bad_file(buffer, size - 4, "cannot read");
    check_bad_file("", 0, ":1: the file ends early");
    check_bad_file("1,2,17,", 7, ":1: column 3: expected a whole number");
    check_bad_file("1,2\n", 4, "column 2");
    ck_assert_ptr_null(digits_load("/nowhere", error, sizeof(error)));
    ck_assert_ptr_nonnull(strstr(error, "No such file"));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s digits.csv.gz\n", argv[0]);
        return EXIT_FAILURE;
    }
    data_path = argv[1];
    return suite_run();
}
