/* conversion.h: for tests: a model is converted, and compared with what it was made from. */
#ifndef SLATE_TESTS_CONVERSION_H
#define SLATE_TESTS_CONVERSION_H

#include "server/cli/convert_file.h"

/* in -> out, replacing it. extras may be NULL. */
enum sl_code conversion(const char *in, const char *out, enum sl_dtype type, const char *rule,
                        const struct sl_conversion_extras *extras, const struct sl_store_io *io,
                        struct sl_error *err);
/* The same; fails the test when that fails. */
void conversion_must(const char *in, const char *out, enum sl_dtype type, const char *rule);

/* Fails the test unless both models compute the same bits over some tokens, have one fingerprint,
 * and a snapshot taken with one restores into the other, and is said to be of the same weights'
 * type. */
void conversion_same(const struct sl_model *a, const struct sl_model *b);

/* Opens; fails the test when that fails. */
struct sl_model *conversion_open(const char *path, enum sl_dtype weights, const char *rule);

/* A snapshot of `from`, after some tokens, read into `to`. */
enum sl_code conversion_restore(const struct sl_model *from, const struct sl_model *to,
                                bool *ret_other_weights, struct sl_error *err);

/* For each test: a folder, and paths in it (some last ones hold). */
int conversion_set_up(void **state);
int conversion_tear_down(void **state);
const char *conversion_path(const char *name);

/* in, loaded in each type (none first), and converted to it: conversion_same(). */
void conversion_every_type(const char *in, const char *rule);

/* A seeded model of odd sizes. */
void conversion_write_odd(const char *path, enum sl_dtype dtype, bool pth);

bool conversion_narrowed(const char *path); /* what the file says of itself */
size_t conversion_bytes(const char *path);

#endif
