"""Which bucket a size falls into, by the option ``buckets``."""

from __future__ import annotations

from neuron_compiler.options import MULTIPLES_OF, POWERS_OF_2


def bucket_of(size: int, buckets: str | tuple[int, ...] | None) -> int | None:
    """The smallest bucket that holds ``size``; None where there is none, or buckets are off."""
    if buckets is None or size < 2:  # PyTorch itself compiles sizes 0 and 1 apart
        return None
    if isinstance(buckets, tuple):
        return next((bucket for bucket in buckets if bucket >= size), None)
    if buckets == POWERS_OF_2:
        return 1 << (size - 1).bit_length()
    step = int(buckets.removeprefix(MULTIPLES_OF))
    return -(-size // step) * step
