/* callgrind.c: see callgrind.h. */
#include "tests/support/callgrind.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/tree.h"

void callgrind_or_skip(const char *what)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: 1 case of %s: no valgrind under a sanitizer\n", what);
    skip();
#endif
    if (system("valgrind --version >/dev/null 2>&1") != 0) {
        print_message("skipped: 1 case of %s: valgrind is not here\n", what);
        skip();
    }
}

/* The instructions of one call: callgrind's "totals:" of its dump. 0: none. */
static uint64_t total(const char *dump)
{
    char line[512];
    uint64_t n = 0;
    FILE *f = fopen(dump, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "totals: %" SCNu64, &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

void callgrind_count(const char *function, uint64_t *ret, size_t n)
{
    char self[4096], command[9000], dump[128], folder[] = "/tmp/slate-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(len > 0);
    self[len] = '\0';
    snprintf(command, sizeof command,
             "valgrind --tool=callgrind --toggle-collect=%s --dump-after=%s "
             "--callgrind-out-file=%s/out '%s' measure 2>%s/log",
             function, function, folder, self, folder);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < n; i++) {
        snprintf(dump, sizeof dump, "%s/out.%zu", folder, i + 1);
        ret[i] = total(dump);
    }
    remove_tree(folder);
}
