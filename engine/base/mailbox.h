/* mailbox.h: messages between two threads: a mutex, an intrusive list, one wake-up.
 *
 * The message is part of the thing it speaks of, so posting cannot fail. A message that is posted
 * again before it was taken is still one message: its flags are joined. Flags travel under the
 * lock: what the taker sees in them was true of everything the poster wrote before, and after the
 * poster has posted its last flag it may never touch the thing again.
 *
 * Why not a lock-free list: with a coalescing wake-up such as uv_async_send those can lose one, and
 * the lock is held for a few instructions beside a step of milliseconds. */
#ifndef SLATE_BASE_MAILBOX_H
#define SLATE_BASE_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct sl_mail {
    struct sl_mail *next;
    unsigned flags;
    bool queued;
};

struct sl_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct sl_mail *head;
    struct sl_mail **tail;
    bool poked;
};

/* 0, or an errno. */
int sl_mailbox_init(struct sl_mailbox *mb);
void sl_mailbox_done(struct sl_mailbox *mb);

/* Any thread. Appends m (or joins flags to m's, if it is waiting) and returns true when the mailbox
 * was empty: then the poster wakes the taker, if that does not sleep in sl_mailbox_wait(). */
bool sl_mailbox_post(struct sl_mailbox *mb, struct sl_mail *m, unsigned flags);

/* The taker: the oldest message, its flags in *ret_flags; NULL when there is none. */
struct sl_mail *sl_mailbox_take(struct sl_mailbox *mb, unsigned *ret_flags);

/* The taker: returns once there is a message, or sl_mailbox_poke() was called since the last
 * return. */
void sl_mailbox_wait(struct sl_mailbox *mb);
void sl_mailbox_poke(struct sl_mailbox *mb);

#endif
