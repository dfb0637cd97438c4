/* base.h: the words that every other public header of libslate needs.
 *
 * Element types of tensors, the library's version, a few attributes. Nothing here allocates and
 * everything may be called from any thread. */
#ifndef SLATE_BASE_H
#define SLATE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_VERSION "0.1.0"

#define SL_NODISCARD __attribute__((warn_unused_result))
#define SL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Slots of states and rows of activations start on a cache line. */
#define SL_ALIGN 64

/* Element types, named as safetensors names them. SL_DTYPE_NONE: "not given", as a wish
 * "as the file has it". */
enum sl_dtype {
    SL_DTYPE_NONE = 0,
    SL_DTYPE_F64,
    SL_DTYPE_F32,
    SL_DTYPE_F16,
    SL_DTYPE_BF16,
    SL_DTYPE_I64,
    SL_DTYPE_I32,
    SL_DTYPE_I16,
    SL_DTYPE_I8,
    SL_DTYPE_U8,
    SL_DTYPE_BOOL,
    SL_DTYPE_COUNT,
    /* How a model's matrices can be kept besides: integers of 8, 5 and 4 bits with a scale for
     * every 32 inputs of an output. Of the tensors of files those that `slate convert` wrote so. */
    SL_DTYPE_Q8 = SL_DTYPE_COUNT,
    SL_DTYPE_Q5, /* what the head is kept as where the rest is Q4 */
    SL_DTYPE_Q4,
    SL_DTYPE_Q4_0, /* 4 bits in even steps, as GGUF files have them */
    SL_DTYPE_Q4_K, /* GGUF's blocks of 256 with scales of 6 bits for 32, and minima */
    SL_DTYPE_Q6_K, /* likewise, with scales of 8 bits for 16 */
    SL_DTYPE_KINDS
};

/* Bytes of one element; 0 for SL_DTYPE_NONE, and where elements share scales. */
size_t sl_dtype_size(enum sl_dtype t);

/* "F32", "BF16", …; "none" for SL_DTYPE_NONE. Static storage. */
const char *sl_dtype_name(enum sl_dtype t);

#endif
