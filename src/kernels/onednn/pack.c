/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in oneDNN's favourite order, by the caller's id and version. Those used longest ago go when room is short;
 * other versions of an id go at once, for the caller has said that they will not come back. */
#include "kernels/onednn/product.h"

#include <stdatomic.h>
#include <stdlib.h>

#define ROOM ((size_t)256 << 20)

struct pack {
    struct pack *next;
    struct pack_name name;
    struct product *product; /* product with the descriptor of the order (counted) */
    atomic_int count;
    size_t bytes;
    uint64_t used;
    void *data;
};

pthread_mutex_t pack_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pack *first;
static size_t total;
static uint64_t calls;

const void *pack_data(const struct pack *pack) { return pack->data; }

void pack_put(struct pack *pack) {
    if (!pack || atomic_fetch_sub(&pack->count, 1) != 1) return;
    product_put(pack->product);
    free(pack->data);
    free(pack);
}

struct pack *pack_find(const struct product *product, const struct pack_name *name) {
    pthread_mutex_lock(&pack_lock);
    struct pack *pack = first;
    while (pack && !(pack->name.id == name->id && pack->name.version == name->version &&
                     pack->name.first == name->first &&
                     dnnl_memory_desc_equal(product_weights(pack->product), product_weights(product))))
        pack = pack->next;
    if (pack) {
        pack->used = ++calls;
        atomic_fetch_add(&pack->count, 1);
    }
    pthread_mutex_unlock(&pack_lock);
    return pack;
}

static struct pack *unlink_at(struct pack **link) {
    struct pack *pack = *link;
    *link = pack->next;
    total -= pack->bytes;
    return pack;
}

static void drop_other_versions(const struct pack_name *name) {
    struct pack **link = &first;
    while (*link)
        if ((*link)->name.id == name->id && (*link)->name.version != name->version) pack_put(unlink_at(link));
        else link = &(*link)->next;
}

static void drop_oldest(void) {
    struct pack **oldest = &first;
    for (struct pack **link = &first; *link; link = &(*link)->next)
        if ((*link)->used < (*oldest)->used) oldest = link;
    pack_put(unlink_at(oldest));
}

static void list_pack(struct pack *pack) {
    pthread_mutex_lock(&pack_lock);
    drop_other_versions(&pack->name);
    if (pack->bytes <= ROOM) {
        while (first && total + pack->bytes > ROOM) drop_oldest();
        pack->used = ++calls;
        atomic_fetch_add(&pack->count, 1);
        pack->next = first;
        first = pack;
        total += pack->bytes;
    }
    pthread_mutex_unlock(&pack_lock);
}

struct pack *pack_make(struct product *product, const struct pack_name *name, const void *b, const int64_t strides[2],
                       int32_t threads, dnnl_status_t *status) {
    const size_t bytes = dnnl_memory_desc_get_size(product_weights(product));
    struct pack *pack = calloc(1, sizeof *pack);
    *status = dnnl_out_of_memory;
    if (!pack) return NULL;
    atomic_init(&pack->count, 1);
    pack->name = *name;
    pack->bytes = bytes;
    pack->product = product;
    product_retain(product);
    pack->data = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    if (pack->data) *status = product_reorder(product, b, strides, pack->data, threads);
    if (*status == dnnl_success) {
        list_pack(pack);
        return pack;
    }
    pack_put(pack);
    return NULL;
}
