"""What users see, frozen: a refactoring may move anything but this.

`contents.py` makes it by public names alone, `python -m tests.frozen.write` writes it to files, and
`test_frozen.py` compares. Bits depend on the processor, so the files hold numbers that are compared
with a tolerance; `python -m tests.frozen.bits` prints digests, for two source trees on one machine:

    diff <(PYTHONPATH=/tmp/before/src python -m tests.frozen.bits) <(python -m tests.frozen.bits)
"""
