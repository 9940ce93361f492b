"""The largest values that a configuration or an option may have.

Each is far beyond what a run needs. They refuse a typing error or an absurd value at once, with the
rule, before anything is read or allocated. What is below them and still too large for the machine
is refused by an estimate of memory. None depends on the machine: a run that was trained on a large
machine can be evaluated on a small one.
"""

COUNT = 2**31 - 1  # steps, rounds, examples: what is only counted
BATCH = 2**20  # examples of a batch
LENGTH = 2**24  # positions of a sequence
WIDTH = 2**20  # channels of a layer
LAYERS = 2**13
VOCABULARY = 2**24
MEGABYTES = 2**20
BEAMS = 2**10
REPEATS = 1000  # seeds and variants of a comparison, depths and documents of the needle test
MINUTES = 525_600  # a year
QUEUE = 2**16  # requests that wait
THREADS = 2**10  # tens of thousands exceed the system's limit of threads: the process is killed
WORKERS = 2**8  # processes
SEED = 2**31 - 1
TEXT = 4096  # characters of a path or a name
FILE = 2**20  # bytes of a configuration file
