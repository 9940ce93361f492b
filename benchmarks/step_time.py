r"""How long does a training step of variants of one configuration take?

    python -m benchmarks.step_time book-compare --threads 1 \
        --variant model.projection=full --variant 'model.sharing=kv model.k=128'

Forward, backward and update on the first batch of a run, the variants in turn in one process; the
best round counts. Times are compared with the first variant. One JSON line of the machine, and one
for each variant.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from linformer_kit.compare.measure import training_step
from linformer_kit.config.load import load
from linformer_kit.errors import UserError
from linformer_kit.measure import machine
from linformer_kit.measure.timing import Timing, alternate, fixed_threads, times_faster


def time_steps(
    path: Path, variants: list[str], overrides: list[str], *, rounds: int
) -> dict[str, Timing]:
    """Times of a step of each variant, a string of overrides separated by spaces."""
    steps = {
        variant: training_step(load(path, [*overrides, *variant.split()])) for variant in variants
    }
    return alternate(steps, rounds=rounds, fewest=rounds)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configuration", type=Path)
    parser.add_argument("overrides", nargs="*", help="of all variants")
    parser.add_argument("--variant", action="append", required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with fixed_threads(chosen.threads):
        try:
            timings = time_steps(
                chosen.configuration, chosen.variant, chosen.overrides, rounds=chosen.rounds
            )
        except UserError as error:
            parser.error(str(error))
    print(json.dumps(machine.describe(seed=0, threads=chosen.threads)))
    first = timings[chosen.variant[0]]
    for variant, timing in timings.items():
        record = {"variant": variant, **timing.as_record()}
        print(json.dumps({**record, "times_faster": times_faster(timing, first)}))


if __name__ == "__main__":
    main()
