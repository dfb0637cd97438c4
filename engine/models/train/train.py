"""Trains the embedded model on one processor core, resumable and seeded.

  python3 train.py --out build/model/tiny.pt [--from tiny.safetensors] [--texts texts.json] [--tokens 40e6]

The checkpoint (weights, optimiser, tokens seen) is written every --save seconds; where it is there already
the run goes on from it; SIGTERM writes it, too.  --from starts from other weights: a checkpoint, or an exported safetensors file (then
the optimiser starts anew, so the rate is warmed up again).  --tokens is the whole plan, which the learning
rate and the stages follow; --texts is a JSON of {title: [paragraph]}, and without it there is no prose."""
import argparse
import math
import os
import signal
import sys
import time

# Before torch is loaded: one thread; OpenBLAS's best kernel here; and glibc keeps freed memory, where it
# would otherwise fetch and clear every large tensor's pages anew.
WANT = dict(OPENBLAS_NUM_THREADS='1', OMP_NUM_THREADS='1', MALLOC_MMAP_THRESHOLD_='1000000000',
            MALLOC_TRIM_THRESHOLD_='4000000000', MALLOC_TOP_PAD_='100000000')
if 'avx512f' in open('/proc/cpuinfo').read():
    WANT['OPENBLAS_CORETYPE'] = 'SKYLAKEX'
if any(k not in os.environ for k in WANT):
    os.environ.update({k: v for k, v in WANT.items() if k not in os.environ})
    os.execv(sys.executable, [sys.executable] + sys.argv)

import torch
import torch.nn.functional as F

from rwkv7 import RWKV7, param_groups
from stream import Stream
from weights import read_any

HERE = os.path.dirname(os.path.abspath(__file__))


def options():
    p = argparse.ArgumentParser()
    p.add_argument('--out', required=True)
    p.add_argument('--from', dest='start')
    p.add_argument('--texts')
    p.add_argument('--vocab', default=os.path.join(HERE, '..', 'tiny.vocab.txt'))
    for name, value in dict(V=2048, L=4, C=192, N=64, B=4, T=512, warmup=50, seed=1).items():
        p.add_argument('--' + name, type=int, default=value)
    for name, value in dict(tokens=40e6, lr=2e-3, low=0.1, wd=0.1, prose=0.15, s1=0.1, s2=0.3, save=120).items():
        p.add_argument('--' + name, type=float, default=value)
    return p.parse_args()


class Run:
    """The model, its optimiser, and how far they are."""
    def __init__(self, a):
        self.a, self.step, self.seen, self.seconds = a, 0, 0, 0.0
        self.model = RWKV7(a.V, a.L, a.C, a.N)
        self.params = list(self.model.parameters())
        self.opt = torch.optim.AdamW(param_groups(self.model, a.wd), lr=a.lr, betas=(0.9, 0.99), eps=1e-12)
        if os.path.exists(a.out):
            kept = torch.load(a.out)
            self.step, self.seen, self.seconds = kept['step'], kept['tok'], kept['used']
            self.model.load_state_dict(kept['model'])
            self.opt.load_state_dict(kept['opt'])
        elif a.start:
            self.model.load_state_dict(read_any(a.start))
        self.begun = time.process_time()

    def used(self):
        return self.seconds + time.process_time() - self.begun

    def save(self):
        kept = dict(model=self.model.state_dict(), opt=self.opt.state_dict(), step=self.step, tok=self.seen, used=self.used(), cfg=self.model.cfg)
        torch.save(kept, self.a.out + '.tmp')
        os.replace(self.a.out + '.tmp', self.a.out)            # never half a file

    def rate(self):
        """Warm-up, then a cosine from lr to lr * low over the plan."""
        a, done = self.a, min(1, self.seen / self.a.tokens)
        return a.lr * min(1, (self.step + 1) / a.warmup) * (a.low + (1 - a.low) / 2 * (1 + math.cos(math.pi * done)))

    def update(self):
        """Clips the gradients' norm to 1 and takes a step; -> the norm."""
        norm = torch.nn.utils.clip_grad_norm_([p for p in self.params if p.grad is not None], 1.0)
        for g in self.opt.param_groups:
            g['lr'] = self.rate() * g['scale']
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.step, self.seen = self.step + 1, self.seen + self.a.B * self.a.T
        return float(norm)


def segment(run, stream, state, sums):
    """One forward and backward pass; -> the state after it."""
    x, y, w, fresh = stream.next()
    keep = torch.from_numpy(1 - fresh)
    state = [[p1 * keep[:, None], S * keep[:, None, None, None], p2 * keep[:, None]] for p1, S, p2 in state]
    w, y = torch.from_numpy(w).view(-1), torch.from_numpy(y).view(-1)
    take = (torch.rand(w.shape) < w).nonzero()[:, 0]        # a weight below 1: that share of the tokens, at weight 1
    w = w[take].clamp(min=1)
    logits, state = run.model(torch.from_numpy(x), state, take)
    loss = F.cross_entropy(logits, y[take], reduction='none')
    ((loss * w).sum() / w.sum()).backward()
    with torch.no_grad():
        for i, part in enumerate((w == 3, w == 1)):
            sums[2 * i] += float(loss[part].sum())
            sums[2 * i + 1] += float(part.sum())
    return state


def main():
    a = options()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    run = Run(a)
    print(a, 'parameters %.2fM' % (sum(p.numel() for p in run.params) / 1e6), flush=True)
    stream, state = Stream(a.vocab, a.B, a.T, a.seed * 1000 + run.step, a.prose, a.texts), run.model.zero_state(a.B)
    saved = told = start = time.time()
    sums, seen = [0.0] * 4, run.seen
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))   # ends after this step, with a checkpoint
    while run.seen < a.tokens and not stop:
        done = run.seen / a.tokens
        stream.stage(1 if done < a.s1 else 2 if done < a.s2 else 3)
        state = segment(run, stream, state, sums)
        norm = run.update()
        if time.time() - told > 30:
            told = time.time()
            print('step %d tokens %.2fM value-loss %.3f text-loss %.3f norm %.2f rate %.1e tokens/s %.0f, a core-second %.0f' % (
                run.step, run.seen / 1e6, sums[0] / max(sums[1], 1), sums[2] / max(sums[3], 1), norm, run.rate(),
                (run.seen - seen) / (told - start), (run.seen - seen) / (time.process_time() - run.begun)), flush=True)
            sums = [0.0] * 4
        if time.time() - saved > a.save:
            saved = time.time()
            run.save()
    run.save()


if __name__ == '__main__':
    main()
