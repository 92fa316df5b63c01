/* SPDX-License-Identifier: Apache-2.0 */
#include "differences.h"

int main(void) {
    const struct {
        const char *name;
        void (*add)(TCase *);
    } parts[] = { { "contexts", add_contexts }, { "casts", add_casts },         { "calls", add_calls },
                  { "scaling", add_scaling },   { "gradients", add_gradients }, { "masters", add_masters },
                  { "messages", add_messages },   { "optimizers", add_optimizers } };
    Suite *suite = suite_create("differences");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        TCase *tcase = tcase_create(parts[i].name);
        parts[i].add(tcase);
        suite_add_tcase(suite, tcase);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
