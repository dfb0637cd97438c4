/* key_file.c: see key_file.h. */
#include "tests/support/key_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char key_file[32];

void key_file_put(const void *bytes, size_t n)
{
    if (!key_file[0]) {
        snprintf(key_file, sizeof key_file, "/tmp/slate-keys-XXXXXX");
        int fd = mkstemp(key_file);
        assert_true(fd >= 0);
        close(fd);
    }
    FILE *f = fopen(key_file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void key_file_remove(void)
{
    if (key_file[0])
        unlink(key_file);
    key_file[0] = '\0';
}

enum sl_code key_file_open(const char *text, struct sl_keys **ret, struct sl_error *err)
{
    key_file_put(text, strlen(text));
    return sl_keys_open(ret, key_file, NULL, err);
}

int key_file_tear_down(void **state)
{
    (void)state;
    key_file_remove();
    return 0;
}
