"""Reads the vocabulary (the form of RWKV World's: id, Python literal, length in bytes) and encodes by
greedy longest match, as the server does.  Id 0 begins and ends a document."""
import ast
import re

# No token crosses these pieces, so a piece's ids can be kept and reused.
PIECES = re.compile(r"User:|Assistant:| ?[A-Za-z]+|'[a-z]+| ?[0-9]|\n\n|\n| |[^\sA-Za-z0-9]|.", re.S)


class Tokens:
    def __init__(self, path):
        self.id, self.bytes, self.cache = {}, {0: b''}, {}
        with open(path) as f:
            for line in f:
                n, text = line[:line.index(' ')], ast.literal_eval(line[line.index(' ') + 1:line.rindex(' ')])
                text = text.encode() if isinstance(text, str) else text
                self.id[text], self.bytes[int(n)] = int(n), text
        self.longest = max(map(len, self.id))

    def greedy(self, text):
        ids, i = [], 0
        while i < len(text):
            n = next(n for n in range(min(self.longest, len(text) - i), 0, -1) if text[i:i + n] in self.id)
            ids.append(self.id[text[i:i + n]])
            i += n
        return ids

    def encode(self, text):
        ids = []
        for piece in PIECES.findall(text):
            if piece not in self.cache:
                self.cache[piece] = self.greedy(piece.encode())
            ids += self.cache[piece]
        return ids

    def decode(self, ids):
        return b''.join(self.bytes[i] for i in ids).decode('utf-8', 'replace')
