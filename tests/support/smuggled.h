/* smuggled.h: requests whose end two readers could see at two places. Each hides another one behind
 * it, SMUGGLED_REQUEST. */
#ifndef SLATE_TESTS_SMUGGLED_H
#define SLATE_TESTS_SMUGGLED_H

#define SMUGGLED_REQUEST "DELETE /v1/sessions/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"

enum { N_SMUGGLED = 37 };

extern const char *const smuggled[N_SMUGGLED];

#endif
