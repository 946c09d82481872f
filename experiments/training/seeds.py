"""A seed for every random stream of a run."""

import hashlib


def derive_seed(seed: int, *words: object) -> int:
    """An independent 63-bit stream seed for each purpose."""
    text = ":".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
