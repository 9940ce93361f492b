"""The head view of the page in a real browser, against a real server."""

from __future__ import annotations

import numpy as np
import pytest

from ..evidence.report.test_page import browser  # noqa: F401  (a fixture)
from .test_heads import SENTENCE, heads_server, window_folder  # noqa: F401  (fixtures)
from .test_page import Tab, faults, percent


@pytest.fixture
def tab(browser, heads_server):  # noqa: F811
    made = Tab(browser, heads_server.url)
    yield made
    made.close()


def look(tab, **choices):
    """Show a head; wait until it is there or has failed."""
    if tab["#heads-details"].get_attribute("open") is None:
        tab["#heads summary"].click()
    for name, value in choices.items():
        field = tab[f"#heads-{name}"]
        field.fill(value) if name == "length" else field.select_option(value)
    tab["#heads-show"].click()
    tab.page.wait_for_selector("#heads[aria-busy=false]")


def brightness(tab, number):
    """The opacity of each pixel of an image, 0 to 1."""
    values = (
        tab["#heads-view canvas"]
        .nth(number)
        .evaluate(
            """e => { const { data } = e.getContext("2d").getImageData(0, 0, e.width, e.height);
          const alpha = data.filter((_, at) => at % 4 === 3);
          return { rows: e.height, alpha: Array.from(alpha) }; }"""
        )
    )
    return np.array(values["alpha"]).reshape(values["rows"], -1) / 255


def test_a_head_is_drawn_as_the_server_gives_it(tab, heads_server):  # noqa: F811
    text = SENTENCE * 3
    tab.choose("window").write(text)
    assert tab["#heads-layer option"].all_text_contents() == ["1", "3"]
    assert not tab["#heads-show"].is_visible()  # until it is asked for
    look(tab, layer="3", head="2", length="40")
    body = {"model": "window", "input": text, "layer": 3, "head": 2, "length": 40}
    with heads_server.client() as client:
        got = client.post("/heads", json=body).json()
    assert f"first 40 of {got['tokens_total']} tokens" in tab["#heads-view"].text_content()
    for number, image in enumerate([got["attention"], got["exact"], *got["matrices"]]):
        wanted = np.abs(image["values"])
        np.testing.assert_allclose(brightness(tab, number), wanted / wanted.max(), atol=0.004)
    shares = tab["#heads-view .scores .number"].all_text_contents()
    assert [percent(each) for each in shares] == pytest.approx(
        list(got["shares"].values()), abs=6e-4
    )
    used = [percent(each) for each in tab["#heads-view td:nth-child(2)"].all_text_contents()]
    assert used == pytest.approx(sorted((r["used"] for r in got["rows"]), reverse=True), abs=6e-4)
    boxes = [tab["#heads-view figure"].nth(number).bounding_box() for number in (0, 1)]
    assert boxes[0]["x"] < boxes[1]["x"]  # rows and window side by side
    down, across = np.unravel_index(np.argmax(got["attention"]["values"]), (40, 8))
    largest = tab["#heads-view figure"].first.text_content()
    assert f"token {down + 1} “" in largest
    assert f"to row {across + 1}:" in largest


def test_the_view_is_there_for_encoders_alone_and_empty_after_a_change(tab):
    tab.choose("classify").write("The dog")
    look(tab)
    assert "All 9 tokens" in tab["#heads-view"].text_content()
    tab.choose("mlm")
    assert tab["#heads-view"].text_content() == tab["#heads-status"].text_content() == ""
    assert tab["#heads"].is_visible()
    tab.choose("clm")
    assert not tab["#heads"].is_visible()


def test_errors_are_shown_beside_the_field(browser, heads_server):  # noqa: F811
    tab = Tab(browser, heads_server.url)
    tab.choose("window").write("The dog")
    look(tab, length="4")
    assert (
        "length: Input should be greater than or equal to 8" in tab["#heads-error"].text_content()
    )
    assert tab["#heads-length"].get_attribute("aria-invalid") == "true"
    tab.write(" ")
    look(tab, length="128")
    assert "There is no document" in tab["#heads-error"].text_content()
    tab.write("The dog")
    look(tab)
    assert tab["#heads-error"].text_content() == ""
    assert tab["#heads-view canvas"].count() == 3
    tab.close(complaints=["status of 400"])


def test_the_keyboard_suffices_and_escape_cancels(tab):
    tab.choose("window").write(SENTENCE)
    tab["#heads summary"].focus()
    tab.page.keyboard.press("Enter")
    tab["#heads-layer"].focus()
    seen = []
    for _ in range(3):
        tab.page.keyboard.press("Tab")
        seen.append(tab.page.evaluate("() => document.activeElement.id"))
    assert seen == ["heads-head", "heads-length", "heads-show"]
    tab.page.route("**/heads", lambda route: None)  # it never answers
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#heads[aria-busy=true]")
    assert tab["#heads-show"].text_content() == "Cancel"
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector("#heads[aria-busy=false]")
    assert tab["#heads-status"].text_content() == "Cancelled."
    tab.page.unroute("**/heads")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#heads-view canvas")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_no_fault_for_screen_readers_and_no_sideways_scrolling(
    browser,  # noqa: F811
    heads_server,  # noqa: F811
    width,
    scheme,
):
    size = {"width": width, "height": 800}
    tab = Tab(browser, heads_server.url, viewport=size, color_scheme=scheme)
    tab.choose("window").write(SENTENCE * 8)
    look(tab, length="200")
    assert "near token" in tab["#heads-view"].text_content()  # averaged to 128 pixels
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert faults(tab) == []
    before = tab["#heads-view canvas"].first.evaluate("e => e.toDataURL()")
    tab.page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    after = tab["#heads-view canvas"].first.evaluate("e => e.toDataURL()")
    assert before != after  # drawn again in the other colours
    tab.close()
