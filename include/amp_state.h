/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of libamp's state, beside the checkpoints of the host.
 */
#ifndef AMP_STATE_H
#define AMP_STATE_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/*
 * A state holds the loss scalers, the configuration and, by parameter name, the FP32 values that the optimizers update:
 * masters, or parameters without masters. The host saves and loads its model and optimizer as before, in any order: if
 * a 16-bit parameter is the rounded master, the master stays. A resumed run equals the uninterrupted one bit for bit.
 * docs/guide/checkpoints.md has the format, the rules for another level, and the limits.
 *
 * Call these functions outside brackets and steps, on the thread that opens them, while no other thread runs ops of
 * this context (AMP_ERR_WRONG_STATE if libamp detects it). AMP_ERR_UNSUPPORTED: this libamp was built without JSON
 * (Meson option `json`).
 */

/* The format of a state. */
typedef int32_t amp_state_format;
enum {
    AMP_STATE_SAFETENSORS = 0, /* everything, readable with the safetensors package */
    AMP_STATE_APEX = 1         /* loss scalers only: {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 12}, ...} */
};

/* Writes a state to the file at `path`, atomically: readers, also after a power failure, find the old file or the new
 * one. On an error the old file is unchanged and no other file is left (except if the folder could not be synced, as
 * the message then says). Masters first take changes of parameters by the host, as by amp_masters_reconcile. After
 * writing masters call amp_masters_write_back before this, or those changes are lost. Links are followed. A replaced
 * file keeps its rwx permissions, and its owner and group if the process may set them; else a warning event names the
 * new owner. Only the owner can read the file while it is written. AMP_ERR_IO, AMP_ERR_NOT_FOUND: a fault of the path.
 * AMP_ERR_CONFLICT: two parameters have the same name. */
AMP_API AMP_MUST_CHECK amp_status amp_state_save(amp_context *context, const char *path, amp_state_format format);

/* The same into `capacity` bytes at `data`, with the number of bytes in *size. data NULL and capacity 0 measure it.
 * AMP_ERR_INVALID_ARGUMENT: the buffer is too small; nothing is written. */
AMP_API AMP_MUST_CHECK amp_status amp_state_save_memory(amp_context *context, amp_state_format format, void *data,
                                                        size_t capacity, size_t *size);

/*
 * Loads a state of either format, after checking all of it. Masters get the values of the file, parameters the same
 * values rounded to their type. Names and shapes of trained parameters must agree (AMP_ERR_CONFLICT lists the
 * differences; the Apex format has no parameters). Scalers of the same mode take the state of the file, limited to the
 * present bounds; settings stay. Differences such as another level are reported as a warning event and in amp_explain.
 * AMP_ERR_BAD_FILE: damaged, hostile, or no state of libamp. AMP_ERR_IO, AMP_ERR_NOT_FOUND: a fault of the path.
 * Memory: at most 64 times the header, which has at most 100 MB, and for files once the masters.
 */
AMP_API AMP_MUST_CHECK amp_status amp_state_load(amp_context *context, const char *path);
AMP_API AMP_MUST_CHECK amp_status amp_state_load_memory(amp_context *context, const void *data, size_t size);

/* Loads a state saved in `n` parts, one by each rank of a sharded optimizer (AMP_OPTIMIZER_SHARDED); the number of
 * ranks may differ now. Each rank gets the values of all its parameters, also of those that it does not update, and the
 * moments of those that it updates. AMP_ERR_CONFLICT: the parts are of different saves (a parameter in two of them, or
 * different loss scalers). All `n` files are open at once. amp_mpi_state_load (amp_mpi_shard.h) finds the files
 * itself. */
AMP_API AMP_MUST_CHECK amp_status amp_state_load_parts(amp_context *context, const char *const *paths, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* AMP_STATE_H */
