/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's memory and work, as the rest of minitape sees them: a table that
 * whoever opens the device installs.  All work goes to one stream, in the
 * order of the calls, and nothing waits for it but `out` and `wait`.
 */
#ifndef MINITAPE_DEVICE_H
#define MINITAPE_DEVICE_H

#include "internal.h"
#include "launch.h"

struct mti_device {
	const char *name; /* of the hardware */
	void *stream;
	void *(*alloc)(size_t bytes); /* NULL with a message; freed in order */
	void (*free)(void *data);
	/* The rest returns 0, or -1 with a message. */
	int (*in)(void *to, const void *from, size_t bytes);  /* from the host */
	int (*out)(void *to, const void *from, size_t bytes); /* to the host */
	int (*zero)(void *to, size_t bytes);
	int (*wait)(void);
	int (*run)(enum mtk_kernel kernel, const void *args, size_t n);
	mt_product_fn multiply;
};

/* Makes MT_CUDA usable.  The table stays. */
void mti_device_install(const struct mti_device *device);
/* NULL: it has not been opened. */
const struct mti_device *mti_device(void);

static inline int mti_there(const mt_tensor *tensor)
{
	return tensor->storage->device != MT_CPU;
}

static inline struct mtk_ref mti_ref(const mt_tensor *tensor)
{
	struct mtk_ref ref = {tensor ? tensor->storage->data : NULL,
	                      tensor ? (int)tensor->dtype : 0};

	return ref;
}

/*
 * Work that fails is not reported where it is started: results are then
 * worthless, and whoever returns them asks mti_device_failed().
 */
void mti_run(enum mtk_kernel kernel, const void *args, size_t n);
void mti_device_fail(void); /* the message is set */
int mti_device_failed(void);

/* A kernel's arguments at once:
 * MTI_RUN(fill, n, .to = mti_ref(t), .value = 1.0F) */
#define MTI_RUN(kernel, n, ...)                                                \
	do {                                                                   \
		const mtk_args_##kernel args_ = {__VA_ARGS__};                 \
		mti_run(MTK_##kernel, &args_, (n));                            \
	} while (0)

#endif
