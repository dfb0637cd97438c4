/* load_priv.h: what declaring (load.c) hands to packing (load_finish.c). */
#ifndef SLATE_ENGINE_LOAD_PRIV_H
#define SLATE_ENGINE_LOAD_PRIV_H

#include "engine/load.h"

/* One tensor that a model uses. */
struct sl_load_job {
    const struct sl_tensor *t;
    enum { SL_JOB_F32, SL_JOB_COLUMNS, SL_JOB_MATRIX, SL_JOB_ROWS } kind;
    enum sl_dtype type; /* of the copy */
    size_t n_out, n_in; /* of a matrix; rows and columns of SL_JOB_COLUMNS */
    enum sl_layout layout;
    void (*map)(float *v, size_t n); /* of values; NULL: none */
    bool copied;                     /* SL_JOB_ROWS may stay in the file */
    size_t offset;                   /* in the arena, when copied */
    const void **at;                 /* where the pointer to the copy goes */

    /* Results. */
    enum sl_code code;
    size_t bad;               /* index of the first value that cannot be used */
    unsigned char digest[16]; /* XXH3-128 of the elements */
};

/* What is done with a tensor of the file. */
enum { SL_MARK_NONE, SL_MARK_IGNORED, SL_MARK_USED };

struct sl_load_view {
    struct sl_tensor t; /* its name is the whole tensor's */
    struct sl_load_view *next;
};

#endif
