/* dispatch.c: which kernel tables there are, and which of them this processor can run.
 *
 * The tables are ordered, best first. The processor is asked on every call: calls are rare (a model
 * is opened), and nothing has to be kept or locked. */
#include <string.h>

#include "engine/kernels/tables.h"

#ifdef __x86_64__
#include <cpuid.h>

static bool has_avx2(void)
{
    unsigned a, b, c = 0, d;
    /* F16C by hand: not every compiler knows it by name here. That the system keeps the vector
     * registers is part of the answer for avx2. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2vnni(void)
{
    enum { AVX_VNNI = 1 << 4 }; /* by hand, likewise */
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f");
}

static bool has_avx512vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef __aarch64__
#include <sys/auxv.h>

static bool has_neon(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0;
}

static bool has_neondot(void)
{
    return has_neon() && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

static bool has_ref(void)
{
    return true;
}

/* X(table): those of this architecture, best first. */
#if defined(__x86_64__)
#define TABLES(X) X(avx512vnni) X(avx512) X(avx2vnni) X(avx2) X(ref)
#elif defined(__aarch64__)
#define TABLES(X) X(neondot) X(neon) X(ref)
#else
#define TABLES(X) X(ref)
#endif

#define ROW(name) {&sl_kernels_##name, has_##name},
static const struct {
    const struct sl_kernels *table;
    bool (*runs_here)(void);
} tables[] = {TABLES(ROW)};

enum { N_TABLES = sizeof tables / sizeof tables[0] };

const struct sl_kernels *sl_kernels_find(const char *name)
{
    for (size_t i = 0; i < N_TABLES; i++)
        if ((!name || strcmp(name, tables[i].table->name) == 0) && tables[i].runs_here())
            return tables[i].table;
    return NULL;
}

static const char *const *names_of(const char *ret[N_TABLES + 1], bool runs_here)
{
    size_t n = 0;
    for (size_t i = 0; i < N_TABLES; i++)
        if (tables[i].runs_here() == runs_here)
            ret[n++] = tables[i].table->name;
    ret[n] = NULL;
    return ret;
}

const char *const *sl_kernels_names(void)
{
    static _Thread_local const char *names[N_TABLES + 1];
    return names_of(names, true);
}

const char *const *sl_kernels_missing(void)
{
    static _Thread_local const char *names[N_TABLES + 1];
    return names_of(names, false);
}
