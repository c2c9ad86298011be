"""Whether rounds take as long as in another version of fedtailor: the cells of
`rounds.py`, in turns.

    python benchmarks/versions.py OLD NEW                  OLD, NEW: two checkouts of the repository
    python benchmarks/versions.py OLD NEW mlp-10 lenet-10  some cells

A process for each checkout trains one round of FedAvg when its turn comes. Both must
arrive at the same model. Times in ms and ratios NEW : OLD, minimum / median of all
turns.
"""

import argparse
from pathlib import Path

from cells import add_cells_argument
from checkouts import Checkout, in_turns
from measuring import Times, load, machine, show
from rich.console import Console
from rich.table import Table

WORKER = """
import hashlib, json, sys, time
import jax
import numpy as np
from cells import CELLS

def start(cell):
    sgd = ft.SGD(lr=0.05, batch_size=cell.batch_size)
    return simulate(ft.FedAvg(sgd), cell.federation, cell.model)

name = training = None
for line in sys.stdin:
    if line.strip() != name:
        name, training = line.strip(), None  # the former cell's memory is free before the next one takes its own
        training = start(CELLS[name])
    started = time.perf_counter()
    training.advance()
    jax.block_until_ready(training.server)
    seconds = time.perf_counter() - started
    # The server's state has other forms in other versions; the model is the largest part of it.
    model = max(map(np.asarray, jax.tree.leaves(training.server)), key=np.size)
    model = hashlib.sha256(model.tobytes()).hexdigest()
    print(json.dumps([seconds, model]), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    add_cells_argument(parser)
    parser.add_argument("--turns", type=int, default=7, help="of one round each")
    options = parser.parse_args()
    checkouts = {root: Checkout(root, WORKER) for root in (options.old, options.new)}
    console = Console(width=120, highlight=False)
    console.print(machine("jax"))
    table = Table("cell", "old, ms", "new, ms", "new : old", "load")
    for name in options.cells:
        answers = in_turns(checkouts, name, options.turns)
        old, new = (
            Times(tuple(seconds for seconds, _ in answers[root]))
            for root in (options.old, options.new)
        )
        models = [
            [model for _, model in answers[root]] for root in (options.old, options.new)
        ]
        same = "" if models[0] == models[1] else ", other models"
        ratio = f"{new.minimum / old.minimum:.3f} / {new.median / old.median:.3f}{same}"
        table.add_row(name, str(old), str(new), ratio, load())
        console.print(f"{name}: {ratio}")
    for checkout in checkouts.values():
        checkout.close()
    show(console, table, "versions", "jax")


if __name__ == "__main__":
    main()
