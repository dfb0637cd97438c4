"""Checks the trainer's model against a plain reference, token by token and with torch's own gradients:
outputs of a whole pass and of one in two parts, and the gradient of every parameter; and that the
conversations hold no held-out name.  Exits 1 if something is not as it should be."""
import os
import random
import re
import sys

os.environ['SLATE_BF16'] = '0'

import torch
import torch.nn.functional as F

from dialogue import BUSY, HELD_OUT, Dialogue
from rwkv7 import RWKV7

L, C, N, V = 3, 64, 32, 64
H = C // N


def time_mix(z, i, x, state, v_first):
    p = lambda n: z[f'blocks.{i}.att.{n}']
    d = state[i][0] - x
    state[i][0] = x
    xr, xw, xk, xv, xa, xg = [x + d * p('x_' + n).view(C) for n in 'rwkvag']
    r, k, v = p('receptance.weight') @ xr, p('key.weight') @ xk, p('value.weight') @ xv
    w = torch.exp(-0.606531 * torch.sigmoid(p('w0').view(C) + torch.tanh(xw @ p('w1')) @ p('w2')))
    a = torch.sigmoid(p('a0').view(C) + (xa @ p('a1')) @ p('a2'))
    g = torch.sigmoid(xg @ p('g1')) @ p('g2')
    kk = F.normalize((k * p('k_k').view(C)).view(H, N), dim=-1).view(C)
    k = k * (1 + (a - 1) * p('k_a').view(C))
    if i == 0:
        v_first = v
    else:
        v = v + (v_first - v) * torch.sigmoid(p('v0').view(C) + (xv @ p('v1')) @ p('v2'))
    S = state[i][1]
    S = S * w.view(H, 1, N) + S @ ((-kk).view(H, N, 1) @ (kk * a).view(H, 1, N)) + v.view(H, N, 1) @ k.view(H, 1, N)
    state[i][1] = S
    o = F.group_norm((S @ r.view(H, N, 1)).view(1, C), H, p('ln_x.weight'), p('ln_x.bias'), eps=64e-5).view(C)
    o = o + ((r * k).view(H, N) * p('r_k')).sum(-1, keepdim=True).mul(v.view(H, N)).view(C)
    return p('output.weight') @ (o * g), v_first


def reference(z, ids):
    """Logits [T,V] from the dict of parameters z."""
    state, out = [[torch.zeros(C), torch.zeros(H, N, N), torch.zeros(C)] for _ in range(L)], []
    norm = lambda x, n: F.layer_norm(x, (C,), z[n + '.weight'], z[n + '.bias'])
    for t in ids:
        x, v_first = norm(z['emb.weight'][t], 'blocks.0.ln0'), None
        for i in range(L):
            o, v_first = time_mix(z, i, norm(x, f'blocks.{i}.ln1'), state, v_first)
            x = x + o
            y, f = norm(x, f'blocks.{i}.ln2'), f'blocks.{i}.ffn.'
            k = z[f + 'key.weight'] @ (y + (state[i][2] - y) * z[f + 'x_k'].view(C))
            state[i][2] = y
            x = x + z[f + 'value.weight'] @ torch.relu(k) ** 2
        out.append(z['head.weight'] @ norm(x, 'ln_out'))
    return torch.stack(out)


def held_out_names():
    """Those that 200 conversations hold."""
    text = ''.join(t for seed in range(200) for t, _ in Dialogue(random.Random(seed), BUSY, noise=True).run(4000)).lower()
    return [n for n in HELD_OUT if re.search(r'\b' + n.lower() + r'\b', text)]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    m = RWKV7(V, L, C, N)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    ids = torch.randint(0, V, (1, 40))
    want = reference(dict(m.named_parameters()), ids[0])
    whole, _ = m(ids, m.zero_state(1))
    first, state = m(ids[:, :17], m.zero_state(1))
    parts = torch.cat([first, m(ids[:, 17:], state)[0]], 1)
    dy = torch.randn_like(want)
    grads = torch.autograd.grad((want * dy).sum(), list(m.parameters()), allow_unused=True)
    (whole[0] * dy).sum().backward()
    off = [((p.grad - g).abs().max() / (g.abs().max() + 1e-9)).item() for p, g in zip(m.parameters(), grads) if g is not None]
    figures = (whole[0] - want).abs().max().item(), (parts[0] - want).abs().max().item(), max(off)
    print('logits differ by %.1e, in two parts by %.1e; gradients by %.1e of their largest' % figures)
    names = held_out_names()
    print('held-out names in the conversations:', names or 'none')
    return int(bool(names) or not max(figures) < 1e-4)


if __name__ == '__main__':
    sys.exit(main())
