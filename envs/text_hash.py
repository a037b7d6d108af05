"""Sentences as arrays of hashed words: a word's number depends on its letters alone, in every process and version."""

from __future__ import annotations

import re
import zlib

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[^\W_]+")


def hash_words(sentence: str, out: NDArray[np.int32]) -> None:
    """Write a sentence into `out` [L] int32: its first L words at the end, 0 before them.

    A word is a run of letters and digits, lower case; its number is its CRC-32 cut to 31 bits (0 becomes 1).
    """
    words = _WORD.findall(sentence.lower())[: len(out)]
    out[:] = 0
    if words:
        out[-len(words) :] = [zlib.crc32(word.encode()) & 0x7FFFFFFF or 1 for word in words]
