/* forms.h: one recurrence, three ways to compute it. Private to libslate; any thread.
 *
 * For one head, with keys and queries of n_k and values of n_v, over the n tokens of a span:
 *
 *     S_t = diag(e^{g_t}) S_{t-1} + k_t w_tᵀ        o_t = S_tᵀ q_t
 *     w_t = v_t                                     additive rules
 *     w_t = β_t (v_t - (e^{g_t} S_{t-1})ᵀ k_t)      delta rules
 *
 * S is [n_k][n_v]. ln of the decay, g ≤ 0, is nothing (linear attention, DeltaNet), one number a
 * token (RetNet, Mamba-2, gated DeltaNet) or one a token and key channel (GLA).
 *
 * recurrent   token by token: O(n·n_k·n_v), the state is the memory. The truth.
 * parallel    all tokens at once, as attention without the softmax:
 *             O = (Q Kᵀ ⊙ D) W + (Q ⊙ decay) S_0, D_ts = e^{g_{s+1} + … + g_t} for s ≤ t, else 0:
 *             O(n²·(n_k + n_v)) and n² of memory.
 * chunkwise   the parallel form within chunks, the recurrent one between them:
 *             O(n·(C·(n_k + n_v) + n_k·n_v)) and C² of memory.
 *
 * The delta rules in the last two forms solve a triangular system for the w of a chunk
 * (the WY form): (I + L) W = diag(β)(V - (K ⊙ decay) S_0),  L_ts = β_t D_ts (k_t·k_s) for s < t.
 *
 * The three are one function: they agree to rounding, not in bits. So the last two, whose products
 * are OpenBLAS's, run only under --numerics fast.
 *
 * Papers: linear attention's two brackets: Katharopoulos 2020, arXiv:2006.16236, equations 4 to 7;
 * RetNet's three forms: Sun 2023, arXiv:2307.08621, equations 5 to 7; GLA's: Yang 2023,
 * arXiv:2312.06635, section 4; the delta rule's: Yang 2024, arXiv:2406.06484, section 3, and with a
 * decay arXiv:2412.06464, section 3.
 *
 * forms.c is compiled for float and, in the tests, once more for double, in which the forms agree
 * to 1e-12 (tests/support/forms_double.h). */
#ifndef SLATE_ENGINE_FORMS_H
#define SLATE_ENGINE_FORMS_H

#include <stdbool.h>
#include <stddef.h>

enum sl_form { SL_FORM_RECURRENT, SL_FORM_CHUNKWISE, SL_FORM_PARALLEL, SL_FORM_COUNT };

/* Names for options and tables: "recurrent", "chunkwise", "parallel". */
extern const char *const sl_form_names[SL_FORM_COUNT];

enum sl_decay { SL_DECAY_NONE, SL_DECAY_SCALAR, SL_DECAY_CHANNEL };

/* Tokens of a chunk: where the chunk's own products and those with the state cost about the same
 * for heads of 64 to 128. */
enum { SL_CHUNK = 64 };

#define sl_real float
#define SL_FORMS_NAME(name) name
#include "engine/forms_of.h"
#undef sl_real
#undef SL_FORMS_NAME

#endif
