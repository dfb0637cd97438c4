/* openai.h: OpenAI's /v1/completions and /v1/chat/completions over the same turn as /v1/generate.
 *
 * Requests become a struct sl_generate_request; answers are written in OpenAI's shapes from the
 * same struct sl_result and struct sl_delta. Errors need nothing: sl_write_error has that shape.
 * What is asked for and not served (n > 1, tools, echo, suffix, best_of, response_format other
 * than text) is UNSUPPORTED and named; what does not change an answer (user, metadata, store …)
 * is ignored. Slate's samplers, stop_tokens, session … are accepted as extra fields. */
#ifndef SLATE_PROTO_OPENAI_H
#define SLATE_PROTO_OPENAI_H

#include "proto/response.h"

/* dialect COMPLETIONS; max_tokens 16 where not given, as OpenAI has it. */
SL_NODISCARD enum sl_code sl_completions_decode(struct sl_generate_request *ret, const void *body,
                                                size_t n, const struct sl_limits *limits,
                                                struct sl_error *err);
/* dialect CHAT; input is always MESSAGES. */
SL_NODISCARD enum sl_code sl_chat_completions_decode(struct sl_generate_request *ret,
                                                     const void *body, size_t n,
                                                     const struct sl_limits *limits,
                                                     struct sl_error *err);

/* Not streamed. finish_reason: stop and eos are "stop", all others "length" (the text is not
 * complete). `v` is needed where logprobs are given. */
void sl_write_completion(struct sl_buf *b, const struct sl_result *r, const struct sl_vocab *v);
void sl_write_chat_completion(struct sl_buf *b, const struct sl_result *r,
                              const struct sl_vocab *v);

/* Characters that begin in these tokens: by how much text_offset advances. */
size_t sl_logprobs_chars(const struct sl_token_logprobs *p, size_t n, const struct sl_vocab *v);

/* Streamed, in this order: chat only: one first chunk (the role); a delta for each piece; one
 * final chunk (what is left of the text, if any, goes out as a delta before it; then the
 * finish_reason); with include_usage one usage chunk ("choices":[]); then sl_sse_done(). */
void sl_write_completion_delta(struct sl_buf *b, const struct sl_delta *d,
                               const struct sl_vocab *v);
void sl_write_completion_final(struct sl_buf *b, const struct sl_result *r, bool include_usage);
void sl_write_completion_usage(struct sl_buf *b, const struct sl_result *r);

void sl_write_chat_first(struct sl_buf *b, const struct sl_delta *d);
void sl_write_chat_delta(struct sl_buf *b, const struct sl_delta *d, const struct sl_vocab *v);
void sl_write_chat_final(struct sl_buf *b, const struct sl_result *r, bool include_usage);
void sl_write_chat_usage(struct sl_buf *b, const struct sl_result *r);

#endif
