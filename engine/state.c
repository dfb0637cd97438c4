/* state.c: the slab (session.h): one mapping, a list of free slots, a reference count for each.
 *
 * The list of free slots is an array of their numbers beside the slab and not a chain through the
 * slots: freed memory keeps no pointers that an engine could follow, and taking a slot does not
 * touch its pages. */
#include "slate/session.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/workers.h"

struct sl_slab {
    unsigned char *base;
    size_t map_bytes;
    size_t slot_bytes;
    size_t n_slots;
    size_t n_free;
    uint32_t *free; /* numbers of the free slots; the last one is taken next */
    uint32_t *refs; /* by slot number */
    pthread_t filler;
    bool filling; /* there is one, and what follows */
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop; /* under the lock */
};

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, AT_ONCE = 64 << 20 };

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* The first number after `key` in a small text file of the kernel's; 0 when there is none. */
static uint64_t read_number(const char *path, const char *key)
{
    char text[4096];
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *p = strstr(text, key);
    uint64_t v = 0;
    return p && sscanf(p + strlen(key), " %" SCNu64, &v) == 1 ? v : 0;
}

size_t sl_memory_available(void)
{
    uint64_t machine = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    if (limit && limit < UINT64_MAX / 2) {
        uint64_t left = limit > used ? limit - used : 0;
        if (!machine || left < machine)
            machine = left;
    }
    return machine > SIZE_MAX ? SIZE_MAX : (size_t)machine;
}

static void touch_part(void *arg, size_t part, size_t n_parts)
{
    const struct sl_slab *s = arg;
    size_t i, end;
    sl_work_range(s->map_bytes, HUGE_PAGE, part, n_parts, &i, &end);
    for (; i < end; i += PAGE)
        s->base[i] = 0;
}

/* The system clears each page, which takes seconds for gigabytes: all processors share it. */
static void touch(struct sl_slab *s)
{
    enum { THREADS_MAX = 8 };
    size_t n = sl_processors();
    struct sl_workers *w = NULL;
    if (sl_workers_open(&w, n < THREADS_MAX ? n : THREADS_MAX, NULL)) {
        touch_part(s, 0, 1);
        return;
    }
    sl_workers_run(w, touch_part, s);
    sl_workers_close(w);
}

/* Pages of [from, to) are there afterwards, with what they held. false: this system cannot do that
 * (Linux before 5.14), or has no memory. */
static bool populate(const struct sl_slab *s, size_t from, size_t to)
{
    return madvise(s->base + from, to - from, MADV_POPULATE_WRITE) == 0;
}

enum { SECOND_NS = 1000000000 };

static int64_t used_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

