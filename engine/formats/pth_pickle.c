/* pth_pickle.c: a pickle machine that can build data and nothing else.
 *
 * A pickle is a program for a stack machine. Python's own runs whatever functions the program
 * names, which is why a checkpoint from elsewhere can take over the process that loads it. This one
 * knows the opcodes that torch.save writes, and a fixed table of names (pth_globals.c) that only
 * ever make plain values here. Everything else ends the reading with the name of what was wanted.
 *
 * Bounds: each opcode consumes at least one byte and makes at most one value, so work and memory
 * are linear in the pickle's length; length, stack, marks, memo and memory have limits with a name.
 * Values form a graph that may share parts and contain cycles: who walks it must bound the walk.
 * Opcodes and their arguments: Python's Lib/pickletools.py documents them. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/pth.h"

struct opcode {
    const char *name; /* as pickletools calls it; NULL: not known here */
    enum sl_code (*run)(struct sl_pickle *m, unsigned arg);
    unsigned arg; /* what tells handlers' cases apart: a width, a count, a value */
};

/* --- errors and memory ------------------------------------------------------------------------ */

void sl_pickle_fail(const struct sl_pickle *m, enum sl_code c, const char *fmt, ...)
{
    char what[sizeof(struct sl_error)];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    sl_reader_fail(m->r, c, "%s, byte %td%s%s: %s", m->what, m->at - m->begin, m->op ? ", in " : "",
                   m->op ? m->op : "", n < 0 ? "" : what);
}

enum sl_code sl_pickle_no_memory(const struct sl_pickle *m)
{
    if (m->arena->full)
        return SL_PICKLE_FAIL(m, TOO_LARGE, "its values take more than %zu bytes",
                              SL_PICKLE_ARENA_MAX);
    return SL_PICKLE_FAIL(m, NO_MEMORY, "not enough memory for its values");
}

struct sl_pickle_value *sl_pickle_new(struct sl_pickle *m, enum sl_pickle_kind kind)
{
    struct sl_pickle_value *v = sl_arena_alloc(m->arena, sizeof *v);
    if (v)
        v->kind = kind;
    return v;
}

/* Makes room in an array of pointers for place n, below limit. False: no memory. */
static bool grow(struct sl_pickle_value ***v, size_t n, size_t *cap, size_t limit)
{
    if (n < *cap)
        return true;
    size_t want = *cap ? *cap : 64;
    while (want <= n)
        want *= 2; /* n is below limit, which is a power of two and far from overflow */
    assert(want <= limit);
    void *p = sl_realloc(*v, want, sizeof(struct sl_pickle_value *));
    if (!p)
        return false;
    *v = p;
    memset(*v + *cap, 0, (want - *cap) * sizeof(struct sl_pickle_value *));
    *cap = want;
    return true;
}

/* --- input ------------------------------------------------------------------------------------ */

static enum sl_code take(struct sl_pickle *m, size_t n, const unsigned char **ret)
{
    if (n > (size_t)(m->end - m->at))
        return SL_PICKLE_FAIL(m, FILE_TRUNCATED, "%zu bytes are needed, %td are left", n,
                              m->end - m->at);
    *ret = m->at;
    m->at += n;
    return SL_OK;
}

/* A little-endian unsigned number of width bytes. */
static enum sl_code take_number(struct sl_pickle *m, unsigned width, uint64_t *ret)
{
    const unsigned char *p;
    enum sl_code c = take(m, width, &p);
    if (c)
        return c;
    *ret = 0;
    memcpy(ret, p, width);
    return SL_OK;
}

/* Text up to the next newline, which is consumed. */
static enum sl_code take_line(struct sl_pickle *m, const char **ret, size_t *ret_n)
{
    const unsigned char *nl = memchr(m->at, '\n', (size_t)(m->end - m->at));
    if (!nl)
        return SL_PICKLE_FAIL(m, FILE_TRUNCATED, "a line without an end");
    *ret = (const char *)m->at;
    *ret_n = (size_t)(nl - m->at);
    m->at = nl + 1;
    return SL_OK;
}

/* --- the stack -------------------------------------------------------------------------------- */

static enum sl_code push(struct sl_pickle *m, struct sl_pickle_value *v)
{
    if (!v)
        return sl_pickle_no_memory(m);
    if (m->n_stack >= SL_PICKLE_STACK_MAX)
        return SL_PICKLE_FAIL(m, TOO_LARGE, "more than %zu values on the stack",
                              SL_PICKLE_STACK_MAX);
    if (!grow(&m->stack, m->n_stack, &m->stack_cap, SL_PICKLE_STACK_MAX))
        return sl_pickle_no_memory(m);
    m->stack[m->n_stack++] = v;
    return SL_OK;
}

