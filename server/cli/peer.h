/* peer.h: llama.cpp beside us: its programs, started, driven and ended by `slate bench`.
 *
 * It gets the same seeded weights: a shape's model as a GGUF file, brought to 8 or 4 bits by its
 * own llama-quantize (all matrices alike, as ours are), in a folder of its own below $TMPDIR (or
 * /tmp), which is gone at the end, also where a signal brings it (ending.h). llama-batched-bench
 * measures; each measurement is a process of its own, which loads the file into memory of its own,
 * in huge pages where the system gives them to who asks (both faster than a mapped file), and warms
 * up first. One thread. */
#ifndef SLATE_SERVER_CLI_PEER_H
#define SLATE_SERVER_CLI_PEER_H

#include "server/cli/shape.h"

struct sl_peer;

/* build: the folder of a build, or of its programs. file: what sl_shape_file() made; both stay the
 * caller's and must outlive *ret. Errors: USAGE (no such programs there), IO, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_peer_open(struct sl_peer **ret, const char *build,
                                       const struct sl_shape *s, const unsigned char *file,
                                       size_t n, size_t threads, struct sl_error *err);
void sl_peer_close(struct sl_peer *p); /* NULL is fine */

/* Around the start of a program of the peer's: it is to ask for huge pages, as we do. (glibc does
 * it for a program that does not; what GLIBC_TUNABLES says already stays.) The second takes what
 * the first gave. */
bool sl_peer_tune(void);
void sl_peer_untune(bool tuned);

/* What it calls weights of a type of ours ("bf16" …), where it has one of as many bits. */
const char *sl_peer_type(const char *weights);

/* Tokens per second of decode steps of batch[i] sessions (1 … 1024), n of them, to ret[0 … n-1];
 * where `prompt` is not 0 also of reading one of so many tokens, to ret[n]. Errors: INTERNAL (a
 * program of the peer's failed, took ten minutes, or did not tell; the message has its last line),
 * IO, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_peer_measure(struct sl_peer *p, const char *weights,
                                          const size_t *batch, size_t n, size_t prompt, double *ret,
                                          struct sl_error *err);

#endif
