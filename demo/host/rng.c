/* SPDX-License-Identifier: Apache-2.0 */
/* SplitMix64: one word of state, any seed good, equal on every machine. */
#include "minitape.h"

#include <math.h>

uint64_t mt_rng_next(mt_rng *rng)
{
	uint64_t z = rng->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

float mt_rng_uniform(mt_rng *rng)
{
	/* 24 bits: every value is exact in a float, and none rounds to 1. */
	return (float)(mt_rng_next(rng) >> 40) * 0x1p-24F;
}

float mt_rng_normal(mt_rng *rng)
{
	const double two_pi = 6.283185307179586;
	/* 1 - u is never zero, so the logarithm is finite. */
	double u = 1.0 - (double)mt_rng_uniform(rng);
	double v = (double)mt_rng_uniform(rng);

	return (float)(sqrt(-2.0 * log(u)) * cos(two_pi * v));
}

int mt_rng_below(mt_rng *rng, int bound)
{
	/* The bias of the remainder is below 2^-33 for an int bound. */
	return (int)(mt_rng_next(rng) % (uint64_t)bound);
}
