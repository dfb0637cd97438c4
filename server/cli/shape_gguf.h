/* shape_gguf.h: the models of shape.h as llama.cpp reads them. Any thread. */
#ifndef SLATE_SERVER_CLI_SHAPE_GGUF_H
#define SLATE_SERVER_CLI_SHAPE_GGUF_H

#include "server/cli/shape.h"

/* Writes the n bytes of a file that sl_shape_file() made to `path`, as GGUF: matrices in F16,
 * vectors (and what llama.cpp's converter keeps so too) in F32, values unchanged. The vocabulary's
 * texts are "t0", "t1", …. A file that is there is replaced; after a failure nothing of it is left.
 * Errors: IO, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_shape_gguf(const struct sl_shape *s, const unsigned char *file,
                                        size_t n, const char *path, struct sl_error *err);

#endif
