"""Bits per byte of a text that the training never saw, read in pieces of 2,048 tokens from an empty state.

  python3 bits.py MODEL TEXT          MODEL: a checkpoint or a safetensors file; TEXT: plain, paragraphs"""
import math
import os
import re
import sys

import train                                             # sets the environment, before torch is loaded

import torch
import torch.nn.functional as F

import kernels
from rwkv7 import RWKV7
from tokens import Tokens
from weights import read_any

PIECE = 2048


def main():
    kernels.BF16 = False
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = RWKV7()
    model.load_state_dict(read_any(sys.argv[1]))
    with open(sys.argv[2], encoding='utf-8') as f:
        text = re.sub(r'\n\n+', '\n\n', f.read().replace('\r', ''))
    text = re.sub(r'(?<!\n)\n(?!\n)', ' ', text).translate({0x2018: "'", 0x2019: "'", 0x201c: '"', 0x201d: '"', 0x2014: '--'})
    ids = Tokens(os.path.join(train.HERE, '..', 'tiny.vocab.txt')).encode(text)
    nats = 0.0
    for at in range(0, len(ids), PIECE):
        y = torch.tensor([ids[at:at + PIECE]])
        logits, _ = model(torch.cat([torch.zeros(1, 1, dtype=torch.long), y[:, :-1]], 1), model.zero_state(1))
        nats += float(F.cross_entropy(logits[0], y[0], reduction='sum'))
    n = len(text.encode())
    print('%.3f bits a byte, %.2f nats a token (%d bytes, %d tokens)' % (nats / math.log(2) / n, nats / len(ids), n, len(ids)))


if __name__ == '__main__':
    main()
