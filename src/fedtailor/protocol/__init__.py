"""The words of the design: what an algorithm is written in. Imports nothing else of fedtailor."""

from fedtailor.protocol.algorithm import About, Algorithm, Init
from fedtailor.protocol.choice import check_choice
from fedtailor.protocol.cohort import Cohort, Examples, Population
from fedtailor.protocol.keys import client_ids, client_keys, draw_bits, draw_uniform, server_rng
from fedtailor.protocol.local import Batch, Local, Params, StepGradient
from fedtailor.protocol.messages import Down, Inbox, Sent, Up
from fedtailor.protocol.method import Count, Switch, is_method, is_off, method, require
from fedtailor.protocol.predictor import Mixture, Predictor
from fedtailor.protocol.sgd import SGD

__all__ = [
    "SGD",
    "About",
    "Algorithm",
    "Batch",
    "Cohort",
    "Count",
    "Down",
    "Examples",
    "Inbox",
    "Init",
    "Local",
    "Mixture",
    "Params",
    "Population",
    "Predictor",
    "Sent",
    "StepGradient",
    "Switch",
    "Up",
    "check_choice",
    "client_ids",
    "client_keys",
    "draw_bits",
    "draw_uniform",
    "is_method",
    "is_off",
    "method",
    "require",
    "server_rng",
]
