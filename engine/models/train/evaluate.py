"""How well a model remembers, as a user of the server would see it: greedy answers over HTTP.

  build/slate serve --store memory --listen 127.0.0.1:8090 [--model FILE --tokenizer VOCABULARY --begin-token 0] &
  python3 engine/models/train/evaluate.py [--url 127.0.0.1:8090] [--n 500] [--rows small,busy]

A conversation: some turns before; the fact is told, the reply does not repeat it; filler that never mentions
it; the question.  At each distance (tokens from the telling to the question) a fork of the session is asked,
and the session itself goes on with more filler.  Right: the told value stands in the answer as a whole word.
Seeds are apart from training's; the names of row `heldout` are in no training text.  Rows:
    small    told, small talk and stories between          busy     told, other facts told and asked between
    fixed    told, 64 tokens, corrected; other facts between: the new value counts, `old` counts the old one
    unknown  never told, other facts before: says that it does not know
    heldout  a held-out name is told, other facts between
and two for small models: `alone`, as `small` but with nothing before; `facts`, so many facts one after the
other (that number stands for the distance), one of them asked."""
import argparse
import http.client
import json
import os
import random
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from dialogue import *
from tokens import Tokens

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = dict(small=(16, 128, 512, 1024, 2048), busy=(16, 128, 512, 1024, 2048), fixed=(16, 128, 512, 1024),
            unknown=(16, 128, 512, 1024, 2048), heldout=(16, 128, 512),
            alone=(16, 64, 128, 256, 512), facts=(1, 2, 4, 8, 16))
USUAL = ('small', 'busy', 'fixed', 'unknown', 'heldout')
NAMED = ('myname', 'petname', 'relname')


def turn(u, b=None):
    return 'User: ' + u + '\n\nAssistant:' + (' ' + b + '\n\n' if b else '')


class Case:
    """One conversation, as pieces of text: before() once, then filler(n) and question() in turn."""
    def __init__(self, row, seed, tokens):
        self.row, self.tokens, self.r = row, tokens, random.Random(f'{row} {seed}')
        self.d = Dialogue(self.r, MIXED, novel=0.0, real=0.0, plain=row in ('alone', 'facts'))
        self.old = None
        if row not in ('alone', 'facts'):
            self.d.run(400)
        self.key = self.choose()
        self.value = self.draw_value()
        self.text = self.d.say(self.key, 'tell', self.value)

    def choose(self):
        while True:
            key = self.d.draw()
            kind = FAMS[key[0]]['kind']
            if key in self.d.told or key[1] in self.d.w.used - {''} or kind == 'instr':
                continue
            if self.row != 'heldout' or kind in NAMED:
                return key

    def draw_value(self):
        f = FAMS[self.key[0]]
        return self.r.choice(HELD_OUT) if self.row == 'heldout' else f['val'](self.d.w, self.key[1])

    def before(self):
        text = ''.join(t for t, _ in self.d.seg)
        if self.row == 'unknown':
            return text
        text += turn(self.text, 'Okay.')
        if self.row == 'fixed':
            self.old = self.value
            while self.value == self.old:
                self.value = self.draw_value()
            text += self.filler(64) + turn(self.d.say(self.key, 'fix', self.value), 'Okay.')
        return text

    def filler(self, n):
        """At least n tokens."""
        out, ids = '', 0
        while ids < n:
            t = self.small() if self.row in ('small', 'alone') else self.busy()
            out += t
            ids += len(self.tokens.encode(t))
        return out

    def small(self):
        if self.r.random() < 0.1:
            return turn(article('Tell me a story about a ' + self.r.choice(ANIMALS) + '.'), story(self.r))
        return turn(*small_talk(self.r))

    def busy(self):
        """A fact or some, often a question, sometimes small talk; never the key or its subject."""
        d, r, s = self.d, self.r, self.key[1]
        told, last = dict(d.told), dict(d.last)
        d.seg = []
        d.told[self.key] = ''                              # keeps tell() away from it
        d.tell()
        del d.told[self.key]
        if r.random() < 0.7:
            d.ask(r.choice(d.known()))
        if r.random() < 0.4:
            d.small()
        text = ''.join(t for t, _ in d.seg)
        if s and re.search(r'\b' + s + r'\b', text, re.I):
            d.told, d.last = told, last
            return ''
        return text

    def question(self):
        return turn(self.d.say(self.key, 'ask'))

    def judge(self, answer):
        """-> right, old value given"""
        says = lambda v: bool(v) and bool(re.search(r'\b' + re.escape(v) + r'\b', answer))
        if self.row == 'unknown':
            return bool(re.search('not know|not told', answer)), False
        return says(self.value), says(self.old)


