/* seeded_pth.h: the seeded models (seeded.h) as torch.save() writes them. */
#ifndef SLATE_TESTS_SEEDED_PTH_H
#define SLATE_TESTS_SEEDED_PTH_H

#include "tests/support/seeded.h"

/* A .pth file: a zip archive with one record per tensor, each 64-byte aligned. F32, F16 and BF16
 * only. Ends the program when that fails. */
void seeded_write_pth(const struct seeded *s, const char *path);

#endif