/* Whether it is to go on after so much rest. */
static bool rest(struct sl_slab *s, int64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ns += t.tv_nsec;
    t.tv_sec += ns / SECOND_NS;
    t.tv_nsec = ns % SECOND_NS;
    pthread_mutex_lock(&s->lock);
    while (!s->stop && pthread_cond_timedwait(&s->stopped, &s->lock, &t) == 0)
        continue;
    bool stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

/* Slots may be in use meanwhile: nothing is written. A page that it does not come to (no memory is
 * left) comes when it is used. It would take a whole processor from the engine's threads for
 * seconds, so it rests three times as long as it works; not by a lower priority: the system would
 * put it aside with a lock on the process's memory, and others wait for that. */
static void *fill(void *arg)
{
    enum { REST = 3 };
    struct sl_slab *s = arg;
    for (size_t i = AT_ONCE; i < s->map_bytes; i += HUGE_PAGE) {
        int64_t begin = used_ns();
        if (!populate(s, i, s->map_bytes - i < HUGE_PAGE ? s->map_bytes : i + HUGE_PAGE) ||
            !rest(s, REST * (used_ns() - begin)))
            break;
    }
    return NULL;
}

static bool start_filler(struct sl_slab *s)
{
    sigset_t all, old;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->stopped, &attr);
    (void)pthread_condattr_destroy(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool started = pthread_create(&s->filler, NULL, fill, s) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

/* Slots are taken from the beginning on, and it is ahead of them: a server is not kept from being
 * ready by the clearing of gigabytes that its first thousand sessions will not use. */
static void fill_behind(struct sl_slab *s)
{
    if (s->map_bytes <= AT_ONCE || !populate(s, 0, AT_ONCE)) {
        touch(s);
        return;
    }
    s->filling = start_filler(s);
    if (!s->filling)
        touch(s);
}

static enum sl_code map_slots(struct sl_slab *s, struct sl_error *err)
{
    size_t available = sl_memory_available();
    const double mib = 1024.0 * 1024.0;
    if (available && s->map_bytes > available)
        return sl_fail(err, SL_E_NO_MEMORY,
                       "%zu states of %zu bytes take %.0f MiB, and %.0f MiB are available",
                       s->n_slots, s->slot_bytes, (double)s->map_bytes / mib,
                       (double)available / mib);
    void *p = mmap(NULL, s->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_E_NO_MEMORY, "%zu states of %zu bytes (%.0f MiB): %s", s->n_slots,
                       s->slot_bytes, (double)s->map_bytes / mib, strerror(errno));
    s->base = p;
    (void)madvise(p, s->map_bytes, MADV_HUGEPAGE);
    fill_behind(s);
    return SL_OK;
}

enum sl_code sl_slab_open(struct sl_slab **ret, size_t n_slots, size_t slot_bytes,
                          struct sl_error *err)
{
    enum sl_code c = SL_OK;
    size_t rounded = (slot_bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    if (n_slots < 1 || n_slots > UINT32_MAX || rounded < SL_ALIGN || rounded < slot_bytes ||
        rounded > SIZE_MAX / n_slots)
        return sl_fail(err, SL_E_INVALID_VALUE, "a slab of %zu slots of %zu bytes is not possible",
                       n_slots, slot_bytes);
    struct sl_slab *s = sl_calloc(1, sizeof *s);
    if (s) {
        s->slot_bytes = rounded;
        s->n_slots = n_slots;
        s->map_bytes = rounded * n_slots;
        s->free = sl_calloc(n_slots, sizeof *s->free);
        s->refs = sl_calloc(n_slots, sizeof *s->refs);
    }
    if (!s || !s->free || !s->refs) {
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for the list of %zu slots", n_slots);
        goto out;
    }
    c = map_slots(s, err);
    if (c)
        goto out;
    for (size_t i = 0; i < n_slots; i++)
        s->free[i] = (uint32_t)(n_slots - 1 - i);
    s->n_free = n_slots;
    *ret = s;
    s = NULL;
out:
    sl_slab_close(s);
    return c;
}

void sl_slab_close(struct sl_slab *s)
{
    if (!s)
        return;
    if (s->filling) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->stopped);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->filler, NULL);
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->stopped);
    }
    if (s->base)
        munmap(s->base, s->map_bytes);
    sl_free(s->free);
    sl_free(s->refs);
    sl_free(s);
}

static size_t number_of(const struct sl_slab *s, const void *slot)
{
    size_t offset = (size_t)((const unsigned char *)slot - s->base);
    assert(offset < s->map_bytes && offset % s->slot_bytes == 0);
    return offset / s->slot_bytes;
}

void *sl_slab_take(struct sl_slab *s)
{
    if (!s->n_free)
        return NULL;
    uint32_t i = s->free[--s->n_free];
    assert(s->refs[i] == 0);
    s->refs[i] = 1;
    return s->base + (size_t)i * s->slot_bytes;
}

void sl_slab_ref(struct sl_slab *s, void *slot)
{
    size_t i = number_of(s, slot);
    assert(s->refs[i] > 0 && s->refs[i] < UINT32_MAX);
    s->refs[i]++;
}

void sl_slab_unref(struct sl_slab *s, void *slot)
{
    if (!slot)
        return;
    size_t i = number_of(s, slot);
    assert(s->refs[i] > 0);
    if (--s->refs[i] == 0)
        s->free[s->n_free++] = (uint32_t)i;
}

unsigned sl_slab_refs(const struct sl_slab *s, const void *slot)
{
    return s->refs[number_of(s, slot)];
}

size_t sl_slab_slots(const struct sl_slab *s)
{
    return s->n_slots;
}

size_t sl_slab_used(const struct sl_slab *s)
{
    return s->n_slots - s->n_free;
}

size_t sl_slab_slot_bytes(const struct sl_slab *s)
{
    return s->slot_bytes;
}
