"""Models: `Model` (a vector outside of training, a pytree inside), the zoo of published
models, and adapters for other libraries.

`import_modules` finds every module of this folder that registers a model. The imports below
are for type checkers and editors.
"""

from fedtailor._base.entry_points import import_modules
from fedtailor.models.adapters import from_function
from fedtailor.models.architecture import Architecture
from fedtailor.models.by_client import by_client
from fedtailor.models.cnn_5x5 import cnn_5x5
from fedtailor.models.equinox import from_equinox
from fedtailor.models.flax import from_linen
from fedtailor.models.frozen_arrays import FrozenArrays, start_file
from fedtailor.models.frozen_network import frozen, merged, save_start
from fedtailor.models.huggingface import from_huggingface, from_peft, save_peft
from fedtailor.models.inputs import Inputs
from fedtailor.models.low_rank import lora
from fedtailor.models.model import Model
from fedtailor.models.parts import Part
from fedtailor.models.periodic import periodic_mlp
from fedtailor.models.precision import Precision
from fedtailor.models.pytorch import from_torch, save_state_dict, state_dict
from fedtailor.models.registry import builders, find_builder, register
from fedtailor.models.resnet import resnet
from fedtailor.models.series import conv1d, gru
from fedtailor.models.tasks import (
    Classification,
    LossFunction,
    TokenCrossEntropy,
    cross_entropy,
    squared_error,
    token_cross_entropy,
)
from fedtailor.models.zoo import (
    cnn,
    density,
    lenet5,
    linear,
    logistic,
    lstm,
    mlp,
    tutorial_cnn,
)

__all__ = [
    "Architecture",
    "Classification",
    "FrozenArrays",
    "Inputs",
    "LossFunction",
    "Model",
    "Part",
    "Precision",
    "TokenCrossEntropy",
    "builders",
    "by_client",
    "cnn",
    "cnn_5x5",
    "conv1d",
    "cross_entropy",
    "density",
    "find_builder",
    "from_equinox",
    "from_function",
    "from_huggingface",
    "from_linen",
    "from_peft",
    "from_torch",
    "frozen",
    "gru",
    "lenet5",
    "linear",
    "logistic",
    "lora",
    "lstm",
    "merged",
    "mlp",
    "periodic_mlp",
    "register",
    "resnet",
    "save_peft",
    "save_start",
    "save_state_dict",
    "squared_error",
    "start_file",
    "state_dict",
    "token_cross_entropy",
    "tutorial_cnn",
]

import_modules(__name__)
