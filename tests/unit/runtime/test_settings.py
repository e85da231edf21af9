"""What a site may set: who gets alerts, and its own word on Xids and rules."""

from pathlib import Path

import pytest

from paceline.model.errors import BadRequest, HostSetup
from paceline.runtime.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WEBHOOK_URLS", "WEBHOOK_SECRET", "XID_POLICY_FILE", "RULES_FILE"):
        monkeypatch.delenv(f"PACELINE_{name}", raising=False)
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def test_a_site_without_files_has_no_word_of_its_own(settings: Path) -> None:
    assert (Settings().site_rules, Settings().xid_policy, Settings().webhooks) == ("", "", ())


def test_files_in_the_home_are_found_and_named_ones_win(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings / "rules.csv").write_text("rule_id,mode,reason\n")
    (settings / "xid_policy.csv").write_text("code,advice,why\n")
    assert Settings().site_rules == "rule_id,mode,reason\n"
    assert Settings().xid_policy == "code,advice,why\n"
    other = settings / "other.csv"
    other.write_text("rule_id,mode,reason\nxid,shadow,on trial\n")
    monkeypatch.setenv("PACELINE_RULES_FILE", str(other))
    assert "on trial" in Settings().site_rules


def test_a_named_file_that_is_not_there_is_an_error(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RULES_FILE", str(settings / "nix.csv"))
    with pytest.raises(HostSetup, match=r"nix\.csv does not exist"):
        _ = Settings().site_rules
    (settings / "bad.csv").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("PACELINE_XID_POLICY_FILE", str(settings / "bad.csv"))
    with pytest.raises(HostSetup, match="cannot be read"):
        _ = Settings().xid_policy


def test_webhooks_are_listed_once_each_and_need_a_secret(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_WEBHOOK_URLS", "https://a.example/x, https://b.example/y https://a.example/x")
    with pytest.raises(BadRequest, match="has no secret"):
        _ = Settings().webhooks
    monkeypatch.setenv("PACELINE_WEBHOOK_SECRET", "s3cret")
    assert [hook.url for hook in Settings().webhooks] == ["https://a.example/x", "https://b.example/y"]
    assert "s3cret" not in repr(Settings())
