"""A PyTorch module at work: its parameters lie in one vector theta, and PyTorch
computes outputs and gradients.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor.models.pytorch.inspection import Facts
from fedtailor.models.pytorch.layout import Images
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.start import (
    copy_module,
    first_line,
    reshape_inputs,
    seed_of,
)

What = Literal["outputs", "features", "head"]
"""What is computed: outputs from inputs, features (what the head is given) from inputs,
or outputs from features.
"""
Mode = Literal["training", "statistics", "evaluation"]
"""The mode of the module; "statistics" is evaluation but for the layers that keep
running statistics (no dropout).
"""


class LiveModule:
    """A copy of a module whose trained parameters and running statistics are pieces of
    one vector.

    It is for one thread: every call works on the same parameters.

    Attributes:
        theta: all parameters and statistics [d], one path after another; write here to
            set them.
        statistics: the positions [s] of running statistics in theta.
    """

    def __init__(self, module: TorchModuleType, facts: Facts, dtype: str) -> None:
        """Copy a module, which stays as it is; `dtype` is the precision of parameters
        and computation.
        """
        torch = pytorch()
        self._torch, self._facts, self._name = torch, facts, type(module).__name__
        self._dtype = getattr(torch, dtype)
        self._module = copy_module(module).to(self._dtype)
        sizes = [int(np.prod(shape, dtype=int)) for _, shape in facts.shapes]
        ends = np.cumsum([0, *sizes])
        self.theta = torch.zeros(int(ends[-1]), dtype=self._dtype)
        self._gradient = torch.zeros_like(self.theta)
        # Every parameter becomes a view of its piece of theta, and its gradient one of
        # the same piece of the gradient's vector: to read or write a model is then one
        # copy, and PyTorch sees nothing of it.
        tensors = {
            **dict(self._module.named_parameters()),
            **dict(self._module.named_buffers()),
        }
        self._slices = {}
        for (path, _), start, end in zip(facts.shapes, ends, ends[1:], strict=False):
            self._slices[path] = slice(int(start), int(end))
        for path, shape in facts.shapes:
            tensors[path].data = self.theta[self._slices[path]].view(shape)
            if path not in facts.statistics:
                tensors[path].grad = self._gradient[self._slices[path]].view(shape)
        places = []
        for path in facts.statistics:
            places.append(np.arange(self._slices[path].start, self._slices[path].stop))
        self.statistics = torch.from_numpy(
            np.concatenate([np.zeros(0, np.int64), *places])
        )
        modules = dict(self._module.named_modules())
        self._head = None if facts.head is None else modules[facts.head]
        owners = dict.fromkeys(path.rpartition(".")[0] for path in facts.statistics)
        self._statistics_layers = [modules[path] for path in owners]

    # on theta
    # ----------------------------------------------------------------------------------

    def inputs(self, x: NDArray[Any]) -> Tensor:
        """Examples [b, ...] as stored, for `forward`."""
        x = np.array(x)  # PyTorch takes no read-only arrays
        return self._torch.from_numpy(x).to(
            self._dtype if x.dtype.kind == "f" else self._torch.long
        )

    def forward(
        self,
        x: Tensor,
        mode: Mode,
        words: NDArray[np.uint32] | None,
        what: What = "outputs",
    ) -> Tensor:
        """What is asked for [b, ...], at the present theta, whose statistics are
        renewed outside of evaluation.

        Args:
            x: what `inputs` made of inputs, or of features for "head".
            mode: see `Mode`.
            words: two random words for dropout.
            what: see `What`.

        Returns:
            A tensor that `backward` goes back from.

        Raises:
            ValueError: the module's own code failed.
        """
        self._module.train(mode == "training")
        for owner in self._statistics_layers:
            owner.train(mode != "evaluation")
        with self._seeded(words), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the insides of PyTorch's own layers
            try:
                outputs = self._computed(x, what)
            except Exception as error:  # whatever the module's own code raises
                advice = (
                    " (drop_last=True, or another batch_size, avoids batches of one"
                    " example)"
                )
                one = (
                    advice
                    if len(x) == 1 and self._statistics_layers and mode != "evaluation"
                    else ""
                )
                raise ValueError(
                    f"PyTorch fails in {self._name}: {first_line(error)}{one}"
                ) from None
        self._restore_statistics()
        return outputs

    def backward(self, outputs: Tensor, output_grads: NDArray[Any]) -> Tensor:
        """The gradient [d], zero at the statistics, of a function of `forward`'s
        outputs with these derivatives.

        Returns:
            The same tensor in every call.
        """
        self._gradient.zero_()
        outputs.backward(self._torch.from_numpy(np.array(output_grads)))
        return self._gradient

    # on networks: parameters and statistics by path
    # -----------------------------------------------------------------

    def evaluate(
        self,
        network: Mapping[str, NDArray[Any]],
        x: NDArray[Any],
        words: NDArray[np.uint32] | None,
        weight: NDArray[Any] | None,
        what: What,
        mode: Mode,
    ) -> list[NDArray[Any]]:
        """What is asked for, zero for examples of weight 0, and then the statistics in
        the order of their paths.
        """
        # What only fills the batch is left out, so that it enters no statistic.
        self._load(network)
        is_example = slice(None) if weight is None else np.asarray(weight) > 0
        with self._torch.no_grad():
            found = self.forward(
                self.inputs(np.asarray(x)[is_example]), mode, words, what
            ).numpy()
        outputs = np.zeros((len(x), *found.shape[1:]), found.dtype)
        outputs[is_example] = found
        return [
            outputs,
            *(self._take(self.theta, path) for path in self._facts.statistics),
        ]

    def differentiate(
        self,
        network: Mapping[str, NDArray[Any]],
        x: NDArray[Any],
        words: NDArray[np.uint32] | None,
        weight: NDArray[Any] | None,
        output_grads: NDArray[Any],
        what: What,
        mode: Mode,
    ) -> list[NDArray[Any]]:
        """Derivatives by the network, path by path, and by floating-point inputs, from
        derivatives by the outputs.
        """
        self._load(network)
        is_example = slice(None) if weight is None else np.asarray(weight) > 0
        inputs = self.inputs(np.asarray(x)[is_example])
        if inputs.is_floating_point():
            inputs.requires_grad_(True)
        gradient = self.backward(
            self.forward(inputs, mode, words, what),
            np.asarray(output_grads)[is_example],
        )
        found = [self._take(gradient, path) for path, _ in self._facts.shapes]
        if inputs.is_floating_point():
            by_inputs = np.zeros(x.shape, x.dtype)
            by_inputs[is_example] = 0 if inputs.grad is None else inputs.grad.numpy()
            found.append(by_inputs)
        return found

    def _load(self, network: Mapping[str, NDArray[Any]]) -> None:
        """Set theta, parameters and statistics, by path."""
        theta = self.theta.numpy()
        for path, piece in self._slices.items():
            theta[piece] = np.asarray(network[path]).reshape(-1)

    def _take(self, vector: Tensor, path: str) -> NDArray[Any]:
        """A copy of one parameter's piece of a vector, in its shape."""
        shape = dict(self._facts.shapes)[path]
        return vector.numpy()[self._slices[path]].reshape(shape).copy()

    # ----------------------------------------------------------------------------------

    def _computed(self, x: Tensor, what: What) -> Tensor:
        """Run the module, with a hook on its head where the head's inputs are read or
        replaced.
        """
        if what == "outputs":
            return self._module(self._arranged(x))
        assert self._head is not None
        given: list[Tensor] = []
        if what == "features":
            hook = self._head.register_forward_pre_hook(
                lambda _, arguments: given.append(arguments[0])
            )
            arguments = self._arranged(x)
        else:
            # the body runs on zeros, which nothing reads
            kind = self._torch.long if self._facts.integers else self._dtype
            arguments = self._torch.zeros(
                len(x), *self._facts.example_shape, dtype=kind
            )
            hook = self._head.register_forward_pre_hook(lambda *_: (x,))
        try:
            outputs = self._module(arguments)
        finally:
            hook.remove()
        return given[0] if what == "features" else outputs

    def _arranged(self, x: Tensor) -> Tensor:
        found = reshape_inputs(x, self._facts.example_shape)
        if not isinstance(found, Images):
            return found
        images: Tensor = found.array  # here it holds a tensor
        return images.permute(0, 3, 1, 2)

    def _restore_statistics(self) -> None:
        """Statistics that the module has put new tensors in the place of, in theta
        again.
        """
        for path in self._facts.statistics:
            owner, _, name = path.rpartition(".")
            tensor = getattr(self._module.get_submodule(owner), name)
            home = self.theta[self._slices[path]].view(tensor.shape)
            if tensor.data_ptr() != home.data_ptr():
                home.copy_(tensor.detach())
                tensor.data = home

    @contextmanager
    def _seeded(self, words: NDArray[np.uint32] | None) -> Iterator[None]:
        if words is None:
            yield
            return
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(seed_of(np.asarray(words)))
            yield
