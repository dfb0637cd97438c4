/* safetensors_plain.h: a header as programs write it, read without a tree of JSON values. Private
 * to the safetensors reader.
 *
 * A snapshot of a small state is a header and little more, and building a tree of its values takes
 * longer than copying a state of megabytes. This reader takes a header that holds nothing unusual:
 * names of printable ASCII without escapes, entries of exactly dtype, shape and data_offsets in any
 * order, plain decimal integers, metadata whose values are ASCII with the short escapes. What is
 * anything else, wrong or only rare, is not for it: then the real JSON parser decides, and words
 * the complaint. So this one only has to be right when it says yes. */
#ifndef SLATE_FORMATS_SAFETENSORS_PLAIN_H
#define SLATE_FORMATS_SAFETENSORS_PLAIN_H

#include "engine/formats/reader.h"

/* One tensor as the header describes it; nothing is checked against the file. */
struct sl_safetensors_entry {
    const char *name; /* name_n bytes and a NUL */
    size_t name_n;
    enum sl_dtype dtype;
    unsigned rank;
    size_t shape[SL_TENSOR_RANK_MAX];
    size_t begin, end; /* in the data */
};

struct sl_safetensors_visitor {
    enum sl_code (*tensor)(void *arg, const struct sl_safetensors_entry *e);
    enum sl_code (*meta)(void *arg, const char *key, size_t key_n, const char *value,
                         size_t value_n);
    void *arg;
};

/* Whether the n bytes are such a header; *ret_n_tensors as many as it has. */
bool sl_safetensors_is_plain(const char *s, size_t n, size_t *ret_n_tensors);

/* Tells v of everything in a header that is plain, in its order, until v fails. `scratch` has room
 * for n bytes. */
SL_NODISCARD enum sl_code sl_safetensors_plain_read(const char *s, size_t n, char *scratch,
                                                    const struct sl_safetensors_visitor *v);

#endif
