/* arena.h: memory that is freed all at once. Private to engine/formats/.
 *
 * Not thread-safe; a reader owns its arena until it is done. A zeroed struct is an empty arena. */
#ifndef SLATE_FORMATS_ARENA_H
#define SLATE_FORMATS_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct sl_arena_chunk;

struct sl_arena {
    struct sl_arena_chunk *chunks; /* the newest first */
    size_t used;                   /* bytes asked for so far */
    size_t limit;                  /* of `used`; 0: none */
    bool full;                     /* an allocation failed by the limit, not by the system */
};

/* n zeroed bytes, 16-byte aligned; NULL when there is no memory or the limit is reached. */
void *sl_arena_alloc(struct sl_arena *a, size_t n);

void sl_arena_done(struct sl_arena *a);

#endif
