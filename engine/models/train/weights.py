"""Writes and reads weights: checkpoints of the trainer (.pt) and safetensors files (F16, BlinkDL's names).
Of RWKV-7's file: x_*, w0, a0, v0, k_k, k_a are [1,1,C], r_k is [H,N], linear weights are [out,in], the
low-rank matrices w1/a1/v1/g1 are [C,rank] and w2/... [rank,C]; layer 0's v0/v1/v2 are there and unused.
  python3 weights.py run.pt tiny.safetensors"""
import json
import struct
import sys

import torch

TYPES = {'F16': torch.float16, 'F32': torch.float32}


def write_safetensors(path, tensors, meta):
    header, at, parts = {'__metadata__': meta}, 0, []
    for name, t in tensors.items():
        data = t.detach().contiguous().half().numpy().tobytes()
        header[name] = dict(dtype='F16', shape=list(t.shape), data_offsets=[at, at + len(data)])
        at += len(data)
        parts.append(data)
    head = json.dumps(header, separators=(',', ':')).encode()
    head += b' ' * (-len(head) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(head)) + head + b''.join(parts))


def read_safetensors(path):
    with open(path, 'rb') as f:
        header = json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))
        body = f.read()
    header.pop('__metadata__', None)
    return {k: torch.frombuffer(bytearray(body[slice(*v['data_offsets'])]), dtype=TYPES[v['dtype']]).view(v['shape']).float()
            for k, v in header.items()}


def read_any(path):
    """The weights of a checkpoint or of a safetensors file."""
    return read_safetensors(path) if path.endswith('.safetensors') else torch.load(path, map_location='cpu')['model']


if __name__ == '__main__':
    kept = torch.load(sys.argv[1], map_location='cpu')
    write_safetensors(sys.argv[2], kept['model'], dict(format='pt', arch='rwkv7', **{k: str(v) for k, v in kept['cfg'].items()}))
