// SPDX-License-Identifier: GPL-2.0-only
/* Forwarding once more, for captures. */
#define RW_CAPTURING 1
#include "forward/forward.bpf.c"
