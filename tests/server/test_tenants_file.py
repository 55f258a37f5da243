"""The file of tenants: what it may say, and what is told of it when it is wrong."""

from __future__ import annotations

import hashlib

import pytest

from rondel.decoder.errors import InvalidSpec, Unauthenticated
from rondel.server.quota import NO_QUOTA, Quota
from rondel.server.tenants_file import read_tenants
from rondel.server.tokens import TokenTable, bearer_token

SECRET = "correct-horse-battery-staple"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def test_everything_that_a_file_may_say() -> None:
    file = read_tenants(f"""
        [tenants.alpha]
        tokens = [
            {{ token = "first-token-of-alpha" }},
            {{ sha256 = "{DIGEST}", expires = 2001-09-09T01:46:40Z }},
        ]
        certificates = ["alpha.example", "spiffe://example/alpha"]
        max_streams = 3
        max_bytes = 1_000_000
        steps_per_second = 12.5
        max_calls = 7
        [tenants."Ümläut & co"]
        steps_per_second = 10
    """)
    assert file.quotas == {
        "alpha": Quota(max_streams=3, max_bytes=1_000_000, steps_per_second=12.5, max_calls=7),
        "Ümläut & co": Quota(steps_per_second=10),
    }
    assert file.certificates == {"alpha.example": "alpha", "spiffe://example/alpha": "alpha"}
    table = TokenTable(file.tokens)
    assert len(table) == 2
    assert table.tenant_of("first-token-of-alpha", 4e9) == "alpha"
    assert table.tenant_of(SECRET, 999_999_999.9) == "alpha"
    with pytest.raises(Unauthenticated, match="expired"):
        table.tenant_of(SECRET, 1_000_000_000.0)
    with pytest.raises(Unauthenticated, match="not one of this server's"):
        table.tenant_of(DIGEST, 0)
    assert SECRET not in repr(file)
    assert "first-token-of-alpha" not in repr(file)


