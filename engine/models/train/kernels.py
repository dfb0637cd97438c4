"""The C kernels (wkv.c, fused.c, built by `make model` as libwkv.so) as torch functions with gradients."""
import ctypes
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
LIB = ctypes.CDLL(os.environ.get('SLATE_WKV', os.path.join(HERE, '../../../build/model/libwkv.so')))
CHUNK = 16                                                # as in wkv.c


def call(name, *args):
    """Tensors become pointers, whole numbers longs."""
    for x in args:
        assert not isinstance(x, torch.Tensor) or (x.dtype in (torch.float32, torch.float64) and x.is_contiguous())
    as_c = {torch.Tensor: lambda x: ctypes.c_void_p(x.data_ptr()), torch.nn.Parameter: lambda x: ctypes.c_void_p(x.data_ptr()), int: ctypes.c_long}
    getattr(LIB, name)(*(as_c.get(type(x), lambda x: x)(x) for x in args))


# Products in bf16 (sums in f32) where the processor multiplies bf16: twice as fast there. SLATE_BF16=0: never.
BF16 = os.environ.get('SLATE_BF16', str(int('avx512_bf16' in open('/proc/cpuinfo').read()))) == '1'


class Product(torch.autograd.Function):
    """x W^T for x [..., K] and W [N, K], both ways in bf16."""
    @staticmethod
    def forward(ctx, x, W):
        x2, Wb = x.reshape(-1, x.shape[-1]).bfloat16(), W.bfloat16()
        ctx.save_for_backward(x2, Wb)
        return (x2 @ Wb.t()).float().view(*x.shape[:-1], W.shape[0])

    @staticmethod
    def backward(ctx, dy):
        x2, Wb = ctx.saved_tensors
        g = dy.reshape(-1, dy.shape[-1]).bfloat16()
        return (g @ Wb).float().view(*dy.shape[:-1], Wb.shape[1]), (g.t() @ x2).float()


def product(x, W):
    return Product.apply(x, W) if BF16 else x @ W.t()


class Wkv(torch.autograd.Function):
    """y, S' = the recurrence over r, w, k, v, a, b [B,T,H,N] from S; delta 0: without a and b.
    No gradient goes through S and S'."""
    @staticmethod
    def forward(ctx, r, w, k, v, a, b, S, delta):
        B, T, H, N = r.shape
        S, y = S.clone(), torch.empty_like(r)
        kept = torch.empty(B, H, (T + CHUNK - 1) // CHUNK, N, N)
        call('wkv_forward', B, T, H, N, r, w, k, v, a, b, S, y, kept, delta)
        ctx.save_for_backward(r, w, k, v, a, b, kept)
        ctx.delta = delta
        ctx.mark_non_differentiable(S)
        return y, S

    @staticmethod
    def backward(ctx, dy, _):
        r, w, k, v, a, b, kept = ctx.saved_tensors
        g = [torch.empty_like(r) for _ in range(6)]
        call('wkv_backward', *r.shape, r, w, k, v, a, b, dy.contiguous(), kept, *g, ctx.delta)
        return (*g, None, None)


class Mix(torch.autograd.Function):
    """Token shift: for each of M rows of mu, x[t] + (x[t-1] - x[t]) * mu."""
    @staticmethod
    def forward(ctx, x, prev, mu):
        out = torch.empty(mu.shape[0], *x.shape)
        call('mix_forward', *x.shape, mu.shape[0], x, prev, mu, out)
        ctx.save_for_backward(x, prev, mu)
        return tuple(out.unbind(0))

    @staticmethod
    def backward(ctx, *dout):
        x, prev, mu = ctx.saved_tensors
        dx, dmu = torch.empty_like(x), torch.zeros_like(mu)
        dout = [d.contiguous() for d in dout]
        pointers = (ctypes.c_void_p * len(dout))(*(d.data_ptr() for d in dout))
        call('mix_backward', *x.shape, mu.shape[0], x, prev, mu, pointers, dx, dmu)
        return dx, None, dmu


class Prep(torch.autograd.Function):
    """-> w, the key as written, -kk, kk * a"""
    @staticmethod
    def forward(ctx, k, wr, ar, k_k, k_a, H):
        B, T, C = k.shape
        out = [torch.empty(B, T, C) for _ in range(4)]
        call('prep_forward', B * T, H, C // H, k, wr, ar, k_k, k_a, *out)
        ctx.save_for_backward(k, wr, ar, k_k, k_a)
        ctx.H = H
        return tuple(out)

    @staticmethod
    def backward(ctx, *dout):
        k, wr, ar, k_k, k_a = ctx.saved_tensors
        B, T, C = k.shape
        g = [torch.empty_like(k) for _ in range(3)] + [torch.zeros_like(k_k), torch.zeros_like(k_a)]
        call('prep_backward', B * T, ctx.H, C // ctx.H, k, wr, ar, k_k, k_a, *(d.contiguous() for d in dout), *g)
        return (*g, None)


class Post(torch.autograd.Function):
    """(group norm of y + (sum of r * k * r_k) v) * g"""
    @staticmethod
    def forward(ctx, y, r, k, v, g, r_k, gw, gb, H):
        B, T, C = g.shape
        out = torch.empty(B, T, C)
        call('post_forward', B * T, H, C // H, y, r, k, v, g, r_k, gw, gb, out)
        ctx.save_for_backward(y, r, k, v, g, r_k, gw, gb)
        ctx.H = H
        return out

    @staticmethod
    def backward(ctx, dout):
        y, r, k, v, g, r_k, gw, gb = ctx.saved_tensors
        B, T, C = g.shape
        d = [torch.empty_like(t) for t in (y, r, k, v, g)] + [torch.zeros_like(t) for t in (r_k, gw, gb)]
        call('post_backward', B * T, ctx.H, C // ctx.H, y, r, k, v, g, r_k, gw, gb, dout.contiguous(), *d)
        return (*d, None)


class Relu2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        call('relu2_forward', x.numel(), x, y)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, = ctx.saved_tensors
        dx = torch.empty_like(x)
        call('relu2_backward', x.numel(), x, dy.contiguous(), dx)
        return dx
