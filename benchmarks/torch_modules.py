"""PyTorch modules as people use them: which of them `from_torch` converts, and whether the
conversions compute what PyTorch computes.

python benchmarks/torch_modules.py                    all of them (an hour on two cores)
python benchmarks/torch_modules.py bert "u-net"       those whose names contain a word
python benchmarks/torch_modules.py --table table.md   also write the table of docs/models.md

Compared in double precision, dropout and noise off: outputs in evaluation mode, gradients
in training mode, and all parameters and buffers after three steps of SGD with momentum in
training mode, on batches that JAX pads. A module is "undetermined" if PyTorch itself ends
elsewhere, by more than the tolerance, when its inputs change by one part in 10^16.
"""

import argparse
import copy
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from torch_zoo import Case, cases

import fedtailor as ft
from fedtailor.models.pytorch.check import in_double_precision, random_like

STEPS, EXAMPLES, PADDING = 3, 4, 2
LR, MOMENTUM = 0.02, 0.9
TOLERANCE = 1e-6
"""Of each array, relative to its largest entry."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="parts of the modules' names")
    parser.add_argument("--table", type=Path, help="where to write the table")
    options = parser.parse_args()
    console = Console(width=200, highlight=False, soft_wrap=True)
    warnings.simplefilter("ignore")
    lines = ["| kind | modules | converted | refused |", "|---|---:|---:|---|"]
    totals: dict[str, int] = defaultdict(int)
    worst = 0.0
    for kind, modules in cases().items():
        converted, refused = 0, []
        for name, case in modules.items():
            if options.words and not any(
                word.lower() in name.lower() for word in options.words
            ):
                continue
            start = time.perf_counter()
            status, difference, words = tried(case)
            seconds = time.perf_counter() - start
            console.print(
                f"{kind}: {name}: {status} {difference:.0e} {words} ({seconds:.0f} s)"
            )
            totals[status] += 1
            if status == "equal":
                converted += 1
                worst = max(worst, difference)
            else:
                refused.append(name if status == "refused" else f"{name} ({status})")
        count = converted + len(refused)
        lines.append(f"| {kind} | {count} | {converted} | {', '.join(refused)} |")
    console.print(
        f"{dict(totals)}; largest difference of those that are equal {worst:.0e}"
    )
    table = "\n".join(lines)
    console.print(table)
    if options.table:
        options.table.write_text(table + "\n")


def tried(case: Case) -> tuple[str, float, str]:
    """Convert a module and compare it.

    Returns:
        "equal", "different", "refused" or "failed"; the largest difference; and the words
        of a refusal.
    """
    make, example = case
    torch.manual_seed(0)
    try:
        architecture = ft.models.from_torch(make, example)
    except ValueError as error:
        return "refused", 0.0, str(error)
    except Exception as error:  # a fault of the conversion
        return "failed", 0.0, repr(error)[:300]
    difference = compared(architecture, example)
    if difference <= TOLERANCE:
        return "equal", difference, ""
    own = difference_from_itself(architecture, example)
    words = f"PyTorch differs from itself by {own:.0e}"
    return "undetermined" if own > TOLERANCE else "different", difference, words


def training_batches(example: torch.Tensor) -> list[torch.Tensor]:
    """The inputs of each step."""
    batches = []
    for step in range(STEPS):
        batch = random_like(example)
        batches.append(batch.roll(step, 0) * (1 if batch.dtype == torch.long else 1.1))
    return batches


def difference_from_itself(architecture: Any, example: torch.Tensor) -> float:
    """The largest relative difference of PyTorch from itself, where inputs differ by
    what double precision rounds away.
    """
    batches = training_batches(example)
    if example.dtype == torch.long:
        return 0.0
    module = copy.deepcopy(architecture.start.module).double()
    paths = [path for path in architecture.start.shapes]
    found = []
    for deviation in (0.0, 1e-16):
        noise = torch.Generator().manual_seed(0)
        inputs = []
        for batch in batches:
            relative = torch.randn(batch.shape, generator=noise, dtype=torch.double)
            inputs.append(batch.double() * (1 + deviation * relative))
        found.append(trained_by_pytorch(copy.deepcopy(module), inputs, paths))
    return largest_difference(found[1], found[0])


def compared(architecture: Any, example: torch.Tensor) -> float:
    """The largest relative difference of the conversion from PyTorch."""
    batches = training_batches(example)
    module = copy.deepcopy(architecture.start.module).double()
    paths = [path for path in architecture.start.shapes]
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    network = {path: tensors[path].detach().numpy().copy() for path in paths}
    theirs = trained_by_pytorch(module, batches, paths)
    with jax.enable_x64(True):
        ours = trained_by_jax(architecture, network, batches)
    return largest_difference(ours, theirs)


def largest_difference(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> float:
    """The largest difference of an array, relative to its largest expected entry."""
    differences = []
    for name, values in expected.items():
        scale = max(float(np.abs(values).max(initial=0)), 1e-6)
        error = float(np.abs(found[name] - values).max(initial=0)) / scale
        differences.append(error if np.isfinite(error) else np.inf)
    return max(differences)


def trained_by_pytorch(
    module: torch.nn.Module, batches: list[torch.Tensor], paths: list[str]
) -> dict[str, np.ndarray]:
    """Outputs before and after three steps, the first gradient, and the model after
    them.
    """
    parameters = dict(module.named_parameters())
    trained = [parameters[path] for path in paths if path in parameters]
    optimizer = torch.optim.SGD(trained, lr=LR, momentum=MOMENTUM)
    found: dict[str, np.ndarray] = {}
    with in_double_precision():
        found["outputs"] = module.eval()(batches[0]).detach().numpy()
        module.train()
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            torch.square(module(batch) - 1).mean().backward()
            if step == 0:
                for path in paths:
                    gradient = getattr(parameters.get(path), "grad", None)
                    if gradient is not None:
                        found[f"gradient {path}"] = gradient.numpy().copy()
            optimizer.step()
        found["outputs after"] = module.eval()(batches[0]).detach().numpy()
    for path in paths:
        owner, _, name = path.rpartition(".")
        found[path] = getattr(module.get_submodule(owner), name).detach().numpy()
    return found


def trained_by_jax(
    architecture: Any, network: dict[str, Any], batches: list[torch.Tensor]
) -> dict[str, np.ndarray]:
    """As `trained_by_pytorch`, from the same start."""
    statistics = architecture.statistics(network)
    # Only models with running statistics are told which rows are padding, as in
    # `Model.train_outputs`; for the others their losses have no weight.
    weight = jnp.asarray([1.0] * EXAMPLES + [0.0] * PADDING)

    def loss(network: Any, x: Any) -> Any:
        for path in statistics:
            network = {**network, path: jax.lax.stop_gradient(network[path])}
        told = weight if statistics else jnp.ones_like(weight)
        outputs, renewed = architecture.train(network, x, None, told)
        errors = jnp.square(outputs - 1).reshape(len(x), -1).mean(1)
        return jnp.vdot(errors, weight) / EXAMPLES, renewed

    @jax.jit
    def step(network: Any, velocity: Any, x: Any) -> Any:
        gradient, renewed = jax.grad(loss, has_aux=True)(network, x)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
        moved = jax.tree.map(lambda w, v: w - LR * v, network, velocity)
        return {**moved, **{p: renewed[p] for p in statistics}}, velocity, gradient

    outputs = jax.jit(lambda network, x: architecture.apply(network, x, None))
    found = {"outputs": outputs(network, batches[0].numpy())}
    velocity = jax.tree.map(jnp.zeros_like, network)
    for number, batch in enumerate(batches):
        x = np.concatenate([batch.numpy(), batch.numpy()[:PADDING]])
        network, velocity, gradient = step(network, velocity, x)
        if number == 0:
            found |= {f"gradient {path}": values for path, values in gradient.items()}
    found["outputs after"] = outputs(network, batches[0].numpy())
    found |= network
    return {name: np.asarray(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
