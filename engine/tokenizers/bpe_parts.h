/* bpe_parts.h: what a BPE tokenizer is made of. Private to engine/tokenizers/bpe*.c.
 *
 *     text -> added tokens (raw) -> normalisers -> added tokens (normalised) -> splitters -> words
 *          -> merges -> ids
 *
 * as Hugging Face's tokenizers library has it: each part does what that library does with the part
 * of the same name in a tokenizer.json. Everything below is made while a tokenizer is opened and
 * does not change after; what an encoding needs besides is in a struct sl_bpe_run. */
#ifndef SLATE_TOKENIZERS_BPE_PARTS_H
#define SLATE_TOKENIZERS_BPE_PARTS_H

#include "engine/tokenizers/kinds.h"

enum {
    SL_BPE_STEPS_MAX = 32,         /* normalisers, splitters, decoders: of each */
    SL_BPE_ADDED_MAX = 1 << 17,    /* added tokens */
    SL_BPE_PATTERN_MAX = 16 << 10, /* bytes of a regular expression, a literal, a replacement */
    SL_BPE_WORD_MAX = 4 << 20,     /* bytes of a word: what no splitter cuts and no seam (vocab) */
    SL_BPE_TEXT_MAX = 1 << 30,     /* bytes of a text after a normaliser */
    SL_BPE_RETRIES_FREE = 256,     /* of one search of a regular expression, always; */
    SL_BPE_RETRIES_GROWTH = 16,    /* more are tried in this ratio, out of what a text has: */
    SL_BPE_RETRIES = 1 << 20,      /* this, and this for each byte */
    SL_BPE_RETRIES_A_BYTE = 64,
    SL_BPE_STACK_MAX = 4 << 20, /* entries of its stack: about one for each character of a word */
    SL_BPE_MERGE_TEXT_MAX = 1 << 16 /* bytes of a token's text while merges are read */
};

#define SL_BPE_NONE UINT32_MAX /* no id */

struct sl_bpe_buf {
    unsigned char *v;
    size_t n, room;
};

/* Room for n bytes more; v is not NULL after it, even for n 0. Errors: NO_MEMORY, TOO_LARGE. */
SL_NODISCARD enum sl_code sl_bpe_buf_reserve(struct sl_bpe_buf *b, size_t n, struct sl_error *err);
SL_NODISCARD enum sl_code sl_bpe_buf_put(struct sl_bpe_buf *b, const void *s, size_t n,
                                         struct sl_error *err);
void sl_bpe_buf_done(struct sl_bpe_buf *b);

/* A character as UTF-8; returns how many bytes, 1 to 4. */
size_t sl_bpe_put_char(unsigned char *dst, uint32_t c);
/* The character at s, well formed; *ret_n: its bytes. */
uint32_t sl_bpe_get_char(const unsigned char *s, size_t *ret_n);
bool sl_bpe_is_white(uint32_t c); /* Unicode's White_Space */

/* --- patterns: bpe_pattern.c -------------------------------------------------------------------*/

/* Rust's \w, as a class; Oniguruma's own lacks Alphabetic beyond letters and the two joiners. */
#define SL_BPE_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"
#define SL_BPE_PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}]"
/* What GPT-2's texts are cut with. */
#define SL_BPE_GPT2                                                                                \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct sl_bpe_pattern {  /* all zero: none */
    void *regex;         /* of Oniguruma, or NULL: the literal */
    unsigned char *text; /* the literal */
    size_t n;
};

/* Errors: FILE_CORRUPT (what is wrong with the expression, without the place), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_bpe_pattern_regex(struct sl_bpe_pattern *p, const char *s, size_t n,
                                               struct sl_error *err);
SL_NODISCARD enum sl_code sl_bpe_pattern_literal(struct sl_bpe_pattern *p, const char *s, size_t n,
                                                 struct sl_error *err);
void sl_bpe_pattern_done(struct sl_bpe_pattern *p);

/* What searching needs; one for each thread that searches. All zero: not open. */
struct sl_bpe_matcher {
    void *region, *param;
    uint64_t retries; /* that are left */
};

/* For texts of n bytes together. Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_bpe_matcher_open(struct sl_bpe_matcher *m, size_t n,
                                              struct sl_error *err);
void sl_bpe_matcher_done(struct sl_bpe_matcher *m);

/* The matches of a pattern in a text, from left to right, apart from each other. */
struct sl_bpe_search {
    const struct sl_bpe_pattern *pattern;
    const unsigned char *s;
    size_t n, at;
    size_t last_end; /* of the last match; SIZE_MAX: there was none */
};

