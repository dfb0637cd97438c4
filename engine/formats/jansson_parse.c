/* jansson_parse.c: see jansson_parse.h.
 *
 * jansson does not check each allocation of its own: where one fails inside a token, it goes on
 * with half a token and then blames the text. So all of a parse's allocations succeed or it has
 * failed. */
#include "engine/formats/jansson_parse.h"

#include "engine/base/mem.h"

json_t *sl_jansson_parse(const char *s, size_t n, size_t flags, json_error_t *ret_error)
{
    sl_mem_all_or_nothing();
    json_t *v = json_loadb(s, n, JSON_REJECT_DUPLICATES | flags, ret_error);
    if (!sl_mem_had_all()) {
        json_decref(v);
        v = NULL;
        ret_error->text[0] = '\0';
    }
    return v;
}
