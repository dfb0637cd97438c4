/* process.c: see process.h. */
#include "tests/support/process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* A row of /proc/PID/status that is in kB. */
static size_t status_kib(pid_t pid, const char *name)
{
    char path[64], line[256];
    size_t kib = 0, n = strlen(name);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, ": %zu kB", &kib) == 1)
            break;
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

size_t process_resident(pid_t pid)
{
    return status_kib(pid, "VmRSS") * 1024;
}

size_t process_peak(pid_t pid)
{
    return status_kib(pid, "VmHWM") * 1024;
}

void process_forget_peak(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)pid);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("5", f) >= 0);
    assert_int_equal(fclose(f), 0);
}

double process_cpu_s(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *p = strrchr(text, ')'); /* its name may hold anything */
    assert_non_null(p);
    assert_int_equal(
        sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system), 2);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

double process_cpu_usual_s(pid_t pid)
{
    char path[64], line[512];
    double sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        long nice;
        unsigned long long ns = 0;
        char stat[128];
        snprintf(stat, sizeof stat, "%s/%.20s/stat", path, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(stat, "r");
        bool whole = f && fgets(line, sizeof line, f);
        const char *at = whole ? strrchr(line, ')') : NULL;
        if (f)
            fclose(f);
        if (!at ||
            sscanf(at, ") %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld",
                   &nice) != 1)
            continue;
        snprintf(stat, sizeof stat, "%s/%.20s/schedstat", path, e->d_name);
        f = fopen(stat, "r");
        if (f && nice <= getpriority(PRIO_PROCESS, 0) && fscanf(f, "%llu", &ns) == 1)
            sum += (double)ns / 1e9;
        if (f)
            fclose(f);
    }
    closedir(d);
    return sum;
}

size_t process_files(pid_t pid)
{
    char path[64];
    size_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    const struct dirent *e;
    while ((e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

bool process_figures_count(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#else
    return true;
#endif
}
