/* workers.c: fork and join, some hundred times a step, among threads that mostly spin.
 *
 * One word, `calls`, counts the calls. The caller writes fn and arg, adds one, and works on part 0;
 * a worker that sees the word change takes its part, works on it and takes one off `pending`; the
 * caller returns when that is zero. A part that its worker has not taken shortly after the caller
 * is done with its own, because the system does not let the worker run, is the caller's.
 *
 * A waiter (a worker for `calls`, the caller for `pending`) first spins for SPIN_NS, which covers
 * the gap between two calls of a step, then sleeps on the word with a futex: a wake-up through the
 * kernel costs as much as a whole small call, but an idle engine, or one whose worker was put aside
 * by the system, must not burn a core. With more threads than processors spinning only keeps the
 * others from running, so nobody spins then.
 *
 * Nobody spins long, either, where the system has put a waiter and whom it waits for on one
 * processor, as it does while another program has the next one: each wait would begin with SPIN_NS
 * in which nothing can come, and a step take six times as long. Whoever spun in vain FAILURES_MAX
 * times running sleeps after BRIEF_NS for the next SKIPS_MIN waits, then tries again; each time
 * that fails for twice as many, up to SKIPS_MAX. Whatever comes while it spins ends that.
 *
 * Sleeping and waking: the sleeper announces itself, then looks at the word again (the kernel does,
 * inside the wait); the waker changes the word, then looks for announced sleepers. All four are
 * sequentially consistent, so at least one of the two sees the other. */
#include "engine/workers.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"

enum {
    SPIN_NS = 50000,
    BRIEF_NS = 2000,
    SPINS_PER_LOOK = 32, /* pauses between two looks at the clock */
    FAILURES_MAX = 3,
    SKIPS_MIN = 32, /* a third of a step's waits */
    SKIPS_MAX = 1024
};

/* A futex word and whether somebody sleeps on it. Each on a cache line of its own. */
struct word {
    alignas(SL_ALIGN) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

/* A waiter's own. */
struct patience {
    unsigned failures;    /* spins in vain since one that was not */
    unsigned skips, next; /* waits that spin briefly; how many after the next failure */
};

/* What a waiter waits for: that a word has this value, or that it has another one. */
struct until {
    uint32_t value;
    bool equal;
};

struct worker {
    /* The last call whose part was taken, by the worker or the caller. */
    alignas(SL_ALIGN) _Atomic uint32_t taken;
    struct sl_workers *w;
    size_t part;
    pthread_t thread;
};

struct sl_workers {
    struct word calls;
    struct word pending;
    /* Written by the caller before `calls` changes. fn NULL: end. */
    alignas(SL_ALIGN) sl_work_fn *fn;
    void *arg;
    size_t n_threads; /* with the caller */
    uint64_t n_calls;
    int64_t spin_ns;
    struct patience patience; /* the caller's */
    struct worker *workers;   /* by part; there is none for 0 */
};

static void futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    /* Every outcome is fine: whoever waits looks at the word again. */
    (void)syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void wake(struct word *word)
{
    if (atomic_load(&word->sleepers) != 0)
        futex(&word->value, FUTEX_WAKE, INT32_MAX);
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool came(struct word *word, struct until u, uint32_t *ret)
{
    *ret = atomic_load_explicit(&word->value, memory_order_acquire);
    return (*ret == u.value) == u.equal;
}

/* Whether it came within that time; the word's value to *ret. */
static bool spin(struct word *word, struct until u, int64_t ns, uint32_t *ret)
{
    int64_t end = now_ns() + ns;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (came(word, u, ret))
                return true;
            pause_briefly();
        }
    } while (now_ns() < end);
    return false;
}

static bool spin_patiently(struct patience *p, struct word *word, struct until u, int64_t ns,
                           uint32_t *ret)
{
    if (spin(word, u, p->skips > 0 ? BRIEF_NS : ns, ret)) {
        *p = (struct patience){.failures = 0};
        return true;
    }
    if (p->skips > 0) {
        p->skips--;
    } else if (++p->failures >= FAILURES_MAX) {
        p->skips = p->next < SKIPS_MIN ? SKIPS_MIN : p->next;
        p->next = 2 * p->skips < SKIPS_MAX ? 2 * p->skips : SKIPS_MAX;
    }
    return false;
}

/* Returns the word's value. */
static uint32_t wait_until(struct patience *p, struct word *word, struct until u, int64_t spin_ns)
{
    uint32_t v;
    if (came(word, u, &v) || (spin_ns > 0 && spin_patiently(p, word, u, spin_ns, &v)))
        return v;
    atomic_fetch_add(&word->sleepers, 1);
    while (((v = atomic_load(&word->value)) == u.value) != u.equal)
        futex(&word->value, FUTEX_WAIT, v);
    atomic_fetch_sub(&word->sleepers, 1);
    return v;
}