/* *ret_found false: there are no more. Errors: INVALID_VALUE (more than the limits of retries and
 * stack), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_bpe_search_next(struct sl_bpe_search *s, struct sl_bpe_matcher *m,
                                             bool *ret_found, struct sl_range *ret,
                                             struct sl_error *err);

/* Ranges of a text, ascending and apart, carried through what is made of it: at each step whatever
 * is made of a range's bytes is in the range after it. A step takes the edges one after another
 * (begin, end, begin, ...), all of those up to the text's end; e NULL: there are none. */
struct sl_bpe_edges {
    struct sl_range *v;
    size_t n, at; /* ranges; the next edge */
};

void sl_bpe_edges_again(struct sl_bpe_edges *e);
bool sl_bpe_edge_before(const struct sl_bpe_edges *e, size_t end); /* is there one? */
size_t sl_bpe_edge(const struct sl_bpe_edges *e);
bool sl_bpe_edge_begins(const struct sl_bpe_edges *e);
/* The next edge is at `at` now, and not before the one before it. */
void sl_bpe_edge_put(struct sl_bpe_edges *e, size_t at);

/* Appends s[0..n) with each match as content[0..n_content). Errors: those of searching, TOO_LARGE.
 */
SL_NODISCARD enum sl_code sl_bpe_replace(struct sl_bpe_buf *dst, const struct sl_bpe_pattern *p,
                                         const void *content, size_t n_content,
                                         struct sl_bpe_matcher *m, struct sl_bpe_edges *e,
                                         const unsigned char *s, size_t n, struct sl_error *err);

/* --- normalisers: bpe_normal.c -----------------------------------------------------------------*/

enum sl_bpe_normal_kind {
    SL_BPE_NFC,
    SL_BPE_NFD,
    SL_BPE_NFKC,
    SL_BPE_NFKD,
    SL_BPE_LOWERCASE,
    SL_BPE_REPLACE,
    SL_BPE_PREPEND,
    SL_BPE_STRIP
};

struct sl_bpe_normal {
    enum sl_bpe_normal_kind kind;
    struct sl_bpe_pattern pattern; /* REPLACE */
    unsigned char *content;        /* REPLACE, PREPEND */
    size_t n_content;
    bool left, right; /* STRIP */
};

struct sl_bpe;

/* s[0..n) through all normalisers: *ret points to s itself or into bufs[0] or bufs[1].
 * `continues`: nothing is put in front. */
SL_NODISCARD enum sl_code sl_bpe_normalise(const struct sl_bpe *b, struct sl_bpe_matcher *m,
                                           struct sl_bpe_buf bufs[2], bool continues,
                                           struct sl_bpe_edges *e, const unsigned char *s, size_t n,
                                           const unsigned char **ret, size_t *ret_n,
                                           struct sl_error *err);

/* --- splitters: bpe_split.c --------------------------------------------------------------------*/

enum sl_bpe_split_kind { SL_BPE_SPLIT, SL_BPE_BYTE_LEVEL, SL_BPE_METASPACE };

enum sl_bpe_behavior {
    SL_BPE_REMOVED,
    SL_BPE_ISOLATED,
    SL_BPE_MERGED_WITH_PREVIOUS,
    SL_BPE_MERGED_WITH_NEXT,
    SL_BPE_CONTIGUOUS
};

enum sl_bpe_scheme { SL_BPE_ALWAYS, SL_BPE_FIRST, SL_BPE_NEVER };

struct sl_bpe_split {
    enum sl_bpe_split_kind kind;
    struct sl_bpe_pattern pattern; /* what is cut at; BYTE_LEVEL and METASPACE: maybe none */
    enum sl_bpe_behavior behavior;
    bool invert;
    bool add_prefix_space;     /* BYTE_LEVEL */
    enum sl_bpe_scheme scheme; /* METASPACE */
    unsigned char replacement[4];
    size_t n_replacement;
};

struct sl_bpe_run;

/* Cuts s[0..n) and gives each word to sl_bpe_word(). `begins`: it holds the text's first byte. */
SL_NODISCARD enum sl_code sl_bpe_split_text(struct sl_bpe_run *r, const unsigned char *s, size_t n,
                                            bool begins);

/* GPT-2's alphabet: the character that stands for a byte, and the byte (-1: none does). */
uint32_t sl_bpe_char_of_byte(unsigned char byte);
int sl_bpe_byte_of_char(uint32_t c);

/* --- added tokens: bpe_added.c -----------------------------------------------------------------*/

struct sl_bpe_added {
    uint32_t id;
    unsigned char *content; /* as the file has it */
    size_t n_content;
    unsigned char *text; /* what is looked for: content, normalised where `normalized` says so */
    size_t n_text;
    bool single_word, lstrip, rstrip, normalized, special;
};

