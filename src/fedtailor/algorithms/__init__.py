"""One short file per method.

`import_modules` imports every module of this folder, which registers its methods. The
imports above it are for type checkers and editors.
"""

from fedtailor._base.entry_points import import_modules
from fedtailor.algorithms.afl import AFL
from fedtailor.algorithms.apfl import APFL
from fedtailor.algorithms.ccvr import CCVR
from fedtailor.algorithms.cfl import CFL
from fedtailor.algorithms.cgpfl import CGPFL
from fedtailor.algorithms.cgpfl_heur import CGPFLHeur
from fedtailor.algorithms.dapper import DAPPER
from fedtailor.algorithms.ditto import Ditto
from fedtailor.algorithms.fedala import FedALA
from fedtailor.algorithms.fedamp import FedAMP
from fedtailor.algorithms.fedas import FedAS
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedavgm import FedAvgM
from fedtailor.algorithms.fedbabu import FedBABU
from fedtailor.algorithms.fedbn import FedBN
from fedtailor.algorithms.fedcp import FedCP
from fedtailor.algorithms.feddbe import FedDBE
from fedtailor.algorithms.feddpa import FedDPA
from fedtailor.algorithms.feddyn import FedDyn
from fedtailor.algorithms.fedem import FedEM
from fedtailor.algorithms.fedex_lora import FedExLoRA
from fedtailor.algorithms.fedfew import FedFew
from fedtailor.algorithms.fedfomo import FedFomo
from fedtailor.algorithms.fedgh import FedGH
from fedtailor.algorithms.fedlc import FedLC
from fedtailor.algorithms.fedmd import FedMD
from fedtailor.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.fedproto import FedProto
from fedtailor.algorithms.fedprox import FedProx
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.algorithms.fedrod import FedRoD
from fedtailor.algorithms.fedtgp import FedTGP
from fedtailor.algorithms.finetune import FineTune
from fedtailor.algorithms.flexlora import FlexLoRA
from fedtailor.algorithms.gpfl import GPFL
from fedtailor.algorithms.heterofl import HeteroFL
from fedtailor.algorithms.hetlora import HetLoRA
from fedtailor.algorithms.hypcluster import HypCluster
from fedtailor.algorithms.ifca import IFCA
from fedtailor.algorithms.knn_per import KNNPer
from fedtailor.algorithms.l2gd import L2GD
from fedtailor.algorithms.lg_fedavg import LGFedAvg
from fedtailor.algorithms.local import Local
from fedtailor.algorithms.mapper import MAPPER
from fedtailor.algorithms.moon import MOON
from fedtailor.algorithms.mr_mtl import MRMTL
from fedtailor.algorithms.oracle import Oracle
from fedtailor.algorithms.pacfl import PACFL
from fedtailor.algorithms.per_fedavg import PerFedAvg
from fedtailor.algorithms.pfedhn import PFedHN
from fedtailor.algorithms.pfedme import PFedMe
from fedtailor.algorithms.scaffold import SCAFFOLD
from fedtailor.algorithms.self_fl import SelfFL
from fedtailor.algorithms.then import Then
from fedtailor.algorithms.ucfl import UCFL
from fedtailor.algorithms.ucfl_parallel import UCFLParallel

__all__ = [
    "AFL",
    "APFL",
    "CCVR",
    "CFL",
    "CGPFL",
    "DAPPER",
    "GPFL",
    "IFCA",
    "L2GD",
    "MAPPER",
    "MOON",
    "MRMTL",
    "PACFL",
    "SCAFFOLD",
    "UCFL",
    "CGPFLHeur",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedCP",
    "FedDBE",
    "FedDPA",
    "FedDyn",
    "FedEM",
    "FedExLoRA",
    "FedFew",
    "FedFomo",
    "FedGH",
    "FedLC",
    "FedMD",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedTGP",
    "FedYogi",
    "FineTune",
    "FlexLoRA",
    "HetLoRA",
    "HeteroFL",
    "HypCluster",
    "KNNPer",
    "LGFedAvg",
    "Local",
    "Oracle",
    "PFedHN",
    "PFedMe",
    "PerFedAvg",
    "SelfFL",
    "Then",
    "UCFLParallel",
]

import_modules(__name__)
