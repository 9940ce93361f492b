"""The page in a real browser (Chromium, driven by playwright), against a real server."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from linformer_kit.config.load import load
from linformer_kit.serve.models import load_models
from linformer_kit.train.run import train

from ..evidence.report.test_page import browser  # noqa: F401  (a fixture)
from ..train import tiny
from .servers import local, wait_for

TOKEN = "a-token-of-the-test"
SENTENCE = "The small dog runs over the river two times. The large cat looks over the hill. "
SOONEST = 50_000  # milliseconds that a step may take on a busy machine


@pytest.fixture(scope="module")
def page_models(models, runs, tmp_path_factory):
    """One model of each task, one that finds spans in long texts, one that never ends a text."""
    path = tiny.write(tmp_path_factory.mktemp("spans"), "tag", steps=30, eval_every=30)
    longer = ["tokenizer.kind=bpe", "tokenizer.vocab_size=400", "data.max_length=2048"]
    with torch.enable_grad():
        train(load(path, longer))
    more = load_models(
        [f"spans={path.parent / 'run'}", f"endless={runs('clm').path}"], say=lambda line: None
    )
    more["endless"].predictor.model.config.eos_token_id = None
    return {**models, **more}


@pytest.fixture(scope="module")
def page_server(page_models):
    with local(page_models) as started:
        yield started


class Tab:
    """The page in a tab, with everything it asked for and complained about."""

    def __init__(self, browser, url, **context):  # noqa: F811
        self.context = browser.new_context(**{"reduced_motion": "reduce", **context})
        self.page = self.context.new_page()
        self.page.set_default_timeout(SOONEST)
        self.url = url
        self.requests: list[tuple[str, str]] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self.requests.append((one.method, one.url)))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.goto(url)

    def _listen(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def __getitem__(self, selector):
        return self.page.locator(selector)

    def choose(self, model):
        self.page.wait_for_selector("#model:not([disabled])")
        self.page.select_option("#model", model)
        return self

    def write(self, text):
        self["#document"].fill(text)
        return self

    def option(self, name, value):
        if self["#options"].get_attribute("open") is None:
            self["#options summary"].click()
        field = self[f"#option-{name}"]
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
        return self

    def run(self):
        self["#run"].click()
        return self.finished()

    def finished(self):
        self.page.wait_for_selector("#results[aria-busy=false]")
        return self

    @property
    def failure(self):
        return self["#error"].text_content()

    @property
    def asked(self):
        """Requests to /predict so far."""
        return sum(url.endswith("/predict") for _, url in self.requests)

    def close(self, *, complaints=()):
        """Nothing was complained about beyond what is named, and no other host was asked."""
        unexpected = [one for one in self.complaints if not any(name in one for name in complaints)]
        assert unexpected == []
        assert [url for _, url in self.requests if not url.startswith(self.url + "/")] == []
        self.context.close()


@pytest.fixture
def tab(browser, page_server):  # noqa: F811
    made = Tab(browser, page_server.url)
    yield made
    made.close()


@pytest.fixture
def ask(page_server):
    """The oracle: the same question without the page."""
    with page_server.client() as client:

        def answers(model, text, **options):
            got = client.post("/predict", json={"model": model, "input": text, **options})
            assert got.status_code == 200, got.text
            return got.json()

        yield answers


def percent(text):
    return float(text.replace(",", "").rstrip("%")) / 100


def test_masks_show_the_likeliest_tokens_of_each(tab, ask):
    text = "The <mask>mall dog runs over the river <mask>wo times."
    tab.choose("mlm").write(text).option("top", "3").run()
    wanted = ask("mlm", text, top=3)["results"][0]
    parts = tab["#answer li.part"].all()
    assert len(parts) == 2
    for number, part in enumerate(parts):
        found = [each for each in wanted["answers"] if each["mask"] == number]
        shown = part.locator(".number").all_text_contents()
        assert [percent(each) for each in shown] == pytest.approx(
            [each["score"] for each in found], abs=6e-4
        )
        names = part.locator(".name").all_text_contents()
        assert names == [each["token"].strip() or "␣" for each in found]
        assert part.locator("mark").text_content() == names[0]
    assert "Read completely: 44 tokens" in tab[".reading"].text_content()
    assert "full attention" not in tab[".times"].text_content()  # it would take about as long


def test_full_attention_is_estimated_where_it_takes_longer(tab, ask):
    text = SENTENCE * 30
    full = ask("spans", text, on_overflow="chunk")["full_attention"]
    assert full["flops_full"] > 2 * full["flops"]
    tab.choose("spans").write(text).option("on_overflow", "chunk").run()
    shown = tab[".times"].text_content()
    assert re.search(r"full attention \(estimate\).*\d", shown)
    ratio = full["flops_full"] / full["flops"]
    assert ratio > 10  # from there on it is said without decimals
    assert f"takes {ratio:.0f} times the operations" in shown


def test_the_mask_is_inserted_where_the_caret_is(tab):
    tab.choose("mlm").write("The  dog")
    tab["#document"].evaluate("e => e.setSelectionRange(4, 4)")
    tab["#mask"].click()
    assert tab["#document"].input_value() == "The <mask> dog"


def test_labels_and_what_was_not_read(tab, ask):
    text = SENTENCE * 3
    tab.choose("classify").write(text).option("on_overflow", "truncate").run()
    got = ask("classify", text, on_overflow="truncate")["results"][0]
    assert tab[".scores .name"].all_text_contents() == [each["text"] for each in got["answers"]]
    warning = tab[".reading.warning"].text_content()
    assert f"{got['tokens_read']} of {got['tokens_total']} tokens" in warning
    assert got["notes"][0] in warning


def test_spans_are_marked_where_they_are_in_code_points(tab, ask):
    text = "\U0001f600\U0001f680 The small dog\nruns. \U0001f600 The old horse. <b>The cat</b>"
    spans = sorted(ask("spans", text)["results"][0]["answers"], key=lambda span: span["start"])
    assert spans
    tab.choose("spans").write(text).run()
    marks = tab["#answer mark"]
    shown = marks.evaluate_all("all => all.map(e => [e.firstChild.data, e.lastChild.textContent])")
    assert shown == [[text[span["start"] : span["end"]], span["label"]] for span in spans]
    without = """e => { const copy = e.cloneNode(true);
      copy.querySelectorAll(".label").forEach((label) => label.remove());
      return copy.textContent; }"""
    assert tab["#answer .text"].evaluate(without) == text
    assert tab["#answer .text b"].count() == 0  # markup in a text is text
    tab["#options summary"].click()
    tab["#option-redact"].check()
    tab.run()
    redacted = ask("spans", text, redact=True)["results"][0]["answers"][0]["text"]
    assert tab["#answer .text"].text_content() == redacted


def test_the_nearest_passages_are_ranked_by_cosine_and_embedded_once(tab, ask):
    text = SENTENCE * 4 + "\n\nThe old horse jumps over the house!\n" + "word " * 25
    tab.choose("embed").write(text).option("passage_words", "20")
    tab["#query"].fill("old horse")
    tab.run()
    passages = tab["#answer .passage"].all_text_contents()
    assert sorted(" ".join(passages).split()) == sorted(text.split())
    assert all(len(passage.split()) <= 20 for passage in passages)
    assert len(passages) == 7
    assert "nearest 7 of 7" in tab["#answer"].text_content()
    (query,), *vectors = (
        [each["vector"] for each in result["answers"]]
        for result in ask("embed", ["old horse", *passages])["results"]
    )
    cosines = np.array(vectors)[:, 0] @ np.array(query)
    assert (np.diff(cosines) <= 1e-6).all()
    shown = [float(each) for each in tab["#answer li .number"].all_text_contents()]
    np.testing.assert_allclose(shown, cosines, atol=6e-4)
    before = tab.asked
    tab["#query"].fill("a cat")
    tab.run()
    assert tab.asked == before + 1  # the query alone


def test_a_text_is_continued_as_it_is_written(tab, ask):
    prompt = "The old <i>dog</i>"
    tab.choose("endless").write(prompt)
    tab.option("temperature", "0").option("max_new_tokens", "60").run()
    got = ask("endless", prompt, max_new_tokens=60)["results"][0]["answers"][0]
    assert tab["#answer .text"].text_content() == prompt + got["text"]
    assert "60 tokens written" in tab["#answer"].text_content()
    assert "Read completely" in tab[".reading"].text_content()


def test_a_translation(tab, ask):
    text = "The old dog runs"
    tab.choose("translate").write(text).run()
    got = ask("translate", text)["results"][0]["answers"][0]["text"]
    empty = "The answer is an empty text."
    assert tab["#answer .text"].text_content() == (got or empty)


def test_a_cancelled_generation_keeps_its_text_and_frees_the_server(tab, page_server, ask):
    tab.choose("endless").write("The ").option("max_new_tokens", "90000")
    tab["#run"].click()
    tab.page.wait_for_function(
        "() => document.querySelector('#answer .text')?.textContent.length > 100"
    )
    tab["#cancel"].click()
    tab.finished()
    assert tab["#status"].text_content() == "Cancelled."
    assert len(tab["#answer .text"].text_content()) > 100
    assert "not complete" in tab["#answer"].text_content()
    wait_for(lambda: page_server.guard.unanswered == 0)
    assert tab["#run"].get_attribute("aria-disabled") == "false"
    assert tab.failure == ""


def test_a_long_text_that_is_written_stays_responsive(tab):
    made = tab.page.evaluate(
        """async () => {
          const { WrittenText } = await import("/page/writing.js");
          const written = new WrittenText("The prompt. ");
          document.getElementById("answer").replaceChildren(written.part);
          const frame = () => new Promise(requestAnimationFrame);
          let slowest = 0;
          for (let tokens = 0; tokens < 60_000; ) {
            for (let i = 0; i < 600; i++) written.add(`token ${tokens++} `);
            const begun = performance.now();
            await frame();
            await new Promise((resolve) => setTimeout(resolve));
            slowest = Math.max(slowest, performance.now() - begun);
          }
          return { text: written.box.textContent, expected: written.text, slowest,
                   blocks: written.box.childElementCount };
        }"""
    )
    assert made["text"] == "The prompt. " + made["expected"]
    assert made["expected"].endswith("token 59999 ")
    assert made["blocks"] > 100
    assert made["slowest"] < 1000  # milliseconds


def test_a_document_of_100_000_words_stays_responsive(browser, page_server):  # noqa: F811
    text = (SENTENCE * 40 + "\n") * 157
    words = len(text.split())
    assert words > 100_000
    tab = Tab(browser, page_server.url, permissions=["clipboard-read", "clipboard-write"])
    tab.choose("spans")
    tab.page.evaluate(
        """() => { window.slowest = 0; new PerformanceObserver((list) => {
          for (const task of list.getEntries())
            window.slowest = Math.max(window.slowest, task.duration);
        }).observe({ type: "longtask" }); }"""
    )
    tab.page.evaluate("text => navigator.clipboard.writeText(text)", text)
    tab["#document"].click()
    tab.page.keyboard.press("ControlOrMeta+V")
    tab.page.wait_for_function("() => document.getElementById('count').textContent.length > 100")
    assert f"{words:,} words · {len(text):,} characters" in tab["#count"].text_content()
    with tab.page.expect_response("**/predict") as answered:
        tab.run()
    got = answered.value.json()
    spans = got["results"][0]["answers"]
    assert f"Read completely: {got['tokens_total']:,} tokens" in tab[".reading"].text_content()
    assert tab["#answer mark"].count() == len(spans) > 1000
    shown = tab["#answer .text"].evaluate("e => e.textContent.length")
    assert shown == len(text) + sum(len(span["label"]) for span in spans)
    assert tab.page.evaluate("() => window.slowest") < 1500  # milliseconds
    tab.close()


def test_errors_of_the_server_are_shown_beside_what_they_are_about(browser, page_server):  # noqa: F811
    tab = Tab(browser, page_server.url)
    tab.choose("mlm").write("no mask here").run()
    assert "the text must hold <mask>" in tab.failure
    assert tab["#document"].get_attribute("aria-invalid") == "true"
    assert tab["#answer"].text_content() == ""
    tab.choose("endless").write("The ").option("temperature", "0").option("seed", "1").run()
    assert "seed has no effect at temperature 0" in tab.failure
    assert tab["#option-seed"].get_attribute("aria-invalid") == "true"
    tab.write("   ").run()
    assert "There is no document" in tab.failure
    tab.close(complaints=["status of 400"])


def test_a_server_that_is_busy_or_gone(browser, page_models):  # noqa: F811
    body = {"model": "endless", "input": "The ", "max_new_tokens": 90_000, "stream": True}
    with local(page_models, queue=1) as server:
        tab = Tab(browser, server.url)
        tab.choose("classify").write("The dog")
        with server.client() as client, client.stream("POST", "/predict", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            tab.run()
            assert "The server is busy" in tab.failure
            assert re.search(r"Try again( \(in \d+ seconds?\))?", tab.failure)
        wait_for(lambda: server.guard.unanswered == 0)
        tab["#error button"].click()
        tab.page.wait_for_selector("#answer .scores")
        assert tab.failure == ""
    tab.run()
    assert "The server did not answer" in tab.failure
    tab.close(complaints=["status of 429", "ERR_CONNECTION_REFUSED"])


def test_the_token_is_asked_for_until_it_is_right(browser, page_models):  # noqa: F811
    with local(page_models, token=TOKEN) as server:
        tab = Tab(browser, server.url)
        tab.page.wait_for_selector("#token[open]")
        tab["#token-cancel"].click()
        assert "The token is missing or wrong" in tab.failure
        tab["#error button"].click()
        tab["#token-value"].fill("a-wrong-token-is-this")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#token-wrong:not(:empty)")
        assert faults(tab) == []
        tab["#token-value"].fill(TOKEN)
        tab.page.keyboard.press("Enter")
        tab.choose("classify").write("The dog").run()
        assert tab["#answer .scores li"].count() == 2
        stored = tab.page.evaluate("() => [localStorage.length, sessionStorage.length]")
        assert stored == [0, 0]
        assert not any(TOKEN in url for _, url in tab.requests)
        tab.close(complaints=["status of 401"])


def test_files_are_opened_and_dropped(tab, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes("The dög\r\nruns".encode())
    tab.choose("classify")
    tab["#file"].set_input_files(text)
    tab.page.wait_for_function("() => document.getElementById('document').value.length > 0")
    assert tab["#document"].input_value() == "The dög\nruns"
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    tab["#file"].set_input_files(tmp_path / "picture.png")
    tab.page.wait_for_selector("#error .box")
    assert "picture.png is not a text file in UTF-8" in tab.failure
    assert tab["#document"].input_value() == "The dög\nruns"
    tab.page.evaluate(
        """() => { const data = new DataTransfer();
          data.items.add(new File(["dropped"], "dropped.txt", { type: "text/plain" }));
          document.getElementById("document").dispatchEvent(
            new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })); }"""
    )
    tab.page.wait_for_function("() => document.getElementById('document').value == 'dropped'")


def test_the_keyboard_suffices(tab):
    tab.choose("endless")
    tab["#document"].focus()
    tab.page.keyboard.type("The ")
    tab.page.keyboard.press("Control+Enter")
    tab.page.wait_for_selector("#answer .text")
    tab.page.keyboard.press("Escape")
    tab.finished()
    tab["#model"].focus()
    seen = []
    for _ in range(12):
        tab.page.keyboard.press("Tab")
        seen.append(tab.page.evaluate("() => document.activeElement.id"))
    order = [name for name in ("file", "clear", "document", "run") if name in seen]
    assert sorted(order, key=seen.index) == order == ["file", "clear", "document", "run"]


def faults(tab):
    """What axe-core finds of any weight: rule and elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(tab.page).response["violations"]
    return [
        (each["id"], each["impact"], [n["html"][:200] for n in each["nodes"]]) for each in found
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_fault_for_screen_readers_and_no_sideways_scrolling(
    browser,  # noqa: F811
    page_server,
    width,
    scheme,
):
    size = {"width": width, "height": 800}
    tab = Tab(browser, page_server.url, viewport=size, color_scheme=scheme)

    def fits():
        return tab.page.evaluate("() => document.documentElement.scrollWidth") <= width

    tab.choose("mlm").write("The <mask>og").option("top", "2").run()
    assert fits()
    tab.choose("tag").write(SENTENCE * 2).option("on_overflow", "truncate").run()
    assert tab[".reading.warning"].is_visible()
    assert fits()
    assert faults(tab) == []
    tab.choose("endless").write("The " + "x" * 300).option("max_new_tokens", "20").run()
    assert fits()
    tab.choose("embed").write(SENTENCE * 4)
    tab["#query"].fill("dog")
    tab.run()
    assert tab["#answer .passage"].count() > 0
    assert fits()
    tab["#query"].fill("")
    tab.run()
    assert "nothing to search for" in tab.failure
    assert fits()
    assert faults(tab) == []
    tab.close()
