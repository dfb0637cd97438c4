/* key_file.h: a key file in /tmp, one at a time. Failures fail the test. */
#ifndef SLATE_TESTS_KEY_FILE_H
#define SLATE_TESTS_KEY_FILE_H

#include "server/auth.h"

extern char key_file[32]; /* its path; "": there is none */

/* What it holds from now on; it is made where there is none. */
void key_file_put(const void *bytes, size_t n);
void key_file_remove(void); /* where there is one */

/* Puts the text there and opens it. */
enum sl_code key_file_open(const char *text, struct sl_keys **ret, struct sl_error *err);

int key_file_tear_down(void **state); /* key_file_remove(), for cmocka */

#endif
