"""An experiment for tests of comparisons: a method without a grid, and one with."""

FILE = """title = "A comparison"
seeds = [0, 1]
rounds = 2
evaluate_every = 1
scenarios.rotated = {use = "digits-rotated", val = 0.25}
[algorithms.Local]
use = "local"
[algorithms.FedAvg]
use = "fedavg"
grid.sgd.lr = [0.001, 0.1, 1e30]
"""
