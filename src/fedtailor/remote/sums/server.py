"""The server of secure aggregation, which the coordinator runs.

It relays public keys and encrypted shares between clients, adds masked vectors, and
unmasks the sum. Clients may drop out; a client that misses one stage is left out of the
later ones. If too few clients survive, or one whose vector arrived does not confirm whose
did, the round fails, and the masked vectors stay masked: nothing is unmasked before the
last stage.
"""

import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.printable import join_names
from fedtailor.aggregation.secure_sums import (
    MIN_CLIENTS,
    FixedPoint,
    SecureSums,
    normalized,
    unsafe_combination,
    unsafe_sums,
)
from fedtailor.aggregation.sum_shares import SumHistory
from fedtailor.aggregation.whole_numbers import add_words, negative_words
from fedtailor.protocol import Sums
from fedtailor.remote.sums.client import mask_session, pairwise_mask
from fedtailor.remote.sums.masks import (
    CIPHERTEXT_BYTES,
    CODE_BYTES,
    KEY_BYTES,
    SECRET_BYTES,
    KeyPair,
    combine_shares,
    commitment,
    expand_mask,
)
from fedtailor.remote.wire.messages import ArraySpec, Request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.run_log import COORDINATOR_LOG
from fedtailor.remote.wire.secure_sums import (
    CONFIRM,
    KEYS,
    MAX_NEIGHBOURS,
    SHARES,
    UNMASK,
    VECTORS,
    neighbour_graph,
)
from fedtailor.remote.wire.transport import (
    POLL_INTERVAL_S,
    TooFewClients,
    Transport,
    send_and_receive,
)

NamedArrays = Mapping[str, np.ndarray]

COMMITMENT_BYTES = len(commitment(b""))

MASKED = "masked"
"""Name of the array in an answer that holds the masked vectors [s, n]."""

MAX_RANDOM_SUBSETS = 100
"""How many random subsets of shares are tried if several shares are wrong."""


@dataclass(frozen=True)
class SumStage:
    """The requests of one stage of a sum.

    Attributes:
        task: name of the stage.
        session: name of the sum.
        arrays: the arrays that each client is sent, by client.
        expected: the arrays that each client's answer must hold, by client.
        neighbours: the neighbours of each client; empty except in the stage that tells
            clients their neighbours.
        columns: names of the clients in the order of the columns of the weights; empty
            except in the stage that tells clients the weights.
    """

    task: str
    session: str
    arrays: Mapping[str, NamedArrays]
    expected: Mapping[str, Mapping[str, ArraySpec]]
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()

    def settings_for(self, client: str) -> dict[str, Any]:
        """The settings of the stage in the request to a client."""
        settings: dict[str, Any] = {"name": self.session}
        if self.columns:
            settings["columns"] = list(self.columns)
        if self.neighbours:
            settings["among"] = list(self.neighbours[client])
        return settings


def send_stage(
    transport: Transport,
    stage: SumStage,
    request_of: Callable[[str, NamedArrays], Request],
    *,
    poll_interval: float = POLL_INTERVAL_S,
    on_refusals: Callable[[Mapping[str, Refusal]], None] = lambda refusals: None,
) -> dict[str, NamedArrays]:
    """Send the requests of one stage of a sum.

    Args:
        transport: carries the messages.
        stage: the stage.
        request_of: makes the request to a client with the arrays that it is sent.
        poll_interval: see `send_and_receive`.
        on_refusals: called with the codes of the clients that refused.

    Returns:
        The answers that arrived in time, by client. There may be fewer than the minimum;
        `SecureSumServer` checks their number.
    """
    requests = {name: request_of(name, arrays) for name, arrays in stage.arrays.items()}
    result = send_and_receive(
        transport,
        requests,
        lambda request: stage.expected[request.client],
        minimum=0,
        poll_interval=poll_interval,
    )
    on_refusals(result.refusals)
    return {name: reply.arrays for name, reply in result.replies.items()}


RunStage = Callable[[SumStage], Mapping[str, NamedArrays]]
"""Sends the requests of a stage; returns the answers that arrived, by client."""


