/* err.h: every error that Slate can give, in one table.
 *
 * A function that can fail returns `enum sl_code` and takes a `struct sl_error *` as its last
 * argument (NULL: the caller does not want the text). The struct is written on failure only, and
 * on failure no other output is written. Nothing here allocates; any thread. */
#ifndef SLATE_ERR_H
#define SLATE_ERR_H

#include "slate/base.h"

/* X(NAME, "code", HTTP status, "type", "what it means")
 *
 * code and type go out in the JSON body of an HTTP error, type in OpenAI's words; the text is
 * what is said where nobody wrote a better message. */
#define SL_ERRORS(X)                                                                               \
    X(OK, "ok", 200, "", "no error")                                                               \
    /* a request that cannot be understood or granted */                                           \
    X(INVALID_JSON, "invalid_json", 400, "invalid_request_error", "the body is not valid JSON")    \
    X(INVALID_TYPE, "invalid_type", 400, "invalid_request_error", "a field has the wrong type")    \
    X(INVALID_VALUE, "invalid_value", 400, "invalid_request_error", "a value is not allowed")      \
    X(MISSING_FIELD, "missing_field", 400, "invalid_request_error", "a required field is absent")  \
    X(UNSUPPORTED, "unsupported", 400, "invalid_request_error", "not supported")                   \
    X(BAD_REQUEST, "bad_request", 400, "invalid_request_error", "the request is malformed")        \
    X(CONTEXT_EXCEEDED, "context_exceeded", 400, "invalid_request_error",                          \
      "the model has no more positions")                                                           \
    X(UNAUTHORIZED, "invalid_api_key", 401, "authentication_error", "no valid API key was given")  \
    X(FORBIDDEN, "forbidden", 403, "permission_error", "this key has not the role for it")         \
    X(HOST_REFUSED, "host_refused", 403, "permission_error", "this Host is not served here")       \
    X(ORIGIN_REFUSED, "origin_refused", 403, "permission_error", "this Origin is not allowed")     \
    X(NOT_FOUND, "not_found", 404, "invalid_request_error", "there is no such route")              \
    X(SESSION_NOT_FOUND, "session_not_found", 404, "invalid_request_error",                        \
      "there is no such session")                                                                  \
    X(CHECKPOINT_NOT_FOUND, "checkpoint_not_found", 404, "invalid_request_error",                  \
      "the session is not kept as it was then")                                                    \
    X(MODEL_NOT_FOUND, "model_not_found", 404, "invalid_request_error", "there is no such model")  \
    X(METHOD_NOT_ALLOWED, "method_not_allowed", 405, "invalid_request_error",                      \
      "this route does not take this method")                                                      \
    X(REQUEST_TIMEOUT, "request_timeout", 408, "invalid_request_error",                            \
      "the request did not arrive in time")                                                        \
    X(SESSION_EXISTS, "session_exists", 409, "invalid_request_error",                              \
      "the session exists already")                                                                \
    X(SESSION_BUSY, "session_busy", 409, "invalid_request_error", "a turn is running on it")       \
    X(NO_TRANSCRIPT, "no_transcript", 409, "invalid_request_error",                                \
      "the session's transcript was not kept")                                                     \
    X(CHECKPOINT_EXISTS, "checkpoint_exists", 409, "invalid_request_error",                        \
      "the name stands for another version")                                                       \
    X(CHECKPOINTS_FULL, "checkpoints_full", 409, "invalid_request_error",                          \
      "the session has as many named checkpoints as it may have")                                  \
    X(HISTORY_MISMATCH, "history_mismatch", 409, "invalid_request_error",                          \
      "the history differs from what the session has read")                                        \
    X(VERSION_MISMATCH, "version_mismatch", 412, "invalid_request_error",                          \
      "the session is at another version")                                                         \
    X(TOO_LARGE, "too_large", 413, "invalid_request_error", "larger than the limit")               \
    X(URI_TOO_LONG, "uri_too_long", 414, "invalid_request_error",                                  \
      "the request target is too long")                                                            \
    X(MEDIA_TYPE, "unsupported_media_type", 415, "invalid_request_error",                          \
      "the Content-Type must be application/json")                                                 \
    X(EXPECTATION_FAILED, "expectation_failed", 417, "invalid_request_error",                      \
      "only Expect: 100-continue is known")                                                        \
    X(SNAPSHOT_CORRUPT, "snapshot_corrupt", 422, "invalid_request_error",                          \
      "the snapshot is damaged")                                                                   \
    X(SNAPSHOT_MODEL_MISMATCH, "snapshot_model_mismatch", 409, "invalid_request_error",            \
      "the snapshot is of another model")                                                          \
    X(SNAPSHOT_VERSION_UNSUPPORTED, "snapshot_version_unsupported", 422, "invalid_request_error",  \
      "the snapshot's version is not known here")                                                  \
    X(SNAPSHOT_TOO_LARGE, "snapshot_too_large", 413, "invalid_request_error",                      \
      "the snapshot is larger than one of this model can be")                                      \
    X(IDEMPOTENCY_MISMATCH, "idempotency_mismatch", 422, "invalid_request_error",                  \
      "the Idempotency-Key was used with another body")                                            \
    X(IDEMPOTENCY_IN_FLIGHT, "idempotency_in_flight", 409, "invalid_request_error",                \
      "a request with this Idempotency-Key is being answered")                                     \
    X(NOTHING_PAUSED, "nothing_paused", 409, "invalid_request_error",                              \
      "the session has no paused turn")                                                            \
    X(QUOTA_EXCEEDED, "quota_exceeded", 429, "rate_limit_error", "this key's quota is used up")    \
    X(HEADERS_TOO_LARGE, "headers_too_large", 431, "invalid_request_error",                        \
      "the request's headers are too large")                                                       \
    /* the server's side */                                                                        \
    X(INTERNAL, "internal_error", 500, "server_error", "something went wrong in the server")       \
    X(MODEL_NOT_FINITE, "model_not_finite", 500, "server_error",                                   \
      "the model gave logits that are not finite; the turn was rolled back")                       \
    X(NO_MEMORY, "out_of_memory", 503, "server_error", "not enough memory")                        \
    X(SERVER_FULL, "server_full", 503, "server_error", "the server is full")                       \
    X(SESSIONS_FULL, "sessions_full", 503, "server_error", "no room for another session")          \
    X(STORE_FULL, "store_full", 503, "server_error", "no space left where sessions are stored")    \
    X(STORE_LOCKED, "store_locked", 500, "server_error", "another server has this store")          \
    X(STORE_CORRUPT, "store_corrupt", 500, "server_error", "the store contradicts itself")         \
    X(STORE_UNAVAILABLE, "store_unavailable", 503, "server_error",                                 \
      "the store of the sessions cannot be reached, or takes no writes")                           \
    X(LEASE_LOST, "lease_lost", 503, "server_error",                                               \
      "the session's lease was lost; nothing of the turn was kept")                                \
    X(COMMIT_UNKNOWN, "commit_unknown", 504, "server_error",                                       \
      "the store did not answer; whether the change counts is not known")                          \
    X(DRAINING, "draining", 503, "server_error", "the server is shutting down")                    \
    X(LOADING, "loading", 503, "server_error", "the server is still loading")                      \
    /* files and the system; seen by users of the command line */                                  \
    X(IO, "io_error", 500, "server_error", "reading or writing failed")                            \
    X(FILE_NOT_FOUND, "file_not_found", 500, "server_error", "there is no such file")              \
    X(FILE_TRUNCATED, "file_truncated", 500, "server_error", "the file ends too early")            \
    X(FILE_CORRUPT, "file_corrupt", 500, "server_error", "the file contradicts itself")            \
    X(FILE_UNSUPPORTED, "file_unsupported", 500, "server_error", "a file of an unknown kind")      \
    X(MODEL_UNSUPPORTED, "model_unsupported", 500, "server_error", "a model of an unknown kind")   \
    X(MODEL_INVALID, "model_invalid", 500, "server_error",                                         \
      "the model's tensors do not fit together")                                                   \
    X(ADDRESS_IN_USE, "address_in_use", 500, "server_error", "the address is taken")               \
    X(USAGE, "usage", 500, "server_error", "wrong usage of the command line")