/* Whether this thread is the one to work on the part. What the caller wrote before is seen, and
 * stays as it is until that is done. */
static bool take(struct worker *k, uint32_t call)
{
    uint32_t before = call - 1;
    return atomic_load_explicit(&k->taken, memory_order_relaxed) == before &&
           atomic_compare_exchange_strong(&k->taken, &before, call);
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct sl_workers *w = me->w;
    struct patience p = {.failures = 0};
    uint32_t call = 0;
    for (;;) {
        call = wait_until(&p, &w->calls, (struct until){call, false}, w->spin_ns);
        if (!take(me, call))
            continue;
        if (!w->fn)
            return NULL;
        w->fn(w->arg, me->part, w->n_threads);
        if (atomic_fetch_sub(&w->pending.value, 1) == 1)
            wake(&w->pending);
    }
}

/* Returns the call's number. */
static uint32_t call_workers(struct sl_workers *w, sl_work_fn *fn, void *arg)
{
    w->fn = fn;
    w->arg = arg;
    atomic_store_explicit(&w->pending.value, (uint32_t)w->n_threads - 1, memory_order_relaxed);
    uint32_t call = atomic_fetch_add(&w->calls.value, 1) + 1;
    wake(&w->calls);
    return call;
}

/* Works on the parts that nobody has taken, until all are done. */
static void do_untaken(struct sl_workers *w, uint32_t call)
{
    uint32_t left = atomic_load_explicit(&w->pending.value, memory_order_acquire);
    for (size_t part = 1; part < w->n_threads && left > 0; part++) {
        if (take(&w->workers[part], call)) {
            w->fn(w->arg, part, w->n_threads);
            atomic_fetch_sub(&w->pending.value, 1);
        }
        left = atomic_load_explicit(&w->pending.value, memory_order_acquire);
    }
}

void sl_workers_run(struct sl_workers *w, sl_work_fn *fn, void *arg)
{
    const struct until done = {0, true};
    uint32_t left;
    assert(fn);
    w->n_calls++;
    if (w->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    uint32_t call = call_workers(w, fn, arg);
    fn(arg, 0, w->n_threads);
    if (came(&w->pending, done, &left))
        return;
    if (w->spin_ns > 0 && spin(&w->pending, done, BRIEF_NS, &left)) {
        w->patience = (struct patience){.failures = 0};
        return;
    }
    do_untaken(w, call);
    (void)wait_until(&w->patience, &w->pending, done, w->spin_ns);
}

size_t sl_workers_threads(const struct sl_workers *w)
{
    return w->n_threads;
}

uint64_t sl_workers_calls(const struct sl_workers *w)
{
    return w->n_calls;
}

/* Ends and joins the workers of the parts below n. */
static void stop(struct sl_workers *w, size_t n)
{
    (void)call_workers(w, NULL, NULL);
    for (size_t part = 1; part < n; part++)
        pthread_join(w->workers[part].thread, NULL);
}

/* Signals are the program's other threads' business. */
static enum sl_code start(struct sl_workers *w, struct sl_error *err)
{
    enum sl_code rc = SL_OK;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (size_t part = 1; part < w->n_threads; part++) {
        struct worker *k = &w->workers[part];
        k->w = w;
        k->part = part;
        int e = pthread_create(&k->thread, NULL, worker_main, k);
        if (e != 0) {
            rc = sl_fail(err, SL_E_INTERNAL, "cannot start worker thread %zu of %zu: %s", part,
                         w->n_threads - 1, strerror(e));
            stop(w, part);
            break;
        }
        pthread_setname_np(k->thread, "slate-worker");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

size_t sl_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (size_t)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more than the set has room for */
    return n > 0 ? (size_t)n : 1;
}

enum sl_code sl_workers_open(struct sl_workers **ret, size_t n_threads, struct sl_error *err)
{
    if (n_threads < 1 || n_threads > SL_MAX_THREADS)
        return sl_fail(err, SL_E_INVALID_VALUE, "threads: %zu is not in the range 1 to %d",
                       n_threads, SL_MAX_THREADS);
    enum sl_code rc;
    struct sl_workers *w = sl_aligned_calloc(sizeof *w);
    if (!w)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu worker threads", n_threads - 1);
    w->n_threads = n_threads;
    w->spin_ns = n_threads <= sl_processors() ? SPIN_NS : 0;
    w->workers = sl_aligned_calloc(n_threads * sizeof *w->workers);
    if (!w->workers) {
        rc = sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu worker threads", n_threads - 1);
        goto out;
    }
    rc = start(w, err);
    if (rc != SL_OK)
        goto out;
    *ret = w;
    return SL_OK;
out:
    sl_free(w->workers);
    sl_free(w);
    return rc;
}

void sl_workers_close(struct sl_workers *w)
{
    if (!w)
        return;
    stop(w, w->n_threads);
    sl_free(w->workers);
    sl_free(w);
}
