/* SPDX-License-Identifier: Apache-2.0 */
/* A part of tests/hosts/tape/test_minitape_ops.c: its cases on a device. */

/*
 * The processor's results and the device's, for the same inputs. What is made element by element has the same bits.
 * Sums differ by their order: n terms in float by n * 2^-24 times the sum of their sizes at most, which is n * n *
 * 2^-24 times the largest; n is 360 at most (the pixels of "many tiles"), and no result here is smaller, in its
 * largest element, than its terms. That is 2^-7; a bf16 that was rounded the other way is 2^-8 off.
 */
static int is_sum(const char *name) {
    static const char *const sums[] = { "conv2d", "linear", "batch_norm", "global_avg_pool", "nll_loss" };
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        if (strncmp(name, sums[i], strlen(sums[i])) == 0) return 1;
    return 0;
}

static void check_same(const char *name, mt_tensor *there, mt_tensor *here) {
    float values[MAX_VALUES], got[MAX_VALUES];
    double largest = 0.0;
    ck_assert_int_eq(there->storage->device, MT_CUDA);
    ck_assert_int_eq(there->dtype, here->dtype);
    ck_assert_int_eq(mt_same_shape(there, here), 1);
    ck_assert_uint_le(mt_numel(here), MAX_VALUES);
    mt_read(here, values);
    mt_read(there, got);
    for (size_t i = 0; i < mt_numel(here); i++) largest = fmax(largest, fabs((double)values[i]));
    for (size_t i = 0; i < mt_numel(here); i++) {
        double a = (double)got[i], b = (double)values[i];
        double granted = is_sum(name) ? 0x1p-7 * largest : 0.0;
        ck_assert_msg(fabs(a - b) <= granted, "%s [%zu]: %g, not %g", name, i, a, b);
    }
}

static void run_on(mt_device where, const struct op_case *c, mt_tensor **in, mt_dtype dtype, mt_tensor **out) {
    mt_tensor *wide[MAX_INPUTS], *weights, *loss;
    mt_rng rng = { 5 };
    device = where;
    make_inputs(c, wide);
    lower_inputs(c, wide, in, dtype);
    *out = c->apply(in);
    ck_assert_msg(*out != NULL, "%s: %s", c->name, mt_error());
    /* Gradients that differ: batch norm's of equal ones are 0. */
    weights = new_tensor(dtype, (*out)->ndim, (*out)->shape);
    for (size_t i = 0; i < mt_numel(weights); i++) mt_set(weights, i, (double)mt_rng_normal(&rng));
    loss = ops->mul(*out, weights);
    if (c->n_grad > 0) ck_assert_int_eq(mt_backward_seed(loss, 0.5f), 0);
    mt_release(loss);
    mt_release(weights);
    release_all(wide, c->n);
    device = DEVICE;
}

TEST_TIMES(results_are_the_processors, 2 * N_CASES) {
    const struct op_case *c = &cases[_i / 2];
    mt_dtype dtype = _i % 2 ? MT_BF16 : MT_F32;
    mt_tensor *here[MAX_INPUTS], *there[MAX_INPUTS], *a, *b;
    run_on(MT_CPU, c, here, dtype, &a);
    run_on(MT_CUDA, c, there, dtype, &b);
    check_same(c->name, b, a);
    for (int i = 0; i < c->n_grad; i++) check_same(c->name, there[i]->grad, here[i]->grad);
    mt_release(a);
    mt_release(b);
    release_all(here, c->n);
    release_all(there, c->n);
    check_nothing_held(c->name);
}

TEST(two_devices_are_refused) {
    mt_tensor *x = new_tensor(MT_F32, 1, (int[]){ 3 }), *y;
    device = MT_CPU;
    y = new_tensor(MT_F32, 1, (int[]){ 3 });
    device = DEVICE;
    ck_assert_ptr_null(ops->add(x, y));
    ck_assert_ptr_nonnull(strstr(mt_error(), "on cuda"));
    ck_assert_int_eq(mt_copy(x, y), -1);
    ck_assert_ptr_nonnull(strstr(mt_error(), "two devices"));
    mt_release(x);
    mt_release(y);
}

TEST(a_target_that_is_no_class_gives_a_nan) {
    mt_tensor *x = new_tensor(MT_F32, 2, (int[]){ 2, 3 });
    mt_tensor *target = new_tensor(MT_I32, 1, (int[]){ 2 }), *loss;
    mt_set(target, 1, 3);
    loss = ops->nll_loss(x, target);
    ck_assert_double_nan(mt_get(loss, 0));
    mt_release(loss);
    mt_release(target);
    mt_release(x);
}

static int open_device(void) {
    const char *why = minitape_fake_open();
    if (why)
        fprintf(stderr, "%s\n", why);
    else
        minitape_fake.amp->lazy = 1;
    return why ? -1 : 0;
}