class Facts(Case):
    """Facts only; filler(n) tells n more, and question() picks one of all."""
    def before(self):
        return ''

    def filler(self, n):
        text = ''
        for _ in range(n):
            key = self.d.new_key()
            t, v = self.d.state(key, 'tell')
            self.d.know(key, v)
            text += turn(t, 'Okay.')
        return text

    def question(self):
        self.key = self.r.choice(self.d.known())
        self.value = self.d.told[self.key]
        return super().question()


class Server:
    """One connection a thread."""
    def __init__(self, url):
        self.url, self.mine = url, threading.local()

    def post(self, path, body, method='POST'):
        c = getattr(self.mine, 'c', None) or http.client.HTTPConnection(self.url, timeout=600)
        self.mine.c = c
        c.request(method, path, json.dumps(body) if body is not None else None, {'Content-Type': 'application/json'})
        reply = c.getresponse()
        data = reply.read()
        if reply.status >= 300:
            raise RuntimeError(f'{method} {path}: {reply.status} {data[:200]}')
        return json.loads(data) if data else None

    def feed(self, session, text):
        self.post('/v1/generate', dict(session=session, prompt=text, max_tokens=0))

    def ask(self, session, text):
        body = dict(session=session, prompt=text, max_tokens=24, temperature=0, stop=['\n\n'])
        return self.post('/v1/generate', body)['text']


def converse(server, row, seed, tokens, distances):
    """-> [(distance, right, old, what was asked, answer)]"""
    c, name, out, at = (Facts if row == 'facts' else Case)(row, seed, tokens), f'{row}-{seed}-{os.getpid()}', [], 0
    server.post('/v1/sessions', dict(id=name))
    before = c.before()
    if before:
        server.feed(name, before)
    for distance in distances:
        text = c.filler(distance - at)
        at += len(tokens.encode(text)) if row != 'facts' else distance - at
        if text:
            server.feed(name, text)
        server.post(f'/v1/sessions/{name}/fork', dict(id=name + '-ask'))
        q = c.question()
        answer = server.ask(name + '-ask', q)
        server.post(f'/v1/sessions/{name}-ask', None, 'DELETE')
        out.append((distance, *c.judge(answer), f'{c.value!r} {q[6:-12]!r}', answer))
    server.post(f'/v1/sessions/{name}', None, 'DELETE')
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--url', default='127.0.0.1:8080')
    p.add_argument('--vocab', default=os.path.join(HERE, '..', 'tiny.vocab.txt'))
    p.add_argument('--n', type=int, default=500)
    p.add_argument('--seed', type=int, default=1000000)
    p.add_argument('--rows', default=','.join(USUAL))
    p.add_argument('--max', type=int, default=2048, help='longest distance')
    p.add_argument('--misses', type=int, default=0, help='print that many wrong answers a row')
    p.add_argument('--json', help='write the figures there')
    a = p.parse_args()
    server, tokens, figures = Server(a.url), Tokens(a.vocab), []
    for row in a.rows.split(','):
        start, ds = time.time(), [d for d in ROWS[row] if d <= a.max]
        with ThreadPoolExecutor(32) as pool:
            done = list(pool.map(lambda i: converse(server, row, a.seed + i, tokens, ds), range(a.n)))
        line = row.ljust(9)
        for i, d in enumerate(ds):
            right, old = (100 * sum(c[i][k] for c in done) / a.n for k in (1, 2))
            figures.append(dict(row=row, distance=d, accuracy=right / 100, old=old / 100, n=a.n))
            line += f'{d:6}: {right:5.1f}' + (f' (old {old:.1f})' if row == 'fixed' else '')
        print(line, f'  [{time.time() - start:.0f} s]', flush=True)
        for d, _, _, asked, answer in [x for c in done for x in c if not x[1]][:a.misses]:
            print(f'      {d}: {asked} -> {answer!r}')
    if a.json:
        with open(a.json, 'w') as f:
            json.dump(dict(recall=figures), f, indent=1)


if __name__ == '__main__':
    sys.exit(main())
