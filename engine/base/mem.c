/* mem.c: see mem.h. */
#include "engine/base/mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "slate/base.h"

static _Atomic int64_t fail_after = -1;
static _Atomic bool once;
static _Atomic uint64_t count;

/* of this thread's all-or-nothing scope */
static _Thread_local bool in_scope, starved;

static void *given(void *p)
{
    if (!p)
        starved = true;
    return p;
}

void sl_mem_all_or_nothing(void)
{
    in_scope = true;
    starved = false;
}

bool sl_mem_had_all(void)
{
    in_scope = false;
    return !starved;
}

static bool may_allocate(void)
{
    if (in_scope && starved)
        return false;
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    if (left < 0)
        return true;
    if (left == 0) {
        if (atomic_load_explicit(&once, memory_order_relaxed))
            atomic_store_explicit(&fail_after, -1, memory_order_relaxed);
        starved = true;
        return false;
    }
    atomic_store_explicit(&fail_after, left - 1, memory_order_relaxed);
    return true;
}

void sl_mem_fail_after(int64_t n)
{
    atomic_store(&once, false);
    atomic_store(&fail_after, n);
}

void sl_mem_fail_once(int64_t n)
{
    atomic_store(&once, true);
    atomic_store(&fail_after, n);
}

uint64_t sl_mem_count(void)
{
    return atomic_load(&count);
}

void *sl_malloc(size_t n)
{
    return may_allocate() ? given(malloc(n ? n : 1)) : NULL;
}

void *sl_calloc(size_t n, size_t size)
{
    return may_allocate() ? given(calloc(n ? n : 1, size ? size : 1)) : NULL;
}

void *sl_realloc(void *p, size_t n, size_t size)
{
    return may_allocate() ? given(reallocarray(p, n ? n : 1, size ? size : 1)) : NULL;
}

void *sl_aligned_calloc(size_t n_bytes)
{
    if (n_bytes > SIZE_MAX - SL_ALIGN || !may_allocate())
        return NULL;
    size_t n = (n_bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    void *p = given(aligned_alloc(SL_ALIGN, n ? n : SL_ALIGN));
    return p ? memset(p, 0, n) : NULL;
}

void *sl_huge_alloc(size_t n_bytes)
{
    const size_t huge = (size_t)2 << 20;
    if (n_bytes > SIZE_MAX - huge || !may_allocate())
        return NULL;
    size_t align = n_bytes < huge ? SL_ALIGN : huge;
    size_t n = (n_bytes + align - 1) / align * align;
    void *p = given(aligned_alloc(align, n ? n : align));
    /* Advice only: where the system has no huge pages, small ones do. */
    if (p && align == huge)
        (void)madvise(p, n, MADV_HUGEPAGE);
    return p;
}

char *sl_strndup(const char *s, size_t n)
{
    char *p = sl_malloc(n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = '\0';
    }
    return p;
}

char *sl_strdup(const char *s)
{
    return sl_strndup(s, strlen(s));
}

void sl_free(void *p)
{
    free(p);
}
