"""RWKV-7 "x070" for training on a processor core: torch does the matrix products and the bookkeeping of
gradients, kernels.py the rest.  Names, shapes and initial values of the parameters are those of BlinkDL's
training code (RWKV-LM, RWKV-v7/train_temp), so the state dict is a BlinkDL .pth.  Peng et al. 2025."""
import math

import torch
import torch.nn as nn

from kernels import Mix, Post, Prep, Relu2, Wkv, product


def ortho(rows, cols, scale):
    """The second matrix of a low-rank pair."""
    x = torch.zeros(rows, cols)
    nn.init.orthogonal_(x, gain=scale * (math.sqrt(rows / cols) if rows > cols else 1))
    return nn.Parameter(x)


class TimeMix(nn.Module):
    def __init__(self, i, L, C, N):
        super().__init__()
        self.i, self.H, self.N = i, C // N, N
        down, up = 1 - i / L, i / max(L - 1, 1)
        n = torch.arange(C).float()
        for name, e in zip('rwkvag', (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)):
            setattr(self, 'x_' + name, nn.Parameter((1 - (n / C) ** (e * down)).view(1, 1, C)))
        linear = n / (C - 1) - 0.5
        zig = ((n % N) - (N - 1) / 2) / ((N - 1) / 2)
        zig = zig * zig.abs()
        for name, rank, bias in (('w', 2.5, -5.5 + 6 * (n / (C - 1)) ** (1 + up ** 0.3) + zig * 2.5),
                                 ('a', 2.5, -0.19 + zig * 0.3 + linear * 0.4), ('v', 1.7, 0.73 - linear * 0.4), ('g', 5, None)):
            rank = max(32, int(round(rank * C ** 0.5 / 32) * 32))
            setattr(self, name + '1', nn.Parameter(torch.zeros(C, rank)))
            setattr(self, name + '2', ortho(rank, C, 0.1))
            if bias is not None:
                setattr(self, name + '0', nn.Parameter(bias.view(1, 1, C)))
        self.k_k = nn.Parameter((0.71 - linear * 0.1).view(1, 1, C))
        self.k_a = nn.Parameter(torch.full((1, 1, C), 1.02))
        self.r_k = nn.Parameter(torch.full((self.H, N), -0.04))
        self.receptance, self.key, self.value, self.output = [nn.Linear(C, C, bias=False) for _ in range(4)]
        self.ln_x = nn.GroupNorm(self.H, C, eps=64e-5)
        for m, gain in ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0)):
            nn.init.orthogonal_(m.weight, gain=gain)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.ln_x.weight, ((1 + i) / L) ** 0.7)

    def forward(self, x, v_first, prev, S):
        B, T, C = x.shape
        H, N = self.H, self.N
        xr, xw, xk, xv, xa, xg = Mix.apply(x, prev, torch.cat([getattr(self, 'x_' + n).view(1, C) for n in 'rwkvag']))
        r, k, v = product(xr, self.receptance.weight), product(xk, self.key.weight), product(xv, self.value.weight)
        pair = lambda x, a, b, f=lambda z: z: product(f(product(x, a.t())), b.t())    # a low-rank product
        if self.i == 0:
            v_first = v
        else:
            v = torch.lerp(v, v_first, torch.sigmoid(self.v0 + pair(xv, self.v1, self.v2)))
        g = pair(xg, self.g1, self.g2, torch.sigmoid)
        wr = self.w0 + pair(xw, self.w1, self.w2, torch.tanh)
        ar = self.a0 + pair(xa, self.a1, self.a2)
        w, k, a, b = Prep.apply(k, wr, ar, self.k_k.view(C), self.k_a.view(C), H)
        y, S = Wkv.apply(*(t.reshape(B, T, H, N) for t in (r, w, k, v, a, b)), S, 1)
        o = Post.apply(y.reshape(B, T, C), r, k, v, g, self.r_k.view(C), self.ln_x.weight, self.ln_x.bias, H)
        return product(o, self.output.weight), v_first, x[:, -1].detach(), S


class ChannelMix(nn.Module):
    def __init__(self, i, L, C, ratio):
        super().__init__()
        self.x_k = nn.Parameter((1 - (torch.arange(C) / C) ** ((1 - i / L) ** 4)).view(1, 1, C))
        self.key, self.value = nn.Linear(C, ratio * C, bias=False), nn.Linear(ratio * C, C, bias=False)
        nn.init.orthogonal_(self.key.weight)
        nn.init.zeros_(self.value.weight)

    def forward(self, x, prev):
        xk, = Mix.apply(x, prev, self.x_k.view(1, -1))
        return product(Relu2.apply(product(xk, self.key.weight)), self.value.weight), x[:, -1].detach()


class Block(nn.Module):
    def __init__(self, i, L, C, N, ratio):
        super().__init__()
        if i == 0:
            self.ln0 = nn.LayerNorm(C)
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.att, self.ffn = TimeMix(i, L, C, N), ChannelMix(i, L, C, ratio)


class RWKV7(nn.Module):
    def __init__(self, V=2048, L=4, C=192, N=64, ratio=4):
        super().__init__()
        assert N in (32, 64) and C % N == 0                # what wkv.c has code for
        self.cfg = dict(V=V, L=L, C=C, N=N, ratio=ratio)
        self.emb = nn.Embedding(V, C)
        self.blocks = nn.ModuleList([Block(i, L, C, N, ratio) for i in range(L)])
        self.ln_out = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)
        nn.init.uniform_(self.emb.weight, -1e-4, 1e-4)
        nn.init.orthogonal_(self.head.weight, gain=0.5 * math.sqrt(V / C) if V > C else 0.5)

    def zero_state(self, B):
        """Per layer: the last input of the time mix [B,C], S [B,H,N,N], the last input of the channel mix."""
        L, C, N = self.cfg['L'], self.cfg['C'], self.cfg['N']
        return [[torch.zeros(B, C), torch.zeros(B, C // N, N, N), torch.zeros(B, C)] for _ in range(L)]

    def forward(self, ids, state, take=None):
        """ids [B,T] -> logits [B,T,V] and the state after them; take: of these tokens only (of B*T), [n,V]."""
        x, after, v_first = self.emb(ids), [], None
        for i, b in enumerate(self.blocks):
            if i == 0:
                x = b.ln0(x)
            p1, S, p2 = state[i]
            o, v_first, p1, S = b.att(b.ln1(x), v_first, p1.contiguous(), S)
            x = x + o
            o, p2 = b.ffn(b.ln2(x), p2.contiguous())
            x = x + o
            after.append([p1, S, p2])
        x = x if take is None else x.reshape(-1, x.shape[-1])[take]
        return product(self.ln_out(x), self.head.weight), after


def param_groups(model, decay):
    """BlinkDL's: weight decay on the big matrices only, twice the rate for att.w0."""
    g = dict(decay=[], plain=[], w0=[])
    for name, p in model.named_parameters():
        g['w0' if 'att.w0' in name else 'decay' if p.squeeze().dim() >= 2 and '.weight' in name else 'plain'].append(p)
    return [dict(params=g['plain'], weight_decay=0.0, scale=1.0), dict(params=g['w0'], weight_decay=0.0, scale=2.0),
            dict(params=g['decay'], weight_decay=decay, scale=1.0)]
