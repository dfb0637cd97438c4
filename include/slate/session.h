/* session.h: the slab, where the states of sessions live.
 *
 * A model's memory of one conversation is one state of fixed size. The slab is one mapping made at
 * start: slots of that size, 64-byte aligned, taken and given back in O(1), reference-counted.
 *
 *   A slot that a session rests in is never written again: a turn works on a copy in a slot of its
 *   own, and the commit puts that slot in the place of the old one. So whoever holds a reference
 *   reads a whole, committed state, and a fork is one more reference.
 *
 * All calls belong to one thread (the server's loop). What is inside a slot belongs to the engine
 * thread while a turn has it. */
#ifndef SLATE_SESSION_H
#define SLATE_SESSION_H

#include "slate/err.h"

struct sl_slab;

/* n_slots × (slot_bytes, rounded up to 64), no more than there is memory for now. The first 64 MiB
 * are resident at return, the rest soon afterwards, in the order in which slots are taken first (by
 * a thread of its own; where the system has no call for it, all at return). Errors: NO_MEMORY (says
 * how much was asked and how much there is), INVALID_VALUE. */
SL_NODISCARD enum sl_code sl_slab_open(struct sl_slab **ret, size_t n_slots, size_t slot_bytes,
                                       struct sl_error *err);
void sl_slab_close(struct sl_slab *s); /* NULL is fine; no slot may be in use by an engine */

/* One reference to a free slot, or NULL when none is free. The contents are undefined. */
void *sl_slab_take(struct sl_slab *s);
void sl_slab_ref(struct sl_slab *s, void *slot);
void sl_slab_unref(struct sl_slab *s, void *slot); /* NULL is fine; the last one frees the slot */
unsigned sl_slab_refs(const struct sl_slab *s, const void *slot);

size_t sl_slab_slots(const struct sl_slab *s);
size_t sl_slab_used(const struct sl_slab *s);
size_t sl_slab_slot_bytes(const struct sl_slab *s);

/* Bytes this process may still allocate: what the machine has available, or what its control
 * group leaves, whichever is less. 0 where it cannot be found out. */
size_t sl_memory_available(void);

#endif