/* The lowest place that may be popped: a mark protects what is below it. */
static size_t stack_floor(const struct sl_pickle *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

static enum sl_code need(const struct sl_pickle *m, size_t n)
{
    if (m->n_stack - stack_floor(m) < n)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "%zu values are needed, %zu are on the stack", n,
                              m->n_stack - stack_floor(m));
    return SL_OK;
}

/* Takes the topmost mark away; *ret is the height it stood at. */
static enum sl_code pop_mark(struct sl_pickle *m, size_t *ret)
{
    if (!m->n_marks)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "there is no mark on the stack");
    *ret = m->marks[--m->n_marks];
    return SL_OK;
}

/* Appends n values to a list or dict. Its room doubles; the arena keeps the old array. */
static enum sl_code append(struct sl_pickle *m, struct sl_pickle_value *to,
                           struct sl_pickle_value *const *v, size_t n)
{
    if (n > to->cap - to->n) {
        size_t cap = to->cap * 2 > to->n + n ? to->cap * 2 : to->n + n;
        struct sl_pickle_value **p =
            sl_arena_alloc(m->arena, cap * sizeof(struct sl_pickle_value *));
        if (!p)
            return sl_pickle_no_memory(m);
        if (to->n)
            memcpy(p, to->u.v, to->n * sizeof(struct sl_pickle_value *));
        to->u.v = p;
        to->cap = cap;
    }
    if (n)
        memcpy(to->u.v + to->n, v, n * sizeof(struct sl_pickle_value *));
    to->n += n;
    return SL_OK;
}

/* --- opcodes: constants ----------------------------------------------------------------------- */

static enum sl_code op_proto(struct sl_pickle *m, unsigned width)
{
    uint64_t version;
    enum sl_code c = take_number(m, width, &version);
    if (!c && version > 5)
        c = SL_PICKLE_FAIL(m, FILE_UNSUPPORTED, "pickle protocol %ju; at most 5 is known",
                           (uintmax_t)version);
    return c;
}

static enum sl_code op_frame(struct sl_pickle *m, unsigned width)
{
    uint64_t n; /* a hint for readers of streams: only checked to be possible */
    enum sl_code c = take_number(m, width, &n);
    if (!c && n > (uint64_t)(m->end - m->at))
        c = SL_PICKLE_FAIL(m, FILE_TRUNCATED, "a frame of %ju bytes, %td are left", (uintmax_t)n,
                           m->end - m->at);
    return c;
}

static enum sl_code op_constant(struct sl_pickle *m, unsigned kind)
{
    return push(m, sl_pickle_new(m, (enum sl_pickle_kind)kind));
}

static enum sl_code op_bool(struct sl_pickle *m, unsigned value)
{
    struct sl_pickle_value *v = sl_pickle_new(m, SL_PICKLE_BOOL);
    if (v)
        v->u.i = value;
    return push(m, v);
}

static enum sl_code push_int(struct sl_pickle *m, int64_t i)
{
    struct sl_pickle_value *v = sl_pickle_new(m, SL_PICKLE_INT);
    if (v)
        v->u.i = i;
    return push(m, v);
}

static enum sl_code op_int(struct sl_pickle *m, unsigned width)
{
    uint64_t u;
    enum sl_code c = take_number(m, width, &u);
    if (c)
        return c;
    return push_int(m, width == 4 ? (int32_t)(uint32_t)u : (int64_t)u);
}

/* LONG1, LONG4: a length of `width` bytes, then so many bytes of two's complement. */
static enum sl_code op_long(struct sl_pickle *m, unsigned width)
{
    uint64_t n;
    const unsigned char *p;
    enum sl_code c = take_number(m, width, &n);
    if (!c)
        c = take(m, (size_t)n, &p);
    if (c)
        return c;
    if (n > 8)
        return push(m, sl_pickle_new(m, SL_PICKLE_BIG_INT));
    uint64_t u = n && (p[n - 1] & 0x80) ? UINT64_MAX : 0; /* the sign goes on to the left */
    memcpy(&u, p, (size_t)n);
    return push_int(m, (int64_t)u);
}

static enum sl_code op_float(struct sl_pickle *m, unsigned width)
{
    const unsigned char *p;
    enum sl_code c = take(m, width, &p);
    return c ? c : push(m, sl_pickle_new(m, SL_PICKLE_OTHER));
}

