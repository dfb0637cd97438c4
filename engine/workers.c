/* workers.c: fork and join, some hundred times a step, among threads that mostly spin.
 *
 * One word, `calls`, counts the calls. The caller writes fn and arg, adds one, and works on part 0;
 * a worker that sees the word change works on its part and takes one off `pending`; the caller
 * returns when that is zero. A waiter (a worker for `calls`, the caller for `pending`) first spins
 * for SPIN_NS, which covers the gap between two calls of a step, then sleeps on the word with a
 * futex: a wake-up through the kernel costs as much as a whole small call, but an idle engine, or
 * one whose worker was put aside by the system, must not burn a core. With more threads than
 * processors spinning only keeps the others from running, so nobody spins then.
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
    SPINS_PER_LOOK = 32 /* pauses between two looks at the clock */
};

/* A futex word and whether somebody sleeps on it. Each on a cache line of its own. */
struct word {
    alignas(SL_ALIGN) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct worker {
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
    struct worker *workers; /* n_threads - 1 */
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

/* Returns the value once it is another than `old`. */
static uint32_t wait_for_change(struct word *word, uint32_t old, int64_t spin_ns)
{
    uint32_t v = atomic_load_explicit(&word->value, memory_order_acquire);
    if (v != old)
        return v;
    int64_t end = spin_ns > 0 ? now_ns() + spin_ns : 0;
    while (spin_ns > 0 && now_ns() < end) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            v = atomic_load_explicit(&word->value, memory_order_acquire);
            if (v != old)
                return v;
            pause_briefly();
        }
    }
    atomic_fetch_add(&word->sleepers, 1);
    while ((v = atomic_load(&word->value)) == old)
        futex(&word->value, FUTEX_WAIT, old);
    atomic_fetch_sub(&word->sleepers, 1);
    return v;
}

static void *worker_main(void *arg)
{
    const struct worker *me = arg;
    struct sl_workers *w = me->w;
    uint32_t call = 0;
    for (;;) {
        call = wait_for_change(&w->calls, call, w->spin_ns);
        if (!w->fn)
            return NULL;
        w->fn(w->arg, me->part, w->n_threads);
        if (atomic_fetch_sub(&w->pending.value, 1) == 1)
            wake(&w->pending);
    }
}

static void call_workers(struct sl_workers *w, sl_work_fn *fn, void *arg)
{
    w->fn = fn;
    w->arg = arg;
    atomic_store_explicit(&w->pending.value, (uint32_t)w->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add(&w->calls.value, 1);
    wake(&w->calls);
}

void sl_workers_run(struct sl_workers *w, sl_work_fn *fn, void *arg)
{
    assert(fn);
    w->n_calls++;
    if (w->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    call_workers(w, fn, arg);
    fn(arg, 0, w->n_threads);
    uint32_t left = atomic_load_explicit(&w->pending.value, memory_order_acquire);
    while (left != 0)
        left = wait_for_change(&w->pending, left, w->spin_ns);
}

size_t sl_workers_threads(const struct sl_workers *w)
{
    return w->n_threads;
}

uint64_t sl_workers_calls(const struct sl_workers *w)
{
    return w->n_calls;
}

/* Ends and joins the first n workers. */
static void stop(struct sl_workers *w, size_t n)
{
    call_workers(w, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        pthread_join(w->workers[i].thread, NULL);
}

/* Signals are the program's other threads' business. */
static enum sl_code start(struct sl_workers *w, struct sl_error *err)
{
    enum sl_code rc = SL_OK;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (size_t i = 0; i < w->n_threads - 1; i++) {
        w->workers[i] = (struct worker){.w = w, .part = i + 1};
        int e = pthread_create(&w->workers[i].thread, NULL, worker_main, &w->workers[i]);
        if (e != 0) {
            rc = sl_fail(err, SL_E_INTERNAL, "cannot start worker thread %zu of %zu: %s", i + 1,
                         w->n_threads - 1, strerror(e));
            stop(w, i);
            break;
        }
        pthread_setname_np(w->workers[i].thread, "slate-worker");
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
    w->workers = sl_calloc(n_threads - 1, sizeof *w->workers);
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
    stop(w, w->n_threads - 1);
    sl_free(w->workers);
    sl_free(w);
}
