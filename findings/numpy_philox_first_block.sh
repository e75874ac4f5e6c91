#!/bin/sh
# One would guess that numpy.random.Philox(key=k, counter=c) begins with the block that Philox4x64-10 computes from c and k, so that a
# kernel's counter-based noise can be checked against it number for number.
#
# What happens: the counter is incremented before each block, the first one, too. The first four numbers are those of counter
# c + 1, and the published vector of key 0 and counter 0 is that of counter=2^256 - 1. The page of numpy.random.Philox does not say
# so. The key is as given.
#
# Seen on 2026-11-30, numpy 2.4.6 on x86-64:
#   counter 0 begins with the block of 1, counter 41 of 42; Random123's vector of counter 0 begins at 2^256 - 1: True
#
# What to do: give Philox (c - 1) modulo 2^256. It is Philox4x64; of Philox4x32, the generator of devices, numpy has none.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "numpy==${1:-2.4.6}"
"$folder/venv/bin/python" - <<'PY'
import numpy

WORD = 2**64 - 1
PUBLISHED = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]  # of key 0 and counter 0


def block(counter, key):
    """Four words of Philox4x64-10 (Salmon et al., SC 2011)."""
    a, b, c, d = (counter >> 64 * i & WORD for i in range(4))
    left, right = key & WORD, key >> 64
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = second >> 64 ^ b ^ left, second & WORD, first >> 64 ^ d ^ right, first & WORD
        left, right = left + 0x9E3779B97F4A7C15 & WORD, right + 0xBB67AE8584CAA73B & WORD
    return [a, b, c, d]


def first(counter, key):
    """The counter whose block numpy's generator writes first."""
    words = numpy.random.Philox(key=key, counter=counter).random_raw(4).tolist()
    return next((c for c in range(counter, counter + 3) if block(c % 2**256, key) == words), None)


begins = {0: first(0, 0), 41: first(41, 2**64 + 7)}
last = numpy.random.Philox(key=0, counter=2**256 - 1).random_raw(4).tolist() == PUBLISHED == block(0, 0)
print("numpy", numpy.__version__)
print(
    "counter " + ", counter ".join(f"{c} {'begins with the block ' * (c == 0)}of {b}" for c, b in begins.items())
    + f"; Random123's vector of counter 0 begins at 2^256 - 1: {last}"
)
raise SystemExit(not (begins == {0: 1, 41: 42} and last))
PY
