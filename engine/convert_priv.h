/* convert_priv.h: what deciding what a converted file holds (convert.c) hands to writing its
 * tensors (convert_put.c). Private to libslate. */
#ifndef SLATE_ENGINE_CONVERT_PRIV_H
#define SLATE_ENGINE_CONVERT_PRIV_H

#include "engine/formats/coded.h"
#include "slate/convert.h"

/* A tensor of the file. */
struct sl_conversion_entry {
    const struct sl_tensor *t; /* of the source; NULL: the tokenizer */
    enum sl_conversion_form {
        SL_FORM_VALUES, /* of `type`, in the source's shape */
        SL_FORM_CODES,  /* of `type`, Q8, Q5 or Q4 */
        SL_FORM_SCALES, /* of such codes; quickest to write right behind them */
        SL_FORM_BLOCKS  /* the source's, as they lie */
    } form;
    enum sl_dtype type;
    size_t begin, bytes; /* in the data */
};

/* The element type that it has in the file. */
enum sl_dtype sl_conversion_dtype(const struct sl_conversion_entry *e);
/* What its name has behind the source's; "": nothing. */
const char *sl_conversion_suffix(const struct sl_conversion_entry *e);
/* ret[SL_TENSOR_RANK_MAX]; returns the rank. */
unsigned sl_conversion_shape(const struct sl_conversion_entry *e, size_t *ret);

/* Whether t can become codes of that type: as many to a row as fill whole bytes (sl_code_can()). */
bool sl_conversion_can_code(const struct sl_tensor *t, enum sl_dtype type, size_t n_in);

/* A source's values, where they are none of a quantised type: F32 of blocks and exponents. */
enum sl_dtype sl_conversion_plain(const struct sl_tensor *t);

struct sl_conversion_put {
    const struct sl_tensors *source;
    const unsigned char *tokenizer;
    sl_conversion_sink *sink;
    void *arg;
    struct sl_error *err;
    bool narrowed;    /* set where a value that was written is another number than the source's */
    uint16_t *scales; /* of scales_of, whose codes were written last; NULL: none are kept */
    const struct sl_tensor *scales_of;
};

/* The bytes of one entry. Errors: NO_MEMORY, the sink's. */
SL_NODISCARD enum sl_code sl_conversion_put(struct sl_conversion_put *w,
                                            const struct sl_conversion_entry *e);
void sl_conversion_put_done(struct sl_conversion_put *w);

#endif
