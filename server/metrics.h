/* metrics.h: counters, gauges and histograms, from one table, as Prometheus text.
 *
 * Loop's thread only: plain integers, no atomics. What other threads count (the engine) is read at
 * scrape time by the hooks' collect callback (server.h), which sets the gauges and counters.
 *
 * X(NAME, KIND, "exposed name", "help"). Names of gen_ai.* are OpenTelemetry's in Prometheus
 * spelling. */
#ifndef SLATE_SERVER_METRICS_H
#define SLATE_SERVER_METRICS_H

#include <stdio.h>

#include "server/router.h"

#define SL_METRICS(X)                                                                              \
    X(READY, GAUGE, "slate_ready", "1 while the server takes new work")                            \
    X(QUEUED, GAUGE, "slate_requests_queued", "Turns that wait for a place in the engine")         \
    X(RUNNING, GAUGE, "slate_requests_running", "Turns in the engine")                             \
    X(COMMITTING, GAUGE, "slate_requests_committing", "Turns that wait for the store")             \
    X(QUEUED_PREFILL, GAUGE, "slate_queued_prefill_tokens", "Prompt tokens of waiting turns")      \
    X(SLOTS, GAUGE, "slate_slots_total", "Slots for states")                                       \
    X(SLOTS_USED, GAUGE, "slate_slots_used", "Slots in use")                                       \
    X(SLOT_USE, GAUGE, "slate_slots_utilization", "Slots in use / slots, 0 to 1")                  \
    X(STATE_BYTES, GAUGE, "slate_state_bytes", "Bytes of one state")                               \
    X(SESSIONS, GAUGE, "slate_sessions", "Sessions there are")                                     \
    X(SESSIONS_IN_MEMORY, GAUGE, "slate_sessions_in_memory", "Sessions whose state is in memory")  \
    X(KEPT_BYTES, GAUGE, "slate_sessions_kept_bytes",                                              \
      "Bytes of earlier versions, checkpoints and transcripts of all sessions; of a shared "       \
      "store's as of its last sweep")                                                              \
    X(SESSION_LOADS, COUNTER, "slate_session_loads_total", "Sessions brought from the store")      \
    X(SESSION_REREADS, COUNTER, "slate_session_reread_tokens_total",                               \
      "Tokens after the snapshots of sessions brought from the store, to be read again")           \
    X(SESSION_SAVES, COUNTER, "slate_session_saves_total", "Snapshots written to the store")       \
    X(SESSION_EVICTIONS, COUNTER, "slate_session_evictions_total", "Sessions put out of memory")   \
    X(SESSION_FAILURES, COUNTER, "slate_session_failures_total", "Loads and saves that failed")    \
    X(SESSIONS_EXPIRED, COUNTER, "slate_sessions_expired_total",                                   \
      "Sessions removed because their time to live was over")                                      \
    X(STORE_COMMITS, COUNTER, "slate_store_commits_total", "Records that were acknowledged")       \
    X(STORE_SYNCS, COUNTER, "slate_store_syncs_total", "Syncs of the log")                         \
    X(STORE_RETRIES, COUNTER, "slate_store_retries_total", "Calls of Redis that were sent again")  \
    X(STORE_RECONNECTS, COUNTER, "slate_store_reconnects_total", "Connections to Redis made anew") \
    X(STORE_FAILURES, COUNTER, "slate_store_failures_total", "Calls of the store that failed")     \
    X(STORE_DAMAGED, COUNTER, "slate_store_damaged_total",                                         \
      "Reads of sessions of which what the store keeps is damaged")                                \
    X(STORE_LOG_BYTES, GAUGE, "slate_store_log_bytes", "Bytes of the log")                         \
    X(STORE_READ_ONLY, GAUGE, "slate_store_read_only", "1 while the store refuses writes")         \
    X(PROMPT_TOKENS, COUNTER, "slate_prompt_tokens_total", "Tokens of prompts read")               \
    X(COMPLETION_TOKENS, COUNTER, "slate_completion_tokens_total", "Tokens generated")             \
    X(TURNS, COUNTER, "slate_turns_total", "Turns that ended")                                     \
    X(TURNS_FAILED, COUNTER, "slate_turns_failed_total", "Turns that the server failed")           \
    X(TURNS_ABORTED, COUNTER, "slate_turns_aborted_total", "Turns whose client went away")         \
    X(TURNS_REFUSED, COUNTER, "slate_turns_refused_total", "Turns refused by admission limits")    \
    X(STEPS, COUNTER, "slate_engine_steps_total", "Steps of the engine")                           \
    X(PREFILL_ROWS, COUNTER, "slate_engine_prefill_tokens_total", "Rows of prefill")               \
    X(DECODE_ROWS, COUNTER, "slate_engine_decode_tokens_total", "Rows of decode")                  \
    X(REPLAY_ROWS, COUNTER, "slate_engine_replay_tokens_total", "Rows replayed after a cut")       \
    X(ENGINE_BUSY, COUNTER, "slate_engine_busy_seconds_total", "Time spent in steps")              \
    X(REQUEST_DURATION, HISTOGRAM, "gen_ai_server_request_duration_seconds",                       \
      "From a turn's request to its end")                                                          \
    X(FIRST_TOKEN, HISTOGRAM, "gen_ai_server_time_to_first_token_seconds",                         \
      "From a turn's request to its first token")                                                  \
    X(PER_TOKEN, HISTOGRAM, "gen_ai_server_time_per_output_token_seconds",                         \
      "Time per token after the first")                                                            \
    X(QUEUE_TIME, HISTOGRAM, "slate_queue_seconds", "Time a turn waited for the engine")           \
    X(CONNECTIONS, GAUGE, "slate_http_connections", "Open connections")                            \
    X(ACCEPTED, COUNTER, "slate_http_connections_accepted_total", "Connections accepted")          \
    X(REFUSED, COUNTER, "slate_http_connections_refused_total",                                    \
      "Connections refused because of --max-connections")                                          \
    X(SHED, COUNTER, "slate_http_connections_shed_total",                                          \
      "Connections that waited for their client and lost their place to others")                   \
    X(IN_FLIGHT, GAUGE, "slate_http_requests_in_flight", "Requests being answered")                \
    X(ABORTED, COUNTER, "slate_http_requests_aborted_total", "Requests whose client went away")    \
    X(TIMEOUTS, COUNTER, "slate_http_timeouts_total", "Connections closed by a deadline")          \
    X(BODY_MEMORY, GAUGE, "slate_http_body_bytes", "Bytes held by request bodies")                 \
    X(WRITE_MEMORY, GAUGE, "slate_http_unread_bytes",                                              \
      "Bytes of responses that wait for their clients")                                            \
    X(RECEIVED, COUNTER, "slate_http_received_bytes_total", "Bytes read from clients")             \
    X(SENT, COUNTER, "slate_http_sent_bytes_total", "Bytes written to clients")                    \
    X(HTTP_DURATION, HISTOGRAM, "slate_http_request_duration_seconds",                             \
      "From a request's first byte to the end of its response")

