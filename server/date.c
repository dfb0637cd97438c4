/* date.c: see date.h. */
#include "server/date.h"

#include <assert.h>
#include <stdio.h>
#include <time.h>

const char *sl_date_text(struct sl_date *d, int64_t unix_s)
{
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const int64_t last = 253402300799; /* 9999-12-31 23:59:59 */
    int64_t at = unix_s < 0 ? 0 : unix_s > last ? last : unix_s;
    if (d->text[0] && d->at == at)
        return d->text;
    time_t t = (time_t)at;
    struct tm tm;
    if (!gmtime_r(&t, &tm))
        assert(!"every second of these years has a date");
    int n = snprintf(d->text, sizeof d->text, "%s, %02d %s %04d %02d:%02d:%02d GMT",
                     days[tm.tm_wday], tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour,
                     tm.tm_min, tm.tm_sec);
    assert(n == sizeof d->text - 1);
    d->at = at;
    return d->text;
}
