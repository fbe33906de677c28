"""Signed access tokens (JWT, HS256) and the development command that mints them.

The Auth/Session service mints tokens; the gateway only verifies them (SEQ-23). Claims, all required: `tenant` and `user` as
canonical decimal strings (SDK-16: they do not fit the numbers of JSON readers), `device` as 32 lower-case hex digits,
`session_epoch` and `exp` (seconds) as numbers. Time is passed in. Neither tokens nor claims are ever logged (OBS-10).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jwt

from schemas.config import Settings
from schemas.errors import ErrorCode, IdentifierError, RequestError
from schemas.identifiers import DeviceId, SessionEpoch, TenantId, UserId

__all__ = ["AccessTokens", "Identity", "main"]

_ALGORITHM: Final = "HS256"
_REQUIRED: Final = ("tenant", "user", "device", "session_epoch", "exp")
MIN_KEY_BYTES: Final = 32  # RFC 7518 §3.2: not shorter than the hash
_U128_DIGITS: Final = 39
_DEVICE_DIGITS: Final = 32


class Identity(NamedTuple):
    """Who holds a connection: one device of one user in one session."""

    tenant: int
    user: int
    device_id: bytes
    session_epoch: int


def _decimal(value: object) -> int:
    if not isinstance(value, str) or not value.isascii() or not value.isdigit():
        raise IdentifierError("claim is not a decimal string")
    if len(value) > _U128_DIGITS:
        raise IdentifierError("claim is too long")
    if value != str(int(value)):
        raise IdentifierError("claim is not canonical")
    return int(value)


def _identity(claims: dict[str, Any]) -> Identity:
    device = claims["device"]
    if not isinstance(device, str) or len(device) != _DEVICE_DIGITS or device != device.lower():
        raise IdentifierError("device claim is not 32 hex digits")
    if not isinstance(claims["session_epoch"], int):
        raise IdentifierError("session_epoch claim is not a number")
    return Identity(
        TenantId(_decimal(claims["tenant"])),
        UserId(_decimal(claims["user"])),
        DeviceId(bytes.fromhex(device)),
        SessionEpoch(claims["session_epoch"]),
    )


class AccessTokens:
    """Verifies (and in development mints) access tokens with one shared key of at least 32 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"the access token key needs at least {MIN_KEY_BYTES} bytes")
        self._key = key
        # `exp` is judged against the time we are given; PyJWT would read its own clock.
        self._options: Any = {
            "require": list(_REQUIRED),
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
        }

    def mint(self, identity: Identity, expires_at_s: int) -> str:
        """A token for `identity`, valid until `expires_at_s` (seconds since the epoch)."""
        claims = {
            "tenant": str(int(identity.tenant)),
            "user": str(int(identity.user)),
            "device": identity.device_id.hex(),
            "session_epoch": int(identity.session_epoch),
            "exp": expires_at_s,
        }
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM)

    def verify(self, token: str, now_s: float) -> Identity:
        """The identity a valid token names; raises RequestError(AUTH_FAILED) for every kind of wrong token.

        The detail says which check failed but never quotes the token.
        """
        try:
            claims = jwt.decode(token, self._key, algorithms=[_ALGORITHM], options=self._options)
            identity = _identity(claims)
            expires_at_s = claims["exp"]
            if isinstance(expires_at_s, bool) or not isinstance(expires_at_s, int | float):
                raise IdentifierError("exp is not a number")
        except (jwt.PyJWTError, IdentifierError, ValueError) as error:
            raise RequestError(
                f"access token refused: {type(error).__name__}", ErrorCode.AUTH_FAILED
            ) from None
        if expires_at_s <= now_s:
            raise RequestError("access token expired", ErrorCode.AUTH_FAILED)
        return identity


def main(argv: Sequence[str] | None = None) -> int:
    """`qim token`: print an access token signed with QIM_TOKEN_SECRET, for development and tests; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="qim token", description="mint a development access token"
    )
    parser.add_argument("--tenant", type=int, default=0)
    parser.add_argument("--user", type=int, required=True)
    parser.add_argument("--device", required=True, help="32 hex digits")
    parser.add_argument("--session-epoch", type=int, default=1)
    parser.add_argument("--ttl-s", type=int, default=24 * 3600)
    options = parser.parse_args(argv)
    secret = Settings().token_secret.get_secret_value().encode()
    try:
        identity = Identity(
            TenantId(options.tenant),
            UserId(options.user),
            DeviceId(bytes.fromhex(options.device)),
            SessionEpoch(options.session_epoch),
        )
        print(AccessTokens(secret).mint(identity, int(time.time()) + options.ttl_s))
    except ValueError as error:  # IdentifierError is one; a short secret or bad hex digits as well
        parser.error(str(error))
    return 0
