/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GOLDEN_CALLS_H
#define GOLDEN_CALLS_H

/* Calls the rest of the interface, with the structures that program.c has not, and prints results that the headers
 * promise to the last bit. Returns the exit status. */
int calls(void);

#endif
