/* session_decode.c: what the store has of a session, made into what the session holds: the
 * snapshot's state, and the tokens of the turns since as pending ones. In libuv's pool: nothing of
 * the registry is touched. See residency.h and session_rewind.c. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/sessions_priv.h"

void sl_decoded_init(struct sl_decoded *l, const struct sl_sessions *ss, const struct sl_session *s)
{
    l->opt = &ss->opt;
    sl_session_copy_id(l->id, s);
    memcpy(l->incarnation, s->incarnation, sizeof l->incarnation);
    l->cont.pool = (struct sl_pool)SL_POOL_INIT;
}

void sl_decoded_done(struct sl_decoded *l)
{
    for (size_t i = 0; i < l->n_answers; i++) {
        sl_free(l->answers[i].key);
        sl_free(l->answers[i].body);
    }
    sl_free(l->answers);
    sl_continuation_done(&l->cont);
    sl_free(l->info.text);
    sl_free(l->pending);
    sl_free(l->ring);
    sl_free(l->paused);
    sl_transcript_done(&l->transcript);
}

static void push_ring(struct sl_penalty_ring *ring, const uint32_t *tokens, size_t n)
{
    if (n == 0) /* tokens may be NULL */
        return;
    if (n > SL_PENALTY_LAST_N_MAX) {
        tokens += n - SL_PENALTY_LAST_N_MAX;
        n = SL_PENALTY_LAST_N_MAX;
    }
    size_t keep = ring->n < SL_PENALTY_LAST_N_MAX - n ? ring->n : SL_PENALTY_LAST_N_MAX - n;
    memmove(ring->tokens, ring->tokens + ring->n - keep, keep * sizeof *ring->tokens);
    memcpy(ring->tokens + keep, tokens, n * sizeof *tokens);
    ring->n = (uint32_t)(keep + n);
}

static enum sl_code contradicts(struct sl_decoded *l, const char *what)
{
    return sl_fail(&l->err, SL_E_STORE_CORRUPT,
                   "what is stored of session '%s' contradicts itself: %s", l->id, what);
}

void sl_paused_ring(const struct sl_paused_turn *p, struct sl_penalty_ring *ret)
{
    *ret = p->ring;
    push_ring(ret, p->generated, p->n_generated);
}

/* The ring before a turn that comes after a paused one: without what that one held. */
static enum sl_code rewind_ring(struct sl_decoded *l, const struct sl_continuation *before)
{
    const struct sl_paused_turn *p = before->paused;
    if (!p)
        return contradicts(l, "a turn goes on where none was paused");
    sl_paused_ring(p, l->ring);
    return SL_OK;
}

static enum sl_code add_turn(struct sl_decoded *l, const struct sl_store_turn *t,
                             const struct sl_continuation *before)
{
    if (t->n_drop > l->n_pending || t->n_generated > t->n_tokens)
        return contradicts(l, "a turn takes back more than there is");
    enum sl_code c = t->n_drop ? rewind_ring(l, before) : SL_OK;
    if (c)
        return c;
    l->n_pending -= t->n_drop;
    uint32_t *all = sl_realloc(l->pending, l->n_pending + t->n_tokens, sizeof *all);
    if (!all)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session's turns");
    l->pending = all;
    memcpy(all + l->n_pending, t->tokens, t->n_tokens * sizeof *all);
    l->n_pending += t->n_tokens;
    if (!sl_transcript_reserve(&l->transcript, t->n_tokens))
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session's transcript");
    sl_transcript_add(&l->transcript, t->n_drop, t->tokens, t->n_tokens);
    push_ring(l->ring, t->tokens + t->n_tokens - t->n_generated, t->n_generated);
    return SL_OK;
}

/* What is pending after the last turn must be the end of what the turns say; of a rebuild, of what
 * the transcript says. */
static enum sl_code check_last(struct sl_decoded *l, const struct sl_continuation *c,
                               const char *text, size_t n_text)
{
    if (!sl_tokens_end_with(l->pending, l->n_pending, c->pending, c->n_pending))
        return contradicts(l, "its pending tokens are not the last ones of its turns");
    if (c->paused) {
        l->paused = sl_strndup(text, n_text);
        l->n_paused = n_text;
        if (!l->paused)
            return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a paused turn");
    }
    return SL_OK;
}

/* Turns without a snapshot would else be read again by any model, without a word. */
static enum sl_code check_model(struct sl_decoded *l, const struct sl_continuation *c)
{
    static const unsigned char none[16];
    const struct sl_model_info *info = sl_model_info(l->opt->model);
    if (l->rebuild || !memcmp(c->model, none, 16) || !memcmp(c->model, info->fingerprint, 16))
        return SL_OK;
    return sl_fail(&l->err, SL_E_SNAPSHOT_MODEL_MISMATCH,
                   "the turns of session '%s' are of another model than the one loaded (%s)", l->id,
                   info->name);
}

static enum sl_code replay_turns(struct sl_decoded *l, const struct sl_store_record *r)
{
    size_t vocab = sl_model_info(l->opt->model)->vocab_size;
    struct sl_continuation before = {.pool = SL_POOL_INIT};
    const struct sl_continuation *now = &l->cont;
    const char *text = l->info.continuation;
    size_t n_text = text ? strlen(text) : 0;
    enum sl_code c = SL_OK;
    for (size_t i = 0; !c && i < r->n_turns; i++) {
        const struct sl_store_turn *t = &r->turns[i];
        if (t->version != r->snapshot_version + i + 1)
            c = contradicts(l, "a turn is missing");
        if (!c)
            c = add_turn(l, t, now);
        if (c)
            break;
        sl_continuation_done(&before);
        before = (struct sl_continuation){.pool = SL_POOL_INIT};
        text = t->continuation.s;
        n_text = t->continuation.n;
        c = sl_continuation_read(&before, text, n_text, vocab, &l->err);
        if (!c)
            c = check_model(l, &before);
        now = &before;
    }
    if (!c)
        c = check_last(l, now, text, n_text);
    l->n_rest = c ? 0 : now->n_pending;
    l->tokens_seen = r->n_turns ? r->turns[r->n_turns - 1].tokens_seen : l->info.tokens_seen;
    sl_continuation_done(&before);
    return c;
}

