"""The types in which algorithms, clients, servers and executors talk to each other.

Begin with `Algorithm` (algorithm.py), whose docstrings explain the rest. This package
imports nothing else of fedtailor but `_base`, which needs no JAX.
"""

from fedtailor._base.about import About, InCommon, Sees
from fedtailor.protocol.algorithm import Algorithm, GlobalModel, Init
from fedtailor.protocol.axes import along_axis, sums_type
from fedtailor.protocol.cohort import Clients, Cohort, Examples, Population
from fedtailor.protocol.data_facts import DataFacts, PreprocessingFacts
from fedtailor.protocol.diagnostics import (
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)
from fedtailor.protocol.errors import Diverged, RefusedStatistics
from fedtailor.protocol.exchange import (
    Answers,
    BatchMetric,
    ClientRows,
    ClientTask,
    Exchange,
    Exchanges,
    Executor,
    FirstCome,
    drive,
    on_host,
)
from fedtailor.protocol.hidden_rows import HiddenRows, Sums
from fedtailor.protocol.hyperparameters import (
    MayBeInfinite,
    TracedInt,
    ZeroIsStatic,
    hyperparameters,
    is_hyperparameters,
    is_off,
)
from fedtailor.protocol.keys import (
    client_ids,
    client_keys,
    draw_bits,
    draw_uniform,
    server_rng,
)
from fedtailor.protocol.local_trainer import (
    Batch,
    IntScalar,
    LocalTrainer,
    Params,
    StepGradient,
)
from fedtailor.protocol.messages import (
    NOT_SENT,
    ClientUpdate,
    Downlink,
    Inbox,
    Streams,
)
from fedtailor.protocol.padding import next_power_of_two
from fedtailor.protocol.parts import ModelPart, ModelParts
from fedtailor.protocol.pipeline import (
    MODEL_KINDS,
    PRIVATE_STEPS,
    Noise,
    Pipeline,
    Stage,
    Transform,
    Update,
    announce,
    decode,
    encode,
    init_pipeline,
    noise_of,
    receive,
    send,
)
from fedtailor.protocol.predictors import (
    CombinedPredictor,
    Mixture,
    PredictingModel,
    Predictor,
    predictor,
)
from fedtailor.protocol.sgd import SGD
from fedtailor.protocol.state import ClientState, ServerState, server_state, state_name
from fedtailor.protocol.summed_rows import (
    ExpectedSums,
    SummedRows,
    UnknownRows,
    WeightedSum,
)

__all__ = [
    "MODEL_KINDS",
    "NOT_SENT",
    "PRIVATE_STEPS",
    "SGD",
    "About",
    "Algorithm",
    "Answers",
    "Batch",
    "BatchMetric",
    "ClientRows",
    "ClientState",
    "ClientTask",
    "ClientUpdate",
    "Clients",
    "Cohort",
    "CombinedPredictor",
    "DataFacts",
    "Diagnostic",
    "Diverged",
    "Downlink",
    "Examples",
    "Exchange",
    "Exchanges",
    "Executor",
    "ExpectedSums",
    "FirstCome",
    "GlobalModel",
    "HiddenRows",
    "InCommon",
    "Inbox",
    "Init",
    "IntScalar",
    "LineDiagnostic",
    "LocalTrainer",
    "MatrixDiagnostic",
    "MayBeInfinite",
    "Mixture",
    "ModelPart",
    "ModelParts",
    "Noise",
    "Params",
    "Pipeline",
    "Population",
    "PredictingModel",
    "Predictor",
    "PreprocessingFacts",
    "RefusedStatistics",
    "Sees",
    "ServerState",
    "Stage",
    "StepGradient",
    "Streams",
    "SummedRows",
    "Sums",
    "TracedInt",
    "Transform",
    "TreeDiagnostic",
    "UnknownRows",
    "Update",
    "WeightedSum",
    "ZeroIsStatic",
    "along_axis",
    "announce",
    "client_ids",
    "client_keys",
    "decode",
    "draw_bits",
    "draw_uniform",
    "drive",
    "encode",
    "hyperparameters",
    "init_pipeline",
    "is_hyperparameters",
    "is_off",
    "next_power_of_two",
    "noise_of",
    "on_host",
    "predictor",
    "receive",
    "send",
    "server_rng",
    "server_state",
    "state_name",
    "sums_type",
]
