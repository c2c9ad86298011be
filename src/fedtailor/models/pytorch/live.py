"""A PyTorch module that computes outputs and gradients, with all of its parameters in one
vector theta.
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
"""What to compute: "outputs" from inputs, "features" (the head's inputs) from inputs, or
"head": outputs from features.
"""
Mode = Literal["training", "statistics", "evaluation"]
"""The mode of the module. In mode "statistics" the layers that keep running statistics
are in training mode and all others in evaluation mode, so that there is no dropout.
"""


class LiveModule:
    """A copy of a module whose trained parameters and running statistics are slices of
    one vector.

    It must be used by one thread only, as every call uses the same parameters.

    Attributes:
        theta: all parameters and statistics [d], in the order of their paths. Write into
            it to set them.
        statistics: the slices of theta that hold the running statistics.
    """

    def __init__(self, module: TorchModuleType, facts: Facts, dtype: str) -> None:
        """Copy a module.

        Args:
            module: is not changed.
            facts: its properties.
            dtype: the precision of parameters and computation.
        """
        torch = pytorch()
        self._torch, self._facts, self._name = torch, facts, type(module).__name__
        self._dtype = getattr(torch, dtype)
        self._module = copy_module(module).to(self._dtype)
        sizes = [int(np.prod(shape, dtype=int)) for _, shape in facts.shapes]
        ends = np.cumsum([0, *sizes])
        self.theta = torch.zeros(int(ends[-1]), dtype=self._dtype)
        self._gradient = torch.zeros_like(self.theta)
        # Every parameter becomes a view of a slice of theta, and its gradient a view of
        # the same slice of one vector. A model is then read or written by one copy.
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
        self.statistics = [self._slices[path] for path in facts.statistics]
        modules = dict(self._module.named_modules())
        self._head = None if facts.head is None else modules[facts.head]
        layers = dict.fromkeys(path.rpartition(".")[0] for path in facts.statistics)
        self._statistics_layers = [modules[path] for path in layers]

    # on theta
    # ----------------------------------------------------------------------------------

    def set(self, theta: NDArray[Any]) -> None:
        """Set all parameters and statistics [d]."""
        np.copyto(self.theta.numpy(), theta)

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        """The outputs for examples [b, ...] as stored, in evaluation mode."""
        with self._torch.no_grad():
            return self.forward(self.inputs(x), "evaluation", None).numpy()

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
        """Compute `what` [b, ...] at the present theta. In training mode, the statistics
        in theta are updated.

        Args:
            x: inputs, or features if `what` is "head", as `inputs` returns them.
            mode: see `Mode`.
            words: two random words for dropout.
            what: see `What`.

        Returns:
            A tensor for `backward`.

        Raises:
            ValueError: the module's own code failed.
        """
        self._module.train(mode == "training")
        for layer in self._statistics_layers:
            layer.train(mode != "evaluation")
        with self._seeded(words), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the insides of PyTorch's own layers
            try:
                outputs = self._computed(x, what)
            except Exception as error:  # whatever the module's own code raises
                advice = ""
                if len(x) == 1 and self._statistics_layers and mode != "evaluation":
                    advice = (
                        " (drop_last=True, or another batch_size, avoids batches of one"
                        " example)"
                    )
                raise ValueError(
                    f"PyTorch fails in {self._name}: {first_line(error)}{advice}"
                ) from None
        self._restore_statistics()
        return outputs

    def backward(self, outputs: Tensor, output_grads: NDArray[Any]) -> Tensor:
        """The gradient of a function of the outputs of `forward`.

        Args:
            outputs: what `forward` returned.
            output_grads: the derivatives of the function with respect to these outputs.

        Returns:
            The gradient [d], zero at the statistics; the same tensor in every call.
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
        """Compute `what` for a network.

        Returns:
            The result [b, ...], which is zero for examples of weight 0, and then the
            statistics in the order of their paths.
        """
        # Padding is left out, so that it does not enter the statistics.
        self._load(network)
        is_example = slice(None) if weight is None else np.asarray(weight) > 0
        with self._torch.no_grad():
            inputs = self.inputs(np.asarray(x)[is_example])
            result = self.forward(inputs, mode, words, what).numpy()
        outputs = np.zeros((len(x), *result.shape[1:]), result.dtype)
        outputs[is_example] = result
        statistics = [self._take(self.theta, path) for path in self._facts.statistics]
        return [outputs, *statistics]

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
        """Derivatives of a function of what `evaluate` computes.

        Args:
            output_grads: the derivatives with respect to the result [b, ...].

        Returns:
            The derivatives with respect to the network, path by path, and then with
            respect to the inputs, if these are floating-point numbers.
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
        derivatives = [self._take(gradient, path) for path, _ in self._facts.shapes]
        if inputs.is_floating_point():
            x_grad = np.zeros(x.shape, x.dtype)
            x_grad[is_example] = 0 if inputs.grad is None else inputs.grad.numpy()
            derivatives.append(x_grad)
        return derivatives

    def _load(self, network: Mapping[str, NDArray[Any]]) -> None:
        """Copy parameters and statistics into theta."""
        theta = self.theta.numpy()
        for path, entries in self._slices.items():
            theta[entries] = np.asarray(network[path]).reshape(-1)

    def _take(self, vector: Tensor, path: str) -> NDArray[Any]:
        """A copy of one parameter's entries of a vector [d], in the parameter's shape."""
        shape = dict(self._facts.shapes)[path]
        return vector.numpy()[self._slices[path]].reshape(shape).copy()

    # ----------------------------------------------------------------------------------

    def _computed(self, x: Tensor, what: What) -> Tensor:
        """Run the module. A hook on its head reads or replaces the head's inputs."""
        if what == "outputs":
            return self._module(self._arranged(x))
        assert self._head is not None
        head_inputs: list[Tensor] = []
        if what == "features":
            hook = self._head.register_forward_pre_hook(
                lambda _, arguments: head_inputs.append(arguments[0])
            )
            arguments = self._arranged(x)
        else:
            # The body runs on zeros, and its outputs are not used.
            dtype = self._torch.long if self._facts.integers else self._dtype
            arguments = self._torch.zeros(
                len(x), *self._facts.example_shape, dtype=dtype
            )
            hook = self._head.register_forward_pre_hook(lambda *_: (x,))
        try:
            outputs = self._module(arguments)
        finally:
            hook.remove()
        return head_inputs[0] if what == "features" else outputs

    def _arranged(self, x: Tensor) -> Tensor:
        """Inputs in PyTorch's layout."""
        inputs = reshape_inputs(x, self._facts.example_shape)
        if not isinstance(inputs, Images):
            return inputs
        images: Tensor = inputs.array  # here it holds a tensor
        # Most convolutions are slower on images with channels last.
        return images.permute(0, 3, 1, 2).contiguous()

    def _restore_statistics(self) -> None:
        """Make the statistics views of theta again, where the module has replaced them by
        new tensors.
        """
        for path in self._facts.statistics:
            layer, _, name = path.rpartition(".")
            tensor = getattr(self._module.get_submodule(layer), name)
            view = self.theta[self._slices[path]].view(tensor.shape)
            if tensor.data_ptr() != view.data_ptr():
                view.copy_(tensor.detach())
                tensor.data = view

    @contextmanager
    def _seeded(self, words: NDArray[np.uint32] | None) -> Iterator[None]:
        """Seed PyTorch's generator, and restore its state afterwards."""
        if words is None:
            yield
            return
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(seed_of(np.asarray(words)))
            yield
