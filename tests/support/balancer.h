/* balancer.h: the real HAProxy and the real nginx as children of a test, with the files of deploy/.
 *
 * Only what must differ in a test is replaced, in a copy under $SLATE_BUILD/cluster: the ports, the
 * user, and where logs and temporary files lie. A text to replace that is not in the file any more
 * fails the test, so the copy cannot drift from what is delivered. */
#ifndef SLATE_TESTS_BALANCER_H
#define SLATE_TESTS_BALANCER_H

#include <stdint.h>

enum { BALANCER_DEADLINE_MS = 30000, BALANCER_NODES = 2, BALANCER_FLEET_NODES = 3 };

/* The last two: deploy/haproxy-fleet.cfg and nginx-fleet.conf, with BALANCER_FLEET_NODES nodes. */
enum balancer_kind {
    BALANCER_HAPROXY,
    BALANCER_NGINX,
    BALANCER_HAPROXY_FLEET,
    BALANCER_NGINX_FLEET,
    BALANCER_KINDS
};

struct balancer;

/* Ports that nothing listens on, below those that the system gives to outgoing connections: a node
 * can leave its port and come back to it. Each call gives others. */
unsigned free_port(void);

/* Returns once it accepts connections; it dies with the test. */
struct balancer *balancer_start(enum balancer_kind kind, const unsigned *node_ports);
const char *balancer_base(const struct balancer *b); /* "http://127.0.0.1:PORT" */
/* Ends it at once. NULL is fine. */
void balancer_stop(struct balancer *b);

#endif
