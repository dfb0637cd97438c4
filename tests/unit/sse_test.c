/* sse_test.c: the framing of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/response.h"
#include "proto/sse.h"

static void framing(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1000);
    sl_sse_event(&b, "{\"a\":1}", 7);
    sl_sse_ping(&b);
    sl_sse_begin(&b);
    sl_write_status(&b, "ok\r\n");
    sl_sse_end(&b);
    sl_sse_done(&b);
    static const char expected[] = "data: {\"a\":1}\n\n"
                                   ": ping\n\n"
                                   "data: {\"status\":\"ok\\r\\n\"}\n\n"
                                   "data: [DONE]\n\n";
    assert_int_equal(sl_buf_code(&b, NULL), SL_OK);
    assert_int_equal(b.len, sizeof expected - 1);
    assert_memory_equal(b.data, expected, sizeof expected - 1);
    sl_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(framing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