enum sl_code {
#define X(name, code, http, type, text) SL_E_##name,
    SL_ERRORS(X)
#undef X
        SL_E_COUNT
};
#define SL_OK SL_E_OK

enum { SL_RETRY_NEVER = -1 }; /* waiting alone does not help */

struct sl_error {
    enum sl_code code;
    int retry_after_s; /* 429 and 503: when it may go better; 0: soon, or SL_RETRY_NEVER */
    char param[64];    /* the request's field at fault, "" when none is */
    char
        message[448]; /* what was wrong, what was given, what is allowed; valid UTF-8, no newline */
};

int sl_code_http(enum sl_code c);
const char *sl_code_name(enum sl_code c); /* "session_busy" */
const char *sl_code_type(enum sl_code c); /* "invalid_request_error" */
const char *sl_code_text(enum sl_code c); /* "a turn is running on it" */

/* Writes *err (when not NULL) and returns c, so that `return sl_fail(err, SL_E_…, "…", …);` reads
 * well. The message is cut at a character's border where it does not fit, invalid UTF-8 and
 * control characters in it are replaced: file names and clients' bytes may be passed as they are.
 */
enum sl_code sl_fail(struct sl_error *err, enum sl_code c, const char *fmt, ...) SL_PRINTF(3, 4);

/* The same, and names the field at fault. */
enum sl_code sl_fail_param(struct sl_error *err, enum sl_code c, const char *param, const char *fmt,
                           ...) SL_PRINTF(4, 5);

#ifdef __clang_analyzer__
/* The analyzer does not look into other files: a failure gives back its own code, never SL_OK. */
#define sl_fail(err, c, ...) ((void)(sl_fail)((err), (c), __VA_ARGS__), (c))
#define sl_fail_param(err, c, ...) ((void)(sl_fail_param)((err), (c), __VA_ARGS__), (c))
#endif

#endif
