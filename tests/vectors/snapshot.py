"""Opens, changes and writes snapshots with nothing but struct, json and NumPy, as anybody could.

    snapshot.py dump FILE                        metadata, tensors and values, a line each
    snapshot.py sha FILE                         SHA-256 of all F32 values, tensors by name
    snapshot.py edit IN OUT NAME INDEX VALUE     one value changed (INDEX counts in C order)
    snapshot.py average A B OUT                  the mean of two memories
    snapshot.py meta IN OUT KEY VALUE            an entry of the metadata changed
    snapshot.py converted FILE MODEL             MODEL is what `slate convert` made of FILE

The format, whole: 8 bytes of little-endian length, a JSON object, the data. Each key is a tensor
{"dtype", "shape", "data_offsets"} in row-major order, "__metadata__" maps strings to strings. BF16
is the upper half of an F32; I8 has a scale for each row of its last axis in NAME.scale. What is
changed is no longer what the digests say, so they are dropped.
"""
import hashlib
import json
import struct
import sys

import numpy as np

TYPES = {"F32": "<f4", "BF16": "<u2", "I8": "i1", "I64": "<i8", "F16": "<f2", "U8": "u1"}
NAMES = {np.dtype("<f4"): "F32", np.dtype("<i8"): "I64"}


def load(path):
    """The metadata, and the tensors as they lie there: (name, dtype, array), in order."""
    with open(path, "rb") as f:
        raw = f.read()
    (n,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + n].decode("utf-8"))
    metadata = header.pop("__metadata__")
    tensors, end = [], 0
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        a, b = t["data_offsets"]
        assert a == end, f"{name} begins at {a}, not at {end}"
        values = np.frombuffer(raw, TYPES[t["dtype"]], offset=8 + n + a, count=int(np.prod(t["shape"])))
        assert values.nbytes == b - a, name
        tensors.append((name, t["dtype"], values.reshape(t["shape"])))
        end = b
    assert 8 + n + end == len(raw), "bytes that belong to no tensor"
    return metadata, tensors


def decoded(tensors):
    """F32 and I64 only, by name."""
    stored = {name: (dtype, a) for name, dtype, a in tensors}
    out = {}
    for name, (dtype, a) in stored.items():
        if dtype == "BF16":
            out[name] = (a.astype("<u4") << 16).view("<f4")
        elif dtype == "I8":
            scale = stored[name + ".scale"][1]
            out[name] = a.astype("<f4") * (scale[..., None] if a.ndim > 1 else scale)
        elif not (name.endswith(".scale") and stored.get(name[:-6], ("",))[0] == "I8"):
            out[name] = a.copy()
    return out


def save(path, metadata, arrays):
    header, data = {"__metadata__": metadata}, b""
    for name, a in arrays.items():
        header[name] = {
            "dtype": NAMES[a.dtype],
            "shape": list(a.shape),
            "data_offsets": [len(data), len(data) + a.nbytes],
        }
        data += a.tobytes()
    text = json.dumps(header).encode("utf-8")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def dump(path):
    metadata, tensors = load(path)
    for key, value in metadata.items():
        print("meta", key, value.encode("utf-8").hex() or "-")
    for name, dtype, a in tensors:
        print("tensor", name, dtype, ",".join(map(str, a.shape)))
    for name, a in decoded(tensors).items():
        for i, v in enumerate(a.ravel()):
            print("value", name, i, float(v).hex())


def sha(path):
    h = hashlib.sha256()
    for name, a in sorted(decoded(load(path)[1]).items()):
        if a.dtype == np.dtype("<f4"):
            h.update(a.tobytes())
    print(h.hexdigest())


def edit(source, target, name, index, value):
    metadata, tensors = load(source)
    arrays = decoded(tensors)
    arrays[name].ravel()[int(index)] = np.float32(value)
    del metadata["payload.xxh3"]
    save(target, metadata, arrays)


def average(a, b, target):
    metadata, tensors = load(a)
    x, y = decoded(tensors), decoded(load(b)[1])
    for name in x:
        if x[name].dtype == np.dtype("<f4"):
            x[name] = (x[name] + y[name]) / np.float32(2)
    del metadata["payload.xxh3"]
    save(target, metadata, x)


def meta(source, target, key, value):
    metadata, tensors = load(source)
    metadata[key] = value
    del metadata["metadata.xxh3"], metadata["payload.xxh3"]
    save(target, metadata, decoded(tensors))


LEVELS = np.array([-16, -13, -11, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, 10, 12, 15], "<f4")
MOST_OFF = {"q8_scales": 0.57, "q5_scales": 2, "q4_scales": 2.6}  # that a weight can be, in scales


def of_codes(codes, scales, kind):
    """[rows, n] of codes, 8 bits each, eight in five bytes or two to a byte, with a scale for every
    32 of a row."""
    if kind == "q8":
        levels = codes.astype("<f4")
    elif kind == "q5":
        eight = codes.reshape(len(codes), -1, 5)
        low = np.stack([eight[:, :, :4] & 15, eight[:, :, :4] >> 4], -1).reshape(len(codes), -1)
        high = np.unpackbits(eight[:, :, 4], axis=1, bitorder="little")
        levels = (low + 16 * high).astype("<f4") - 16
    else:
        levels = LEVELS[np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)]
    return levels * np.repeat(scales.astype("<f4"), 32, axis=1)[:, : levels.shape[1]]


def take_codes(tensors, given):
    """Quantised matrices against the source's: within the format's steps. The other tensors."""
    stored = {name: a for name, _, a in tensors}
    rest = []
    for name, dtype, a in tensors:
        base, _, kind = name.rpartition(".")
        if kind in MOST_OFF:
            was, x = given.pop(base)
            y = of_codes(stored[base], a, kind[:2])
            assert x.shape == y.shape, name
            most = np.repeat(np.abs(a.astype("<f4")), 32, axis=1)[:, : x.shape[1]]
            assert np.all(np.abs(x - y) <= most * MOST_OFF[kind]), name
            print(base, was, kind[:2])
        elif not any(name + "." + kind in stored for kind in MOST_OFF):
            rest.append((name, dtype, a))
    return rest


def converted(source, model):
    """Same names and shapes; the same bits, or F32 rounded to BF16 or F16, or in codes of 8 and 4
    bits. Prints each tensor's fate."""
    given = {name: (dtype, a) for name, dtype, a in load(source)[1]}
    metadata, tensors = load(model)
    for name, dtype, a in take_codes(tensors, given):
        if name == "slate.tokenizer":
            print(name, dtype, a.tobytes().hex())
            continue
        was, x = given.pop(name)
        assert x.shape == a.shape, name
        if dtype == was:
            assert x.tobytes() == a.tobytes(), name
        elif dtype == "F16":
            with np.errstate(all="ignore"):
                assert x.astype("<f2").tobytes() == a.tobytes(), name
        else:
            u = x.view("<u4").astype("<u8")
            rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
            assert dtype == "BF16" and rounded.astype("<u2").tobytes() == a.tobytes(), name
        print(name, was, dtype)
    assert not given, given.keys()
    for key, value in metadata.items():
        print("meta", key, value)


if __name__ == "__main__":
    commands = {"dump": dump, "sha": sha, "edit": edit, "average": average, "meta": meta}
    commands["converted"] = converted
    commands[sys.argv[1]](*sys.argv[2:])