/* Of a rebuild's snapshot only what stands in its metadata counts. */
static enum sl_code read_texts(struct sl_decoded *l, const struct sl_store_record *r)
{
    unsigned char own[16];
    size_t have;
    enum sl_code c = r->source.need(r->source.arg, r->n_snapshot, &have, &l->err);
    if (!c)
        c = sl_snapshot_texts(r->snapshot, r->n_snapshot, &l->info, &l->err);
    if (c)
        return c;
    sl_tokenizer_fingerprint(l->opt->tokenizer, own);
    if (!l->info.transcript)
        return sl_fail(&l->err, SL_E_NO_TRANSCRIPT,
                       "the transcript of session '%s' was not kept from its beginning: it was "
                       "written without --keep-transcript, came from a snapshot or an initial "
                       "state, or has more than %d tokens",
                       l->id, SL_TRANSCRIPT_MAX);
    if (memcmp(own, l->info.tokenizer, sizeof own) != 0)
        return sl_fail(&l->err, SL_E_NO_TRANSCRIPT,
                       "the transcript of session '%s' is one of token ids, and they are another "
                       "tokenizer's than the one loaded",
                       l->id);
    return SL_OK;
}

static enum sl_code read_transcript(struct sl_decoded *l)
{
    return (l->rebuild || l->opt->keep_transcript) && l->info.transcript
               ? sl_transcript_read(&l->transcript, l->info.transcript,
                                    sl_model_info(l->opt->model)->vocab_size, &l->err)
               : SL_OK;
}

static enum sl_code decode_snapshot(struct sl_decoded *l, const struct sl_store_record *r)
{
    const struct sl_sessions_options *o = l->opt;
    if (!r->snapshot) {
        l->transcript.whole = o->keep_transcript;
        return SL_OK;
    }
    enum sl_code c = l->rebuild
                         ? read_texts(l, r)
                         : sl_snapshot_read_from(o->model, o->tokenizer, r->snapshot, r->n_snapshot,
                                                 &r->source, l->state, &l->info, &l->err);
    if (!c)
        c = read_transcript(l);
    if (c)
        return c;
    l->has_state = !l->rebuild;
    if (memcmp(l->info.incarnation, l->incarnation, sizeof l->info.incarnation) != 0 ||
        strcmp(l->info.session_id, l->id) != 0 || l->info.version != r->snapshot_version)
        return contradicts(l, "its snapshot is that of another session, or of another version");
    if (!l->info.continuation)
        return l->rebuild && l->transcript.n
                   ? contradicts(l, "it has a transcript, and no pending tokens")
                   : SL_OK;
    c = sl_continuation_read(&l->cont, l->info.continuation, strlen(l->info.continuation),
                             sl_model_info(o->model)->vocab_size, &l->err);
    if (c)
        return c;
    *l->ring = l->cont.ring;
    const uint32_t *v = l->rebuild ? l->transcript.v : l->cont.pending;
    size_t n = l->rebuild ? l->transcript.n : l->cont.n_pending;
    l->pending = sl_malloc(n * sizeof *l->pending);
    if (!l->pending)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session");
    if (n)
        memcpy(l->pending, v, n * sizeof *l->pending);
    l->n_pending = n;
    return SL_OK;
}

static enum sl_code copy_answers(struct sl_decoded *l, const struct sl_store_record *r)
{
    struct sl_session keeper = {.n_answers = 0};
    bool ok = true;
    for (size_t i = 0; ok && i < r->n_answers; i++) {
        const struct sl_store_answer *a = &r->answers[i];
        struct sl_answer answer = {.key = (char *)(uintptr_t)a->idempotency_key,
                                   .at = a->at,
                                   .version = a->version,
                                   .body = (char *)(uintptr_t)a->body.s,
                                   .n_body = a->body.n};
        memcpy(answer.request_hash, a->request_hash, sizeof answer.request_hash);
        ok = sl_session_keep_answer(&keeper, &answer);
    }
    l->answers = keeper.answers;
    l->n_answers = keeper.n_answers;
    return ok ? SL_OK : sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a session's answers");
}

enum sl_code sl_decode_record(struct sl_decoded *l, const struct sl_store_record *r)
{
    l->ring = sl_calloc(1, sizeof *l->ring);
    if (!l->ring)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory to load session '%s'", l->id);
    enum sl_code c = decode_snapshot(l, r);
    if (!c)
        c = replay_turns(l, r);
    l->made = !c;
    return c ? c : copy_answers(l, r);
}

enum sl_code sl_decoded_stays(struct sl_decoded *l)
{
    struct sl_continuation c = {.pool = SL_POOL_INIT};
    if (!l->paused || l->n_pending == l->n_rest)
        return SL_OK;
    enum sl_code code = sl_continuation_read(&c, l->paused, l->n_paused,
                                             sl_model_info(l->opt->model)->vocab_size, &l->err);
    if (code)
        return code;
    c.pending = l->pending;
    c.n_pending = l->n_pending;
    char *text = sl_continuation_json(&c);
    sl_continuation_done(&c);
    if (!text)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory for a paused turn");
    sl_free(l->paused);
    l->paused = text;
    l->n_paused = strlen(text);
    return SL_OK;
}