struct sl_bpe_added_set { /* either those that are looked for in raw text, or the others */
    const struct sl_bpe_added **sorted; /* by text */
    size_t n;
    uint32_t first[257]; /* the first one whose text begins with this byte, or a later one */
    bool has_special;
};

/* As strings are ordered: negative, 0 or positive. */
int sl_bpe_compare(const unsigned char *a, size_t n_a, const unsigned char *b, size_t n_b);

/* Sorts those of b->added whose `normalized` is as said. Errors: NO_MEMORY; FILE_CORRUPT (two have
 * one text; *ret_index is the second one). */
SL_NODISCARD enum sl_code sl_bpe_added_sort(struct sl_bpe_added_set *set, const struct sl_bpe *b,
                                            bool normalized, size_t *ret_index,
                                            struct sl_error *err);

struct sl_bpe_added_search {
    const struct sl_bpe_added_set *set;
    const unsigned char *s;
    size_t n;
    const struct sl_range *verbatim; /* where special ones are not looked for */
    size_t n_verbatim;
    size_t at, end; /* where to go on; the end of the last one's range */
};

/* The next added token: *ret NULL: none. *ret_range: what it takes, with the blanks it strips (so
 * it may begin before the last one's end, where that one stripped blanks that are a token). */
SL_NODISCARD enum sl_code sl_bpe_added_next(struct sl_bpe_added_search *s, const struct sl_bpe *b,
                                            struct sl_bpe_matcher *m,
                                            const struct sl_bpe_added **ret,
                                            struct sl_range *ret_range, struct sl_error *err);

/* --- vocabulary and merges: bpe_vocab.c --------------------------------------------------------*/

struct sl_bpe_merge {
    uint64_t pair; /* left << 32 | right; SL_BPE_NO_PAIR: the place is empty */
    uint32_t rank, id;
};

#define SL_BPE_NO_PAIR UINT64_MAX

struct sl_bpe_vocab {
    unsigned char *blob; /* all texts */
    size_t n_blob;
    struct sl_token_span *texts; /* by id; n 0: no such token */
    size_t n_ids, n_tokens;
    uint32_t *by_text; /* a hash table of ids; SL_BPE_NONE: empty */
    size_t by_text_mask;
    struct sl_bpe_merge *merges; /* a hash table */
    size_t merges_mask, n_merges;
    uint32_t chars[0x800]; /* the token that is this character alone */
    uint64_t *seams;       /* a hash table of pairs of characters that are neighbours in a token; */
    size_t seams_mask;     /* NULL: words are not cut between others */
    uint32_t bytes[256];   /* byte fallback: the token of each byte */
    uint32_t unk;          /* or SL_BPE_NONE */
    bool byte_fallback, fuse_unk, ignore_merges;
    unsigned char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix */
    size_t n_prefix, n_suffix;
    size_t longest; /* token's text */
};

/* After blob, texts and n_ids: the table of texts and what follows from it. Errors: NO_MEMORY;
 * FILE_CORRUPT (one text twice; *ret_id is the second one). */
SL_NODISCARD enum sl_code sl_bpe_vocab_index(struct sl_bpe_vocab *v, uint32_t *ret_id,
                                             struct sl_error *err);
uint32_t sl_bpe_vocab_find(const struct sl_bpe_vocab *v, const void *s, size_t n);

/* An empty table for n merges. */
SL_NODISCARD enum sl_code sl_bpe_merges_init(struct sl_bpe_vocab *v, size_t n,
                                             struct sl_error *err);
/* A pair that is there already gets the new rank. */
void sl_bpe_merges_add(struct sl_bpe_vocab *v, uint32_t left, uint32_t right, uint32_t rank,
                       uint32_t id);
/* The same by the tokens' texts. Errors: FILE_CORRUPT (one of them, or the two joined, is no
 * token).
 */
SL_NODISCARD enum sl_code sl_bpe_merges_join(struct sl_bpe_vocab *v, const char *left,
                                             size_t n_left, const char *right, size_t n_right,
                                             uint32_t rank, struct sl_error *err);
const struct sl_bpe_merge *sl_bpe_merges_find(const struct sl_bpe_vocab *v, uint32_t left,
                                              uint32_t right); /* NULL: there is none */
/* After the merges: where words can be cut without changing what they become. */
SL_NODISCARD enum sl_code sl_bpe_seams_make(struct sl_bpe_vocab *v, struct sl_error *err);
/* Can no token hold the two characters side by side? */
bool sl_bpe_is_seam(const struct sl_bpe_vocab *v, uint32_t left, uint32_t right);
void sl_bpe_vocab_done(struct sl_bpe_vocab *v);

