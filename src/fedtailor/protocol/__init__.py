"""The types in which algorithms, clients, servers and executors talk to each other.

Begin with `Algorithm` (algorithm.py), whose docstrings explain the rest. This package
imports nothing else of fedtailor but what needs no JAX (modules with an underscore).
"""

from fedtailor._about import About, InCommon, Sees
from fedtailor._choice import check_choice, require, require_one_of
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
from fedtailor.protocol.entry_points import (
    find_registered,
    import_modules,
    load_offered,
    module_of,
    named_in_file,
    offered,
    offered_names,
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
    drive,
    on_host,
)
from fedtailor.protocol.field_docs import doc_without_fields, field_docs
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
from fedtailor.protocol.plain import (
    ConfigError,
    KeyPath,
    RefusedSettings,
    check_choice_at,
    check_trains,
    configured,
    flatten,
    from_plain,
    parse,
    to_json,
    to_plain,
)
from fedtailor.protocol.predictor import Mixture, NearestNeighbors, Predictor
from fedtailor.protocol.sgd import SGD
from fedtailor.protocol.state import ClientState, ServerState, server_state, state_name

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
    "ConfigError",
    "DataFacts",
    "Diagnostic",
    "Diverged",
    "Downlink",
    "Examples",
    "Exchange",
    "Exchanges",
    "Executor",
    "GlobalModel",
    "HiddenRows",
    "InCommon",
    "Inbox",
    "Init",
    "IntScalar",
    "KeyPath",
    "LineDiagnostic",
    "LocalTrainer",
    "MatrixDiagnostic",
    "MayBeInfinite",
    "Mixture",
    "ModelPart",
    "ModelParts",
    "NearestNeighbors",
    "Noise",
    "Params",
    "Pipeline",
    "Population",
    "Predictor",
    "PreprocessingFacts",
    "RefusedSettings",
    "RefusedStatistics",
    "Sees",
    "ServerState",
    "Stage",
    "StepGradient",
    "Streams",
    "Sums",
    "TracedInt",
    "Transform",
    "TreeDiagnostic",
    "Update",
    "ZeroIsStatic",
    "along_axis",
    "announce",
    "check_choice",
    "check_choice_at",
    "check_trains",
    "client_ids",
    "client_keys",
    "configured",
    "decode",
    "doc_without_fields",
    "draw_bits",
    "draw_uniform",
    "drive",
    "encode",
    "field_docs",
    "find_registered",
    "flatten",
    "from_plain",
    "hyperparameters",
    "import_modules",
    "init_pipeline",
    "is_hyperparameters",
    "is_off",
    "load_offered",
    "module_of",
    "named_in_file",
    "next_power_of_two",
    "noise_of",
    "offered",
    "offered_names",
    "on_host",
    "parse",
    "receive",
    "require",
    "require_one_of",
    "send",
    "server_rng",
    "server_state",
    "state_name",
    "sums_type",
    "to_json",
    "to_plain",
]
