/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA of the tests: its device's memory is memory that the host may not touch, its kernels are the emulated ones,
 * its calls are counted and can be made to fail. libamp_cuda.so is built with it a second time, so that all of it but
 * nvcc's code runs without a GPU. */
#ifndef AMP_TESTS_CUDA_FAKE_H
#define AMP_TESTS_CUDA_FAKE_H

#include <stddef.h>

struct fake {
    int devices, current;         /* how many there are; the caller's */
    int switches;                 /* calls of cudaSetDevice, each of which makes a primary context current */
    int calls, launches, uploads; /* so far; launches: of kernels */
    int blocks, streams;          /* allocated and not freed; and events */
    int waits;                    /* for a stream or for the device */
    int on_null_stream;           /* work on the legacy default stream */
    int on_wrong_device;          /* work on a stream of another device than the current one */
    int fail_at;                  /* this call fails; 0: none */
    int fail_with;                /* its cudaError_t */
    int last_error;               /* what cudaGetLastError gives */
    int capturing, relaxed;       /* the stream is being captured; this thread may allocate nevertheless */
    int capturing_elsewhere;      /* another thread's stream is */
    int broke_capture;            /* what a capture does not allow was called */
    int pools;                    /* the device allocates in a stream's order */
    int capability;               /* 10 * major + minor; 0: 9.0 */
    float clock;                  /* what events record */
    int event_waits;              /* for an event */
    int lazy;                     /* work runs when somebody waits for it, as late as CUDA allows */
    int allocations, fail_allocation; /* so far, of any memory or event; this one fails; 0: none */
    int sticky;                   /* from fail_at on all calls fail: the device is lost */
    int unbound;                  /* no context is current: the thread has asked nothing that needs one */
    int contexts[2];              /* primary contexts that were made, by device */
    int mapped;                   /* so often had a pool to ask for memory, since it kept none */
    int order;                    /* which work runs first: 0: what came first; else of those streams of libamp's that
                                     overlap with the host's: 1: it all, as far as it need not wait, 2: last */
    int side_joined, side_dirty;  /* such a stream is in the capture; work there that nobody in it waits for */
    int strays;                   /* copies and fills of memory that is nobody's, or was freed before they ran */
};

/* What a test does in the place of a host framework. */
struct fake_tools {
    void *(*alloc)(size_t bytes); /* the current device's: the host may not touch it */
    void (*free)(void *memory);
    void (*copy)(void *dst, const void *src, size_t bytes);
    void (*flush)(void); /* what waits runs */
    void (*capture_begin)(void), (*capture_end)(void); /* work becomes a graph instead of being run */
    void (*replay)(void);
    void (*end)(void); /* all of it is gone */
    void (*work)(void (*run)(const void *arguments), const void *arguments, size_t bytes); /* in the stream's order */
    void *(*stream)(int device);
    void *(*take)(size_t bytes); /* alloc without a pattern written there, which would be at once */
    void *(*managed)(size_t bytes); /* memory that the host may touch as well */
    void (*synchronize)(void); /* somebody waits for the device: what runs has run, and pools give back */
    void (*written)(const void *address, size_t bytes); /* by others than kernels and copies: the emulator asks */
    void (*work_on)(const void *stream, void (*run)(const void *arguments), const void *arguments, size_t bytes);
};

/* Of the plugin that was built with it; by dlsym. */
#define FAKE_SYMBOL_NAME "amp_fake_cuda"
#define FAKE_TOOLS_NAME "amp_fake_cuda_tools"
extern struct fake amp_fake_cuda;
extern const struct fake_tools amp_fake_cuda_tools;

#endif
