// SPDX-License-Identifier: GPL-2.0-only
/* The shield once more, for captures: what it drops is captured with its reason. */
#define RW_CAPTURING 1
#include "shield/shield.bpf.c"
