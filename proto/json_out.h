/* json_out.h: writing JSON into a buffer, value after value, without a tree in between: what a
 * stream writes for each token costs no allocation.
 *
 *     struct sl_json_out w = {b};
 *     sl_out_open(&w, '{');  sl_out_key(&w, "n");  sl_out_uint(&w, 3);  sl_out_close(&w, '}');
 *
 * The writer keeps the commas; that brackets and keys match is the caller's business (and the
 * tests'). Strings are valid UTF-8, but in sl_out_bytes(). */
#ifndef SLATE_PROTO_JSON_OUT_H
#define SLATE_PROTO_JSON_OUT_H

#include "proto/request.h"

struct sl_json_out {
    struct sl_buf *b;
    bool comma; /* one comes before the next key or value */
};

void sl_out_open(struct sl_json_out *w, char bracket);  /* '{' or '[' */
void sl_out_close(struct sl_json_out *w, char bracket); /* '}' or ']' */
void sl_out_key(struct sl_json_out *w, const char *key);
void sl_out_key_text(struct sl_json_out *w, const char *key, size_t n);
void sl_out_text(struct sl_json_out *w, const char *s, size_t n);
size_t sl_out_length(const char *s, size_t n);         /* of such a text, without its quotes */
void sl_out_str(struct sl_json_out *w, const char *s); /* NULL: null */
/* Any bytes, at most SL_TOKEN_BYTES_MAX: what is not UTF-8 becomes U+FFFD. */
void sl_out_bytes(struct sl_json_out *w, const unsigned char *s, size_t n);
void sl_out_uint(struct sl_json_out *w, uint64_t u);
void sl_out_int(struct sl_json_out *w, int64_t i);
void sl_out_bool(struct sl_json_out *w, bool v);
void sl_out_null(struct sl_json_out *w);
void sl_out_fixed(struct sl_json_out *w, double d, int digits); /* not finite: null */
void sl_out_float(struct sl_json_out *w, float f);              /* round-trips; not finite: null */
void sl_out_raw(struct sl_json_out *w, const char *json, size_t n); /* a whole value */

#endif
