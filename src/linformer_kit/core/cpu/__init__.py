"""Everything that exists only for speed on a CPU.

`predicate.py` decides for every module whether this fast path may be used. Where it may not, the
plain path in `core/` runs; it gives the same result and is what the tests compare with.
"""
