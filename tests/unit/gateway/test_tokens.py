from typing import Any

import jwt
import pytest

from gateway.tokens import AccessTokens, Identity, main
from schemas.errors import ErrorCode, RequestError

KEY = b"k" * 32
TOKENS = AccessTokens(KEY)
ALICE = Identity(0, 1001, bytes(range(1, 17)), 3)
NOW_S = 1_700_000_000.0
CLAIMS: dict[str, Any] = {
    "tenant": "0",
    "user": "1001",
    "device": ALICE.device_id.hex(),
    "session_epoch": 3,
    "exp": 1_700_000_060,
}


def signed(claims: dict[str, Any], key: bytes = KEY, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm)


def assert_refused(token: str) -> None:
    with pytest.raises(RequestError) as caught:
        TOKENS.verify(token, NOW_S)
    assert caught.value.code is ErrorCode.AUTH_FAILED
    assert token not in caught.value.detail or not token


def test_minted_tokens_verify_to_the_same_identity() -> None:
    for identity in (
        ALICE,
        Identity((1 << 128) - 1, (1 << 63) - 1, b"\xff" * 16, (1 << 63) - 1),
        Identity(7, (1 << 53) + 1, b"\x01" * 16, 0),
    ):
        token = TOKENS.mint(identity, int(NOW_S) + 1)
        assert TOKENS.verify(token, NOW_S) == identity


def test_claims_are_as_documented() -> None:
    token = TOKENS.mint(ALICE, 1_700_000_060)
    assert jwt.decode(token, KEY, algorithms=["HS256"], options={"verify_exp": False}) == CLAIMS


def test_expiry_is_judged_by_the_given_time() -> None:
    token = signed(CLAIMS)
    assert TOKENS.verify(token, 1_700_000_059.9) == ALICE
    with pytest.raises(RequestError, match="expired"):
        TOKENS.verify(token, 1_700_000_060.0)


@pytest.mark.parametrize("missing", sorted(CLAIMS))
def test_every_claim_is_required(missing: str) -> None:
    assert_refused(signed({k: v for k, v in CLAIMS.items() if k != missing}))


@pytest.mark.contract("SDK-16")
@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("tenant", 0),
        ("tenant", "-1"),
        ("tenant", str(1 << 128)),
        ("tenant", "9" * 40),
        ("user", 1001),
        ("user", "0"),
        ("user", "01001"),
        ("user", str(1 << 63)),
        ("user", "\uff11"),  # a digit, but not an ASCII one
        ("device", ALICE.device_id.hex()[:-2]),
        ("device", "0" * 32),
        ("device", "AB" * 16),
        ("device", "g" * 32),
        ("device", None),
        ("session_epoch", "3"),
        ("session_epoch", -1),
        ("session_epoch", True),
        ("exp", "soon"),
        ("exp", True),
    ],
)
def test_wrong_claims_are_refused(claim: str, value: object) -> None:
    assert_refused(signed({**CLAIMS, claim: value}))


def test_other_keys_algorithms_and_rubbish_are_refused() -> None:
    assert_refused(signed(CLAIMS, b"x" * 32))
    assert_refused(signed(CLAIMS, KEY * 2, "HS512"))
    assert_refused(jwt.encode(CLAIMS, None, algorithm="none"))
    for rubbish in ("", "a.b.c", "ÿ" * 10, signed(CLAIMS)[:-2]):
        assert_refused(rubbish)


def test_a_short_key_does_not_start() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        AccessTokens(b"k" * 31)


def test_dev_command_prints_a_token_that_verifies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QIM_TOKEN_SECRET", KEY.decode())
    arguments = ["--user", "1001", "--device", ALICE.device_id.hex(), "--session-epoch", "3"]
    assert main(arguments) == 0
    assert TOKENS.verify(capsys.readouterr().out.strip(), NOW_S) == ALICE


@pytest.mark.parametrize(
    "arguments",
    [
        ["--user", "0", "--device", "ab" * 16],
        ["--user", "1", "--device", "zz"],
        ["--user", "1", "--device", "ab"],
    ],
)
def test_dev_command_explains_wrong_arguments(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QIM_TOKEN_SECRET", KEY.decode())
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: qim token" in capsys.readouterr().err


def test_dev_command_without_a_secret_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QIM_TOKEN_SECRET", "short")
    with pytest.raises(SystemExit):
        main(["--user", "1", "--device", "ab" * 16])
    assert "32 bytes" in capsys.readouterr().err