def test_a_tenant_may_have_nothing() -> None:
    assert read_tenants("[tenants.a]").quotas == {"a": NO_QUOTA}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "table [tenants.NAME]"),
        ("tenants = 3", "table [tenants.NAME]"),
        ("[tenants]", "table [tenants.NAME]"),
        ("[tenants.a]\n[users.b]", "nothing else"),
        ("tenants.a = 3", "a table for tenant a"),
        ("[tenants.a", "no TOML"),
        (f'[tenants.a]\ntokens = [{{ token = "{SECRET}" }}', "no TOML"),
        ('[tenants.""]', "1 to 64 bytes"),
        (f"[tenants.{'a' * 65}]", "1 to 64 bytes"),
        ('[tenants."a\\nb"]', "printable"),
        (f'[tenants.a]\ntokens = "{SECRET}"', "a list of tables as tokens"),
        (f'[tenants.a]\ntokens = ["{SECRET}"]', "a list of tables as tokens"),
        (f'[tenants.a]\ntokens = [{{ secret = "{SECRET}" }}]', "sha256 or token"),
        (f'[tenants.a]\ntokens = [{{ token = "{SECRET}", sha256 = "{DIGEST}" }}]', "sha256 or token"),
        ("[tenants.a]\ntokens = [{ expires = 2030-01-01T00:00:00Z }]", "sha256 or token"),
        (f'[tenants.a]\ntokens = [{{ token = "{SECRET}", expires = 2030-01-01T00:00:00 }}]', "offset"),
        (f'[tenants.a]\ntokens = [{{ token = "{SECRET}", expires = 5 }}]', "offset"),
        ("[tenants.a]\ntokens = [{ token = 5 }]", "16 to 512"),
        ('[tenants.a]\ntokens = [{ token = "short" }]', "16 to 512"),
        (f'[tenants.a]\ntokens = [{{ token = "{SECRET} " }}]', "without spaces"),
        (f'[tenants.a]\ntokens = [{{ token = "é{SECRET}" }}]', "ASCII"),
        (f'[tenants.a]\ntokens = [{{ token = "{"x" * 513}" }}]', "16 to 512"),
        (f'[tenants.a]\ntokens = [{{ sha256 = "{DIGEST[:-1]}" }}]', "64 hexadecimal"),
        (f'[tenants.a]\ntokens = [{{ sha256 = "{DIGEST[:-3]}  0" }}]', "64 hexadecimal"),
        (f'[tenants.a]\ntokens = [{{ sha256 = "{DIGEST[:-1]}g" }}]', "64 hexadecimal"),
        (
            f'[tenants.a]\ntokens = [{{ token = "{SECRET}" }}]\n'
            f'[tenants.b]\ntokens = [{{ sha256 = "{DIGEST}" }}]',
            "another's as well",
        ),
        (f'[tenants.a]\ntokens = [{{ token = "{SECRET}" }}, {{ sha256 = "{DIGEST}" }}]', "twice"),
        ('[tenants.a]\ncertificates = ["x"]\n[tenants.b]\ncertificates = ["x"]', "another's as well"),
        ('[tenants.a]\ncertificates = [""]', "empty"),
        ("[tenants.a]\ncertificates = [3]", "a list of texts"),
        ("[tenants.a]\nmax_stream = 3", "unknown settings for tenant a, max_stream"),
        ("[tenants.a]\nmax_streams = -1", "an integer from 0"),
        ("[tenants.a]\nmax_streams = true", "an integer from 0"),
        ("[tenants.a]\nmax_calls = 1.5", "an integer from 0"),
        ("[tenants.a]\nmax_bytes = 281474976710657", "an integer from 0"),
        ("[tenants.a]\nsteps_per_second = 0", "above 0"),
        ("[tenants.a]\nsteps_per_second = nan", "above 0"),
        ("[tenants.a]\nsteps_per_second = inf", "above 0"),
        ('[tenants.a]\nsteps_per_second = "9"', "above 0"),
        ("[tenants.a]\nsteps_per_second = true", "above 0"),
    ],
)
def test_what_is_wrong_is_told_without_the_token(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read_tenants(text)
    assert words in caught.value.message
    assert caught.value.field == "tenants_file"
    for secret in (SECRET, DIGEST, SECRET[:10], DIGEST[:10]):
        assert secret not in caught.value.message


@pytest.mark.parametrize(
    "value", [f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER  {SECRET}", f"Bearer {SECRET} "]
)
def test_a_bearer_token_is_found(value: str) -> None:
    assert bearer_token([("user-agent", "x"), ("authorization", value)]) == SECRET


@pytest.mark.parametrize("metadata", [None, [], [("x-authorization", f"Bearer {SECRET}")]])
def test_no_token(metadata: list[tuple[str, str | bytes]] | None) -> None:
    assert bearer_token(metadata) is None


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", b"Bearer x"])
def test_what_is_no_bearer_token(value: str | bytes) -> None:
    with pytest.raises(Unauthenticated, match="one bearer token"):
        bearer_token([("authorization", value)])


def test_two_tokens_are_not_one() -> None:
    with pytest.raises(Unauthenticated, match="one bearer token"):
        bearer_token([("authorization", f"Bearer {SECRET}")] * 2)


def test_tokens_are_found_among_many_and_no_other_text_is_one() -> None:
    tokens = [f"token-number-{number:06}" for number in range(500)]
    text = "\n".join(f'[tenants.t{n}]\ntokens = [{{ token = "{token}" }}]' for n, token in enumerate(tokens))
    table = TokenTable(read_tenants(text).tokens)
    assert [table.tenant_of(token, 0) for token in tokens] == [f"t{n}" for n in range(500)]
    for wrong in (
        "token-number-000500",
        "token-number-00000",
        "token-number-0000000",
        "\ud800",
        "é" * 16,
        "\0",
    ):
        with pytest.raises(Unauthenticated):
            table.tenant_of(wrong, 0)
