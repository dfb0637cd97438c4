/* shaped.h: a seeded model of a shape of `slate bench`, as files for a server under a bench.
 * Failures end the program. */
#ifndef SLATE_TESTS_SHAPED_H
#define SLATE_TESTS_SHAPED_H

#include <stddef.h>

struct shaped {
    char model[96];     /* GGUF in F16, which llama.cpp reads as well */
    char tokenizer[96]; /* what --tokenizer is to name; its own vocabulary has no single bytes */
    size_t vocabulary;  /* ids are below it */
};

/* In the folder, which is there. */
void shaped_write(struct shaped *ret, const char *folder, const char *shape);

#endif
