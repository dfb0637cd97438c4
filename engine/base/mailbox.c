/* mailbox.c: see mailbox.h. */
#include "engine/base/mailbox.h"

#include <assert.h>

int sl_mailbox_init(struct sl_mailbox *mb)
{
    int rc = pthread_mutex_init(&mb->lock, NULL);
    if (rc)
        return rc;
    rc = pthread_cond_init(&mb->filled, NULL);
    if (rc) {
        pthread_mutex_destroy(&mb->lock);
        return rc;
    }
    mb->head = NULL;
    mb->tail = &mb->head;
    mb->poked = false;
    return 0;
}

void sl_mailbox_done(struct sl_mailbox *mb)
{
    pthread_cond_destroy(&mb->filled);
    pthread_mutex_destroy(&mb->lock);
}

bool sl_mailbox_post(struct sl_mailbox *mb, struct sl_mail *m, unsigned flags)
{
    pthread_mutex_lock(&mb->lock);
    bool was_empty = !mb->head;
    if (m->queued) {
        m->flags |= flags;
    } else {
        m->next = NULL;
        m->flags = flags;
        m->queued = true;
        *mb->tail = m;
        mb->tail = &m->next;
    }
    pthread_mutex_unlock(&mb->lock);
    if (was_empty)
        pthread_cond_signal(&mb->filled);
    return was_empty;
}

struct sl_mail *sl_mailbox_take(struct sl_mailbox *mb, unsigned *ret_flags)
{
    pthread_mutex_lock(&mb->lock);
    struct sl_mail *m = mb->head;
    if (m) {
        assert(m->queued);
        mb->head = m->next;
        if (!mb->head)
            mb->tail = &mb->head;
        m->queued = false;
        *ret_flags = m->flags;
    }
    pthread_mutex_unlock(&mb->lock);
    return m;
}

void sl_mailbox_wait(struct sl_mailbox *mb)
{
    pthread_mutex_lock(&mb->lock);
    while (!mb->head && !mb->poked)
        pthread_cond_wait(&mb->filled, &mb->lock);
    mb->poked = false;
    pthread_mutex_unlock(&mb->lock);
}

void sl_mailbox_poke(struct sl_mailbox *mb)
{
    pthread_mutex_lock(&mb->lock);
    mb->poked = true;
    pthread_mutex_unlock(&mb->lock);
    pthread_cond_signal(&mb->filled);
}