class SecureSumServer:
    """One run of the protocol, which adds one vector of each client.

    Args:
        run_stage: sends the requests of a stage, and returns the answers.
        names: names of the clients that hold a vector.
        size: number of entries of each vector.
        settings: secure aggregation, as the job sets it.
        minimum: minimum number of clients whose vectors must be in the sums.
        neighbours: maximum number of other clients with which a client shares masks and
            secrets.
        history: the sums with which those of this run may be combined, to which it adds
            them. Others than the clients of these would be refused by them, and are lost
            from the beginning. None = there are none.
        round: the round under which the history keeps the sums.
        asked: digest of what all clients were asked (`SecureSumClient.hold`).
        vector: the kind of vector that all clients add, and its number among several.
        words: of a whole number, that `add_whole` adds; 1 = vectors hold numbers.

    Attributes:
        remaining: the clients whose vectors are in the sums, from when clients confirm
            these; empty before.
    """

    def __init__(
        self,
        run_stage: RunStage,
        names: Sequence[str],
        size: int,
        settings: SecureSums,
        *,
        minimum: int = 1,
        neighbours: int = MAX_NEIGHBOURS,
        history: SumHistory | None = None,
        round: int = 0,
        asked: str = "",
        vector: tuple[str, int | None] = ("model", None),
        words: int = 1,
    ) -> None:
        self._vector, self._words = vector, words
        self._run_stage, self._names = run_stage, tuple(names)
        self._size, self._settings, self._digest = size * words, settings, asked
        self._minimum = max(minimum, MIN_CLIENTS)
        self._max_neighbours = neighbours
        self._history = SumHistory("run") if history is None else history
        self._round, self._earlier = round, self._history.released(round)
        self.remaining: tuple[str, ...] = ()
        members = self._history.members(round)
        self._asked = [
            name for name in self._names if members is None or name in members
        ]
        self._session = secrets.token_hex(8)
        self._mask_session = self._session  # masks are derived from it
        # By client, from the first two stages.
        self._neighbours: dict[str, tuple[str, ...]] = {}
        self._mask_keys: dict[str, bytes] = {}  # public keys for pairwise masks
        self._commitments: dict[str, bytes] = {}  # to seeds of self masks

    def run(self, weights: Float[np.ndarray, "s c"]) -> Sums:
        """Compute weighted sums of the clients' vectors.

        If clients drop out, the weights of the others grow, so that the absolute
        weights of each sum keep their total. A sum that would not hide the vector of
        one client by itself is left out. Sums of which a combination would not hide it
        are not computed.

        Args:
            weights: weight of each client in each sum.

        Returns:
            The sums [s, n], and whether each sum is available [s]. The error of a sum
            is the weighted sum of the clients' noise (`FixedPoint.noise`), and at most half a
            step of `FixedPoint` for each client, times the total of its absolute weights,
            divided by the surviving fraction of that total.

        Raises:
            TooFewClients: so many clients dropped out that the sum cannot be unmasked,
                or would not hide the others' vectors, or one dropped out between its
                vector and its confirmation; nothing has been unmasked.
            ValueError: every sum, or a combination of them, would reveal the vector of
                one client.
        """
        opened, scaled, is_safe = self._open(weights)
        total = FixedPoint(self._settings.range).decode(opened)
        # Rescale each sum from its surviving weights to the weights asked for.
        surviving = np.isin(self._names, self.remaining)
        remaining = np.abs(np.where(surviving, scaled, 0.0)).sum(axis=1)
        requested = np.abs(weights[is_safe]).sum(axis=1)
        scale = np.zeros_like(remaining)
        np.divide(requested, remaining, out=scale, where=remaining > 0)
        sums = np.zeros((len(weights), self._size))
        sums[is_safe] = total * scale[:, None]
        available = np.zeros(len(weights), bool)
        available[is_safe] = remaining > 0
        return sums, available

    def add_whole(self) -> UInt32[np.ndarray, "n words"]:
        """Add the clients' whole numbers, of those that remain.

        Raises:
            TooFewClients, ValueError: see `run`.
        """
        count = len(self._names)
        opened, _, _ = self._open(np.full((1, count), 1 / count))
        return opened.reshape(-1, self._words)

    def _open(
        self, weights: Float[np.ndarray, "s c"]
    ) -> tuple[UInt32[np.ndarray, "r n"], Float[np.ndarray, "r c"], NDArray[np.bool_]]:
        """Have the clients mask, confirm and open sums.

        Returns:
            The sums that would hide each client, as they are added, with the weights with
            which clients were asked; and which of all sums [s] these are.
        """
        shares = self._share_keys(self._advertise_keys())
        surviving = self._survivors(shares)
        unsafe = unsafe_sums(weights, surviving, self._names)
        require(
            len(unsafe) < len(weights),
            "; ".join(unsafe.values())
            + "; use fewer streams, or weights that differ less",
        )
        for line in unsafe.values():
            COORDINATOR_LOG.warning(f"{line}; it is left out of this round")
        is_safe = np.array([index not in unsafe for index in range(len(weights))])
        scaled = normalized(weights[is_safe], surviving)
        unsafe_span = self._unsafe_combination(scaled)
        # Those that were in the last sum, which may not even have been opened.
        before = self._history.members(self._round) or frozenset[str]()
        absent = sorted(before.difference(self._names))
        if unsafe_span and (absent or not surviving.all()):
            raise TooFewClients(
                f"{unsafe_span}, as others are lost"
                + (f" ({join_names(absent)})" if absent else "")
                + "; the round does not count"
            )
        require(
            not unsafe_span,
            f"{unsafe_span}; use fewer streams, or have more clients in a round",
        )
        masked = self._collect_masked_vectors(shares, scaled)
        # The vectors in the sums are known now. Check them before unmasking anything.
        surviving = self._survivors(masked)
        self._check_enough(masked)
        for line in unsafe_sums(scaled, surviving, self._names).values():
            raise TooFewClients(f"{line}, as others are lost; the round does not count")
        arrived = normalized(scaled, surviving)
        line = self._unsafe_combination(arrived)
        if line:
            raise TooFewClients(f"{line}, as others are lost; the round does not count")
        # Clients that confirm the sum remember it, whether it is opened or not.
        self.remaining = tuple(masked)
        together = self._earlier.with_sums(self._names, arrived)
        self._history.record(self._round, list(self._vector), together, self.remaining)
        codes = self._confirm(masked)
        return self._unmask(masked, shares, codes), scaled, is_safe

    def _unsafe_combination(self, weights: Float[np.ndarray, "s c"]) -> str:
        """Say which client a combination of sums would show; empty if none."""
        together = self._earlier.with_sums(self._names, weights)
        return unsafe_combination(together, past=bool(self._earlier.names))

    # stages
    # ----------------------------------------------------------------------------------

    def _advertise_keys(self) -> Mapping[str, NamedArrays]:
        """Ask each client for its two public keys."""
        key = ArraySpec((KEY_BYTES,), "uint8")
        key_names: tuple[str, ...] = ("masking", "sealing")
        arrays: dict[str, NamedArrays] = {name: {} for name in self._asked}
        specs: dict[str, dict[str, ArraySpec]] = {
            name: dict.fromkeys(key_names, key) for name in self._asked
        }
        answers = self._run_stage(SumStage(KEYS, self._session, arrays, specs))
        # Others would refuse a sum with such a key, and not the one who sent it.
        valid, seen, throwaway = (
            {},
            set[bytes](),
            KeyPair(secrets.token_bytes(SECRET_BYTES)),
        )
        for name, pair in answers.items():
            keys = [pair[kind].tobytes() for kind in key_names]
            try:
                for public in keys:
                    throwaway.agree_on_key(public, "check")
                    require(public not in seen, "it has another client's public key")
                    seen.add(public)
            except ValueError as error:
                COORDINATOR_LOG.warning(f"client {name}: {error}; it is left out")
                continue
            valid[name] = pair
        self._check_enough(valid)
        return valid

    def _share_keys(self, keys: Mapping[str, NamedArrays]) -> Mapping[str, NamedArrays]:
        """Send each client its neighbours' keys, and ask for encrypted shares."""
        graph = neighbour_graph(self._names, self._max_neighbours)
        self._neighbours = {
            name: tuple(other for other in graph[name] if other in keys)
            for name in keys
        }
        self._mask_keys = {
            name: pair["masking"].tobytes() for name, pair in keys.items()
        }
        arrays, specs = {}, {}
        for name, neighbours in self._neighbours.items():
            arrays[name] = {
                kind: np.stack([keys[other][kind] for other in neighbours])
                for kind in ("masking", "sealing")
            }
            specs[name] = {
                "shares": ArraySpec((len(neighbours), CIPHERTEXT_BYTES), "uint8"),
                "commitment": ArraySpec((COMMITMENT_BYTES,), "uint8"),
            }
        answers = self._run_stage(
            SumStage(SHARES, self._session, arrays, specs, self._neighbours)
        )
        self._check_enough(answers)
        self._commitments = {
            name: answer["commitment"].tobytes() for name, answer in answers.items()
        }
        return answers

    def _collect_masked_vectors(
        self, shares: Mapping[str, NamedArrays], weights: Float[np.ndarray, "s c"]
    ) -> Mapping[str, NamedArrays]:
        """Send each client the shares encrypted for it, and ask for masked vectors.

        Args:
            shares: answers of the previous stage; who sent none has dropped out.
            weights: weight of each client in each sum.
        """
        # All clients receive the same weights, or their masks do not cancel.
        self._mask_session = mask_session(
            self._session, self._vector, self._names, weights, self._digest
        )
        arrays, specs = {}, {}
        for name in shares:
            neighbours = self._neighbours[name]
            encrypted = np.zeros((len(neighbours), CIPHERTEXT_BYTES), np.uint8)
            for row, other in enumerate(neighbours):
                if other in shares:
                    index = self._neighbours[other].index(name)
                    encrypted[row] = shares[other]["shares"][index]
            arrays[name] = {
                "shares": encrypted,
                "there": np.array([other in shares for other in neighbours]),
                "weights": weights,
            }
            specs[name] = {MASKED: ArraySpec((len(weights), self._size), "uint32")}
        return self._run_stage(
            SumStage(VECTORS, self._session, arrays, specs, columns=self._names)
        )

    def _confirm(
        self, masked: Mapping[str, NamedArrays]
    ) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Tell clients whose vectors arrived, and collect their codes for each other.

        Returns:
            The code of each client for each of its neighbours whose vector arrived.

        Raises:
            TooFewClients: a client whose vector arrived is lost.
        """
        arrived = self._survivors(masked)
        arrays, specs = {}, {}
        for name in masked:
            arrays[name] = {"arrived": arrived}
            spec = ArraySpec((len(self._neighbours[name]), CODE_BYTES), "uint8")
            specs[name] = {"codes": spec}
        answers = self._run_stage(SumStage(CONFIRM, self._session, arrays, specs))
        lost = [name for name in masked if name not in answers]
        if lost:
            raise TooFewClients(
                f"{join_names(lost)} sent a vector and did not confirm whose vectors are in"
                f" the sum; the round does not count{see('errors#too-few-clients')}"
            )
        return {
            name: dict(zip(self._neighbours[name], answer["codes"], strict=True))
            for name, answer in answers.items()
        }

    def _unmask(
        self,
        masked: Mapping[str, NamedArrays],
        shares: Mapping[str, NamedArrays],
        codes: Mapping[str, Mapping[str, np.ndarray]],
    ) -> UInt32[np.ndarray, "s n"]:
        """Ask clients to reveal shares, and remove the masks from the sum.

        Args:
            masked: the masked vectors, by client.
            shares: answers of the clients that shared their keys. Neighbours have added
                pairwise masks for these clients, and for no others.
            codes: see `_confirm`.
        """
        arrays, specs = {}, {}
        for name in masked:
            neighbours = self._neighbours[name]
            given = np.zeros((len(neighbours), CODE_BYTES), np.uint8)
            for row, other in enumerate(neighbours):
                if other in codes:
                    given[row] = codes[other][name]
            arrays[name] = {"codes": given}
            spec = ArraySpec((len(neighbours), SECRET_BYTES), "uint8")
            specs[name] = {"shares": spec}
        revealed = self._run_stage(SumStage(UNMASK, self._session, arrays, specs))
        add = partial(add_words, words=self._words)
        total = reduce(add, [answer[MASKED] for answer in masked.values()])
        for name in shares:
            if name in masked:
                # Its pairwise masks cancel with those of its neighbours and of clients
                # that dropped out (below). Its self mask remains.
                seed = self._reconstruct(name, revealed, arrived=True)
                mask = expand_mask(seed, total.shape)
                total = add(total, negative_words(mask, self._words))
                continue
            # It dropped out after its neighbours had learned its key: their pairwise
            # masks for it remain. Add the masks with which it would cancel them.
            others = [other for other in self._neighbours[name] if other in masked]
            if not others:
                continue
            keys = KeyPair(self._reconstruct(name, revealed, arrived=False))
            for other in others:
                mask = pairwise_mask(
                    keys,
                    self._mask_keys[other],
                    self._mask_session,
                    name,
                    other,
                    total.shape,
                    self._words,
                )
                total = add(total, mask)
        return total

    # secrets
    # ----------------------------------------------------------------------------------

    def _reconstruct(
        self, owner: str, revealed: Mapping[str, NamedArrays], *, arrived: bool
    ) -> bytes:
        """Reconstruct a client's secret from the shares that its neighbours revealed.

        Args:
            owner: name of the client.
            revealed: the neighbours' answers.
            arrived: whether the owner's vector arrived. If it did, the secret is the
                seed of its self mask, else the secret of its keys for pairwise masks.

        Raises:
            TooFewClients: there are too few shares, or too many wrong ones.
        """
        neighbours = self._neighbours[owner]
        threshold = self._settings.reconstruction_threshold(len(neighbours))
        shares = {}  # by the position of their holder among the neighbours
        for position, other in enumerate(neighbours):
            if other in revealed:
                row = self._neighbours[other].index(owner)
                shares[position] = revealed[other]["shares"][row].tobytes()
        if len(shares) < threshold:
            self._fail(len(shares), len(neighbours), threshold)

        def combine(positions: Sequence[int]) -> bytes | None:
            """The secret that some of the shares give; None if it is a wrong one."""
            try:
                secret = combine_shares({index: shares[index] for index in positions})
            except ValueError:
                return None
            if arrived:
                is_right = commitment(secret) == self._commitments[owner]
            else:
                is_right = KeyPair(secret).public == self._mask_keys[owner]
            return secret if is_right else None

        for right_shares in _subsets(tuple(shares), threshold):
            secret = combine(right_shares)
            if secret is not None:
                break
        else:
            raise TooFewClients(
                "the shares that clients opened do not unmask the sum with client"
                f" {owner}: some are wrong; the round does not count"
            )
        # Report who sent a wrong share. The unused shares are fewer than the threshold.
        # If together (filled up with right ones) they give the secret, all are right.
        unused = tuple(index for index in shares if index not in right_shares)
        if unused and combine((*unused, *right_shares)[:threshold]) is None:
            for position in unused:
                if combine((*right_shares[1:], position)) is None:
                    COORDINATOR_LOG.warning(
                        f"client {neighbours[position]}: its share of a secret of"
                        f" client {owner} is wrong; it is not used"
                    )
        return secret

    # dropouts
    # ----------------------------------------------------------------------------------

    def _survivors(self, answers: Mapping[str, NamedArrays]) -> NDArray[np.bool_]:
        """Whether each client [c] is among those that answered."""
        return np.array([name in answers for name in self._names], bool)

    def _check_enough(self, answers: Mapping[str, NamedArrays]) -> None:
        """Check that enough clients, and enough neighbours of each, answered.

        Raises:
            TooFewClients: too many dropped out.
        """
        if len(answers) < self._minimum:
            self._fail(len(answers), len(self._names), self._minimum)
        for name in answers:
            neighbours = self._neighbours.get(name, ())
            survivors = sum(other in answers for other in neighbours)
            threshold = self._settings.reconstruction_threshold(len(neighbours))
            if neighbours and survivors < threshold:
                self._fail(survivors, len(neighbours), threshold)

    def _fail(self, survivors: int, count: int, threshold: int) -> None:
        raise TooFewClients(
            f"{survivors} of {count} clients are left for a secure sum, and it needs"
            f" {threshold}; the round does not count{see('errors#too-few-clients')}"
        )


def _subsets(positions: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Subsets of shares to try, until one of them gives the secret.

    If all shares are right, the first subset gives it. If one is wrong, one of the
    following subsets does, each of which leaves out another share. The other subsets
    are random.
    """
    yield tuple(positions[:size])
    if len(positions) > size:
        for omitted in positions:
            others = [position for position in positions if position != omitted]
            yield tuple(random.sample(others, size))
    for _ in range(MAX_RANDOM_SUBSETS):
        yield tuple(random.sample(positions, size))
