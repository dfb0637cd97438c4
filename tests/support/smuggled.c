/* smuggled.c: see smuggled.h. */
#include "tests/support/smuggled.h"

#define HOST "Host: localhost\r\n"
#define POST_HEAD "POST /v1/tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"

const char *const smuggled[N_SMUGGLED] = {
    POST_HEAD "Content-Length: 13\r\n" CHUNKED "\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "Content-Length: 4\r\n\r\n5c\r\n" SMUGGLED_REQUEST "0\r\n\r\n",
    POST_HEAD "Content-Length: 0\r\nContent-Length: 70\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Content-Length: 0, 70\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Content-Length: +0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Content-Length: 0x0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Content-Length : 0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Content-Length: 18446744073709551616\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Transfer-Encoding: identity\r\n" CHUNKED "\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" SMUGGLED_REQUEST, /* obs-fold */
    POST_HEAD "X: a\r\n b\r\nContent-Length: 0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "X: a\r\n\tContent-Length: 70\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD "X: a\nContent-Length: 0\r\n\r\n" SMUGGLED_REQUEST, /* bare LF */
    POST_HEAD "X: a\rContent-Length: 0\r\n\r\n" SMUGGLED_REQUEST, /* bare CR */
    /* a line's end for some */
    POST_HEAD "X: a\x0b"
              "Y: b\r\nContent-Length: 0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n0x0\r\n\r\n" SMUGGLED_REQUEST, /* odd sizes of chunks */
    POST_HEAD CHUNKED "\r\n-1\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n+0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n 0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n10000000000000000\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n0\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n2\r\n{}0\r\n\r\n" SMUGGLED_REQUEST, /* no line end behind the data */
    POST_HEAD CHUNKED "\r\n2\r\n{}\n0\r\n\r\n" SMUGGLED_REQUEST,
    POST_HEAD CHUNKED "\r\n1\r\n{}\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    "GET /livez HTTP/1.0\r\n" HOST CHUNKED "\r\n0\r\n\r\n" SMUGGLED_REQUEST,
    "GET /livez HTTP/1.1\r\n" HOST "Host: other\r\n\r\n" SMUGGLED_REQUEST,
    "GET /livez HTTP/1.1 \r\n" HOST "\r\n" SMUGGLED_REQUEST,
    "GET  /livez HTTP/1.1\r\n" HOST "\r\n" SMUGGLED_REQUEST,
    "GET /livez HTTP/1.1\r\n" HOST "X y: z\r\n\r\n" SMUGGLED_REQUEST,
    "CONNECT /livez HTTP/1.1\r\n" HOST "Content-Length: 58\r\n\r\n" SMUGGLED_REQUEST,
    "CONNECT /livez HTTP/1.1\r\n" HOST CHUNKED "\r\n3a\r\n" SMUGGLED_REQUEST "\r\n0\r\n\r\n",
};
