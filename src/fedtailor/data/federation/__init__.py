"""Federations: clients and their data, builders, partitioners and transforms."""

from fedtailor.data import datasets
from fedtailor.data.federation.build import from_arrays, from_partition
from fedtailor.data.federation.checks import SPLITS
from fedtailor.data.federation.dataset import Dataset
from fedtailor.data.federation.dirichlet import DirichletByClass, DirichletByClient
from fedtailor.data.federation.federation import Client, Federation, Ragged, Split
from fedtailor.data.federation.files import from_frame, from_npz
from fedtailor.data.federation.partition import (
    IID,
    ClassesPerClient,
    Natural,
    Partitioner,
    Shards,
    Stratified,
)
from fedtailor.data.federation.poison import BackDoor, WrongLabels, liars_among
from fedtailor.data.federation.public import set_aside
from fedtailor.data.federation.shares import Share, load_share, share
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
    "LabelPermutations",
    "LogNormal",
    "Natural",
    "Partitioner",
    "PowerLaw",
    "Ragged",
    "Rotations",
    "Shards",
    "Share",
    "SizeLaw",
    "Split",
    "Stratified",
    "Uniform",
    "WrongLabels",
    "datasets",
    "from_arrays",
    "from_frame",
    "from_npz",
    "from_partition",
    "liars_among",
    "load",
    "load_share",
    "save",
    "set_aside",
    "share",
    "standardize",
]
