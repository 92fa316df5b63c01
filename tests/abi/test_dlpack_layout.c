/* SPDX-License-Identifier: Apache-2.0 */
/* amp_tensor_view has DLTensor's layout and codes, so that a host may pass a DLTensor. Skipped (77) without DLPack. */
#include "amp_all.h"

#include <stdio.h>

#if !__has_include(<dlpack/dlpack.h>)

int main(void) {
    puts("<dlpack/dlpack.h> is not installed (Debian: libdlpack-dev)");
    return 77;
}

#else

#include <dlpack/dlpack.h>
#include <string.h>

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "size")
#define SAME_FIELD(ours, our_field, theirs, their_field)                                                               \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #their_field);                          \
    SAME_SIZE(((ours *)0)->our_field, ((theirs *)0)->their_field)

SAME_SIZE(amp_tensor_view, DLTensor);
SAME_SIZE(amp_device, DLDevice);
_Static_assert(_Alignof(amp_tensor_view) == _Alignof(DLTensor), "alignment");

#define SAME(field) SAME_FIELD(amp_tensor_view, field, DLTensor, field)
SAME(data);
SAME(device);
SAME(ndim);
SAME(dtype);
SAME(dtype.code);
SAME(dtype.bits);
SAME(dtype.lanes);
SAME(shape);
SAME(strides);
SAME(byte_offset);
SAME_FIELD(amp_tensor_view, device.type, DLTensor, device.device_type);
SAME_FIELD(amp_tensor_view, device.id, DLTensor, device.device_id);

/* The codes that amp.h states in words. */
_Static_assert(kDLInt == 0 && kDLUInt == 1 && kDLFloat == 2 && kDLBfloat == 4, "dtype codes");
_Static_assert(kDLCPU == 1 && kDLCUDA == 2, "device types");

/* The same once more with values, as a host does it: bytes of a DLTensor read through our type. */
int main(void) {
    int64_t shape[] = { 3, 5 }, strides[] = { 5, 1 };
    float elements[15] = { 0 };
    DLTensor theirs;
    memset(&theirs, 0, sizeof theirs);
    theirs.data = elements;
    theirs.device.device_type = kDLCUDA;
    theirs.device.device_id = 7;
    theirs.ndim = 2;
    theirs.dtype.code = kDLBfloat;
    theirs.dtype.bits = 16;
    theirs.dtype.lanes = 1;
    theirs.shape = shape;
    theirs.strides = strides;
    theirs.byte_offset = 64;

    amp_tensor_view ours;
    memcpy(&ours, &theirs, sizeof ours);
    const int same = ours.data == elements && ours.device.type == 2 && ours.device.id == 7 && ours.ndim == 2 &&
                     ours.dtype.code == 4 && ours.dtype.bits == 16 && ours.dtype.lanes == 1 && ours.shape == shape &&
                     ours.strides == strides && ours.byte_offset == 64;
    if (!same) puts("a DLTensor read as amp_tensor_view has other values");
    return same ? 0 : 1;
}

#endif
