/* pack4.h: which bytes of four floats to take, to have those whose bit is set one after another:
 * the operand of the instruction that shuffles bytes, of AVX2 and of NEON. Private to kernels/. */
#ifndef SLATE_KERNELS_PACK4_H
#define SLATE_KERNELS_PACK4_H

#include <stdint.h>

#define L(i) 4 * (i), 4 * (i) + 1, 4 * (i) + 2, 4 * (i) + 3
static const _Alignas(16) uint8_t pack4[16][16] = {
    {0},
    {L(0)},
    {L(1)},
    {L(0), L(1)},
    {L(2)},
    {L(0), L(2)},
    {L(1), L(2)},
    {L(0), L(1), L(2)},
    {L(3)},
    {L(0), L(3)},
    {L(1), L(3)},
    {L(0), L(1), L(3)},
    {L(2), L(3)},
    {L(0), L(2), L(3)},
    {L(1), L(2), L(3)},
    {L(0), L(1), L(2), L(3)},
};
#undef L

#endif
