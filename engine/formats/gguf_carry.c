/* gguf_carry.c: see gguf_carry.h.
 *
 *   "GGUF"  u32 3  u64 tensors: 0  u64 keys  the keys, each from its name's length to its value's
 *   last byte, as the file has them (versions 2 and 3 are alike in that) */
#include "engine/formats/gguf_carry.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/gguf.h"

static bool is_carried(const struct sl_gguf_key *k)
{
    static const char prefix[] = "tokenizer.";
    return k->name.n > sizeof prefix - 1 && memcmp(k->name.s, prefix, sizeof prefix - 1) == 0 &&
           !sl_gguf_is(k->name, "tokenizer.chat_template");
}

/* The key in the file; its name's length comes first. */
static const unsigned char *begin_of(const struct sl_gguf_key *k)
{
    return (const unsigned char *)k->name.s - sizeof(uint64_t);
}

enum sl_code sl_gguf_carry(unsigned char **ret, size_t *ret_n, const void *file, size_t n,
                           const char *name, struct sl_error *err)
{
    struct sl_tensors none = {0}; /* parsing adds nothing */
    struct sl_reader r = {.t = &none, .data = file, .n = n, .name = name, .err = err};
    struct sl_gguf g;
    uint32_t version = 3;
    uint64_t n_tensors = 0, n_keys = 0;
    size_t bytes = 4 + sizeof version + sizeof n_tensors + sizeof n_keys, at = 0;
    unsigned char *p = NULL;
    enum sl_code c = sl_gguf_parse(&g, &r);
    for (size_t i = 0; i < g.n_keys && !c; i++)
        if (is_carried(&g.keys[i])) {
            n_keys++;
            bytes += (size_t)(sl_gguf_end(&g.keys[i]) - begin_of(&g.keys[i]));
        }
    if (!c && !(p = sl_malloc(bytes)))
        c = sl_fail(err, SL_E_NO_MEMORY, "%.160s: no memory for its vocabulary", name);
    if (c)
        goto out;
    const struct {
        const void *p;
        size_t n;
    } head[] = {{"GGUF", 4},
                {&version, sizeof version},
                {&n_tensors, sizeof n_tensors},
                {&n_keys, sizeof n_keys}};
    for (size_t i = 0; i < sizeof head / sizeof *head; at += head[i++].n)
        memcpy(p + at, head[i].p, head[i].n);
    for (size_t i = 0; i < g.n_keys; i++)
        if (is_carried(&g.keys[i])) {
            size_t part = (size_t)(sl_gguf_end(&g.keys[i]) - begin_of(&g.keys[i]));
            memcpy(p + at, begin_of(&g.keys[i]), part);
            at += part;
        }
    *ret = p;
    *ret_n = bytes;
out:
    sl_gguf_done(&g);
    return c;
}
