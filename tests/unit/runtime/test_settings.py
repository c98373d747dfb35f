"""Settings are read from the environment and from files, and refused with every reason at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.runtime.config import ServiceSettings, SettingsError, is_loopback, load_settings, split_address

URL = "postgresql://someone:hush@127.0.0.1/x"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_POSTGRES_URL", URL)


def test_a_secret_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{URL}?connect_timeout=3\n")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL")
    monkeypatch.setenv("ANABRANCH_POSTGRES_URL_FILE", str(file))
    assert load_settings(ServiceSettings).postgres_url.get_secret_value() == f"{URL}?connect_timeout=3"


def test_a_secret_in_two_places_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANABRANCH_POSTGRES_URL_FILE", str(tmp_path / "url"))
    with pytest.raises(SettingsError, match="ANABRANCH_POSTGRES_URL and ANABRANCH_POSTGRES_URL_FILE: give one"):
        load_settings(ServiceSettings)


def test_a_secrets_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANABRANCH_JWT_HS256_SECRET_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="ANABRANCH_JWT_HS256_SECRET_FILE"):
        load_settings(ServiceSettings)


def test_every_wrong_variable_is_named_and_no_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_DRAIN_MS", "soon")
    monkeypatch.setenv("ANABRANCH_LOG_LEVEL", "loud")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL")
    with pytest.raises(SettingsError) as caught:
        load_settings(ServiceSettings)
    told = str(caught.value)
    for variable in ("ANABRANCH_DRAIN_MS", "ANABRANCH_LOG_LEVEL", "ANABRANCH_POSTGRES_URL"):
        assert variable in told
    assert "soon" not in told


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(load_settings(ServiceSettings))


def test_nothing_listens_beyond_loopback_without_tls_unless_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_LISTEN_ADDRESS", "0.0.0.0:7401")
    with pytest.raises(SettingsError, match="ANABRANCH_ALLOW_PLAINTEXT_BEYOND_LOOPBACK=true"):
        load_settings(ServiceSettings)
    monkeypatch.setenv("ANABRANCH_ALLOW_PLAINTEXT_BEYOND_LOOPBACK", "true")
    assert not load_settings(ServiceSettings).tls
    monkeypatch.delenv("ANABRANCH_ALLOW_PLAINTEXT_BEYOND_LOOPBACK")
    monkeypatch.setenv("ANABRANCH_TLS_CERT_FILE", "/cert")
    monkeypatch.setenv("ANABRANCH_TLS_KEY_FILE", "/key")
    assert load_settings(ServiceSettings).tls


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.10:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/run/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.0.2.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_what_counts_as_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize("address", ["", "x", "x:", "x:y", "x:65536", ":-1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="is no host:port"):
        split_address(address)
