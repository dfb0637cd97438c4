/* constant_work_test.c: a token costs the same whether the session has seen ten tokens or a million
 * million: equal instruction counts, counted by valgrind's callgrind on this program itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/forward.h"

void measured_step(struct sl_forward *f, const struct sl_segment *s);

/* Alone in its function, so that callgrind can be told to count in here only. */
__attribute__((noinline)) void measured_step(struct sl_forward *f, const struct sl_segment *s)
{
    sl_forward_run(f, s, 1);
}

/* The child: one token on a state that says it has seen so many. */
static int measure(const char *tokens_seen)
{
    struct sl_model *m;
    struct sl_workers *w;
    struct sl_forward *f;
    uint32_t token = 300;
    if (sl_model_open(&m, &(struct sl_model_options){.path = NULL}, NULL) ||
        sl_workers_open(&w, 1, NULL) || sl_forward_open(&f, m, w, 1, 1, NULL))
        return 1;
    void *state = sl_aligned_calloc(sl_model_info(m)->state_bytes);
    float *logits = sl_aligned_calloc(sl_model_logits_stride(m) * sizeof *logits);
    struct sl_segment s = {
        .state = state, .tokens = &token, .n_tokens = 1, .logits = logits, .n_logits = 1};
    struct sl_state_header *h = state;
    sl_model_state_init(m, state);
    h->tokens_seen = strtoull(tokens_seen, NULL, 10);
    measured_step(f, &s);
    int bad = h->tokens_seen != strtoull(tokens_seen, NULL, 10) + 1;
    sl_forward_close(f);
    sl_workers_close(w);
    sl_model_close(m);
    sl_free(state);
    sl_free(logits);
    return bad;
}

/* Instructions of measured_step() in a run of this program under callgrind; 0: it could not run. */
static uint64_t instructions(const char *tokens_seen)
{
    char self[4096], command[9000], line[512];
    uint64_t n = 0;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(len > 0);
    self[len] = '\0';
    snprintf(
        command, sizeof command,
        "valgrind --tool=callgrind --toggle-collect=measured_step --callgrind-out-file=/dev/null "
        "'%s' measure %s 2>&1",
        self, tokens_seen);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    while (fgets(line, sizeof line, p)) {
        const char *at = strstr(line, "Collected : ");
        if (at)
            (void)sscanf(at + strlen("Collected : "), "%" SCNu64, &n);
    }
    return pclose(p) == 0 ? n : 0;
}

/* libc copies with an instruction more or less by where memory happens to lie. */
enum { SLACK = 16 };

static void test_a_token_costs_the_same_at_any_age(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: 1 case of constant work: no valgrind under a sanitizer\n");
    skip();
#endif
    if (system("valgrind --version >/dev/null 2>&1") != 0) {
        print_message("skipped: 1 case of constant work: valgrind is not here\n");
        skip();
    }
    /* of one length, so that the stack lies alike */
    uint64_t young = instructions("0000000000010");
    assert_true(young > 1000000);
    assert_in_range(instructions("0000001000000"), young - SLACK, young + SLACK);
    assert_in_range(instructions("1000000000000"), young - SLACK, young + SLACK);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "measure") == 0)
        return measure(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_token_costs_the_same_at_any_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
