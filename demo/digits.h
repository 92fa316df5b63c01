/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handwritten digits of examples/data, split for training and test, and
 * served in batches.
 *
 * The split never changes: all images are shuffled with a fixed seed, and
 * the first sixty of each digit are the test.
 */
#ifndef DIGITS_H
#define DIGITS_H

#include "minitape.h"

#define DIGITS_COUNT 1797
#define DIGITS_TEST 600
#define DIGITS_TRAIN (DIGITS_COUNT - DIGITS_TEST)
#define DIGITS_SIDE 8
#define DIGITS_PIXELS (DIGITS_SIDE * DIGITS_SIDE)
#define DIGITS_CLASSES 10

struct digits {
	float pixels[DIGITS_COUNT][DIGITS_PIXELS]; /* 0 to 1 */
	int label[DIGITS_COUNT];
	int train[DIGITS_TRAIN]; /* indices into the above */
	int test[DIGITS_TEST];
};

/*
 * NULL on an error, with what was wrong and where in `error`.  The result is
 * freed with free().
 */
struct digits *digits_load(const char *path, char *error, size_t error_size);

/*
 * A batch of the given images: [n, 1, 8, 8] f32 and their labels, [n] i32.
 * 0, or -1 with a message in mt_error().
 */
int digits_batch(const struct digits *digits, const int *indices, int n,
                 mt_tensor **images, mt_tensor **labels);

/* An epoch of training: every image once, in an order made by the seed. */
struct digits_epoch {
	const struct digits *digits;
	int order[DIGITS_TRAIN];
	int batch;
	int next;
};

void digits_epoch_start(struct digits_epoch *epoch,
                        const struct digits *digits, int batch, uint64_t seed);

/* 1 with a batch (the last one may be smaller), 0 at the end, -1 on error. */
int digits_epoch_next(struct digits_epoch *epoch, mt_tensor **images,
                      mt_tensor **labels);

/* What a program needs lies beside it, so that both can be moved together. */
/* "FOLDER/name" with the folder of this program's file, in `path`; where the system does not say it, or it is too long,
 * the name alone, which is in the current folder. */
const char *beside_program(char *path, size_t size, const char *name);

#endif