static enum sl_code op_string(struct sl_pickle *m, unsigned width)
{
    uint64_t n;
    const unsigned char *p;
    enum sl_code c = take_number(m, width, &n);
    if (!c)
        c = take(m, (size_t)n, &p);
    if (c)
        return c;
    struct sl_pickle_value *v = sl_pickle_new(m, SL_PICKLE_STRING);
    if (v) {
        v->u.s = (const char *)p;
        v->n = (size_t)n;
    }
    return push(m, v);
}

static enum sl_code op_bytes(struct sl_pickle *m, unsigned width)
{
    enum sl_code c = op_string(m, width);
    if (!c)
        m->stack[m->n_stack - 1]->kind = SL_PICKLE_OTHER;
    return c;
}

/* --- opcodes: containers ---------------------------------------------------------------------- */

static enum sl_code op_mark(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    if (m->n_marks >= SL_PICKLE_MARKS_MAX)
        return SL_PICKLE_FAIL(m, TOO_LARGE, "values are nested more than %zu deep",
                              SL_PICKLE_MARKS_MAX);
    m->marks[m->n_marks++] = m->n_stack;
    return SL_OK;
}

/* The values above height become one container, which takes their place. */
static enum sl_code collect(struct sl_pickle *m, enum sl_pickle_kind kind, size_t height)
{
    struct sl_pickle_value *v = sl_pickle_new(m, kind);
    if (!v)
        return sl_pickle_no_memory(m);
    enum sl_code c = append(m, v, m->stack + height, m->n_stack - height);
    if (c)
        return c;
    m->n_stack = height;
    return push(m, v);
}

static enum sl_code op_tuple_n(struct sl_pickle *m, unsigned n)
{
    enum sl_code c = need(m, n);
    return c ? c : collect(m, SL_PICKLE_TUPLE, m->n_stack - n);
}

static enum sl_code op_collect(struct sl_pickle *m, unsigned kind)
{
    size_t height;
    enum sl_code c = pop_mark(m, &height);
    if (!c && kind == SL_PICKLE_DICT && (m->n_stack - height) % 2)
        c = SL_PICKLE_FAIL(m, FILE_CORRUPT, "a dict with a key and no value");
    return c ? c : collect(m, (enum sl_pickle_kind)kind, height);
}

static const char *const container_names[] = {
    [SL_PICKLE_LIST] = "list", [SL_PICKLE_DICT] = "dict", [SL_PICKLE_OTHER] = "set"};

/* The values above height go into the container just below them. */
static enum sl_code add_items(struct sl_pickle *m, enum sl_pickle_kind kind, size_t height)
{
    if (height <= stack_floor(m) || m->stack[height - 1]->kind != kind)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "there is no %s to add to", container_names[kind]);
    if (kind == SL_PICKLE_DICT && (m->n_stack - height) % 2)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "a dict with a key and no value");
    enum sl_code c = SL_OK;
    if (kind != SL_PICKLE_OTHER)
        c = append(m, m->stack[height - 1], m->stack + height, m->n_stack - height);
    m->n_stack = height;
    return c;
}

static enum sl_code op_add_one(struct sl_pickle *m, unsigned kind)
{
    size_t n = kind == SL_PICKLE_DICT ? 2 : 1;
    enum sl_code c = need(m, n);
    return c ? c : add_items(m, (enum sl_pickle_kind)kind, m->n_stack - n);
}

static enum sl_code op_add_all(struct sl_pickle *m, unsigned kind)
{
    size_t height;
    enum sl_code c = pop_mark(m, &height);
    return c ? c : add_items(m, (enum sl_pickle_kind)kind, height);
}

/* --- opcodes: stack and memo ------------------------------------------------------------------ */

static enum sl_code op_pop(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    size_t height;
    if (m->n_marks && m->n_stack == stack_floor(m))
        return pop_mark(m, &height);
    enum sl_code c = need(m, 1);
    if (!c)
        m->n_stack--;
    return c;
}

static enum sl_code op_pop_mark(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    return pop_mark(m, &m->n_stack);
}

static enum sl_code put(struct sl_pickle *m, uint64_t i)
{
    enum sl_code c = need(m, 1);
    if (c)
        return c;
    if (i >= SL_PICKLE_MEMO_MAX)
        return SL_PICKLE_FAIL(m, TOO_LARGE, "memo place %ju; at most %zu", (uintmax_t)i,
                              SL_PICKLE_MEMO_MAX - 1);
    if (!grow(&m->memo, (size_t)i, &m->memo_cap, SL_PICKLE_MEMO_MAX))
        return sl_pickle_no_memory(m);
    if (!m->memo[i])
        m->n_memo++;
    m->memo[i] = m->stack[m->n_stack - 1];
    return SL_OK;
}

