/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <string.h>

/*
 * Four floats that gcc and clang keep in one register of whatever machine
 * they compile for.  Left to itself, gcc's vectoriser does not find the
 * block below; written so, it is more than four times as fast.
 */
typedef float lanes __attribute__((vector_size(16)));

static inline lanes load(const float *p)
{
	lanes v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline void add_to(float *p, lanes v)
{
	v += load(p);
	memcpy(p, &v, sizeof(v));
}

/*
 * MTI_ROWS x MTI_COLS sums held in registers: eight of SSE2's sixteen, with
 * room left for a row of b and the broadcast elements of a.
 */
static void block(size_t cols, int depth, const float *a, const int *row_at,
                  const int *depth_at, const float *b, float *c)
{
	const float *row[MTI_ROWS] = {a + row_at[0], a + row_at[1],
	                              a + row_at[2], a + row_at[3]};
	lanes sum[MTI_ROWS][2] = {{{0}}};

	for (int k = 0; k < depth; k++) {
		lanes left = load(b), right = load(b + 4);
		int at = depth_at[k];

		for (int i = 0; i < MTI_ROWS; i++) {
			sum[i][0] += row[i][at] * left;
			sum[i][1] += row[i][at] * right;
		}
		b += cols;
	}
	for (size_t i = 0; i < MTI_ROWS; i++) {
		add_to(c + i * cols, sum[i][0]);
		add_to(c + i * cols + 4, sum[i][1]);
	}
}

void mti_gemm(int rows, int cols, int depth, const float *a,
              const int *row_at, const int *depth_at, const float *b,
              float *c)
{
	size_t stride = (size_t)cols;

	for (int j = 0; j < cols; j += MTI_COLS)
		for (int i = 0; i < rows; i += MTI_ROWS)
			block(stride, depth, a, row_at + i, depth_at, b + j,
			      c + (size_t)i * stride + j);
}
