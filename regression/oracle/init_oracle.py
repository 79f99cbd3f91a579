#!/usr/bin/env python3
"""Initial weights in NumPy, written apart from the C++: hash, generator and normal numbers of src/model/init.cpp.

    python3 regression/oracle/init_oracle.py > regression/goldens/init.json

Only +, -, *, / and sqrt of IEEE doubles are used, in the order of include/orthant/elementwise.hpp, so that the bits
can be compared. The accuracy of log, sin and cos is checked here against NumPy's own.
"""
import json
import sys

import numpy as np

M64 = (1 << 64) - 1


def xxh64(data: bytes, seed: int) -> int:
    p1, p2, p3, p4, p5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                          0x27D4EB2F165667C5)

    def rotate(x, r):
        return ((x << r) | (x >> (64 - r))) & M64

    def mix(acc, word):
        return rotate((acc + word * p2) & M64, 31) * p1 & M64

    def word(at, size):
        return int.from_bytes(data[at:at + size], "little")

    at, n = 0, len(data)
    if n >= 32:
        lanes = [(seed + p1 + p2) & M64, (seed + p2) & M64, seed & M64, (seed - p1) & M64]
        while at + 32 <= n:
            lanes = [mix(lane, word(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        h = sum(rotate(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18))) & M64
        for lane in lanes:
            h = ((h ^ mix(0, lane)) * p1 + p4) & M64
    else:
        h = (seed + p5) & M64
    h = (h + n) & M64
    while at + 8 <= n:
        h = (rotate(h ^ mix(0, word(at, 8)), 27) * p1 + p4) & M64
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ (word(at, 4) * p1 & M64), 23) * p2 + p3) & M64
        at += 4
    while at < n:
        h = rotate(h ^ (data[at] * p5 & M64), 11) * p1 & M64
        at += 1
    for shift, prime in ((33, p2), (29, p3)):
        h = (h ^ (h >> shift)) * prime & M64
    return h ^ (h >> 32)


def philox(counter: np.ndarray, key: int):
    """Ten rounds of Philox 4x32 over 64-bit counters (words 2 and 3 are zero)."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c = [counter & low, counter >> shift, np.zeros_like(counter), np.zeros_like(counter)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> shift) ^ c[1] ^ np.uint64(k0), b & low, (a >> shift) ^ c[3] ^ np.uint64(k1), a & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def horner(z, coefficients):
    p = np.full_like(z, float.fromhex(coefficients[0]))
    for c in coefficients[1:]:
        p = p * z + float.fromhex(c)
    return p


LN2 = (float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45"))
HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")))
LOG = ["0x1.2b6686d1072f3p-3", "0x1.39fd39474ad34p-3", "0x1.7462bd8e53c17p-3", "0x1.c71c62c63e016p-3",
       "0x1.2492492e09d1ap-2", "0x1.9999999995204p-2", "0x1.5555555555558p-1"]
SIN = ["0x1.5e07f04f301b6p-33", "-0x1.ae60023696a43p-26", "0x1.71de378e148cap-19", "-0x1.a01a019e7d21ap-13",
       "0x1.1111111110b97p-7", "-0x1.5555555555555p-3"]
COS = ["-0x1.907a78f9a8549p-37", "0x1.1eeb64821c697p-29", "-0x1.27e4fa139e45dp-22", "0x1.a01a019f4b6aap-16",
       "-0x1.6c16c16c16959p-10", "0x1.5555555555555p-5"]


def log(x):
    """For normal positive x."""
    m, e = np.frexp(x)
    small = m < float.fromhex("0x1.6a09e667f3bcdp-1")
    m, e = np.where(small, 2 * m, m), np.where(small, e - 1, e).astype(np.float64)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = horner(z, LOG) * z
    return e * LN2[0] + (f - (s * (f - p) - e * LN2[1]))


def sin_cos(x):
    n = np.rint(x * 0.63661977236758138)
    r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2]
    z = r * r
    sine = r + r * z * horner(z, SIN)
    half = 0.5 * z
    w = 1.0 - half
    cosine = w + (((1.0 - w) - half) + z * z * horner(z, COS))
    q = n.astype(np.int64) & 3
    return np.choose(q, [sine, cosine, -sine, -cosine]), np.choose(q, [cosine, -sine, -cosine, sine])


def normal(name: str, seed: int, std: float, elements: np.ndarray) -> np.ndarray:
    """float32 values of the given elements (row-major indices in the whole parameter)."""
    elements = elements.astype(np.uint64)
    words = philox(elements // np.uint64(4), xxh64(name.encode(), seed))
    u = [(w.astype(np.float64) + 0.5) * 2.0 ** -32 for w in words]
    two_pi = 6.283185307179586
    z = []
    for a, b in ((u[0], u[1]), (u[2], u[3])):
        radius = np.sqrt(-2.0 * log(a))
        sine, cosine = sin_cos(two_pi * b)
        z += [radius * cosine, radius * sine]
    return (std * np.choose((elements % np.uint64(4)).astype(np.int64), z)).astype(np.float32)


def check():
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999 and xxh64(b"abc", 0) == 0x44BC2CF5AD770999
    first = [int(w[0]) for w in philox(np.zeros(1, np.uint64), 0)]
    assert first == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], first
    x = np.random.default_rng(1).random(100000)
    assert np.max(np.abs(log(x) - np.log(x)) / np.spacing(np.abs(np.log(x)))) < 1.5
    sine, cosine = sin_cos(7 * x)
    assert max(np.max(np.abs(sine - np.sin(7 * x))), np.max(np.abs(cosine - np.cos(7 * x)))) < 3e-16


CASES = [  # name, seed, std, shape, piece (row, rows, col, cols)
    ("wte.weight", 1234, 0.02, (257, 64), (0, 4, 0, 64)),
    ("wte.weight", 1234, 0.02, (257, 64), (136, 3, 5, 9)),
    ("layers.0.attention.q.weight", 1234, 0.02, (64, 64), (16, 2, 0, 64)),
    ("layers.11.mlp.down.weight", 7, 0.005, (48, 130), (3, 5, 127, 3)),
    ("layers.3.mlp.a_name_longer_than_thirty_two_bytes.weight", 0xFEDCBA9876543210, 1.0, (33, 7), (0, 33, 0, 7)),
    ("huge.weight", 99, 0.02, (1 << 20, 8192), ((1 << 20) - 1, 1, 8180, 12)),
    ("vector", 5, 0.1, (101,), (90, 11, 0, 1)),
]


def main():
    check()
    out = []
    for name, seed, std, shape, (row, rows, col, cols) in CASES:
        width = shape[1] if len(shape) > 1 else 1
        elements = ((np.arange(rows) + row)[:, None] * width + np.arange(cols) + col).reshape(-1)
        values = normal(name, seed, std, elements).view(np.uint32)
        out.append({"name": name, "seed": str(seed), "std": std, "shape": list(shape),
                    "piece": [row, rows, col, cols], "bits": " ".join(f"{v:08x}" for v in values)})
    json.dump(out, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
