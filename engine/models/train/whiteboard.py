"""The whiteboard: one small model for each rule of memory, trained alike, to see what the rule does.

  python3 whiteboard.py RULE --out FOLDER [--tokens 5e6] [--texts texts.json]

RULE: linear_attn (elu + 1), retnet, gla, delta_net as flash-linear-attention's directories (config.json and
model.safetensors); rwkv4, rwkv7 with BlinkDL's names (model.safetensors). Two layers of 128, two heads of 64,
the embedded model's vocabulary; conversations of T tokens, each from an empty
state, in plain words: four families of facts, each said in one way, and little but telling and asking.  Beside the weights come a
prompt and the trainer's own logits for it, from the weights as rounded to F16: expected values of a test.
What surrounds a rule is what its library has: a short convolution in retnet, gla and delta_net, a token shift
in rwkv4 and rwkv7, neither in linear_attn."""
import argparse
import json
import math
import os
import sys
import time

import train                                             # sets the environment, before torch is loaded

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernels import Mix, Relu2, Wkv, call, product
from rwkv7 import RWKV7, param_groups
from stream import Stream
from dialogue import BOARD
from weights import write_safetensors

V, L, C, H, N, FF, CONV, EPS = 2048, 2, 128, 2, 64, 256, 4, 1e-6


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


class Linear(nn.Linear):
    def __init__(self, n_in, n_out, bias=False):
        super().__init__(n_in, n_out, bias)
        nn.init.normal_(self.weight, std=0.02)
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        y = product(x, self.weight)
        return y if self.bias is None else y + self.bias


class ShortConv(nn.Conv1d):
    """Depthwise over the last CONV tokens, then silu."""
    def __init__(self, n):
        super().__init__(n, n, CONV, groups=n, bias=False)

    def forward(self, x):
        return F.silu(super().forward(F.pad(x.transpose(1, 2), (CONV - 1, 0)))).transpose(1, 2)


