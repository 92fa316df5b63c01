/* SPDX-License-Identifier: Apache-2.0 */
#include "digits.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define SPLIT_SEED 1998
#define LARGEST_PIXEL 16
#define LINE_SIZE 1024

/* Where reading stands, for messages. */
struct source {
	gzFile file;
	const char *path;
	int line;
	char *error;
	size_t error_size;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int fail(struct source *src, const char *format, ...)
{
	va_list args;
	int used = snprintf(src->error, src->error_size, "%s:%d: ", src->path,
	                    src->line);

	if (used >= 0 && (size_t)used < src->error_size) {
		va_start(args, format);
		vsnprintf(src->error + used, src->error_size - (size_t)used,
		          format, args);
		va_end(args);
	}
	return -1;
}

/*
 * Reads one line: 1, or 0 at the end of the file, or -1.  A compressed file
 * that was cut off still gives a part of its last line, so the state of the
 * stream counts too.
 */
static int read_line(struct source *src, char *text, size_t size)
{
	const char *got = gzgets(src->file, text, (int)size);
	int code = Z_OK;
	const char *reason = gzerror(src->file, &code);

	src->line++;
	if (code != Z_OK && code != Z_STREAM_END)
		return fail(src, "cannot read: %s", reason);
	return got != NULL;
}

/* One number from 0 to max, followed by `end`; moves *text behind it. */
static int parse_number(struct source *src, char **text, int max, char end,
                        const char *what)
{
	char *stop = *text;
	long value = -1;

	if (**text >= '0' && **text <= '9')
		value = strtol(*text, &stop, 10);
	if (value < 0 || value > max || *stop != end)
		return fail(src, "column %s: expected a whole number, 0 to %d",
		            what, max);
	*text = stop + (end != '\0');
	return (int)value;
}

static int parse_line(struct source *src, char *text, float *pixels,
                      int *label)
{
	char what[16];

	text[strcspn(text, "\r\n")] = '\0';
	for (int i = 0; i < DIGITS_PIXELS; i++) {
		int value;

		snprintf(what, sizeof(what), "%d", i + 1);
		value = parse_number(src, &text, LARGEST_PIXEL, ',', what);
		if (value < 0)
			return -1;
		pixels[i] = (float)value / LARGEST_PIXEL;
	}
	*label = parse_number(src, &text, DIGITS_CLASSES - 1, '\0', "label");
	return *label < 0 ? -1 : 0;
}

static int read_all(struct source *src, struct digits *d)
{
	char text[LINE_SIZE];
	int status;

	for (int i = 0; i < DIGITS_COUNT; i++) {
		status = read_line(src, text, sizeof(text));
		if (status == 0)
			return fail(src, "the file ends early: expected %d "
			                 "lines",
			            DIGITS_COUNT);
		if (status < 0 ||
		    parse_line(src, text, d->pixels[i], &d->label[i]) != 0)
			return -1;
	}
	/* Reading on also makes zlib verify the checksum. */
	status = read_line(src, text, sizeof(text));
	if (status > 0)
		return fail(src, "expected the end of the file after %d lines",
		            DIGITS_COUNT);
	return status;
}

static void shuffle(int *order, int n, uint64_t seed)
{
	mt_rng rng = {seed};

	for (int i = n - 1; i > 0; i--) {
		int j = mt_rng_below(&rng, i + 1);
		int kept = order[i];

		order[i] = order[j];
		order[j] = kept;
	}
}

/* -1 when some digit has too few images. */
static int split(struct digits *d)
{
	int order[DIGITS_COUNT];
	int taken[DIGITS_CLASSES] = {0};
	int n_train = 0, n_test = 0;

	for (int i = 0; i < DIGITS_COUNT; i++)
		order[i] = i;
	shuffle(order, DIGITS_COUNT, SPLIT_SEED);
	for (int i = 0; i < DIGITS_COUNT; i++) {
		int *count = &taken[d->label[order[i]]];

		if (*count < DIGITS_TEST / DIGITS_CLASSES) {
			++*count;
			d->test[n_test++] = order[i];
		} else if (n_train < DIGITS_TRAIN) {
			d->train[n_train++] = order[i];
		}
	}
	return n_test == DIGITS_TEST ? 0 : -1;
}

struct digits *digits_load(const char *path, char *error, size_t error_size)
{
	struct source src = {
		.path = path, .error = error, .error_size = error_size};
	struct digits *d = malloc(sizeof(*d));
	int status;

	if (!d) {
		fail(&src, "out of memory");
		return NULL;
	}
	src.file = gzopen(path, "rb");
	if (!src.file) {
		snprintf(error, error_size, "%s: %s (the images: --data)",
		         path, strerror(errno));
		free(d);
		return NULL;
	}
	status = read_all(&src, d);
	gzclose(src.file);
	if (status == 0 && split(d) != 0)
		status = fail(&src, "expected at least %d images of each digit",
		              DIGITS_TEST / DIGITS_CLASSES);
	if (status != 0) {
		free(d);
		return NULL;
	}
	return d;
}

int digits_batch(const struct digits *digits, const int *indices, int n,
                 mt_tensor **images, mt_tensor **labels)
{
	int shape[] = {n, 1, DIGITS_SIDE, DIGITS_SIDE};
	mt_tensor *x = mt_tensor_new(MT_F32, 4, shape, MT_MEM_OTHER);
	mt_tensor *y = mt_tensor_new(MT_I32, 1, shape, MT_MEM_OTHER);

	if (!x || !y) {
		mt_release(x);
		mt_release(y);
		return -1;
	}
	for (int i = 0; i < n; i++) {
		float *to = (float *)x->storage->data + i * DIGITS_PIXELS;

		memcpy(to, digits->pixels[indices[i]],
		       sizeof(digits->pixels[0]));
		mt_set(y, (size_t)i, digits->label[indices[i]]);
	}
	*images = x;
	*labels = y;
	return 0;
}

void digits_epoch_start(struct digits_epoch *epoch,
                        const struct digits *digits, int batch, uint64_t seed)
{
	epoch->digits = digits;
	epoch->batch = batch;
	epoch->next = 0;
	memcpy(epoch->order, digits->train, sizeof(epoch->order));
	shuffle(epoch->order, DIGITS_TRAIN, seed);
}

int digits_epoch_next(struct digits_epoch *epoch, mt_tensor **images,
                      mt_tensor **labels)
{
	int at = epoch->next;
	int left = DIGITS_TRAIN - at;
	int n = left < epoch->batch ? left : epoch->batch;

	if (n <= 0)
		return 0;
	epoch->next += n;
	return digits_batch(epoch->digits, epoch->order + at, n, images,
	                    labels) == 0
	               ? 1
	               : -1;
}

const char *beside_program(char *path, size_t size, const char *name) {
    const ssize_t length = readlink("/proc/self/exe", path, size);
    char *slash = length > 0 && (size_t)length < size ? memrchr(path, '/', (size_t)length) : NULL;
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= size) return name;
    strcpy(slash + 1, name);
    return path;
}
