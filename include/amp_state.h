/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: what libamp knows and the host's own checkpoint does not.
 */
#ifndef AMP_STATE_H
#define AMP_STATE_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/*
 * What libamp knows and the host's own checkpoint does not: per loss scaler its state, the configuration, and in FP32
 * the values that the optimizers update, under the parameters' names: masters where there are masters, else the
 * parameters. The host saves its model and its optimizer as ever, and loads them before or after, in any order: where
 * the model's 16-bit parameter is the rounded master, the master stays. So a resumed run is the uninterrupted one, bit
 * for bit. docs/guide/checkpoints.md has the format, what happens at another level, and the limits.
 *
 * All four functions may be called outside brackets and steps only, by the thread whose business those are, and while
 * no other thread runs this context's ops (AMP_ERR_WRONG_STATE where libamp can see it). AMP_ERR_UNSUPPORTED: this
 * libamp was built without a JSON library (Meson option `json`).
 */

/* The form of a state. */
typedef int32_t amp_state_format;
enum {
    AMP_STATE_SAFETENSORS = 0, /* everything, readable with the safetensors package */
    AMP_STATE_APEX = 1         /* scales alone: {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 12}, ...} */
};

/* Replace the file at `path` as a whole: a reader, or a machine that loses power, finds the old file or the new one. On
 * an error the old file is as it was and no other is left. (One exception, said in the message: the new file is in
 * place but its folder could not be synced.) Takes in first what the host changed in its parameters
 * (amp_masters_reconcile); who wrote masters since the last step calls amp_masters_write_back before, for a master that
 * is not what its parameter shows would be taken from there. Links are followed. A replaced file keeps its permissions
 * (0777), and owner and group where this process may give files away; else a warning event says whose it is now. Nobody
 * but its owner can read it before all is written. AMP_ERR_IO, AMP_ERR_NOT_FOUND: the path; AMP_ERR_CONFLICT: two
 * parameters have one name. */
AMP_API AMP_MUST_CHECK amp_status amp_state_save(amp_context *context, const char *path, amp_state_format format);

/* The same into `capacity` bytes at `data`; *size is what was written. With data NULL and capacity 0 it is what would
 * be. A buffer that is too small is AMP_ERR_INVALID_ARGUMENT, with nothing written. */
AMP_API AMP_MUST_CHECK amp_status amp_state_save_memory(amp_context *context, amp_state_format format, void *data,
                                                        size_t capacity, size_t *size);

/*
 * Load a state of either format, checked as a whole before anything changes. Masters become the file's values, and the
 * parameters the same values rounded to their present type. The file and the context must agree on names and shapes of
 * what is trained (AMP_ERR_CONFLICT names what does not; Apex's form has scales alone). Scalers of the same mode take
 * the file's state, brought within the present limits; settings stay as they are configured now. What differs, the
 * level for one, comes as a warning event and a line of amp_explain. AMP_ERR_BAD_FILE: damaged, hostile, or no state of
 * libamp's; AMP_ERR_IO, AMP_ERR_NOT_FOUND: the path. Memory: at most 64 times the header, which is at most 100 MB, and
 * for files once the masters.
 */
AMP_API AMP_MUST_CHECK amp_status amp_state_load(amp_context *context, const char *path);
AMP_API AMP_MUST_CHECK amp_status amp_state_load_memory(amp_context *context, const void *data, size_t size);

/* The same of a state in parts: `n` files, each saved by the rank of a sharded optimizer (AMP_OPTIMIZER_SHARDED) that
 * had those parameters, by any number of ranks. Values of parameters that this context lists without updating them are
 * taken too, so that each rank has the whole model; moments of others' are left out. Parts of different saves are
 * AMP_ERR_CONFLICT: one parameter in two of them, or other loss scalers than the first part's. As many files are open
 * at a time. amp_mpi_state_load (amp_mpi_shard.h) finds them by itself. */
AMP_API AMP_MUST_CHECK amp_status amp_state_load_parts(amp_context *context, const char *const *paths, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* AMP_STATE_H */
