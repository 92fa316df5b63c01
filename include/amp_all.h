/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All C headers of libamp except amp_symbol.h, which is for some machines only. Include single headers to compile
 * faster and to show the parts in use.
 */
#ifndef AMP_ALL_H
#define AMP_ALL_H

#include "amp.h"
#include "amp_api.h"
#include "amp_call.h"
#include "amp_device.h"
#include "amp_diagnostics.h"
#include "amp_gate.h"
#include "amp_kernels.h"
#include "amp_nccl.h"
#include "amp_observe.h"
#include "amp_optim.h"
#include "amp_pack.h"
#include "amp_ranks.h"
#include "amp_raw.h"
#include "amp_scaler.h"
#include "amp_serve.h"
#include "amp_state.h"
#include "amp_train.h"
#include "amp_types.h"

#endif /* AMP_ALL_H */
