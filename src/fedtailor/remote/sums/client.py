"""The client of secure aggregation.

It holds the vectors that it trained until the server asks for sums of them, and sends
each of them once, masked. The server is not trusted: at every stage the client checks
the request, and refuses one whose answer would reveal more than a sum. Nothing is
written to disk but the weights of the sums, so a client that is restarted has dropped out of
the round's sums.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import UInt32

from fedtailor.aggregation.secure_sums import (
    MAX_CLIENTS,
    MAX_SHARE,
    MIN_CLIENTS,
    FixedPoint,
    SecureSums,
    clients_of_sums,
    unsafe_combination,
)
from fedtailor.aggregation.sum_shares import (
    ReleasedSums,
    SumHistory,
    others_hide,
    share_of,
)
from fedtailor.aggregation.whole_numbers import add_words, negative_words
from fedtailor.remote.keys.secret import seed_from
from fedtailor.remote.sums.masks import (
    CIPHERTEXT_BYTES,
    CODE_BYTES,
    KEY_BYTES,
    SECRET_BYTES,
    KeyPair,
    authentication_code,
    commitment,
    create_shares,
    decrypt,
    encrypt,
    expand_mask,
)
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, Refused, refuse_unless, refusing
from fedtailor.remote.wire.request_kind import SumSettings, sum_settings
from fedtailor.remote.wire.request_size import check_size
from fedtailor.remote.wire.secure_sums import (
    CONFIRM,
    KEYS,
    MAX_NEIGHBOURS,
    SHARES,
    STAGES,
    VECTORS,
    neighbours_of,
)

MAX_WEIGHTS = 2**14
"""The largest number of weights in a request. Every client looks at all combinations of
the sums, some of them with linear programs; this bounds the time to seconds (see
`MAX_PROGRAMS`).
"""


def _random_seed() -> bytes:
    return os.urandom(SECRET_BYTES)


@dataclass
class _Session:
    """One sum that is under way.

    Attributes:
        name: the server's name of the sum.
        vector: the vector to be added.
        vector_name: its kind, and its number among several of this kind or None.
        earlier: the sums with which this one may be combined.
        next_stage: index in `STAGES` of the stage that comes next.
        mask_keys: key pair for pairwise masks, made for this sum.
        encryption_keys: key pair for the encryption of shares, made for this sum.
        self_mask_seed: seed of this client's self mask.
        neighbours: names of the neighbours in alphabetical order, including this
            client.
        threshold: number of shares that reconstruct a secret.
        public_mask_keys: each neighbour's public key for pairwise masks.
        shared_keys: the key that encrypts shares, agreed on with each neighbour.
        columns: names of the clients in the order of the columns of the weights.
        weights: [s, c] weight of each client in each sum.
        named: the name from which masks are derived (`mask_session`).
        shares: for each neighbour that has not dropped out, its shares (of the seed of
            its self mask, of the secret of its mask keys).
        arrived: the clients whose vectors arrived, as this client has confirmed.
    """

    name: str
    vector: np.ndarray
    vector_name: tuple[str, int | None]
    earlier: ReleasedSums
    next_stage: int = 0
    mask_keys: KeyPair = field(default_factory=lambda: KeyPair(_random_seed()))
    encryption_keys: KeyPair = field(default_factory=lambda: KeyPair(_random_seed()))
    self_mask_seed: bytes = field(default_factory=_random_seed)
    neighbours: tuple[str, ...] = ()
    threshold: int = 0
    public_mask_keys: dict[str, bytes] = field(default_factory=dict)
    shared_keys: dict[str, bytes] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    weights: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    named: str = ""
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    arrived: frozenset[str] = frozenset()

    def code(self, sender: str, recipient: str) -> bytes:
        """The code with which a sender confirms to a recipient whose vectors arrived.

        One of the two is a neighbour of this client, and the other one is the client.
        """
        other = recipient if recipient in self.shared_keys else sender
        content = [self.named, sender, recipient, sorted(self.arrived)]
        return authentication_code(self.shared_keys[other], json.dumps(content))

    def neighbours_in(self, chosen: np.ndarray) -> set[str]:
        """The neighbours that are chosen [neighbours]."""
        return set(np.array(self.neighbours, object)[chosen])


class SecureSumClient:
    """Answers the stages of `secure_sums` for one client.

    Args:
        client: name of the client.
        settings: secure aggregation, as the job sets it.
        history: file in which the client keeps the weights of the sums that it has a
            part in; None = it forgets them when it is started again.
        least: the least number of clients in a sum that this client allows.
        secret: from which noise follows; None = another one in each process.

    Raises:
        ValueError: the file cannot be read.
    """

    def __init__(
        self,
        client: str,
        settings: SecureSums,
        history: Path | None = None,
        least: int = MIN_CLIENTS,
        secret: int | None = None,
    ) -> None:
        self._client, self._settings, self._least = client, settings, least
        self._secret = secrets.randbits(64) if secret is None else secret
        self._history = SumHistory(settings.scope, history)
        # The vectors not yet sent, by kind and index. The index is None until the
        # server asks for single rows of a kind.
        self._vectors: dict[tuple[str, int | None], np.ndarray] = {}
        self._held = (-1, "")  # round and run of the vectors
        self._equally: int | None = None
        self._asked = ""
        self._round, self._run = -1, ""  # under which their sums are kept
        self._session: _Session | None = None

    def save(self) -> None:
        """Write the weights of the sums to their file, of which there may be none yet."""
        self._history.save()

    def hold(
        self,
        round: int,
        update: Mapping[str, np.ndarray],
        run: str = "",
        *,
        scope: str = "",
        equally: int | None = None,
        asked: str = "",
    ) -> None:
        """Hold an update until the server asks for sums of it.

        The update of another round is dropped.

        Args:
            round: in which the update was trained.
            update: vectors by kind of message.
            run: identity of the run.
            scope: name of what all sums of which, in all rounds and runs, may be
                combined; empty = as the settings say (`SecureSums.scope`).
            equally: vectors are whole numbers [n, words] of `whole_numbers`, and the sum
                is that of so many clients; None = the coordinator says the weights. Of
                whole numbers a sum with weights such as 81, 9 and 1 shows each one, as
                its digits.
            asked: digest of what all clients of the sum were asked. The masks of clients
                that were asked different things do not cancel: of some the answer could
                be known, and a sum with theirs would show that of the others.
        """
        self._equally, self._asked = equally, asked
        self._held, self._session = (round, run), None
        self._round, self._run = (0, scope) if scope else (round, run)
        self._vectors = {
            (kind, None): np.asarray(vector) for kind, vector in update.items()
        }

    def __call__(self, request: Request) -> dict[str, np.ndarray]:
        """Answer the request of a stage.

        Raises:
            Refused: the stage cannot be done, or would reveal more than a sum.
        """
        settings, stage = sum_settings(request), STAGES.index(request.task)
        name, key = settings.name, (settings.kind, settings.number)
        is_held = (request.round, request.run) == self._held
        if request.task == KEYS:
            refuse_unless(
                is_held,
                Refusal.NO_PART_IN_SUM,
                "it was started again, and does not hold what it trained in this round",
            )
            vector = self._vector(key)
            self._session = _Session(name, vector, key, self._released(key))
        session = self._session
        # The stages are done in order and each of them once, whatever the server asks.
        expected = (
            is_held
            and session is not None
            and (session.name, session.vector_name) == (name, key)
            and session.next_stage == stage
        )
        refuse_unless(
            expected,
            Refusal.NO_PART_IN_SUM,
            "it was started again, and has no part in this sum",
        )
        assert session is not None
        session.next_stage = stage + 1
        if request.task == KEYS:
            return {
                "masking": _bytes(session.mask_keys.public),
                "sealing": _bytes(session.encryption_keys.public),
            }
        if request.task == SHARES:
            return self._share_keys(session, settings, request.arrays)
        if request.task == VECTORS:
            return self._masked_vectors(session, settings, request.arrays)
        if request.task == CONFIRM:
            return self._confirm(session, request.arrays)
        # End the session before revealing shares: a server that could ask twice would
        # get both shares of a neighbour, which together unmask its vector.
        self._session = None
        return self._reveal_shares(session, request.arrays)

    def _released(self, key: tuple[str, int | None]) -> ReleasedSums:
        """The sums with which one of a held vector may be combined, of any vectors.

        Raises:
            Refused: they are not known.
        """
        kind, index = key
        # The sums of a later round stand where those of this one stood.
        refuse_unless(
            not self._history.is_past(self._round, self._run),
            Refusal.UNSAFE_SUM,
            "it has a part in sums of a later round of this run",
        )
        names = self._history.vectors(self._round, self._run)
        # A sum of a whole array is one of each of its rows, too.
        refuse_unless(
            all(
                (other is None) == (index is None) for it, other in names if it == kind
            ),
            Refusal.UNSAFE_SUM,
            f"it has added {kind!r} as a whole and is asked for single rows, or the"
            " other way round",
        )
        return self._history.released(self._round, self._run)

    def _vector(self, key: tuple[str, int | None]) -> np.ndarray:
        """The vector that the server asks for, which is held until it has been sent.

        Args:
            key: its kind and number.
        """
        kind, index = key
        rows = self._vectors.get((kind, None))
        if index is not None and rows is not None:
            refuse_unless(
                rows.ndim > 1 and index < len(rows),
                Refusal.NO_PART_IN_SUM,
                f"it is asked for {kind!r} number {index!r}, which it does not have",
            )
            # From now on each row is sent by itself, and the whole array never.
            del self._vectors[kind, None]
            self._vectors |= {(kind, row): vector for row, vector in enumerate(rows)}
        refuse_unless(
            key in self._vectors,
            Refusal.NO_PART_IN_SUM,
            f"it has sent its {kind!r} of this round in another sum, or has none",
        )
        return self._vectors[key]

    def _share_keys(
        self,
        session: _Session,
        settings: SumSettings,
        arrays: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Share the seeds of this client's masks among its neighbours.

        Args:
            session: the sum.
            settings: holds the neighbours' names ("among").
            arrays: the neighbours' public keys for masks ("masking") and for encryption
                ("sealing"), in the order of their names.

        Returns:
            The encrypted shares ("shares"), one row for each neighbour, and a
            commitment to the seed of the self mask ("commitment").
        """
        neighbours = tuple(settings.among or ())
        count = len(neighbours)
        # Shares for c neighbours take c^2 steps.
        refuse_unless(
            count <= MAX_NEIGHBOURS + 1,
            Refusal.MALFORMED,
            f"it adds with up to {MAX_NEIGHBOURS} other clients, not {count - 1}",
        )
        mask_keys = _rows(arrays, "masking", count, KEY_BYTES)
        encryption_keys = _rows(arrays, "sealing", count, KEY_BYTES)
        refuse_unless(
            count >= MIN_CLIENTS,
            Refusal.UNSAFE_SUM,
            f"it adds with {MIN_CLIENTS} clients or more, not with {count}",
        )
        # A client that appears under several names, or with another client's keys,
        # would make the sum hide fewer vectors than it seems to.
        in_order = neighbours == tuple(sorted(set(neighbours)))
        refuse_unless(
            in_order and len({*mask_keys, *encryption_keys}) == 2 * count,
            Refusal.UNSAFE_SUM,
            "the clients of a sum are not distinct",
        )
        listed_keys = None
        if self._client in neighbours:
            me = neighbours.index(self._client)
            listed_keys = (mask_keys[me], encryption_keys[me])
        refuse_unless(
            listed_keys == (session.mask_keys.public, session.encryption_keys.public),
            Refusal.UNSAFE_SUM,
            "its own keys in this sum are not those that it made",
        )
        session.neighbours = neighbours
        session.threshold = self._settings.reconstruction_threshold(count)
        seed_shares = create_shares(session.self_mask_seed, session.threshold, count)
        key_shares = create_shares(session.mask_keys.secret, session.threshold, count)
        encrypted = np.zeros((count, CIPHERTEXT_BYTES), np.uint8)
        for index, other in enumerate(neighbours):
            if other == self._client:
                session.shares[other] = seed_shares[index], key_shares[index]
                continue
            key = session.encryption_keys.agree_on_key(
                encryption_keys[index], f"shares {session.name}"
            )
            session.public_mask_keys[other] = mask_keys[index]
            session.shared_keys[other] = key
            associated = _associated_text(session.name, self._client, other)
            shares = seed_shares[index] + key_shares[index]
            encrypted[index] = _bytes(encrypt(key, shares, associated))
        # Two texts of one key (one bit of them is not used) are one client, too.
        refuse_unless(
            len(set(session.shared_keys.values())) == count - 1,
            Refusal.UNSAFE_SUM,
            "the clients of a sum are not distinct",
        )
        return {
            "shares": encrypted,
            "commitment": _bytes(commitment(session.self_mask_seed)),
        }

    def _masked_vectors(
        self,
        session: _Session,
        settings: SumSettings,
        arrays: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Weight and mask this client's vector, once for each sum.

        Args:
            session: the sum.
            settings: holds the names of all clients of the sum ("columns").
            arrays: the shares that the neighbours encrypted for this client ("shares"),
                whether each neighbour has not dropped out ("there"), and the weights of
                all clients ("weights" [s, c]).
        """
        count = len(session.neighbours)
        encrypted = _rows(arrays, "shares", count, CIPHERTEXT_BYTES)
        surviving, weights = arrays.get("there"), arrays.get("weights")
        refuse_unless(
            surviving is not None
            and weights is not None
            and _is_boolean(surviving, count)
            and weights.ndim == 2
            and weights.dtype == np.float64
            and len(weights) > 0,
            Refusal.MALFORMED,
            "the request for its vector is not well formed",
        )
        assert surviving is not None and weights is not None
        survivors = int(surviving.sum())
        refuse_unless(
            survivors >= session.threshold,
            Refusal.UNSAFE_SUM,
            f"only {survivors} of {count} clients are left in this sum, and"
            f" {session.threshold} are needed",
        )
        columns = tuple(settings.columns or ())
        refuse_unless(
            len(set(columns)) == len(columns)
            and self._client in columns
            and weights.shape[1] == len(columns)
            and bool(np.isfinite(weights).all()),
            Refusal.MALFORMED,
            "the weights of the sums are not well formed",
        )
        refuse_unless(
            weights.size <= MAX_WEIGHTS,
            Refusal.MALFORMED,
            f"{weights.size} weights are more than {MAX_WEIGHTS}",
        )
        known = len({*columns, *session.earlier.names})
        refuse_unless(
            known <= MAX_CLIENTS,
            Refusal.MALFORMED,
            f"this sum and those before it name {known} clients, more than {MAX_CLIENTS}",
        )
        refuse_unless(
            len(weights) == 1 or 2 * len(weights) <= len(columns),
            Refusal.MALFORMED,
            f"{len(weights)} sums over {len(columns)} clients hide little; it is one, or"
            " there are two clients or more for each",
        )
        # Sums are of whole numbers modulo 2^32. Weights that go beyond it show what the
        # shares of clients do not tell.
        # With smaller ones many sums would round the same parts again and again.
        totals = np.abs(weights).sum(axis=1)
        wrong = totals[(totals != 0) & ~(np.abs(totals - 1) <= 1e-9)]
        refuse_unless(
            not wrong.size,
            Refusal.UNSAFE_SUM,
            f"the weights of a sum add up to {wrong.max(initial=0):g}, and have to add up"
            " to 1, or be 0",
        )
        refuse_unless(
            self._equally is None or _are_equal(weights, self._equally),
            Refusal.UNSAFE_SUM,
            f"it adds whole numbers with the same weight of {self._equally} clients, and"
            " with no others",
        )
        # Whoever is named in a sum and has no part in it is missed by its neighbours, and
        # by nobody else: the sum would be one without that client. So the weight of one
        # that is lost is 0, which says to all others that it is.
        around = set(neighbours_of(self._client, columns, MAX_NEIGHBOURS))
        refuse_unless(
            around.issuperset(session.neighbours),
            Refusal.UNSAFE_SUM,
            "it has masks with clients that are not next to it among those of this sum",
        )
        gone = around - session.neighbours_in(surviving)
        missing = [name in gone for name in columns]
        refuse_unless(
            not weights[:, missing].any(),
            Refusal.UNSAFE_SUM,
            "the weights name clients that have no part in this sum",
        )
        check_size(len(weights) * session.vector.size * 8)
        session.columns, session.weights = columns, weights
        self._check_hidden(session, session.neighbours_in(~surviving))
        if self._equally is None:
            words = 1
            own = weights[:, columns.index(self._client)]
            masked = self._encoded(session, own)
        else:
            words = session.vector.shape[-1]
            masked = session.vector.reshape(1, -1)
        self_mask = expand_mask(session.self_mask_seed, masked.shape)
        masked = add_words(masked, self_mask, words)
        session.named = mask_session(
            session.name, session.vector_name, session.columns, weights, self._asked
        )
        for index, other in enumerate(session.neighbours):
            if not surviving[index] or other == self._client:
                continue
            associated = _associated_text(session.name, other, self._client)
            try:
                shares = decrypt(
                    session.shared_keys[other], encrypted[index], associated
                )
            except ValueError as error:
                raise Refused(
                    Refusal.UNSAFE_SUM,
                    f"the share of client {other} cannot be read: {error}",
                ) from None
            session.shares[other] = shares[:SECRET_BYTES], shares[SECRET_BYTES:]
            mask = pairwise_mask(
                session.mask_keys,
                session.public_mask_keys[other],
                session.named,
                self._client,
                other,
                masked.shape,
                words,
            )
            masked = add_words(masked, mask, words)
        # A vector is sent once: the difference of two sums over almost the same clients
        # could reveal it.
        self._vectors = {
            key: vector
            for key, vector in self._vectors.items()
            if vector is not session.vector
        }
        return {"masked": masked}

    def _encoded(
        self, session: _Session, weights: np.ndarray
    ) -> UInt32[np.ndarray, "s n"]:
        """A vector with noise times weights [s], as numbers that are added.

        The same vector has the same noise, in whatever sums, also in another try of a round
        or another run: sums of it with other noise would have a mean with less.
        """
        fixed_point = FixedPoint(self._settings.range)
        with refusing(Refusal.SUM_RANGE):
            fixed_point.check(session.vector)
        numbers = session.vector.reshape(-1)
        named = json.dumps(session.vector_name).encode()
        content = hashlib.sha256(numbers.tobytes()).digest()
        seed = seed_from(self._secret, b"sums", named, content)
        noise = np.random.default_rng(seed).standard_normal(numbers.size, np.float32)
        noisy = numbers.astype(np.float64) + fixed_point.noise * noise
        return np.stack([fixed_point.encode(weight * noisy) for weight in weights])

    def _check_hidden(
        self, session: _Session, absent: Collection[str]
    ) -> tuple[ReleasedSums, list[str], list[str]]:
        """Check that no combination of sums shows this client's vector, or another's.

        Args:
            session: the sum, with the weights of all clients.
            absent: clients that have no part in it, as far as is known.

        Returns:
            This sum and those with which it may be combined; the clients that have a part
            in it; and those of them that are neighbours.

        Raises:
            Refused: a combination shows a vector.
        """
        # Of more clients than it adds with, some are not neighbours.
        members = [
            name
            for name, column in zip(session.columns, session.weights.T, strict=True)
            if name not in absent and (name in session.neighbours or column.any())
        ]
        near = [name for name in members if name in session.neighbours]
        refuse_unless(
            self._history.may_add(members, near, self._round, self._run),
            Refusal.UNSAFE_SUM,
            "it has a part in sums of other clients: those of a sum have to be among"
            " those of the sum before, its neighbours among its neighbours, and more than"
            " half of those of the first, so that somebody knows all sums that may be"
            " combined",
        )
        weights = session.weights.copy()
        weights[:, [name in absent for name in session.columns]] = 0
        # Its neighbours hide this client's vector, as their keys are theirs. Whether the
        # others in the list exist, the server alone says.
        hiding = [name in session.neighbours for name in session.columns]
        has_part = weights[:, session.columns.index(self._client)] != 0
        counts = [
            *clients_of_sums(weights[np.ix_(has_part, hiding)]),
            *(count for count in clients_of_sums(weights[~has_part]) if count),
        ]
        refuse_unless(
            all(count >= self._least for count in counts),
            Refusal.UNSAFE_SUM,
            f"a sum is over {min(counts, default=0)} clients, and it adds with"
            f" {self._least} or more",
        )
        own = sum(hiding[: session.columns.index(self._client)])
        share = share_of(weights[:, hiding], own, MAX_SHARE)
        refuse_unless(
            share <= MAX_SHARE,
            Refusal.UNSAFE_SUM,
            f"it would be {share:.0%} of a combination of the sums, which would not hide"
            f" its vector (at most {MAX_SHARE:.0%})",
        )
        together = session.earlier.with_sums(session.columns, weights)
        line = unsafe_combination(together, past=bool(session.earlier.names))
        refuse_unless(not line, Refusal.UNSAFE_SUM, line)
        if not all(hiding):
            is_known = [name in session.neighbours for name in together.names]
            known = together.weights[:, is_known]
            own = sum(is_known[: together.names.index(self._client)])
            share = share_of(known, own, MAX_SHARE)
            refuse_unless(
                share <= MAX_SHARE,
                Refusal.UNSAFE_SUM,
                f"it would be {share:.0%} of a combination of these and earlier sums"
                " over the clients whose keys it has, which would not hide its vector"
                f" (at most {MAX_SHARE:.0%})",
            )
            refuse_unless(
                others_hide(known)[own],
                Refusal.UNSAFE_SUM,
                "in a combination of these and earlier sums the parts of the other"
                " clients whose keys it has are so small that they round to 0, and would"
                " not hide its vector",
            )
        return together, members, near

    def _confirm(
        self, session: _Session, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Confirm to each neighbour whose vectors arrived; one list, as each stage is done
        once.

        Args:
            session: the sum.
            arrays: whether the vector of each client of the sum arrived ("arrived").

        Returns:
            A code for each neighbour whose vector arrived ("codes"), zeros for others.
        """
        arrived, count = arrays.get("arrived"), len(session.neighbours)
        refuse_unless(
            arrived is not None and _is_boolean(arrived, len(session.columns)),
            Refusal.MALFORMED,
            "the request to confirm a sum is not well formed",
        )
        assert arrived is not None
        session.arrived = frozenset(np.array(session.columns, object)[arrived])
        senders = session.arrived.intersection(session.neighbours)
        refuse_unless(
            senders <= set(session.shares) and self._client in senders,
            Refusal.UNSAFE_SUM,
            "the vectors of other clients arrived than those of this sum",
        )
        refuse_unless(
            len(senders) >= session.threshold,
            Refusal.UNSAFE_SUM,
            f"only {len(senders)} of {count} vectors arrived, and {session.threshold}"
            " are needed",
        )
        # On a ring of more clients what all confirm is passed on by those next to each
        # other. With one of them left on a side, that one could tell both sides other
        # lists; with this many, so many on both sides have to work together.
        around = neighbours_of(self._client, session.columns, MAX_NEIGHBOURS)
        least = self._settings.reconstruction_threshold(len(around))
        refuse_unless(
            len(around) == len(session.columns)
            or len(senders) >= max(least, len(around) // 2 + 2),
            Refusal.UNSAFE_SUM,
            f"only {len(senders)} vectors of the {len(around)} clients next to it arrived",
        )
        absent = set(session.columns) - session.arrived
        together, members, near = self._check_hidden(session, absent)
        # No sum of its vector opens without its codes. So the sum counts from now on, as
        # who is not asked to open it does not learn whether it was.
        self._history.record(
            self._round,
            list(session.vector_name),
            together,
            members,
            self._run,
            near=near,
        )
        codes = np.zeros((count, CODE_BYTES), np.uint8)
        for index, other in enumerate(session.neighbours):
            if other in senders and other != self._client:
                codes[index] = _bytes(session.code(self._client, other))
        return {"codes": codes}

    def _reveal_shares(
        self, session: _Session, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Reveal one share for each neighbour, and never both.

        If the vector of the neighbour arrived, it is the share of the seed of its self
        mask, else the share of its secret for pairwise masks.

        Args:
            session: the sum.
            arrays: the code of each neighbour whose vector arrived ("codes").
        """
        count = len(session.neighbours)
        codes = _rows(arrays, "codes", count, CODE_BYTES)
        revealed = np.zeros((count, SECRET_BYTES), np.uint8)
        for index, other in enumerate(session.neighbours):
            has_arrived = other in session.arrived
            if has_arrived and other != self._client:
                refuse_unless(
                    hmac.compare_digest(
                        codes[index], session.code(other, self._client)
                    ),
                    Refusal.UNSAFE_SUM,
                    f"client {other} did not confirm that the vectors of the same clients"
                    " are in this sum, with the same weights",
                )
            if other in session.shares:
                seed_share, key_share = session.shares[other]
                revealed[index] = _bytes(seed_share if has_arrived else key_share)
        return {"shares": revealed}


def mask_session(
    session: str,
    vector: tuple[str, int | None],
    columns: Sequence[str],
    weights: np.ndarray,
    asked: str,
) -> str:
    """The name from which the masks of a sum are derived.

    It holds which vector is added, the weights of all clients, and what they were asked.
    The masks of two clients that received different ones do not cancel.
    """
    text = json.dumps([session, vector, list(columns), weights.shape, asked])
    content = text.encode() + np.ascontiguousarray(weights, "<f8").tobytes()
    return f"{session} {hashlib.sha256(content).hexdigest()}"


def pairwise_mask(
    keys: KeyPair,
    other_key: bytes,
    session: str,
    client: str,
    other: str,
    shape: tuple[int, ...],
    words: int,
) -> UInt32[np.ndarray, "..."]:
    """The mask that a client adds to its vectors for one of its neighbours.

    The masks of the two clients cancel: of the two, the one whose name comes second
    adds the negative mask.

    Args:
        keys: key pair for masks of one of the two clients.
        other_key: public key for masks of the other one of the two.
        session: name of the sum.
        client: name of the client that adds the mask.
        other: name of its neighbour.
        shape: shape of the client's vectors, [s, n].
        words: see `add_words`.
    """
    mask = expand_mask(keys.agree_on_key(other_key, f"mask {session}"), shape)
    return mask if client < other else negative_words(mask, words)


def _associated_text(session: str, sender: str, recipient: str) -> str:
    """The text that binds encrypted shares to one sum, sender and recipient."""
    return json.dumps([session, sender, recipient])


def _are_equal(weights: np.ndarray, clients: int) -> bool:
    """Whether there is one sum, in which so many clients have the same weight."""
    is_one = weights.shape == (1, clients) and bool((weights == weights[0, 0]).all())
    return is_one and abs(weights[0, 0] * clients - 1) <= 1e-9


def _is_boolean(array: np.ndarray, count: int) -> bool:
    return array.shape == (count,) and array.dtype == np.bool_


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _rows(
    arrays: Mapping[str, np.ndarray], name: str, count: int, size: int
) -> list[bytes]:
    """The rows of an array [count, size] of bytes.

    Raises:
        Refused: the array is missing, or has another shape or type.
    """
    array = arrays.get(name)
    fits = (
        array is not None and array.shape == (count, size) and array.dtype == np.uint8
    )
    refuse_unless(
        fits,
        Refusal.MALFORMED,
        f"the request of a sum holds no {name!r} of {count} clients",
    )
    assert array is not None
    return [row.tobytes() for row in array]
