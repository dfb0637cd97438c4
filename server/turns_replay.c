/* turns_replay.c: tokens that a session has had are read again, as a run that generates nothing:
 * see sl_sessions_on_replay(). */
#include "server/turns_priv.h"

#include "engine/base/mem.h"

struct replaying {
    sl_replayed *done;
    void *arg;
    bool told;
};

static void on_replay(struct sl_run *r, void *user, const void *state)
{
    struct replaying *p = user;
    (void)r;
    p->told = true;
    p->done(p->arg, state, NULL);
}

static void on_replay_over(struct sl_run *r, void *user)
{
    struct replaying *p = user;
    struct sl_error err = r->result.error;
    if (!p->told && !err.code)
        (void)sl_fail(&err, SL_E_DRAINING,
                      "the server shut down while tokens were read again; nothing was changed");
    if (!p->told)
        p->done(p->arg, NULL, &err);
    sl_free(p);
    sl_run_detach(r);
}

void sl_turns_replay(void *with, const void *base, const uint32_t *tokens, size_t n,
                     sl_replayed *done, void *arg)
{
    struct sl_turns *ts = with;
    struct sl_error err;
    struct replaying *p = sl_calloc(1, sizeof *p);
    if (!p) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory to read tokens again");
        done(arg, NULL, &err);
        return;
    }
    *p = (struct replaying){.done = done, .arg = arg};
    const struct sl_run_spec spec = {.base = base,
                                     .tokens = tokens,
                                     .n_tokens = n,
                                     .sampling = SL_SAMPLING_DEFAULT,
                                     .logprobs = -1,
                                     .replayed = on_replay,
                                     .done = on_replay_over,
                                     .user = p};
    struct sl_run *r;
    if (sl_run_start(ts, &spec, &r, &err)) {
        sl_free(p);
        done(arg, NULL, &err);
    }
}
