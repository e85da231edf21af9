"""The page in a real browser, against a real server with a fleet that rode through a fault."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, expect

from inventory_maker import Fleet, ahead_ns, uuid
from paceline.control import auth
from paceline.control.app import create_app
from paceline.inventory.store import Store
from running_server import serve

pytestmark = pytest.mark.browser


@dataclass
class Site:
    page: Page
    url: str
    token: str
    fleet: Fleet
    complaints: list[str] = field(default_factory=list)

    def log_in(self, path: str = "/") -> None:
        self.page.goto(self.url + path)
        self.page.get_by_label("Token").fill(self.token)
        self.page.get_by_role("button", name="Log in").click()


@pytest.fixture
def site(browser: Browser, sqlite_store: Store) -> Iterator[Site]:
    token = auth.issue_token(sqlite_store, "ada")
    fleet = Fleet(sqlite_store, now_ns=ahead_ns())
    fleet.ride_through_a_fault()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    with serve(create_app(sqlite_store)) as url:
        made = Site(context.new_page(), url, token, fleet)
        made.page.on("console", lambda m: made.complaints.append(m.text) if m.type in ("error", "warning") else None)
        made.page.on("pageerror", lambda e: made.complaints.append(str(e)))
        made.page.on(
            "request", lambda r: made.complaints.append(f"foreign: {r.url}") if not r.url.startswith(url) else None
        )
        try:
            yield made
        finally:
            context.close()


def test_one_logs_in_sees_the_fleet_and_reads_the_story(site: Site) -> None:
    site.log_in()
    page = site.page
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    sick = page.get_by_title(re.compile(uuid("ada", 1)))
    expect(sick).to_contain_text("QUARANTINED")
    expect(page.get_by_title(re.compile(uuid("ada", 0)))).to_contain_text("run #2")
    sick.click()
    expect(page.get_by_role("heading", name="ada / 1")).to_be_visible()
    lines = page.locator(".story .said").all_inner_texts()
    wanted = ["Xid 79 (from nvml)", "Xid 79: GPU has fallen off the bus", "attempt 2 resumed at step 200"]
    assert [line for line in lines if line in wanted] == wanted
    resumed = page.locator(".story li", has_text="attempt 2 resumed")
    cause = page.locator(".story li", has_text="attempt 2 started")
    assert resumed.locator("a").first.get_attribute("href") == "#" + str(cause.get_attribute("id"))
    expect(page.locator("#charts canvas")).to_have_count(4)
    assert site.complaints == []


def test_the_job_page_shows_attempts_checkpoints_and_the_curve(site: Site) -> None:
    site.log_in("/jobs/job-1/run")
    page = site.page
    expect(page.get_by_role("heading", name="run", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="ada/1")).to_have_count(1)
    expect(page.locator("#charts canvas")).to_have_count(1)
    expect(page.locator("#charts h3")).to_have_text("loss at each checkpoint")
    assert site.complaints == []


def test_the_page_follows_what_happens(site: Site) -> None:
    site.log_in()
    tile = site.page.get_by_title(re.compile(uuid("bea", 5)))
    expect(tile).to_contain_text("HEALTHY")
    site.fleet.store.quarantine(uuid("bea", 5), "loud fan", "ada", time.time_ns())
    expect(tile).to_contain_text("DRAINING", timeout=15_000)
    expect(site.page.get_by_text("ada: quarantine (loud fan)")).to_be_visible()
    assert site.complaints == []


@pytest.mark.parametrize("path", ["/health", "/jobs", "/sessions", "/events"])
def test_the_lists_open(site: Site, path: str) -> None:
    site.log_in(path)
    expect(site.page.locator("nav a[aria-current]")).to_have_attribute("href", path)
    assert site.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling at 1280 px"
    assert site.complaints == []


def test_a_stranger_sees_nothing_and_a_wrong_token_is_said(site: Site) -> None:
    page = site.page
    page.goto(f"{site.url}/devices/{uuid('ada', 1)}")
    assert "Xid" not in page.content()
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="ada / 1")).to_be_visible()
    [cookie] = page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    page.get_by_role("button", name="Log out").click()
    page.goto(site.url)
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_page_that_is_not_there_says_so(site: Site) -> None:
    site.log_in("/devices/GPU-none")
    expect(site.page.get_by_role("heading", name="no device GPU-none is known")).to_be_visible()