static enum sl_code op_put(struct sl_pickle *m, unsigned width)
{
    uint64_t i;
    enum sl_code c = take_number(m, width, &i);
    return c ? c : put(m, i);
}

static enum sl_code op_memoize(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    return put(m, m->n_memo);
}

static enum sl_code op_get(struct sl_pickle *m, unsigned width)
{
    uint64_t i;
    enum sl_code c = take_number(m, width, &i);
    if (c)
        return c;
    if (i >= m->memo_cap || !m->memo[i])
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "memo place %ju is empty", (uintmax_t)i);
    return push(m, m->memo[i]);
}

/* --- opcodes: names and what they do ---------------------------------------------------------- */

static enum sl_code push_global(struct sl_pickle *m, const char *module, size_t module_n,
                                const char *name, size_t name_n)
{
    const struct sl_pickle_global *g = sl_pickle_global_find(module, module_n, name, name_n);
    if (!g)
        return SL_PICKLE_FAIL(
            m, FILE_UNSUPPORTED,
            "the checkpoint wants Python's %.*s.%.*s, which is refused: only what "
            "tensors need is known here, and nothing of a file is run",
            module_n < 80 ? (int)module_n : 80, module, name_n < 80 ? (int)name_n : 80, name);
    struct sl_pickle_value *v = sl_pickle_new(m, SL_PICKLE_GLOBAL);
    if (v)
        v->u.global = g;
    return push(m, v);
}

static enum sl_code op_global(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    const char *module, *name;
    size_t module_n, name_n;
    enum sl_code c = take_line(m, &module, &module_n);
    if (!c)
        c = take_line(m, &name, &name_n);
    return c ? c : push_global(m, module, module_n, name, name_n);
}

static enum sl_code op_stack_global(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    enum sl_code c = need(m, 2);
    if (c)
        return c;
    const struct sl_pickle_value *module = m->stack[m->n_stack - 2];
    const struct sl_pickle_value *name = m->stack[m->n_stack - 1];
    if (module->kind != SL_PICKLE_STRING || name->kind != SL_PICKLE_STRING)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "a Python name that is not a string");
    m->n_stack -= 2;
    return push_global(m, module->u.s, module->n, name->u.s, name->n);
}

/* REDUCE: a name is called with a tuple. */
static enum sl_code op_reduce(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    enum sl_code c = need(m, 2);
    if (c)
        return c;
    const struct sl_pickle_value *f = m->stack[m->n_stack - 2], *args = m->stack[m->n_stack - 1];
    if (f->kind != SL_PICKLE_GLOBAL || args->kind != SL_PICKLE_TUPLE)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "a call of something that is no function");
    struct sl_pickle_value *v = NULL;
    c = sl_pickle_call(m, f->u.global, args, &v);
    if (c)
        return c;
    m->n_stack -= 2;
    return push(m, v);
}

/* BUILD sets attributes, which no tensor needs (a state dict's _metadata): they are dropped. */
static enum sl_code op_build(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    enum sl_code c = need(m, 2);
    if (c)
        return c;
    enum sl_pickle_kind kind = m->stack[m->n_stack - 2]->kind;
    if (kind != SL_PICKLE_DICT && kind != SL_PICKLE_TENSOR)
        return SL_PICKLE_FAIL(m, FILE_UNSUPPORTED,
                              "attributes for an object that is neither a dict nor a tensor");
    m->n_stack--;
    return SL_OK;
}

static enum sl_code op_persistent(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    enum sl_code c = need(m, 1);
    struct sl_pickle_value *v = NULL;
    if (!c)
        c = sl_pickle_persistent(m, m->stack[m->n_stack - 1], &v);
    if (c)
        return c;
    m->n_stack--;
    return push(m, v);
}

static enum sl_code op_stop(struct sl_pickle *m, unsigned arg)
{
    (void)arg;
    m->stopped = true;
    return need(m, 1);
}

/* --- the machine ------------------------------------------------------------------------------ */

