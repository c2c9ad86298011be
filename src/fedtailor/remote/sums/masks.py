"""The cryptography of secure aggregation.

Key agreement, masks, encrypted secret shares, and fixed-point numbers.

X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 come from `cryptography`. Shamir's secret
sharing comes from PyCryptodome. The extra `federation` installs both.
"""

import hashlib
import hmac
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt32

SECRET_BYTES = 16
"""Length of the seed of a key pair or of a mask, and of each share of it."""

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
CIPHERTEXT_BYTES = NONCE_BYTES + 2 * SECRET_BYTES + TAG_BYTES
"""Length of two encrypted shares: nonce, shares, authentication tag."""

CODE_BYTES = 32
"""Length of an authentication code."""


@dataclass(frozen=True)
class KeyPair:
    """A key pair for key agreement (X25519), derived from a secret."""

    secret: bytes

    @property
    def public(self) -> bytes:
        """The public half."""
        return self._private().public_key().public_bytes_raw()

    def agree_on_key(self, public: bytes, purpose: str) -> bytes:
        """Agree on a key with the owner of another key pair.

        Args:
            public: the public half of the other pair.
            purpose: what the key is for; different purposes give independent keys.

        Returns:
            A key that only the two owners can compute.

        Raises:
            ValueError: `public` is not a public key.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            shared = self._private().exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ValueError("a public key for secure sums is not valid") from None
        return _derive_key(shared, purpose)

    # The return type is left out, as `cryptography` is imported only when needed.
    def _private(self):  # noqa: ANN202
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(_derive_key(self.secret, "key pair"))


def _derive_key(secret: bytes, purpose: str) -> bytes:
    """Derive a key for one purpose from a secret."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"fedtailor secure sums: {purpose}".encode()
    hkdf = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info)
    return hkdf.derive(secret)


def expand_mask(seed: bytes, shape: tuple[int, ...]) -> UInt32[np.ndarray, "..."]:
    """Expand a seed to a pseudorandom mask, with ChaCha20 as the generator.

    Without the seed the mask cannot be told from uniformly random numbers. A seed must
    be used for one mask only, as the nonce is constant.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = algorithms.ChaCha20(_derive_key(seed, "mask"), bytes(16))
    stream = Cipher(cipher, mode=None).encryptor().update(bytes(4 * math.prod(shape)))
    return np.frombuffer(stream, "<u4").astype(np.uint32).reshape(shape)


def encrypt(key: bytes, content: bytes, associated: str) -> bytes:
    """Encrypt and authenticate content.

    Args:
        key: of `KEY_BYTES` bytes.
        content: to be encrypted.
        associated: text that is authenticated, but not part of the result; `decrypt`
            needs the same.

    Returns:
        The nonce, followed by the ciphertext.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, associated.encode())


def decrypt(key: bytes, message: bytes, associated: str) -> bytes:
    """Decrypt the result of `encrypt`.

    Raises:
        ValueError: it was changed, or encrypted with another key or associated text.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce, ciphertext = message[:NONCE_BYTES], message[NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, ciphertext, associated.encode())
    except InvalidTag:
        raise ValueError("it was changed on the way") from None


def authentication_code(key: bytes, text: str) -> bytes:
    """A code of a text that only who has the key can compute (HMAC with SHA-256)."""
    return hmac.digest(_derive_key(key, "code"), text.encode(), "sha256")


def commitment(secret: bytes) -> bytes:
    """Commit to a secret by its hash, which identifies but does not reveal it."""
    return hashlib.sha256(b"fedtailor secure sums" + secret).digest()


def create_shares(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Split a secret into shares (Shamir 1979, over GF(2^128)).

    Returns:
        `count` shares. Any `threshold` of them determine the secret, and fewer reveal
        nothing about it.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    shares = Shamir.split(threshold, count, secret, ssss=False)
    return [share for _, share in sorted(shares)]


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Reconstruct a secret from exactly `threshold` of its shares.

    Args:
        shares: by their positions in the list that `create_shares` returned.

    Returns:
        The secret, or other bytes if a share is wrong.
    """
    from Crypto.Protocol.SecretSharing import Shamir

    numbered = [(position + 1, share) for position, share in shares.items()]
    return Shamir.combine(numbered, ssss=False)
