"""Kills of real processes: a coordinator and four clients, over TLS
on this machine.
"""

import random
import time

import numpy as np
import polars as pl

from fedtailor.engine.storage.run_directory import MANIFEST, METRICS
from fedtailor.remote import demo
from fedtailor.remote.demo import stop

METHOD = '[method]\nuse = "%s"\nsgd = { lr = 0.05, epochs = 1, batch_size = 32 }\n'
KEYS = ["round", "client", "split", "metric"]


def campaign(directory, kills, seed, say=print, method="ditto"):
    """Kill processes at random moments, start them again, and compare with the
    simulation at the end, to the bit.

    Returns:
        How many kills there were, and after how many of them the federation finished
        another round.

    Raises:
        AssertionError: the final models or measurements are not the simulation's.
    """
    draw = random.Random(seed)
    rounds = 8 * kills  # many go by between two kills
    files = demo.prepare(directory, METHOD % method, rounds=rounds)
    simulated = demo.simulate_demo(directory, files)
    serve = ["serve", str(directory), "--listen", "127.0.0.1"]
    tried = good = 0
    with (
        (directory / "serve.log").open("ab") as log,
        demo.clients_of(directory, files) as clients,
    ):
        serving = demo.start(serve, log)
        try:
            for _ in range(kills):
                done = demo.rounds_done(directory)
                if serving.poll() is not None or done >= rounds - 2:
                    break
                demo.wait_for_round(directory, done + 1, serving)
                # At a random moment of the next three rounds, however long these take.
                begun = time.monotonic()
                demo.wait_for_round(directory, done + 2, serving)
                time.sleep(draw.uniform(0.0, 3.0) * (time.monotonic() - begun))
                kind, victim = (
                    draw.choice(["coordinator", "client", "both"]),
                    draw.choice(sorted(clients)),
                )
                before = demo.rounds_done(directory)
                tried += 1
                if kind != "coordinator":
                    clients[victim].kill()
                    clients[victim].wait()
                if kind != "client":
                    serving.kill()
                    serving.wait()
                time.sleep(draw.uniform(0.0, 1.0))
                if kind != "client":
                    again = (
                        ["--resume"] if (directory / "run" / MANIFEST).exists() else []
                    )
                    serving = demo.start([*serve, *again], log)
                if kind != "coordinator":
                    with (directory / f"{victim}.log").open("ab") as own:
                        clients[victim] = demo.start(
                            demo.join_command(directory, victim, files), own
                        )
                demo.wait_for_round(directory, min(before + 1, rounds), serving)
                good += 1
                who = {
                    "coordinator": kind,
                    "client": victim,
                    "both": f"coordinator and {victim}",
                }[kind]
                say(
                    f"kill {tried}: {who} after round {before}; round"
                    f" {demo.rounds_done(directory)} is done"
                )
            while (done := demo.rounds_done(directory)) < rounds:
                demo.wait_for_round(directory, done + 1, serving)
            assert serving.wait(demo.WAIT_S) == 0, (
                directory / "serve.log"
            ).read_text()[-2000:]
        finally:
            stop(serving)
    models = demo.stored_models(directory, list(simulated.federation.names))
    for name in simulated.federation.names:
        np.testing.assert_array_equal(models[name], simulated.personal(name).theta)
    measured, expected = (
        frame.sort(KEYS)
        for frame in (pl.read_parquet(directory / "run" / METRICS), simulated.frame())
    )
    assert len(measured) > 0 and measured.select(KEYS).equals(expected.select(KEYS))
    np.testing.assert_allclose(measured["value"], expected["value"], rtol=1e-4)
    return tried, good
