"""Federations: clients and their data, builders, partitioners and transforms."""

from fedtailor.data import datasets
from fedtailor.data.federation.build import from_arrays, from_partition
from fedtailor.data.federation.checks import SPLITS
from fedtailor.data.federation.dataset import Dataset
from fedtailor.data.federation.dirichlet import DirichletByClass, DirichletByClient
from fedtailor.data.federation.federation import Client, Federation, Ragged, Split
from fedtailor.data.federation.files import from_frame, from_npz
from fedtailor.data.federation.from_dataset import from_dataset
from fedtailor.data.federation.partition import (
    IID,
    ClassesPerClient,
    Natural,
    Partitioner,
    Shards,
    Stratified,
)
from fedtailor.data.federation.poison import BackDoor, WrongLabels, byzantine_clients
from fedtailor.data.federation.public import set_aside
from fedtailor.data.federation.shards import FederationShard, load_shard, shard
from fedtailor.data.federation.sizes import LogNormal, PowerLaw, SizeLaw, Uniform
from fedtailor.data.federation.storage import load, save
from fedtailor.data.federation.transforms import (
    LabelPermutations,
    Rotations,
    standardize,
)

__all__ = [
    "IID",
    "SPLITS",
    "BackDoor",
    "ClassesPerClient",
    "Client",
    "Dataset",
    "DirichletByClass",
    "DirichletByClient",
    "Federation",
    "FederationShard",
    "LabelPermutations",
    "LogNormal",
    "Natural",
    "Partitioner",
    "PowerLaw",
    "Ragged",
    "Rotations",
    "Shards",
    "SizeLaw",
    "Split",
    "Stratified",
    "Uniform",
    "WrongLabels",
    "byzantine_clients",
    "datasets",
    "from_arrays",
    "from_dataset",
    "from_frame",
    "from_npz",
    "from_partition",
    "load",
    "load_shard",
    "save",
    "set_aside",
    "shard",
    "standardize",
]
