/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of each instruction set. */
#ifndef AMP_KERNELS_ISA_H
#define AMP_KERNELS_ISA_H

#include "kernels/kernels.h"

#define AMP__DECLARE_TABLES(isa, flag) AMP__KERNEL_MAP(AMP__DECLARE_TABLE, isa)
AMP__CPU_MAP(AMP__DECLARE_TABLES)

/* The name of one of them in the files of the instruction set ISA. */
#define AMP__TABLE(group) AMP__TABLE_OF(ISA, group)
#define AMP__TABLE_OF(isa, group) AMP__TABLE_NAME(isa, group)
#define AMP__TABLE_NAME(isa, group) amp__##isa##_##group

#endif
