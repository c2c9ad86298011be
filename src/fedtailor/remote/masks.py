"""What secure sums are made of: keys that two clients agree on, masks, sealed shares of
secrets, and fixed point.

X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 are those of `cryptography`, Shamir's
shares those of PyCryptodome, on which Flower's own secure aggregation stands, too (both
come with the extra `flower`). Flower's generator of masks is not used: it folds a key
to 32 bits, which a coordinator could try out, and seeds a Mersenne Twister with them.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import NDArray

from fedtailor.protocol import require

SECRET_BYTES = 16
"""Length of a secret from which a key or a mask follows; Shamir's shares are as long.
"""

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
SEALED_BYTES = NONCE_BYTES + 2 * SECRET_BYTES + TAG_BYTES
"""Length of two sealed shares."""

_HEADROOM = 2.0**20
"""Whole steps that are left for what rounding adds to a sum: half a step for each
client.
"""


@dataclass(frozen=True)
class KeyPair:
    """A key for agreements with others (X25519), which follows from a secret."""

    secret: bytes

    @property
    def public(self) -> bytes:
        """The public half."""
        return self._private().public_key().public_bytes_raw()

    def agree(self, public: bytes, purpose: str) -> bytes:
        """A key for one purpose that only the owners of two key pairs know.

        Raises:
            ValueError: the other one's public key is none.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            shared = self._private().exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ValueError("a public key for secure sums is none") from None
        return _derived(shared, purpose)

    # No type of the result: `cryptography` is not imported before it is needed.
    def _private(self):  # noqa: ANN202
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(_derived(self.secret, "key pair"))


def _derived(secret: bytes, purpose: str) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"fedtailor secure sums: {purpose}".encode()
    return HKDF(
        algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info
    ).derive(secret)


def mask_of(secret: bytes, size: int) -> UInt32[np.ndarray, " size"]:
    """Numbers that look uniformly random to whoever does not know the secret: a key
    stream of ChaCha20.

    A secret makes one mask: the nonce is always the same.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(
        algorithms.ChaCha20(_derived(secret, "mask"), bytes(16)), mode=None
    ).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), "<u4").astype(np.uint32)


def seal(key: bytes, content: bytes, label: str) -> bytes:
    """Encrypt, such that any change of the content or of the label is noticed."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, label.encode())


def unseal(key: bytes, sealed: bytes, label: str) -> bytes:
    """The opposite of `seal`.

    Raises:
        ValueError: it was changed, or sealed with another key or label.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(
            sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], label.encode()
        )
    except InvalidTag:
        raise ValueError("it was changed on the way") from None


def commitment(secret: bytes) -> bytes:
    """What shows later that a secret is the one that was shared, and does not tell
    it.
    """
    return hashlib.sha256(b"fedtailor secure sums" + secret).digest()


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret, of which `threshold` give it and fewer say nothing (Shamir
    1979, over GF(2^128)).
    """
    from Crypto.Protocol.SecretSharing import Shamir

    return [
        share for _, share in sorted(Shamir.split(threshold, count, secret, ssss=False))
    ]


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of as many shares as it takes, by their places (from 0); of wrong ones
    something else.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    return Shamir.combine(
        [(place + 1, share) for place, share in shares.items()], ssss=False
    )


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of at most `range` as whole steps modulo 2^32, which add up exactly.

    A rounded number is off by at most half a step, so a sum over n clients by at most n
    / 2 steps.
    """

    range: float

    @property
    def step(self) -> float:
        """The distance of neighbouring numbers: 3e-8 for a range of 64."""
        return self.range / (2.0**31 - _HEADROOM)

    def check(self, vector: Float[np.ndarray, "..."]) -> None:
        """Refuse a vector that does not fit.

        Raises:
            ValueError: a number is out of range, or not finite.
        """
        largest = float(np.abs(vector).max(initial=0.0))
        require(
            largest <= self.range,
            f"it would send a number of size {largest:g}, and sums hold numbers up to "
            f"{self.range:g}; raise sum_range of the job's [privacy]",
        )

    def encode(self, values: Float[np.ndarray, "..."]) -> UInt32[np.ndarray, "..."]:
        """Numbers within the range as steps."""
        return (
            np.rint(values.astype(np.float64) / self.step)
            .astype(np.int64)
            .astype(np.uint32)
        )

    def decode(self, steps: UInt32[np.ndarray, "..."]) -> NDArray[np.float64]:
        """The opposite of `encode`, also of sums."""
        return steps.view(np.int32).astype(np.float64) * self.step
