/* openapi_test.c: the contract lists exactly the error codes that there are. That responses keep to
 * the contract is the API suite's to test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "slate/err.h"

static char text[1 << 20];

static int read_contract(void **state)
{
    (void)state;
    FILE *f = fopen("proto/openapi.yaml", "rb");
    if (!f)
        return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    return fclose(f) == 0 && n > 0 ? 0 : -1;
}

static bool in_list(const char *list, const char *end, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)) && p < end; p += n)
        if (strchr("[ \n", p[-1]) && strchr(",]", p[n]))
            return true;
    return false;
}

static void error_codes(void **state)
{
    (void)state;
    const char *list = strstr(text, "\n    ErrorCode:");
    assert_non_null(list);
    list = strstr(list, "enum: [");
    assert_non_null(list);
    const char *end = strchr(list, ']');
    assert_non_null(end);
    end++;
    size_t n = 1;
    for (const char *p = list; p < end; p++)
        n += *p == ',';
    assert_int_equal(n, SL_E_COUNT - 1); /* all but SL_OK */
    for (int c = SL_OK + 1; c < SL_E_COUNT; c++)
        if (!in_list(list, end, sl_code_name((enum sl_code)c)))
            fail_msg("proto/openapi.yaml: ErrorCode lacks %s", sl_code_name((enum sl_code)c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(error_codes)};
    return cmocka_run_group_tests(tests, read_contract, NULL);
}
