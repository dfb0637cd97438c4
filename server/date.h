/* date.h: the text of the Date header (RFC 9110, 5.6.7: IMF-fixdate), made once a second.
 *
 * By hand: strftime() would write the names of the locale's days. Loop's thread. */
#ifndef SLATE_SERVER_DATE_H
#define SLATE_SERVER_DATE_H

#include <stdint.h>

enum { SL_DATE_SIZE = 30 }; /* "Sun, 06 Nov 1994 08:49:37 GMT" and its '\0' */

struct sl_date { /* all zero: no text yet */
    int64_t at;  /* Unix time, s, of the text */
    char text[SL_DATE_SIZE];
};

/* The text of that second, from 1970 to the end of 9999 (others become the nearest of these). */
const char *sl_date_text(struct sl_date *d, int64_t unix_s);

#endif
