/* foes.h: hostile clients, as many as wanted, on one thread; and a port that swallows all.
 *
 * What they do goes by a clock and not by what they are answered: each connects, sends its text
 * (at once, or in pieces), reads or does not, and after its life connects anew. So they do the same
 * work against the sink as against a server, and what honest clients lose to the server's weakness
 * is told from what they lose to the foes' own use of the processors.
 *
 * The clock can be that of a process's own time on the processors: beside a server that a busy
 * machine lets run a tenth of the time they are ten times slower, too.
 *
 * Failures of the system (no descriptors, no ports) end the test. */
#ifndef SLATE_TESTS_FOES_H
#define SLATE_TESTS_FOES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum foe_reading { FOE_READS, FOE_SIPS /* 1 KiB at each piece's time */, FOE_DOES_NOT_READ };

struct foe_text {
    const char *bytes;
    size_t n;
};

struct foe_plan {
    size_t n; /* connections at once */
    /* What they send: the i-th connection of all sends the i-th text, and so on in turns. */
    const struct foe_text *texts;
    size_t n_texts;
    size_t at_once;    /* bytes of it sent at once; the rest a byte every piece_ms */
    pid_t clock;       /* whose time on the processors counts; 0: the time of day */
    unsigned piece_ms; /* 0: no rest is sent */
    unsigned life_ms;  /* then it closes and comes anew; 0: stays, and does not come again */
    enum foe_reading reading;
    bool half_close;    /* says that it sends no more, when all is sent */
    bool small_buffers; /* its kernel takes few bytes that it has not read */
};

struct foes;

/* Returns when all have connected and sent what they send at once (or could send nothing more of it
 * for a while). */
struct foes *foes_start(const struct foe_plan *plan, unsigned port);

struct foes_result {
    size_t lives;   /* connections made */
    size_t closed;  /* of them ended by the other side */
    size_t bytes;   /* received by all */
    char last[512]; /* the beginning of what one of them received */
};
/* Closes all that are open. */
void foes_stop(struct foes *f, struct foes_result *ret);

/* How many are connected now, as far as they have noticed. */
size_t foes_open(struct foes *f);
/* Waits until n or fewer are. false: after so many milliseconds there are still more. */
bool foes_leave(struct foes *f, size_t n, unsigned ms);

/* A port of 127.0.0.1 that accepts, reads and throws away. A process of its own does: so the other
 * ends of the connections take none of the program's descriptors. */
struct sink {
    pid_t pid;
    unsigned port;
};
void sink_open(struct sink *ret);
void sink_close(struct sink *s);

#endif