enum sl_metric {
#define X(name, kind, exposed, help) SL_M_##name,
    SL_METRICS(X)
#undef X
        SL_M_COUNT
};

enum { SL_METRIC_BUCKETS = 16, SL_METRIC_STATUSES = 32 };

struct sl_histogram {
    uint64_t bucket[SL_METRIC_BUCKETS + 1]; /* not cumulative; the last: above every bound */
    double sum;
};

struct sl_metrics {
    double value[SL_M_COUNT];       /* counters and gauges; whole numbers are exact up to 2^53 */
    struct sl_histogram *histogram; /* SL_M_COUNT of them, used by rows of that kind */
    /* slate_http_requests_total{method,route,status}: a row per route, the last for requests that
     * matched none. */
    uint64_t requests[SL_ROUTES_MAX + 1][SL_METRIC_STATUSES];
};

SL_NODISCARD enum sl_code sl_metrics_init(struct sl_metrics *m, struct sl_error *err);
void sl_metrics_done(struct sl_metrics *m);

void sl_metric_add(struct sl_metrics *m, enum sl_metric what, double by);
void sl_metric_set(struct sl_metrics *m, enum sl_metric what, double value);
void sl_metric_observe(struct sl_metrics *m, enum sl_metric what, double seconds);

/* route_index: of the match, or SL_ROUTES_MAX where nothing matched. */
void sl_metrics_request(struct sl_metrics *m, size_t route_index, int status);

/* The whole exposition (text/plain; version=0.0.4); more (may be NULL) adds to it. *ret is
 * allocated; freed with sl_free(). Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_metrics_write(const struct sl_metrics *m, const struct sl_router *r,
                                           void (*more)(void *arg, FILE *f), void *arg, char **ret,
                                           size_t *ret_n, struct sl_error *err);

#endif
