/* snapshot_values_avx2.c: see snapshot_loops.h. Empty where processors have no AVX2. */
#ifdef __AVX2__
#define SL_LOOPS sl_snapshot_loops_avx2
#include "engine/snapshot_loops.h"
#else
typedef int sl_no_avx2_loops_here;
#endif
