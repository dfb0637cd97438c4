/* tables.h: the kernel tables that dispatch.c chooses from. Private to kernels/. */
#ifndef SLATE_KERNELS_TABLES_H
#define SLATE_KERNELS_TABLES_H

#include "engine/kernels/kernels.h"

extern const struct sl_kernels sl_kernels_ref;
#ifdef __x86_64__
extern const struct sl_kernels sl_kernels_avx2;
extern const struct sl_kernels sl_kernels_avx512;
#endif
#ifdef __aarch64__
extern const struct sl_kernels sl_kernels_neon;
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

#endif
