/* coded.h: quantised matrices in a converted safetensors file: which of its tensors belong
 * together. Private to libslate.
 *
 *   NAME              I8 [rows, n]      codes of 8 bits, or
 *                     U8 [rows, n / 2]  two codes of 4 bits in a byte, the low four bits first, or
 *                     U8 [rows, n / 8 * 5]: eight codes of 5 bits in five bytes, four of their low
 *                                       four bits and one of their highest
 *   NAME.q8_scales    F16 [rows, ceil(n / 32)], of any of them: one scale for 32 codes of a row
 *   NAME.q4_scales
 *   NAME.q5_scales
 *   NAME.q8_0_blocks  U8 [rows, bytes of a row]: a GGUF file's blocks of that name as they are;
 *   NAME.q4_0_blocks  there is no NAME beside them
 *   NAME.q4_k_blocks
 *   NAME.q6_k_blocks
 *
 * When such a file is opened they become one tensor NAME [rows, n] of dtype Q8, Q5 or Q4, or of
 * blocks. */
#ifndef SLATE_FORMATS_CODED_H
#define SLATE_FORMATS_CODED_H

#include "engine/formats/reader.h"

/* ".q8_scales"; of blocks where those are given. */
const char *sl_coded_suffix(enum sl_dtype type, enum sl_block_type block);

/* All of a sorted list, which is in order of the names again only when it is sorted once more.
 * Errors: FILE_CORRUPT (names the tensor), NO_MEMORY, TOO_LARGE. */
SL_NODISCARD enum sl_code sl_coded_join(struct sl_reader *r);

#endif
