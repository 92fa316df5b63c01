/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/self/maps ("from-to rwxp offset major:minor inode ...", one mapping a line) byte by byte, without
 * allocating. */
#include "system/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

struct maps {
    int fd;
    size_t at, filled;
    char bytes[4096];
};

/* -1 at the end. */
static int next_byte(struct maps *maps) {
    if (maps->at == maps->filled) {
        ssize_t n;
        do {
            n = read(maps->fd, maps->bytes, sizeof maps->bytes);
        } while (n < 0 && errno == EINTR);
        if (n <= 0) return -1;
        maps->at = 0;
        maps->filled = (size_t)n;
    }
    return (unsigned char)maps->bytes[maps->at++];
}

static uintptr_t next_hex(struct maps *maps) {
    uintptr_t value = 0;
    for (int c = next_byte(maps);; c = next_byte(maps)) {
        if (c >= '0' && c <= '9') value = value << 4 | (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f') value = value << 4 | (uintptr_t)(c - 'a' + 10);
        else return value;
    }
}

static bool next_mapping(struct maps *maps, struct amp__mapping *mapping) {
    mapping->from = next_hex(maps);
    mapping->to = next_hex(maps);
    const bool readable = next_byte(maps) == 'r', writable = next_byte(maps) == 'w';
    mapping->access = !readable ? AMP__ACCESS_NONE : writable ? AMP__ACCESS_WRITE : AMP__ACCESS_READ;
    (void)next_byte(maps); /* x */
    const bool is_private = next_byte(maps) == 'p';
    (void)next_byte(maps);
    for (int i = 0; i < 3; i++) (void)next_hex(maps); /* offset, device */
    mapping->anonymous = is_private && next_hex(maps) == 0; /* of an inode */
    for (int c = 0; c != '\n';) {
        c = next_byte(maps);
        if (c < 0) return false;
    }
    return true;
}

enum amp__access amp__access_of(const void *address, struct amp__mapping *known) {
    const uintptr_t at = (uintptr_t)address;
    if (at >= known->from && at < known->to) return known->access;

    struct maps maps = { .fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC) };
    if (maps.fd < 0) return AMP__ACCESS_UNKNOWN;
    struct amp__mapping mapping;
    bool any = false, found = false;
    while (!found && next_mapping(&maps, &mapping)) {
        any = true;
        found = at >= mapping.from && at < mapping.to;
    }
    close(maps.fd);
    if (!any) return AMP__ACCESS_UNKNOWN;
    if (!found) return AMP__ACCESS_NONE;
    *known = mapping;
    return mapping.access;
}
