/* embedded.c: where embedded_data.S has put the default model. */
#include "engine/models/embedded.h"

extern const unsigned char sl_embedded_model[], sl_embedded_model_end[];
extern const unsigned char sl_embedded_vocab[], sl_embedded_vocab_end[];
extern const unsigned char sl_embedded_probe[], sl_embedded_probe_end[];

const void *sl_embedded_model_data(size_t *ret_n)
{
    *ret_n = (size_t)(sl_embedded_model_end - sl_embedded_model);
    return sl_embedded_model;
}

const void *sl_embedded_vocab_data(size_t *ret_n)
{
    *ret_n = (size_t)(sl_embedded_vocab_end - sl_embedded_vocab);
    return sl_embedded_vocab;
}

const void *sl_embedded_probe_data(size_t *ret_n)
{
    *ret_n = (size_t)(sl_embedded_probe_end - sl_embedded_probe);
    return sl_embedded_probe;
}
