/* gguf_arch.h: how the files of each GGUF architecture name their tensors, and what a model here
 * calls them. Private to engine/formats/.
 *
 * Names and shapes are llama.cpp's, as its converter writes them. A shape is a word with a letter
 * for each axis, the outermost first: a digit is that number, any other letter a size that the
 * file's keys give (struct sl_gguf_size) or that is computed from those (struct sl_gguf_arch). Axes
 * of size 1 do not count. '*' in a name stands for the layer's number. */
#ifndef SLATE_FORMATS_GGUF_ARCH_H
#define SLATE_FORMATS_GGUF_ARCH_H

#include <stdbool.h>
#include <stddef.h>

/* A size that a key gives, "ARCHITECTURE." before its name. */
struct sl_gguf_size {
    char letter;
    const char *key;
    size_t max;
};

enum {
    SL_GGUF_OPTIONAL = 1, /* may be absent */
    SL_GGUF_LATER = 2,    /* only layers after the first; in the first one it is a dummy */
    SL_GGUF_RESCALED = 4  /* divided by 2 once for each rescale_every_n_layers layers before it */
};

struct sl_gguf_row {
    const char *file, *name;
    const char *shape;
    const char *as;    /* the shape that it is used in: the same elements, or, where the last two
                          letters are exchanged, its transpose; NULL: as it is */
    const char *split; /* it is cut along its first axis, and '?' in the name stands for one of
                          these letters each; or NULL */
    unsigned flags;
};

struct sl_gguf_arch {
    const char *name, *title;
    const char *refused;              /* why it is not run; NULL: it is, and all below is there */
    const struct sl_gguf_size *sizes; /* ends with a zeroed one; 'L' is the number of layers, 'V' is
                                         token_embd.weight's and not in the list */
    /* Fills in what is computed from them. NULL, or what is wrong with them. Indices are letters.
     */
    const char *(*derive)(size_t size[128]);
    const struct sl_gguf_row *rows; /* likewise */
    const char *epsilon;            /* the key of the norms' epsilon */
    double only_epsilon;            /* the one that is run; 0: any */
    bool mamba;                     /* its settings are those of Mamba-2's config.json */
};

/* The names of those that are run, "rwkv7, rwkv6": to ret, of n bytes, cut where it is short. */
void sl_gguf_arch_names(char *ret, size_t n);

/* NULL when there is none. */
const struct sl_gguf_arch *sl_gguf_arch_find(const char *name, size_t n);

#endif
