/* arena.c: see arena.h. */
#include "engine/formats/arena.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"

enum { CHUNK_BYTES = 64 << 10 };

struct sl_arena_chunk {
    struct sl_arena_chunk *next;
    size_t used, room;
    _Alignas(16) unsigned char bytes[];
};

void *sl_arena_alloc(struct sl_arena *a, size_t n)
{
    size_t limit = a->limit ? a->limit : SIZE_MAX / 2;
    if (n > SIZE_MAX / 4)
        return NULL;
    n = (n + 15) / 16 * 16;
    if (n > limit - a->used) {
        a->full = true;
        return NULL;
    }
    struct sl_arena_chunk *c = a->chunks;
    if (!c || n > c->room - c->used) {
        size_t room = n > CHUNK_BYTES ? n : CHUNK_BYTES;
        c = sl_malloc(sizeof *c + room);
        if (!c)
            return NULL;
        c->used = 0;
        c->room = room;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += n;
    a->used += n;
    return memset(p, 0, n);
}

void sl_arena_done(struct sl_arena *a)
{
    for (struct sl_arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        sl_free(c);
    }
    a->chunks = NULL;
    a->used = 0;
}
