/* SPDX-License-Identifier: Apache-2.0 */
/* Finds other copies of libamp among the loaded objects, by a note that each carries. */
#include "system/copies.h"
#include "system/fork.h"

#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define OWNER "libamp"

/* In assembly: not every gcc gives a section of C the type of a note. Words: bytes of the owner's name with its zero,
 * bytes of the description, type; then both. */
__asm__(".pushsection .note.libamp, \"a\", %note\n\t"
        ".balign 4\n\t"
        ".long 7, 4, 1\n\t"
        ".asciz \"" OWNER "\"\n\t"
        ".balign 4\n\t"
        ".long 0\n\t"
        ".popsection");

static const char here;

struct search {
    struct amp__copies *found;
    bool own, other;
};

static bool has_note(const struct dl_phdr_info *object, const ElfW(Phdr) *segment) {
    const char *at = (const char *)(uintptr_t)(object->dlpi_addr + segment->p_vaddr);
    size_t left = segment->p_memsz;
    ElfW(Nhdr) note;
    while (left >= sizeof note) {
        memcpy(&note, at, sizeof note);
        const size_t align = segment->p_align == 8 ? 8 : 4;
        const size_t name = (sizeof note + note.n_namesz + align - 1) / align * align;
        const size_t all = (name + note.n_descsz + align - 1) / align * align;
        if (all > left || name < sizeof note) return false;
        if (note.n_namesz == sizeof OWNER && !memcmp(at + sizeof note, OWNER, sizeof OWNER)) return true;
        at += all;
        left -= all;
    }
    return false;
}

static int inspect_object(struct dl_phdr_info *object, size_t bytes, void *user) {
    struct search *search = user;
    bool noted = false, own = false;
    (void)bytes;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        const uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD) own |= (uintptr_t)&here - start < segment->p_memsz;
        if (segment->p_type == PT_NOTE) noted |= has_note(object, segment);
    }
    if (!noted) return 0;
    const char *name = object->dlpi_name && *object->dlpi_name ? object->dlpi_name : "the program itself";
    snprintf(own ? search->found->own : search->found->other, sizeof search->found->own, "%s", name);
    *(own ? &search->own : &search->other) = true;
    return 0;
}

bool amp__find_copy(struct amp__copies *found) {
    struct search search = { .found = found };
    /* fork does not free the lock of the loader's list: the child would wait for a thread that only its parent has. */
    if (amp__fork_is_child()) return false;
    dl_iterate_phdr(inspect_object, &search);
    return search.own && search.other;
}
