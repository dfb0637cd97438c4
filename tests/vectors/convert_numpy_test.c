/* Converted models in NumPy: a script of a page (snapshot.py), which knows the safetensors format
 * and nothing else, finds the source's tensors in them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/conversion.h"
#include "tests/support/seeded.h"
#include "tests/support/tree.h"

static const char *find_python(void)
{
    static const char *const names[] = {"python3", "/usr/bin/python3"};
    for (size_t i = 0; i < 2; i++) {
        char command[128];
        (void)snprintf(command, sizeof command, "%s -c 'import numpy' 2>/dev/null", names[i]);
        if (system(command) == 0)
            return names[i];
    }
    return NULL;
}

/* What the script printed: a line for each tensor and string. */
static void compare(const char *python, const char *in, const char *out, enum sl_dtype type,
                    const char *word, size_t n_expected)
{
    char command[512], line[1024], changed[64];
    size_t n_changed = 0, n_same = 0, n_tokenizer = 0, n_meta = 0;
    (void)snprintf(command, sizeof command, "%s tests/vectors/snapshot.py converted %s %s", python,
                   in, out);
    (void)snprintf(changed, sizeof changed, " F32 %s\n", word);
    (void)fflush(stdout);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        n_tokenizer += strcmp(line, "meta slate.tokenizer bytes\n") == 0;
        n_meta += strncmp(line, "meta ", 5) == 0;
        n_same += strstr(line, " F32 F32\n") != NULL;
        n_changed += type != SL_DTYPE_F32 && strstr(line, changed) != NULL;
    }
    assert_int_equal(pclose(f), 0);
    assert_int_equal(n_tokenizer, 1);
    assert_int_equal(n_changed, n_expected);
    assert_true(n_same > 50);
    assert_true(n_meta >= 6);
}

static void test_numpy_reads(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype type;
        const char *word;
        size_t n_changed;
    } row[] = {{SL_DTYPE_F32, "F32", 0},
               {SL_DTYPE_BF16, "BF16", 41},
               {SL_DTYPE_F16, "F16", 41},
               {SL_DTYPE_Q8, "q8", 19},  /* of three layers six, and the head */
               {SL_DTYPE_Q4, "q4", 18}}; /* whose codes are of 5 bits */
    static const struct seeded_shape shape = SEEDED_ODD;
    const char *python = find_python();
    char folder[] = "/tmp/slate-convert-XXXXXX", in[64], out[64];
    struct seeded s;
    if (!python) {
        print_message("skipped: 1 case of a NumPy reader: no python3 here has numpy\n");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    (void)snprintf(in, sizeof in, "%s/in.safetensors", folder);
    (void)snprintf(out, sizeof out, "%s/out.safetensors", folder);
    seeded_init(&s, &shape);
    seeded_write(&s, in);
    seeded_done(&s);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct sl_conversion_extras bytes = {.tokenizer_kind = "bytes"};
        struct sl_error err;
        if (conversion(in, out, row[i].type, NULL, &bytes, &sl_store_io_system, &err))
            fail_msg("%s", err.message);
        compare(python, in, out, row[i].type, row[i].word, row[i].n_changed);
    }
    remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numpy_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
