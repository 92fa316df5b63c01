/* SPDX-License-Identifier: Apache-2.0 */
/* Linux, with any C library: what another system answers in a file of its own. */
#include "system/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- mappings: /proc/self/maps ("from-to rwxp offset major:minor inode ...", one a line), byte by byte, without
 * allocating ---- */

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

/* ---- pages ---- */

uintptr_t amp__page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

/* The system may ignore the advice. */
bool amp__pages_give(uintptr_t begin, uintptr_t end) {
    if (mprotect((void *)begin, end - begin, PROT_NONE)) return false;
    return !madvise((void *)begin, end - begin, MADV_DONTNEED) || (amp__pages_take(begin, end), false);
}

bool amp__pages_take(uintptr_t begin, uintptr_t end) {
    return !mprotect((void *)begin, end - begin, PROT_READ | PROT_WRITE);
}

/* ---- processors, caches, threads ---- */

int32_t amp__processors(void) {
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
    return (int32_t)sysconf(_SC_NPROCESSORS_ONLN); /* more than a cpu_set_t holds */
}

long amp__last_cache_bytes(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? bytes : sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
    return -1;
#endif
}

bool amp__thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < AMP_COUNT(own); i++) sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

const char *amp__trusted_getenv(const char *name) { return secure_getenv(name); }

/* ---- loaded objects ---- */

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

/* The name of the program is "" with one C library, and with another argv[0], which is anybody's word. */
static bool is_program(const struct dl_phdr_info *object) {
    return (uintptr_t)object->dlpi_phdr == getauxval(AT_PHDR);
}

struct search {
    struct amp__copies *found;
    bool own, other, program; /* program: this copy is in it */
};

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
    search->program |= own && is_program(object);
    snprintf(own ? search->found->own : search->found->other, sizeof search->found->own, "%s",
             is_program(object) || !object->dlpi_name ? "the program itself" : object->dlpi_name);
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

const char *amp__own_file(char *path, size_t size) {
    struct amp__copies found = { "", "" };
    struct search search = { .found = &found };
    (void)dl_iterate_phdr(inspect_object, &search);
    /* in a setuid or similar program the caller may have hard-linked the binary into a folder they control */
    if (search.program && getauxval(AT_SECURE))
        return "The program runs with more rights than its caller, so that its folder is not searched. ";
    const ssize_t length = search.program ? readlink("/proc/self/exe", found.own, sizeof found.own - 1) : -1;
    if (length > 0) found.own[length] = '\0';
    const bool whole = strlen(found.own) < sizeof found.own - 1 && strlen(found.own) < size;
    if (*found.own != '/' || !whole)
        return "libamp itself was loaded by a relative path, so that its folder is not searched. ";
    memcpy(path, found.own, strlen(found.own) + 1);
    return NULL;
}

/* ---- libraries ---- */

/* Returns true if the end of an ELF file is missing. dlopen would map it, and the process would die of SIGBUS at the
 * first access there. Linkers write the section headers last. For a file that is not ELF dlopen itself reports the
 * fault. */
static bool is_cut_off(int fd, uint64_t bytes) {
    ElfW(Ehdr) head;
    const bool is_elf = pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
        !memcmp(head.e_ident, ELFMAG, SELFMAG);
    return is_elf && head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize > bytes;
}

/* NULL, or why dlopen cannot handle the file, such as a pipe, on which it waits for ever. */
static const char *find_fault(const char *file) {
    struct stat info;
    const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL; /* dlopen says why */
    const bool plain = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const bool cut_off = plain && is_cut_off(fd, (uint64_t)info.st_size);
    close(fd);
    if (!plain) return "it is no plain file. Remove it.";
    return cut_off ? "its end is missing. Install it again." : NULL;
}

void *amp__library_open(const char *file, char *why, size_t size) {
    const char *fault = find_fault(file);
    if (fault) return snprintf(why, size, "%s", fault), NULL;
    dlerror();
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    fault = library ? NULL : dlerror();
    if (!library)
        snprintf(why, size, "%s. Install the libraries that it needs, or remove it.",
                 fault ? fault : "no reason given");
    return library;
}

amp_fn amp__library_function(void *library, const char *name) {
    union { /* POSIX: the result of dlsym converts to a function pointer */
        void *object;
        amp_fn function;
    } symbol = { dlsym(library, name) };
    return symbol.function;
}

bool amp__library_is_loaded(const char *name) {
    void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    return library && !dlclose(library);
}

/* ---- files ---- */

ptrdiff_t amp__write_quietly(int fd, const char *data, size_t bytes) {
    sigset_t pipe, before, waiting;
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    if (sigpending(&waiting) || pthread_sigmask(SIG_BLOCK, &pipe, &before)) return -1;
    /* a SIGPIPE that waited already is not ours */
    const ssize_t done = write(fd, data, bytes);
    if (done < 0 && errno == EPIPE && !sigismember(&waiting, SIGPIPE))
        (void)sigtimedwait(&pipe, NULL, &(struct timespec){ 0 });
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return done;
}

int amp__nameless_open(int folder, unsigned mode) {
    return openat(folder, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
}

bool amp__nameless_link(int fd, int folder, const char *name) {
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, folder, name, AT_SYMLINK_FOLLOW) == 0;
}

void amp__random(uint64_t *number) { (void)!getrandom(number, sizeof *number, GRND_NONBLOCK); }

uint64_t amp__process_number(void) { return (uint64_t)getpid(); }