static const struct opcode opcodes[256] = {
    [0x80] = {"PROTO", op_proto, 1},
    [0x95] = {"FRAME", op_frame, 8},
    ['.'] = {"STOP", op_stop, 0},
    ['N'] = {"NONE", op_constant, SL_PICKLE_NONE},
    [0x88] = {"NEWTRUE", op_bool, 1},
    [0x89] = {"NEWFALSE", op_bool, 0},
    ['K'] = {"BININT1", op_int, 1},
    ['M'] = {"BININT2", op_int, 2},
    ['J'] = {"BININT", op_int, 4},
    [0x8a] = {"LONG1", op_long, 1},
    [0x8b] = {"LONG4", op_long, 4},
    ['G'] = {"BINFLOAT", op_float, 8},
    [0x8c] = {"SHORT_BINUNICODE", op_string, 1},
    ['X'] = {"BINUNICODE", op_string, 4},
    [0x8d] = {"BINUNICODE8", op_string, 8},
    ['U'] = {"SHORT_BINSTRING", op_string, 1},
    ['T'] = {"BINSTRING", op_string, 4},
    ['C'] = {"SHORT_BINBYTES", op_bytes, 1},
    ['B'] = {"BINBYTES", op_bytes, 4},
    [0x8e] = {"BINBYTES8", op_bytes, 8},
    [0x96] = {"BYTEARRAY8", op_bytes, 8},
    ['('] = {"MARK", op_mark, 0},
    [')'] = {"EMPTY_TUPLE", op_constant, SL_PICKLE_TUPLE},
    [0x85] = {"TUPLE1", op_tuple_n, 1},
    [0x86] = {"TUPLE2", op_tuple_n, 2},
    [0x87] = {"TUPLE3", op_tuple_n, 3},
    ['t'] = {"TUPLE", op_collect, SL_PICKLE_TUPLE},
    [']'] = {"EMPTY_LIST", op_constant, SL_PICKLE_LIST},
    ['l'] = {"LIST", op_collect, SL_PICKLE_LIST},
    ['a'] = {"APPEND", op_add_one, SL_PICKLE_LIST},
    ['e'] = {"APPENDS", op_add_all, SL_PICKLE_LIST},
    ['}'] = {"EMPTY_DICT", op_constant, SL_PICKLE_DICT},
    ['d'] = {"DICT", op_collect, SL_PICKLE_DICT},
    ['s'] = {"SETITEM", op_add_one, SL_PICKLE_DICT},
    ['u'] = {"SETITEMS", op_add_all, SL_PICKLE_DICT},
    [0x8f] = {"EMPTY_SET", op_constant, SL_PICKLE_OTHER},
    [0x90] = {"ADDITEMS", op_add_all, SL_PICKLE_OTHER},
    ['0'] = {"POP", op_pop, 0},
    ['1'] = {"POP_MARK", op_pop_mark, 0},
    ['q'] = {"BINPUT", op_put, 1},
    ['r'] = {"LONG_BINPUT", op_put, 4},
    [0x94] = {"MEMOIZE", op_memoize, 0},
    ['h'] = {"BINGET", op_get, 1},
    ['j'] = {"LONG_BINGET", op_get, 4},
    ['c'] = {"GLOBAL", op_global, 0},
    [0x93] = {"STACK_GLOBAL", op_stack_global, 0},
    ['R'] = {"REDUCE", op_reduce, 0},
    ['b'] = {"BUILD", op_build, 0},
    ['Q'] = {"BINPERSID", op_persistent, 0},
};

static enum sl_code step(struct sl_pickle *m)
{
    const unsigned char *op;
    enum sl_code c = take(m, 1, &op);
    if (c)
        return c;
    m->op = opcodes[*op].name;
    if (!m->op)
        return SL_PICKLE_FAIL(m, FILE_UNSUPPORTED,
                              "opcode 0x%02x is not among those that checkpoints need", *op);
    return opcodes[*op].run(m, opcodes[*op].arg);
}

enum sl_code sl_pickle_run(struct sl_pickle *m, const unsigned char *data, size_t n,
                           size_t *ret_used, struct sl_pickle_value **ret)
{
    m->begin = m->at = data;
    m->end = data + n;
    m->n_stack = m->n_marks = m->n_memo = 0;
    m->stopped = false;
    m->op = NULL;
    if (m->memo_cap)
        memset(m->memo, 0, m->memo_cap * sizeof(struct sl_pickle_value *));
    if (!grow(&m->stack, 0, &m->stack_cap, SL_PICKLE_STACK_MAX)) /* never NULL while it runs */
        return sl_pickle_no_memory(m);
    while (!m->stopped) {
        if (m->at - m->begin > (ptrdiff_t)SL_PICKLE_BYTES_MAX)
            return SL_PICKLE_FAIL(m, TOO_LARGE, "the pickle is longer than %zu bytes",
                                  SL_PICKLE_BYTES_MAX);
        enum sl_code c = step(m);
        if (c)
            return c;
    }
    *ret_used = (size_t)(m->at - m->begin);
    *ret = m->stack[m->n_stack - 1];
    return SL_OK;
}

void sl_pickle_done(struct sl_pickle *m)
{
    sl_free(m->stack);
    sl_free(m->memo);
    sl_free(m->storages);
}
