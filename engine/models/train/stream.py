"""The stream of training segments.  Each of B rows plays one document after another; a document is k
segments of T tokens.  The recurrent state goes on from segment to segment and is zeroed at a document's
start (truncated back-propagation through time)."""
import json
import os
import random

import numpy as np

from dialogue import *
from tokens import Tokens

LOSS = {'u': 0.04, 'a': 1.0, 'v': 3.0}            # loss weights: user text, assistant text, recalled value

# Stage: plans with weights, documents' lengths in tokens.
STAGES = {1: ([(DENSE, 1)], (256, 256, 512)),
          2: ([(DENSE, 1), (BUSY, 1), (MIXED, 2)], (512, 1024)),
          3: ([(DENSE, 0.5), (BUSY, 5), (MIXED, 2), (SPARSE, 2)], (512, 1024, 1024, 2048, 2048, 3072))}


def encode_dialogue(tokens, segments):
    """Token ids and loss weights.  Segments end where pieces end, so one by one is exact."""
    ids, weights = [0], [0.0]
    for text, kind in segments:
        e = tokens.encode(text)
        ids += e
        weights += [LOSS[kind]] * len(e)
    return ids, weights


def read_books(path):
    """{title: [paragraph]} without the paragraphs that name somebody held out; {} where there is no file."""
    if not path or not os.path.exists(path):
        return {}
    held = re.compile(r'\b(' + '|'.join(HELD_OUT) + r')\b')
    with open(path) as f:
        books = {k: [p for p in b if not held.search(p)] for k, b in json.load(f).items()}
    return {k: b for k, b in books.items() if b}


class Stream:
    def __init__(self, vocab, B, T, seed, text, books):
        self.tokens, self.B, self.T, self.r = Tokens(vocab), B, T, random.Random(seed)
        self.text, self.books = text, read_books(books)
        self.titles = list(self.books)
        self.sentences = [t for b in self.books.values() for p in b for t in re.split(r'(?<=[.!?]) ', p)
                          if 15 < len(t) < 70 and t[0].isupper() and '"' not in t]
        self.rows = [None] * B
        self.world = dict(noise=True)                      # of the conversations: see Dialogue
        self.stage(1)

    def stage(self, number):
        self.plans, self.lengths = STAGES[number]

    def prose(self, n):
        """Stories of the grammar and pages of the books, a 0 after each."""
        ids, weights = [0], [0.0]
        while len(ids) < n:
            if not self.books or self.r.random() < 0.5:
                text = story(self.r)
            else:
                b = self.books[self.r.choice(self.titles)]
                i = self.r.randrange(len(b))
                text = '\n\n'.join(b[i:i + 8])
            e = self.tokens.encode(text + '\n\n')
            ids += e + [0]
            weights += [1.0] * (len(e) + 1)
        return ids, weights

    def document(self):
        r = self.r
        n = max(r.choice(self.lengths), self.T) + 1
        if r.random() < self.text:
            ids, weights = self.prose(n)
        else:
            plan = r.choices([p for p, _ in self.plans], [x for _, x in self.plans])[0]
            d, chars, ids = Dialogue(r, plan, sentences=self.sentences, **self.world), n * 4, ()
            while len(ids) < n:
                ids, weights = encode_dialogue(self.tokens, d.run(chars))
                chars += 2000
        return np.array(ids[:n], np.int64), np.array(weights[:n], np.float32)

    def next(self):
        """x, y, weights [B, T] and fresh [B] (1 where the state must be zeroed first)."""
        T, out = self.T, [[], [], []]
        fresh = np.zeros(self.B, np.float32)
        for i in range(self.B):
            if self.rows[i] is None or (self.rows[i][2] + 1) * T + 1 > len(self.rows[i][0]):
                self.rows[i] = [*self.document(), 0]
                fresh[i] = 1
            ids, weights, p = self.rows[i]
            o = p * T
            for to, part in zip(out, (ids[o:o + T], ids[o + 1:o + T + 1], weights[o + 1:o + T + 1])):
                to.append(part)
            self.rows[i][2] += 1
        return (*(np.stack(a) for a in out), fresh)