class Attention(nn.Module):
    """flash-linear-attention's layer of a rule."""
    def __init__(self, rule):
        super().__init__()
        self.rule = rule
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = [Linear(C, C) for _ in range(4)]
        if rule != 'linear_attn':
            self.q_conv1d, self.k_conv1d, self.v_conv1d = [ShortConv(C) for _ in range(3)]
        if rule in ('retnet', 'gla'):
            self.g_proj, self.g_norm_swish_gate = Linear(C, C), RMSNorm(N)
        if rule == 'gla':
            self.gk_proj = nn.Sequential(Linear(C, 16), Linear(16, C, True))
        if rule == 'delta_net':
            self.b_proj, self.o_norm = Linear(C, H), RMSNorm(N)
        if rule == 'linear_attn':
            self.norm = RMSNorm(N)

    def forward(self, x):
        q, k, v = [getattr(self, n + '_proj')(x) for n in 'qkv']
        if self.rule != 'linear_attn':
            q, k, v = self.q_conv1d(q), self.k_conv1d(k), self.v_conv1d(v)
        B, T, _ = x.shape
        q, k, v = [t.reshape(B, T, H, N) for t in (q, k, v)]
        o = getattr(self, self.rule)(x, q, k, v)
        if self.rule in ('retnet', 'gla'):
            o = self.g_norm_swish_gate(o) * F.silu(self.g_proj(x)).view(B, T, H, N)
        return self.o_proj(o.reshape(B, T, C))

    def recur(self, q, w, k, v, a=None, b=None):
        """The recurrence from an empty state, queries over the root of N."""
        B, T = q.shape[:2]
        delta = a is not None
        a, b = (a, b) if delta else (torch.zeros_like(k), torch.zeros_like(k))
        args = [t.contiguous() for t in (q * N ** -0.5, w.expand_as(k), k, v, a, b)]
        return Wkv.apply(*args, torch.zeros(B, H, N, N), int(delta))[0]

    def linear_attn(self, x, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        o = self.recur(q, torch.ones(1), k, v)
        below = (q * N ** -0.5 * k.cumsum(1)).sum(-1, keepdim=True) + 1e-10
        return self.norm(o / below)

    def retnet(self, x, q, k, v):
        t, i = torch.arange(q.shape[1]).double(), torch.arange(N // 2).double()
        angle = torch.outer(t, 10000.0 ** (-2 * i / N)).float().view(1, -1, 1, N // 2)
        cos, sin = angle.cos(), angle.sin()
        turn = lambda y: torch.cat([y[..., :N // 2] * cos - y[..., N // 2:] * sin, y[..., :N // 2] * sin + y[..., N // 2:] * cos], -1)
        gamma = 1 - 2.0 ** (-5 - torch.arange(H).float())
        return self.recur(turn(q), gamma.view(1, 1, H, 1), turn(k), v)

    def gla(self, x, q, k, v):
        gate = F.logsigmoid(self.gk_proj(x)).view_as(k) / 16
        return self.recur(q, gate.exp(), k, v)

    def delta_net(self, x, q, k, v):
        unit = lambda y: y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6)
        q, k, beta = unit(q), unit(k), torch.sigmoid(self.b_proj(x)).unsqueeze(-1)
        return self.o_norm(self.recur(q, torch.ones(1), k, v * beta, k, -beta * k))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Linear(C, FF), Linear(C, FF), Linear(FF, C)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class FlaBlock(nn.Module):
    def __init__(self, rule):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = RMSNorm(C), Attention(rule), RMSNorm(C), Mlp()

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Fla(nn.Module):
    def __init__(self, rule):
        super().__init__()
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(V, C)
        nn.init.normal_(self.model.embeddings.weight, std=0.02)
        self.model.layers = nn.ModuleList([FlaBlock(rule) for _ in range(L)])
        self.model.norm, self.lm_head = RMSNorm(C), Linear(C, V)

    def forward(self, ids, take):
        x = self.model.embeddings(ids)
        for b in self.model.layers:
            x = b(x)
        return self.lm_head(self.model.norm(x).view(-1, C)[take])


class Wkv4(torch.autograd.Function):
    @staticmethod
    def forward(ctx, k, v, w, u):
        B, T, n = k.shape
        y, kept = torch.empty_like(k), torch.empty(T, 2, n, dtype=torch.float64)
        call('wkv4_forward', B, T, n, k, v, w, u, y, kept)
        ctx.save_for_backward(k, v, w, u, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        k, v, w, u, y = ctx.saved_tensors
        B, T, n = k.shape
        kept, scratch = torch.empty(T, 2, n, dtype=torch.float64), torch.empty(2, n, dtype=torch.float64)
        g = [torch.empty_like(k), torch.empty_like(v), torch.zeros_like(w), torch.zeros_like(u)]
        call('wkv4_backward', B, T, n, k, v, w, u, y, dy.contiguous(), kept, scratch, *g)
        return tuple(g)


class Rwkv4Part(nn.Module):
    """The time mix (attention) or the channel mix of RWKV-4, with BlinkDL's names and initial values."""
    def __init__(self, i, time):
        super().__init__()
        n, r1 = torch.arange(C) / C, 1 - i / L
        names = 'kvr' if time else 'kr'
        for name, e in zip(names, (r1, r1, r1 / 2) if time else (r1, r1)):
            setattr(self, 'time_mix_' + name, nn.Parameter((n ** e + (0.3 * i / (L - 1) if name == 'v' else 0)).view(1, 1, C)))
        wide = C if time else 3 * C
        self.key, self.value, self.receptance = nn.Linear(C, wide, bias=False), nn.Linear(C if time else wide, C, bias=False), nn.Linear(C, C, bias=False)
        for m in (self.key, self.receptance):
            nn.init.zeros_(m.weight)
        nn.init.orthogonal_(self.value.weight) if time else nn.init.zeros_(self.value.weight)
        if not time:
            nn.init.orthogonal_(self.key.weight)
            return
        self.output = nn.Linear(C, C, bias=False)
        nn.init.zeros_(self.output.weight)
        h = torch.arange(C) / (C - 1)
        self.time_decay = nn.Parameter(-5 + 8 * h ** (0.7 + 1.3 * i / (L - 1)))
        self.time_first = nn.Parameter(math.log(0.3) + ((torch.arange(C) + 1) % 3 - 1).float() * 0.5)

    def forward(self, x):
        mixed = lambda n: Mix.apply(x, torch.zeros_like(x[:, 0]), (1 - getattr(self, 'time_mix_' + n)).view(1, C))[0]
        r = torch.sigmoid(product(mixed('r'), self.receptance.weight))
        k = product(mixed('k'), self.key.weight)
        if not hasattr(self, 'output'):
            return r * product(Relu2.apply(k), self.value.weight)
        v = product(mixed('v'), self.value.weight)
        return product(r * Wkv4.apply(k, v, self.time_decay.exp(), self.time_first), self.output.weight)


class Rwkv4(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.ln_out, self.head = nn.Embedding(V, C), nn.LayerNorm(C), nn.Linear(C, V, bias=False)
        nn.init.uniform_(self.emb.weight, -1e-4, 1e-4)
        nn.init.orthogonal_(self.head.weight, gain=0.5 * math.sqrt(V / C))
        self.blocks = nn.ModuleList([nn.ModuleDict(dict(ln1=nn.LayerNorm(C), ln2=nn.LayerNorm(C), att=Rwkv4Part(i, True), ffn=Rwkv4Part(i, False),
                                                        **({} if i else dict(ln0=nn.LayerNorm(C))))) for i in range(L)])

    def forward(self, ids, take):
        x = self.blocks[0]['ln0'](self.emb(ids))
        for b in self.blocks:
            x = x + b['att'](b['ln1'](x))
            x = x + b['ffn'](b['ln2'](x))
        return product(self.ln_out(x).view(-1, C)[take], self.head.weight)


class Rwkv7(RWKV7):
    def __init__(self):
        super().__init__(V, L, C, N, 3)

    def forward(self, ids, take):
        return super().forward(ids, self.zero_state(ids.shape[0]), take)[0]


def config(rule):
    """What flash-linear-attention's class of the rule needs besides its defaults."""
    c = dict(model_type=rule, hidden_size=C, num_hidden_layers=L, num_heads=H, expand_k=1.0, expand_v=1.0, intermediate_size=FF, hidden_act='swish',
             norm_eps=EPS, vocab_size=V, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, torch_dtype='float16')
    more = dict(linear_attn=dict(feature_map='elu', norm_q=False, norm_k=False, norm_feature_map=True), retnet=dict(use_short_conv=True, conv_size=CONV),
                gla=dict(use_short_conv=True, conv_size=CONV, use_gk=True, use_output_gate=True),
                delta_net=dict(use_short_conv=True, conv_size=CONV, use_beta=True, use_gate=False, qk_norm='l2', qk_activation='silu'))
    names = dict(linear_attn='LinearAttention', retnet='RetNet', gla='GLA', delta_net='DeltaNet')
    return dict(architectures=[names[rule] + 'ForCausalLM'], **c, **more[rule])


PROMPT = 'User: My name is Kate.\n\nAssistant: Okay.\n\nUser: My dog is called Rex.\n\nAssistant: Got it.\n\nUser: What is my name?\n\nAssistant:'


def write(rule, model, folder, tokens, note):
    """The weights, the settings, and a prompt with the logits of every position (from the rounded weights, in f32)."""
    os.makedirs(folder, exist_ok=True)
    if rule not in ('rwkv4', 'rwkv7'):
        with open(os.path.join(folder, 'config.json'), 'w') as f:
            json.dump(config(rule), f, indent=1)
    write_safetensors(os.path.join(folder, 'model.safetensors'), model.state_dict(), dict(format='pt', rule=rule, trained=note))
    import kernels
    kernels.BF16 = False
    ids = [0] + tokens.encode(PROMPT)
    with torch.no_grad():
        model.load_state_dict({k: v.half().float() for k, v in model.state_dict().items()})
        logits = model(torch.tensor([ids]), torch.arange(len(ids)))
    logits.numpy().astype('<f4').tofile(os.path.join(folder, 'logits.f32'))
    with open(os.path.join(folder, 'prompt.tokens.json'), 'w') as f:
        json.dump(ids, f)


def main():
    p = argparse.ArgumentParser()
    p.add_argument('rule', choices=('linear_attn', 'retnet', 'gla', 'delta_net', 'rwkv4', 'rwkv7'))
    p.add_argument('--out', required=True)
    p.add_argument('--texts')
    p.add_argument('--vocab', default=os.path.join(train.HERE, '..', 'tiny.vocab.txt'))
    for name, value in dict(B=2, T=256, seed=1).items():
        p.add_argument('--' + name, type=int, default=value)
    for name, value in dict(tokens=5e6, lr=3e-3, wd=0.1, prose=0).items():
        p.add_argument('--' + name, type=float, default=value)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    model = dict(rwkv4=Rwkv4, rwkv7=Rwkv7)[a.rule]() if a.rule in ('rwkv4', 'rwkv7') else Fla(a.rule)
    params = [q for q in model.parameters()]
    opt = torch.optim.AdamW(param_groups(model, a.wd), lr=a.lr, betas=(0.9, 0.99), eps=1e-12)
    stream = Stream(a.vocab, a.B, a.T, a.seed, a.prose, a.texts)
    stream.plans, stream.lengths, stream.world = [(BOARD, 1)], (a.T,), dict(novel=0, real=0, plain=True)
    steps, start, told, sums = int(a.tokens / a.B / a.T), time.process_time(), time.time(), [0.0] * 2
    print(a, 'parameters %.2fM' % (sum(q.numel() for q in params) / 1e6), flush=True)
    for step in range(steps):
        x, y, w, _ = stream.next()
        w, y = torch.from_numpy(w).view(-1), torch.from_numpy(y).view(-1)
        take = (torch.rand(w.shape) < w).nonzero()[:, 0]
        w = w[take].clamp(min=1)
        loss = F.cross_entropy(model(torch.from_numpy(x), take), y[take], reduction='none')
        ((loss * w).sum() / w.sum()).backward()
        torch.nn.utils.clip_grad_norm_([q for q in params if q.grad is not None], 1.0)
        rate = a.lr * min(1, (step + 1) / 30) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))
        for g in opt.param_groups:
            g['lr'] = rate * g['scale']
        opt.step()
        opt.zero_grad(set_to_none=True)
        sums = [sums[0] + float(loss[w == 3].sum()), sums[1] + float((w == 3).sum())]
        if time.time() - told > 20 or step + 1 == steps:
            told = time.time()
            print('step %d tokens %.2fM value-loss %.3f tokens a core-second %.0f' % (
                step + 1, (step + 1) * a.B * a.T / 1e6, sums[0] / max(sums[1], 1), (step + 1) * a.B * a.T / (time.process_time() - start)), flush=True)
            sums = [0.0] * 2
    write(a.rule, model, a.out, stream.tokens, '%.2fM tokens, seed %d' % (steps * a.B * a.T / 1e6, a.seed))


if __name__ == '__main__':
    sys.exit(main())
