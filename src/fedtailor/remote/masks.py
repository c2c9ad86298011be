"""The cryptography of secure sums: keys, masks, sealed shares of secrets, fixed point.

X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 are those of `cryptography`, Shamir's
secret sharing is that of PyCryptodome, which Flower's own secure aggregation uses, too
(both come with the extra `flower`). Flower's generator of masks is not used: it folds a
key to 32 bits, which a coordinator could try out, and seeds a Mersenne Twister.
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
"""Length of a secret from which a key or a mask follows, and of each of its shares."""

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
SEALED_BYTES = NONCE_BYTES + 2 * SECRET_BYTES + TAG_BYTES
"""Length of two sealed shares."""

_HEADROOM = 2.0**20
"""Steps by which rounding may make a sum larger: half a step for each client."""


@dataclass(frozen=True)
class KeyPair:
    """A key pair for key agreement (X25519), derived from a secret."""

    secret: bytes

    @property
    def public(self) -> bytes:
        """The public half."""
        return self._private().public_key().public_bytes_raw()

    def agree(self, public: bytes, purpose: str) -> bytes:
        """Agree on a key with the owner of another key pair.

        Args:
            public: the public half of the other pair.
            purpose: different purposes give independent keys.

        Returns:
            A key that only the two owners can compute.

        Raises:
            ValueError: `public` is no public key.
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
    """Derive a key for one purpose from a secret."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"fedtailor secure sums: {purpose}".encode()
    hkdf = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info)
    return hkdf.derive(secret)


def mask_of(secret: bytes, size: int) -> UInt32[np.ndarray, " size"]:
    """Expand a secret to a mask, by the key stream of ChaCha20.

    To whoever does not know the secret its numbers look uniformly random. A secret may
    be used for one mask only, as the nonce is always the same.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = algorithms.ChaCha20(_derived(secret, "mask"), bytes(16))
    stream = Cipher(cipher, mode=None).encryptor().update(bytes(4 * size))
    return np.frombuffer(stream, "<u4").astype(np.uint32)


def seal(key: bytes, content: bytes, label: str) -> bytes:
    """Encrypt `content`, such that a change of it or of the label is detected."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, label.encode())


def unseal(key: bytes, sealed: bytes, label: str) -> bytes:
    """Decrypt what `seal` made.

    Raises:
        ValueError: it was changed, or sealed with another key or label.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce, encrypted = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, encrypted, label.encode())
    except InvalidTag:
        raise ValueError("it was changed on the way") from None


def commitment(secret: bytes) -> bytes:
    """A hash by which a secret can be recognized later, and that does not tell it."""
    return hashlib.sha256(b"fedtailor secure sums" + secret).digest()


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Split a secret into shares (Shamir 1979, over GF(2^128)).

    Returns:
        `count` shares, of which any `threshold` give the secret and fewer say nothing.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    shares = Shamir.split(threshold, count, secret, ssss=False)
    return [share for _, share in sorted(shares)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Recover a secret from exactly `threshold` of its shares.

    Args:
        shares: by their positions in the list that `split` returned.

    Returns:
        The secret; something else if a share is wrong.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    numbered = [(position + 1, share) for position, share in shares.items()]
    return Shamir.combine(numbered, ssss=False)


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of at most `range` as integers modulo 2^32, which add up exactly.

    A rounded number is off by at most half a step, so a sum over n clients by at most
    n/2 steps.
    """

    range: float

    @property
    def step(self) -> float:
        """The difference of neighbouring numbers: 3e-8 for a range of 64."""
        return self.range / (2.0**31 - _HEADROOM)

    def check(self, vector: Float[np.ndarray, "..."]) -> None:
        """Refuse a vector that cannot be encoded.

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
        """Numbers within the range as numbers of steps, modulo 2^32."""
        steps = np.rint(values.astype(np.float64) / self.step).astype(np.int64)
        return steps.astype(np.uint32)

    def decode(self, steps: UInt32[np.ndarray, "..."]) -> NDArray[np.float64]:
        """The numbers that were encoded, or their sum from a sum of steps."""
        return steps.view(np.int32).astype(np.float64) * self.step
