/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the state of a trained fake net to FILE and its values to stdout, one "name value..." a line, for readers that
 * are not libamp. */
#include "staterig.h"

int main(int argc, char **argv) {
    static const char odd[] = "b\xc3\xa4r \"q\" \\ \x01";
    static const char *const names[3] = { "weight", odd, "gamma" };
    struct rig rig;
    if (argc != 2) return EXIT_FAILURE;
    rig_init(&rig, FAKE_RETAINS);
    rig.net.params[1].name = odd;
    if (rig_try(&rig, CONFIG(AMP_O2, .window = 3, .backoff = 0.3)) != AMP_OK) return EXIT_FAILURE;
    for (int i = 0; i < 4; i++)
        if (net_train_step(&rig.net, 0.1 + 0.01 * i) != AMP_OK) return EXIT_FAILURE;
    if (amp_state_save(rig.context, argv[1], AMP_STATE_SAFETENSORS) != AMP_OK) {
        fprintf(stderr, "%s\n", amp_last_error());
        return EXIT_FAILURE;
    }
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t n;
    amp_record record = AMP_RECORD_INIT;
    if (amp_master_params(&rig.net.optimizer, masters, 3, &n) != AMP_OK) return EXIT_FAILURE;
    if (amp_get_record(rig.context, 0, &record) != AMP_OK) return EXIT_FAILURE;
    printf("scale\t%a\n", (double)record.scale_after);
    for (size_t k = 0; k < 3; k++) {
        printf("%s\t", names[k]);
        for (int i = 0; i < NET_SIZE; i++) printf("%a ", (double)((const float *)masters[k].data)[i]);
        printf("\n");
    }
    const amp_status status = amp_shutdown(rig.context);
    fake_tape_clear(&rig.host);
    net_destroy(&rig.net);
    fake_destroy(&rig.host);
    return status == AMP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
