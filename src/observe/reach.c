/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that only a device can read, copied to where it can be looked at: strided tensors alone, the rest is counted
 * there. Copies wait for the device, in observed iterations alone; where a graph is being captured there are none. */
#include "context/devices.h"
#include "context/parts.h"
#include "observe/observe.h"

bool amp__observe_find(const amp_context *context, amp_device device, const void *memory, struct amp__place **place) {
    struct amp__devices *devices = amp__devices_of(context);
    amp_device where = device;
    *place = NULL;
    if (device.type != AMP__DEVICE_SERVED && amp__places_where(devices, memory, &where) != AMP_OK)
        return false;
    if (amp__is_device(where)) *place = amp__place_on(devices, where);
    return *place || !amp__is_device(where);
}

bool amp__observe_reach(const struct amp__place *place, const void **memory, uint64_t bytes, void **copy) {
    bool capturing = true;
    *copy = NULL;
    if (!place) return true;
    if (amp__place_capturing(place, &capturing) != AMP_OK || capturing) return false;
    void *block = amp__alloc_aligned((size_t)bytes);
    if (!block || amp__place_out(place, block, *memory, bytes) != AMP_OK) {
        amp__free(block);
        return false;
    }
    *memory = *copy = block;
    return true;
}
