/* safetensors_text.h: putting together a safetensors file's header. Private to libslate.
 *
 * Text that grows up to a limit; the first failure sticks, so that callers ask once, at the end. */
#ifndef SLATE_FORMATS_SAFETENSORS_TEXT_H
#define SLATE_FORMATS_SAFETENSORS_TEXT_H

#include "slate/err.h"

struct sl_header_text {
    char *p; /* sl_free() it */
    size_t n, cap;
    size_t max;        /* bytes */
    enum sl_code code; /* OK, NO_MEMORY, TOO_LARGE */
};

void sl_header_put(struct sl_header_text *t, const char *s, size_t n);
void sl_header_put_text(struct sl_header_text *t, const char *s);
/* A JSON string of valid UTF-8. */
void sl_header_put_quoted(struct sl_header_text *t, const char *s);

/* `,"name":{"dtype":…,"shape":[…],"data_offsets":[begin, begin + bytes]}` */
void sl_header_put_tensor(struct sl_header_text *t, const char *name, enum sl_dtype dtype,
                          unsigned rank, const size_t *shape, size_t begin, size_t bytes);

/* Blanks, so that the data begins at a multiple of 8. */
void sl_header_pad(struct sl_header_text *t);

#endif
