"""Random kills of a federation: coordinator, clients, or both, at any moment; nothing
may be lost.

python -m federation_faults --kills 30              in one process, every message a moment to die at
python -m federation_faults --kills 30 --processes  real processes over TLS, killed with SIGKILL
"""
