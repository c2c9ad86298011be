"""Federations: clients and their data, builders, partitioners and transforms."""

from fedtailor.federation import datasets
from fedtailor.federation.build import from_arrays, from_partition
from fedtailor.federation.checks import SPLITS
from fedtailor.federation.dataset import Dataset
from fedtailor.federation.dirichlet import DirichletByClass, DirichletByClient
from fedtailor.federation.federation import Client, Federation, Ragged, Split
from fedtailor.federation.files import from_frame, from_npz
from fedtailor.federation.partition import (
    IID,
    ClassesPerClient,
    Natural,
    Partitioner,
    Shards,
    Stratified,
)
from fedtailor.federation.poison import BackDoor, WrongLabels, liars_among
from fedtailor.federation.public import set_aside
from fedtailor.federation.shares import Share, load_share, share
from fedtailor.federation.sizes import LogNormal, PowerLaw, SizeLaw, Uniform
from fedtailor.federation.storage import load, save
from fedtailor.federation.transforms import LabelPermutations, Rotations, standardize

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