/* --- words: bpe_word.c -------------------------------------------------------------------------*/

struct sl_bpe_symbol {
    uint32_t id, prev, next;
};

struct sl_bpe_entry { /* of the queue of merges */
    uint32_t rank, pos, id;
};

struct sl_bpe_space { /* for words of `room` symbols: as many symbols, twice as many entries */
    struct sl_bpe_symbol *symbols;
    struct sl_bpe_entry *queue;
    size_t room;
};

/* Symbols that a word of n bytes can have. */
size_t sl_bpe_symbols_max(const struct sl_bpe_vocab *v, size_t n);
/* The ids of one word; `ids` has room for as many as it can have symbols. Cannot fail. */
size_t sl_bpe_merge_word(const struct sl_bpe_vocab *v, const unsigned char *s, size_t n,
                         struct sl_bpe_space *space, uint32_t *ids);

/* --- decoders: bpe_decode.c --------------------------------------------------------------------*/

enum sl_bpe_decode_kind {
    SL_BPE_DECODE_BYTE_LEVEL,
    SL_BPE_DECODE_REPLACE,
    SL_BPE_DECODE_METASPACE,
    SL_BPE_DECODE_BYTE_FALLBACK,
    SL_BPE_DECODE_FUSE,
    SL_BPE_DECODE_STRIP,
    SL_BPE_DECODE_JOIN /* no decoder at all: a blank between two tokens */
};

struct sl_bpe_decode {
    enum sl_bpe_decode_kind kind;
    struct sl_bpe_pattern pattern; /* REPLACE */
    unsigned char *content;        /* REPLACE; METASPACE: what a blank is written as; STRIP: one
                                      character */
    size_t n_content;
    size_t start, stop; /* STRIP */
    bool drops_first;   /* METASPACE */
};

/* Fills t's table of tokens. Errors: TOO_LARGE (*ret_id is the token), NO_MEMORY, and those of
 * searching. */
SL_NODISCARD enum sl_code sl_bpe_decode_all(struct sl_tokenizer *t, struct sl_bpe *b,
                                            uint32_t *ret_id, struct sl_error *err);

/* --- all of it ---------------------------------------------------------------------------------*/

struct sl_bpe {
    struct sl_bpe_vocab vocab;
    struct sl_bpe_normal normals[SL_BPE_STEPS_MAX];
    struct sl_bpe_split splits[SL_BPE_STEPS_MAX];
    struct sl_bpe_decode decodes[SL_BPE_STEPS_MAX];
    size_t n_normals, n_splits, n_decodes;
    struct sl_bpe_added *added; /* in the file's order */
    size_t n_added;
    struct sl_bpe_added_set raw, normalised;
    struct sl_bpe_pattern word_char; /* \w as added tokens' single_word has it */
    unsigned char *blob;             /* the table of tokens */
    struct sl_token_span *spans, *first_spans;
    size_t n_ids;
};

struct sl_bpe_run { /* one encoding */
    const struct sl_bpe *b;
    struct sl_token_list *out;
    struct sl_error *err;
    bool continues;
    size_t n_passed; /* verbatim ranges that end before the piece at hand */
    struct sl_bpe_matcher matcher;
    struct sl_bpe_buf normal[2];
    struct sl_bpe_buf split[SL_BPE_STEPS_MAX][2];
    struct sl_bpe_space space;
    struct sl_bpe_cache *cache;
};

SL_NODISCARD enum sl_code sl_bpe_word(struct sl_bpe_run *r, const unsigned char *s, size_t n);

/* After vocabulary, merges, steps and added tokens were filled in: everything that follows from
 * them, and t's fields. On failure *ret_place (static storage) says which part is at fault and
 * *ret_index which of its elements, where err does not. b stays the caller's then. */
SL_NODISCARD enum sl_code sl_bpe_finish(struct sl_tokenizer *t, struct sl_bpe *b,
                                        const char **ret_place, size_t *ret_index,
                                        struct sl_error *err);

void sl_bpe_free(struct sl_bpe *b); /* NULL is fine */

/* --- tokenizer.json: bpe_json.c, bpe_json_steps.c ----------------------------------------------*/

bool sl_bpe_json_knows(const unsigned char *data, size_t n_bytes);
SL_NODISCARD enum sl_code sl_bpe_json_read(struct sl_tokenizer *t, struct sl_bpe *b,
                                           const unsigned char *data, size_t n_bytes,
                                           const char *name, struct sl_error *err);

#endif
