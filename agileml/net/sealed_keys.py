"""The run's key pair on its way to a process: sealed for a key that the process made itself (HPKE, RFC 9180).

Ray carries what it is given in clear: between hosts, in its head's tables of actors, on disk where objects spill. So
the run's keys are never given to Ray. A process makes a pair of its own and tells the driver the public half; the
driver seals the run's keys for it, and only that process can open them. An eavesdropper sees no key. An attacker who
can change Ray's messages could give the driver a key of their own: Ray's own token and TLS prevent that.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from agileml.net.keys import KeyPair

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
HALF_BYTES = 40  # of a key pair's halves, as Z85


class SealError(ValueError):
    """Sealed keys are not for this process, or were changed on the way; the message is one sentence."""


class KeyRecipient:
    """A process's own key pair, made for one delivery. The secret half never leaves the process."""

    def __init__(self, run: str, name: str) -> None:
        self._secret = X25519PrivateKey.generate()
        self._info = _info(run, name)

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes, which is no secret."""
        return self._secret.public_key().public_bytes_raw()

    def open(self, sealed: bytes) -> KeyPair:
        """The keys that `seal` closed in. Raises SealError."""
        try:
            plain = SUITE.decrypt(sealed, self._secret, info=self._info)
            return KeyPair(plain[:HALF_BYTES], plain[HALF_BYTES:])
        except (InvalidTag, ValueError) as error:
            raise SealError("these keys are sealed for another process") from error


def seal(keys: KeyPair, public: bytes, run: str, name: str) -> bytes:
    """The run's keys for the process `name` of `run`, which said that `public` is its key. Raises SealError."""
    try:
        recipient = X25519PublicKey.from_public_bytes(public)
        return SUITE.encrypt(keys.public + keys.secret, recipient, info=_info(run, name))
    except ValueError as error:  # of another length, or a point with which no secret can be shared
        raise SealError(f"{name} told no public key that keys can be sealed for: {public.hex()}") from error


def _info(run: str, name: str) -> bytes:
    """Binds sealed keys to one process of one run."""
    return f"proteus keys of {run} for {name}".encode()
