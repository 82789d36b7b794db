"""Signing in with an identity provider: whose account it opens, and every answer that must not open one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from annotation_site import PASSWORD, Browser, Room, open_room
from pydantic import ValidationError
from starlette.testclient import TestClient

from surefoot.server import OidcSettings, PageSettings, create_pages_app
from surefoot.server.pages.provider import Provider

pytest.importorskip("authlib", reason="the extra oidc is not installed")
from joserfc.jwk import ECKey
from oidc_provider import CLIENT, ISSUER, REDIRECT, FakeProvider

SESSION = "__Host-surefoot_session"


@dataclass
class Site:
    """The pages over HTTPS, with a provider."""

    room: Room
    fake: FakeProvider
    now: list[float] = field(default_factory=lambda: [0.0])

    def app(self, *, passwords: bool = True, **oidc: Any) -> Any:
        settings = PageSettings(
            public_url=REDIRECT.removesuffix("/sign-in/callback"),
            passwords=passwords,
            oidc=OidcSettings(issuer=ISSUER, client_id=CLIENT, label="Example ID", **oidc),
        )
        provider = Provider(
            settings.oidc,
            redirect_uri=REDIRECT,
            transport=self.fake.transport,
            clock=lambda: time.time() + self.now[0],
        )
        return create_pages_app(self.room.db, settings, provider=provider)

    def browser(self, app: Any = None) -> Browser:
        return Browser(TestClient(app or self.app(role="annotator"), base_url="https://labels.example"))

    def names(self) -> set[str]:
        return {user.name for user in self.room.db.users.list()}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    room = open_room(tmp_path, wrong=False)
    yield Site(room, FakeProvider(claims={"preferred_username": "olga"}))
    room.db.close()


def ask(site: Site, browser: Browser, to: str = "/projects") -> dict[str, str]:
    """Go to the provider and sign in there; the query with which it sends the browser back."""
    answer = browser.get("/sign-in/provider", params={"next": to})
    assert answer.status_code == 303, answer.text
    return site.fake.sign_in(answer.headers["location"])


def come_back(browser: Browser, query: dict[str, str]) -> Any:
    return browser.get("/sign-in/callback", params=query)


def test_somebody_new_gets_an_account_and_the_same_one_again(site: Site) -> None:
    browser = site.browser()
    page = browser.get("/sign-in?next=/projects/1").text
    assert "Sign in with Example ID" in page
    answer = come_back(browser, ask(site, browser, "/projects/1"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/projects/1")
    assert browser.get("/projects").status_code == 200
    olga = site.room.db.users.by_name("olga")
    assert olga.roles == {"annotator"}
    site.fake.claims["preferred_username"] = "olga the great"  # names change, subjects do not
    again = site.browser()
    assert come_back(again, ask(site, again)).status_code == 303
    assert site.room.db.users.by_identity(ISSUER, "u-1") == olga
    assert "olga the great" not in site.names()
    assert site.room.db.users.sign_in("olga", "") is None


def other_key() -> ECKey:
    return ECKey.generate_key("P-256", {"kid": "one", "use": "sig", "alg": "ES256"})


@pytest.mark.parametrize(
    "change",
    [
        {"claims": {"iss": "https://evil.example"}},
        {"claims": {"iss": ISSUER + "/"}},
        {"claims": {"iss": None}},
        {"claims": {"aud": "another client"}},
        {"claims": {"aud": None}},
        {"claims": {"aud": [CLIENT, "another"]}},  # for both, and not authorised for us
        {"claims": {"aud": [CLIENT, "another"], "azp": "another"}},
        {"claims": {"azp": "another"}},
        {"claims": {"nonce": "another sign-in's"}},
        {"claims": {"nonce": None}},
        {"claims": {"exp": 1}},
        {"claims": {"exp": int(time.time()) - 120}},
        {"claims": {"exp": None}},
        {"claims": {"exp": "tomorrow"}},
        {"claims": {"iat": int(time.time()) + 3600}},
        {"claims": {"iat": None}},
        {"claims": {"nbf": int(time.time()) + 3600}},
        {"claims": {"at_hash": "of another token"}},
        {"claims": {"sub": None}},
        {"claims": {"sub": ""}},
        {"claims": {"sub": 1}},
        {"claims": {"sub": "s" * 256}},
        {"token": "none"},
        {"token": "no.token.atall"},
        {"token": ""},
        {"token": "hmac"},
        {"key": "other"},
        {"header": {"kid": "unknown"}},
        {"keys": []},
    ],
)
def test_tokens_that_are_not_for_this_sign_in_are_refused(site: Site, change: dict[str, Any]) -> None:
    browser = site.browser()
    come = ask(site, browser)
    for name, value in change.items():
        if name == "claims":
            site.fake.claims.update(value)
        elif name == "key":
            site.fake.keys = [site.fake.key.as_dict(private=False)]
            site.fake.key = other_key()
        else:
            setattr(site.fake, name, value)
    answer = come_back(browser, come)
    assert answer.status_code == 403, answer.text
    assert "identity provider" in answer.text
    assert SESSION not in browser.client.cookies
    assert "olga" not in site.names()
    assert site.room.db.projects.audit_log()[0].action == "sign-in failed"


def test_an_answer_is_good_for_the_browser_that_asked_and_for_once(site: Site) -> None:
    app = site.app(role="annotator")
    browser, stranger = site.browser(app), site.browser(app)
    come = ask(site, browser)
    assert (
        come_back(stranger, come).status_code == 403
    )  # sign-in CSRF: the attacker's code in another browser
    ask(site, stranger)
    assert come_back(stranger, come).status_code == 403
    kept = dict(browser.client.cookies)
    for wrong in ({**come, "state": "guess"}, {"code": come["code"]}, {**come, "state": "\u20ac"}):
        assert come_back(browser, wrong).status_code == 403
    assert come_back(browser, come).status_code == 303
    replay = site.browser(app)
    replay.client.cookies.update(kept)
    asked = len(site.fake.asked)
    answer = come_back(replay, come)
    assert (answer.status_code, "was used before" in answer.text) == (403, True)
    assert len(site.fake.asked) == asked  # the provider is not even asked
    assert SESSION not in replay.client.cookies


def test_a_code_of_another_sign_in_is_refused_by_pkce(site: Site) -> None:
    app = site.app(role="annotator")
    mine, theirs = site.browser(app), site.browser(app)
    stolen, own = ask(site, theirs)["code"], ask(site, mine)
    answer = come_back(mine, {**own, "code": stolen})
    assert answer.status_code == 403
    assert "does not accept the code" in answer.text


def test_an_answer_of_another_provider_is_refused(site: Site) -> None:
    site.fake.discovery["authorization_response_iss_parameter_supported"] = True
    app = site.app(role="annotator")
    for more, status in (({}, 403), ({"iss": "https://evil.example"}, 403), ({"iss": ISSUER}, 303)):
        browser = site.browser(app)
        assert come_back(browser, {**ask(site, browser), **more}).status_code == status


@pytest.mark.parametrize("error", ["access_denied", "<script>alert(1)</script>", "x" * 5000])
def test_a_refusal_of_the_provider_is_said_plainly(site: Site, error: str) -> None:
    browser = site.browser()
    come = ask(site, browser)
    answer = come_back(browser, {"state": come["state"], "error": error, "error_description": "DETAIL"})
    assert answer.status_code == 403
    assert "the identity provider refused: " in answer.text
    assert "<script>" not in answer.text
    assert "x" * 101 not in answer.text


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\nb", ""])
def test_the_way_back_leads_nowhere_else(site: Site, to: str) -> None:
    browser = site.browser()
    assert come_back(browser, ask(site, browser, to)).headers["location"] == "/projects"


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": "http://id.example/auth"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": ["x"]},
    ],
)
def test_a_provider_that_is_none_is_refused(site: Site, discovery: dict[str, Any]) -> None:
    site.fake.discovery = discovery
    answer = site.browser().get("/sign-in/provider")
    assert answer.status_code == 503
    assert "location" not in answer.headers


def test_a_provider_that_is_down_is_said_plainly_and_not_asked_again_at_once(site: Site) -> None:
    site.fake.down = True
    app = site.app(role="annotator")
    browser = site.browser(app)
    for _ in range(3):
        answer = browser.get("/sign-in/provider")
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
    assert len(site.fake.asked) == 1
    site.fake.down = False
    site.now[0] = 6
    assert come_back(browser, ask(site, browser)).status_code == 303


def test_new_keys_of_the_provider_are_fetched_but_not_for_every_bad_token(site: Site) -> None:
    app = site.app(role="annotator")
    browser = site.browser(app)
    assert come_back(browser, ask(site, browser)).status_code == 303
    site.fake.key = ECKey.generate_key("P-256", {"kid": "two", "use": "sig", "alg": "ES256"})
    for later, status, fetched in ((0, 403, 1), (61, 303, 2), (62, 303, 2)):
        site.now[0] = later
        browser = site.browser(app)
        assert come_back(browser, ask(site, browser)).status_code == status
        assert site.fake.asked.count("/keys") == fetched


def test_a_name_or_an_address_opens_nobody_elses_account(site: Site) -> None:
    db = site.room.db
    owner = db.users.create("ann@labels.example", PASSWORD, roles=("admin",))
    site.fake.claims.update(preferred_username="ann", email="ann@labels.example", email_verified=True)
    browser = site.browser()
    answer = come_back(browser, ask(site, browser))
    assert answer.status_code == 403
    assert "&#39;ann&#39; is taken" in answer.text
    assert f"subject &#39;u-1&#39; of {ISSUER}" in answer.text  # for the administrator
    asked_for = site.app(match_email=True)
    for verified in (False, "true", None):
        site.fake.claims["email_verified"] = verified
        browser = site.browser(asked_for)
        assert come_back(browser, ask(site, browser)).status_code == 403
    site.fake.claims["email_verified"] = True
    browser = site.browser(asked_for)
    assert come_back(browser, ask(site, browser)).status_code == 303
    assert db.users.by_identity(ISSUER, "u-1") == owner
    site.fake.subject = "u-2"  # the address went to somebody else
    browser = site.browser(asked_for)
    assert come_back(browser, ask(site, browser)).status_code == 403


def test_an_administrator_says_beforehand_whose_an_account_is(site: Site) -> None:
    app = site.app()  # nobody gets an account by signing in
    browser = site.browser(app)
    answer = come_back(browser, ask(site, browser))
    assert (answer.status_code, "you have no account here" in answer.text) == (403, True)
    admin = site.browser(app)
    assert admin.sign_in("admin").status_code == 303
    assert admin.send("/people", name="Olga P", role="viewer", subject="u-1").status_code == 303
    assert come_back(browser, ask(site, browser)).status_code == 303
    assert site.room.db.users.by_identity(ISSUER, "u-1") == site.room.db.users.by_name("Olga P")
    assert "subject u-1" in admin.get("/people").text
    ann = site.room.ids["ann"]
    assert admin.send(f"/people/{ann}", page="/people", what="link", subject="u-7").status_code == 303
    taken = admin.send(f"/people/{ann}", page="/people", what="link", subject="u-1")
    assert taken.status_code == 409
    site.room.db.users.set_active(ann, False)
    site.fake.subject = "u-7"
    closed = site.browser(app)
    answer = come_back(closed, ask(site, closed))
    assert (answer.status_code, "your account is closed" in answer.text) == (403, True)


def test_roles_come_from_a_claim_at_every_sign_in(site: Site) -> None:
    app = site.app(roles_claim="realm.groups", role_values=("label team=annotator", "leads=admin"))

    def status(groups: object) -> int:
        site.fake.claims["realm"] = {"groups": groups}
        browser = site.browser(app)
        return int(come_back(browser, ask(site, browser)).status_code)

    for nothing in ([], ["admin"], "admin", None, [["leads"]], {"leads": 1}):
        assert status(nothing) == 403
    assert "olga" not in site.names()
    for groups, roles in (
        ("label team", {"annotator"}),
        (["leads", "x", "label team"], {"admin", "annotator"}),
    ):
        assert status(groups) == 303
        assert site.room.db.users.by_name("olga").roles == roles
    assert status(["label team"]) == 303
    assert site.room.db.users.by_name("olga").roles == {"annotator"}
    assert status([]) == 403


def test_what_the_token_leaves_out_is_asked_for(site: Site) -> None:
    site.fake.user_info = {"groups": ["viewer"], "preferred_username": "not olga"}
    app = site.app(roles_claim="groups")
    browser = site.browser(app)
    assert come_back(browser, ask(site, browser)).status_code == 303
    assert site.room.db.users.by_name("olga").roles == {"viewer"}  # the token's own claims count first


def test_what_is_said_of_another_user_counts_for_nothing(site: Site) -> None:
    site.fake.user_info = {"sub": "somebody else", "groups": ["admin"]}
    browser = site.browser()
    answer = come_back(browser, ask(site, browser))
    assert (answer.status_code, "speaks of another user" in answer.text) == (403, True)


def test_passwords_can_be_turned_off(site: Site) -> None:
    browser = site.browser(site.app(passwords=False, role="annotator"))
    page = browser.get("/sign-in").text
    assert "password" not in page.lower()
    answer = browser.client.post("/sign-in", data={"name": "ann", "password": PASSWORD})
    assert (answer.status_code, "passwords are turned off" in answer.text) == (403, True)
    assert come_back(browser, ask(site, browser)).status_code == 303


def test_signing_out_ends_the_session_and_offers_the_providers(site: Site) -> None:
    browser = site.browser()
    assert come_back(browser, ask(site, browser)).status_code == 303
    answer = browser.send("/projects", "/sign-out")
    assert answer.headers["location"] == "/sign-in?signed-out=yes"
    assert browser.get("/projects").status_code == 303
    assert 'href="/sign-out/provider"' in browser.get(answer.headers["location"]).text
    there = urlsplit(browser.get("/sign-out/provider").headers["location"])
    assert f"{there.scheme}://{there.netloc}{there.path}" == f"{ISSUER}/end"
    back = {"client_id": [CLIENT], "post_logout_redirect_uri": ["https://labels.example/sign-in"]}
    assert parse_qs(there.query) == back


def test_without_a_provider_there_are_no_such_pages(site: Site) -> None:
    browser = site.room.browser()
    for path in ("/sign-in/provider", "/sign-in/callback?code=x&state=y", "/sign-out/provider"):
        assert browser.get(path).status_code == 404


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"oidc": {"issuer": ISSUER}}, "'client_id'"),
        ({"oidc": {"issuer": ISSUER, "client_id": "x"}}, "'public_url'"),
        ({"oidc": {"issuer": "http://id.example", "client_id": "x"}}, "https://HOST"),
        ({"oidc": {"scopes": ("profile",)}}, "openid"),
        ({"oidc": {"roles_claim": "groups", "role_values": ("x=root",)}}, "VALUE=ROLE"),
        ({"oidc": {"role_values": ("x=admin",)}}, "'roles_claim'"),
        ({"passwords": False}, "'issuer'"),
        ({"public_url": "ftp://x"}, "https://HOST"),
        ({"public_url": "https://x/?a"}, "more than a path"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        PageSettings.model_validate(settings)


def test_the_secret_is_no_setting(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_OIDC_CLIENT_SECRET", "from the environment")
    assert OidcSettings().secret() == "from the environment"
    (tmp_path / "secret").write_text("from the file\n")
    assert OidcSettings(secret_file=tmp_path / "secret").secret() == "from the file"
    browser = site.browser()
    assert come_back(browser, ask(site, browser)).status_code == 303  # a client with a secret
