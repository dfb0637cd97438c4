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
    bool bad_scale;           /* it is a scale of codes */
    unsigned char digest[16]; /* XXH3-128 of the elements */
};

/* Hashes the elements of j's tensor, checks them, and writes the copy into `arena` where there is
 * one; fills in the results. Gives the file's pages back on the way. Any thread, each its own job.
 */
void sl_load_job_run(struct sl_load_job *j, const struct sl_tensors *ts, unsigned char *arena);

/* The same where values are not the elements as they lie: quantised blocks, exponents. */
void sl_load_values_run(struct sl_load_job *j, const struct sl_tensors *ts, unsigned char *arena);

/* And where they are codes with scales. */
void sl_load_codes_run(struct sl_load_job *j, const struct sl_tensors *ts, unsigned char *arena);

/* Index of the first of n dense values that a copy of the type `to` cannot hold, or that is not
 * finite; SIZE_MAX where there is none. */
size_t sl_find_bad(const void *data, enum sl_dtype type, size_t n, enum sl_dtype to);

/* What is done with a tensor of the file. */
enum { SL_MARK_NONE, SL_MARK_IGNORED, SL_MARK_TWIN, SL_MARK_USED };

struct sl_load_view {
    struct sl_tensor t; /* its name is the whole tensor's */
    struct sl_load_view *next;
};

#endif
