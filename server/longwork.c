/* longwork.c: see longwork.h. */
#include "server/longwork.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/mem.h"

enum { LOWER_BY = 10, NICE_MAX = 19 }; /* of nice values: a tenth of the time where it is short */

struct sl_longwork {
    uv_async_t wake;
    pthread_t thread;
    size_t n_jobs; /* not yet done; the loop's own */

    pthread_mutex_t lock; /* over all below */
    pthread_cond_t filled;
    struct sl_long_job *waiting; /* by their turn */
    struct sl_long_job *finished, **finished_end;
    uint64_t turn; /* of the job that was begun last */
    bool stop;
};

/* --- the thread ------------------------------------------------------------------------------ */

/* The next job, or NULL at the end. */
static struct sl_long_job *take(struct sl_longwork *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->waiting && !w->stop)
        pthread_cond_wait(&w->filled, &w->lock);
    struct sl_long_job *j = w->waiting;
    if (j) {
        w->waiting = j->next;
        w->turn = j->turn;
    }
    pthread_mutex_unlock(&w->lock);
    return j;
}

static void give_back(struct sl_longwork *w, struct sl_long_job *j)
{
    j->next = NULL;
    pthread_mutex_lock(&w->lock);
    *w->finished_end = j;
    w->finished_end = &j->next;
    pthread_mutex_unlock(&w->lock);
    uv_async_send(&w->wake);
}

static void *run(void *arg)
{
    struct sl_longwork *w = arg;
    /* Linux knows a priority for each thread. Where it cannot be lowered it stays. */
    int nice = getpriority(PRIO_PROCESS, (id_t)gettid()) + LOWER_BY;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), nice < NICE_MAX ? nice : NICE_MAX);
    for (struct sl_long_job *j; (j = take(w)) != NULL;) {
        j->work(j);
        give_back(w, j);
    }
    return NULL;
}

/* --- the loop -------------------------------------------------------------------------------- */

/* One job fewer. */
static void count_off(struct sl_longwork *w)
{
    if (--w->n_jobs == 0)
        uv_unref((uv_handle_t *)&w->wake);
}

static void on_wake(uv_async_t *wake)
{
    struct sl_longwork *w = wake->data;
    pthread_mutex_lock(&w->lock);
    struct sl_long_job *j = w->finished;
    w->finished = NULL;
    w->finished_end = &w->finished;
    pthread_mutex_unlock(&w->lock);
    while (j) {
        struct sl_long_job *next = j->next;
        count_off(w);
        j->done(j);
        j = next;
    }
}

/* One job more. */
static void count_on(struct sl_longwork *w)
{
    if (w->n_jobs++ == 0)
        uv_ref((uv_handle_t *)&w->wake);
}

static void put_before(struct sl_longwork *w, struct sl_long_job **at, struct sl_long_job *j)
{
    j->next = *at;
    *at = j;
    pthread_cond_signal(&w->filled);
}

void sl_longwork_add(struct sl_longwork *w, struct sl_long_job *j, size_t size)
{
    count_on(w);
    pthread_mutex_lock(&w->lock);
    j->turn = w->turn + size;
    struct sl_long_job **p = &w->waiting;
    while (*p && (*p)->turn <= j->turn)
        p = &(*p)->next;
    put_before(w, p, j);
    pthread_mutex_unlock(&w->lock);
}

void sl_longwork_add_first(struct sl_longwork *w, struct sl_long_job *j)
{
    count_on(w);
    pthread_mutex_lock(&w->lock);
    j->turn = w->turn; /* nobody's who waits is earlier */
    put_before(w, &w->waiting, j);
    pthread_mutex_unlock(&w->lock);
}

bool sl_longwork_remove(struct sl_longwork *w, struct sl_long_job *j)
{
    pthread_mutex_lock(&w->lock);
    struct sl_long_job **p = &w->waiting;
    while (*p && *p != j)
        p = &(*p)->next;
    bool found = *p != NULL;
    if (found)
        *p = j->next;
    pthread_mutex_unlock(&w->lock);
    if (found)
        count_off(w);
    return found;
}

/* --- open and close -------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct sl_longwork *w = h->data;
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->filled);
    sl_free(w);
}

enum sl_code sl_longwork_open(struct sl_longwork **ret, uv_loop_t *loop, struct sl_error *err)
{
    struct sl_longwork *w = sl_calloc(1, sizeof *w);
    if (!w)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the thread of long work");
    w->finished_end = &w->finished;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->filled, NULL);
    int e = uv_async_init(loop, &w->wake, on_wake);
    if (e) {
        sl_free(w);
        return sl_fail(err, SL_E_INTERNAL, "no wake-up for long work: %s", uv_strerror(e));
    }
    w->wake.data = w;
    uv_unref((uv_handle_t *)&w->wake);
    e = pthread_create(&w->thread, NULL, run, w);
    if (e) {
        uv_close((uv_handle_t *)&w->wake, on_closed);
        return sl_fail(err, SL_E_INTERNAL, "no thread for long work: %s", strerror(e));
    }
    *ret = w;
    return SL_OK;
}

void sl_longwork_close(struct sl_longwork *w)
{
    if (!w)
        return;
    assert(w->n_jobs == 0);
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->filled);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    uv_close((uv_handle_t *)&w->wake, on_closed);
}
