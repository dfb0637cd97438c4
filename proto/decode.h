/* decode.h: the parts of requests that several routes share. For request.c, openai.c and
 * continuation.c only.
 *
 * A decoder parses the body, reads field after field into a zeroed struct with a pool, and frees
 * the document: what the struct points to was copied into the pool, so that a waiting request
 * costs its own bytes and no tree of JSON values. */
#ifndef SLATE_PROTO_DECODE_H
#define SLATE_PROTO_DECODE_H

#include "proto/json.h"

struct sl_decode {
    const json_t *o; /* the body */
    const struct sl_limits *limits;
    struct sl_pool *pool;
    struct sl_error *err;
};

enum sl_code sl_decode_no_memory(const struct sl_decode *d);

/* Text of a prompt, at most limits->prompt_bytes, copied. */
SL_NODISCARD enum sl_code sl_decode_text(const struct sl_decode *d, const json_t *v,
                                         const char *path, struct sl_text *ret);
/* An array of token ids; more than max of them: `over`. */
SL_NODISCARD enum sl_code sl_decode_tokens(const struct sl_decode *d, const json_t *v,
                                           const char *path, size_t max, enum sl_code over,
                                           const uint32_t **ret, size_t *ret_n);
/* prompt: a string or ids. */
SL_NODISCARD enum sl_code sl_decode_prompt(const struct sl_decode *d, const json_t *v,
                                           struct sl_input *ret);
SL_NODISCARD enum sl_code sl_decode_messages(const struct sl_decode *d, const json_t *v,
                                             struct sl_input *ret);
/* A session's id under `key`; *ret is left where it is absent. */
SL_NODISCARD enum sl_code sl_decode_id(const struct sl_decode *d, const char *key,
                                       const char **ret);
SL_NODISCARD enum sl_code sl_decode_model(const struct sl_decode *d, const char **ret);
/* max_tokens, by whichever name, and fewer_will_do; -1, as others say it: as many as are allowed.
 * Both are left where it is absent. */
SL_NODISCARD enum sl_code sl_decode_max_tokens(const struct sl_decode *d, const char *key,
                                               struct sl_generate_request *r);
/* Base64 (RFC 4648, section 4, padded) of at most limits->state_bytes. */
/* n is a multiple of 4. Returns the bytes written, or SIZE_MAX and where it went wrong. The unused
 * bits of the last character must be zero: every byte string has one encoding only. */
size_t sl_base64_decode(unsigned char *out, const unsigned char *s, size_t n, size_t *ret_bad);

SL_NODISCARD enum sl_code sl_decode_base64(const struct sl_decode *d, const json_t *v,
                                           const char *path, const unsigned char **ret,
                                           size_t *ret_n);

/* The numbers of struct sl_sampling, by the names and in the ranges of a request. */
enum { SL_SAMPLING_ROWS = 10 };
extern const struct sl_json_row sl_sampling_rows[SL_SAMPLING_ROWS];

/* logit_bias, as an object or as pairs; *ret is left where it is absent. */
SL_NODISCARD enum sl_code sl_decode_bias(const struct sl_decode *d, struct sl_sampling *ret);

/* Sets the defaults of a turn, then reads all that /v1/generate and OpenAI's routes have in common:
 * model, session, max_time_ms, stop, stop_tokens, ignore_eos, on_disconnect, the samplers,
 * logit_bias, seed, stream, stream_options. */
SL_NODISCARD enum sl_code sl_decode_turn(const struct sl_decode *d, struct sl_generate_request *r);

#endif
