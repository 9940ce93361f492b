// The page of `linformer serve`: choose a model, send a document, show the answer.

import { fillPart, passagePart, scoreList, tagPart, textPart } from "./answers.js";
import { RequestError, request, requestJson, streamedEvents, useTokenPrompt } from "./api.js";
import { DocumentInput } from "./document_input.js";
import { byId, counted, duration, el, whole } from "./dom.js";
import { asRequestError, failurePart } from "./failure.js";
import { HeadView } from "./heads.js";
import { OptionFields } from "./options.js";
import { PassageVectors } from "./passages.js";
import { readingPart, timePart } from "./reading.js";
import { promptForToken } from "./token_prompt.js";
import { WrittenText } from "./writing.js";

const TASKS = {
  fill: { verb: "Fill the masks", about: "fills masks" },
  classify: { verb: "Classify", about: "classifies" },
  tag: { verb: "Find spans", about: "finds spans" },
  embed: { verb: "Search", about: "finds near passages" },
  generate: { verb: "Continue the text", about: "continues a text" },
  translate: { verb: "Translate", about: "translates" },
};
const NEAREST = 10; // passages

const answer = byId("answer");
const errorBox = byId("error");
const options = new OptionFields();
const vectors = new PassageVectors();
const input = new DocumentInput({ changed: () => {}, failed: (title, message) => showError(new RequestError(title, message)) });
const headView = new HeadView(() => input.text);
let models = [];
let running = null; // the AbortController of what runs

const chosen = () => models.find((model) => model.id === byId("model").value);
const say = (line) => (byId("status").textContent = line);
const invalid = (message, param) => new RequestError("This request cannot be answered", message, { param });

async function start() {
  useTokenPrompt(promptForToken);
  byId("request").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  byId("request").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || byId("token").open) return;
    cancel();
    headView.cancel();
  });
  byId("cancel").addEventListener("click", cancel);
  byId("model").addEventListener("change", showModel);
  byId("mask").addEventListener("click", () => insertMask());
  await loadModels();
}

async function loadModels() {
  showError(null);
  say("Asking the server for its models.");
  try {
    models = (await requestJson("v1/models")).data;
  } catch (error) {
    say("");
    showError(error, loadModels);
    return;
  }
  byId("model").replaceChildren(...models.map((model) => el("option", { value: model.id }, `${model.id}: ${TASKS[model.task]?.about ?? model.task}`)));
  byId("model").disabled = false;
  byId("run").setAttribute("aria-disabled", "false");
  say("");
  showModel();
}

function showModel() {
  cancel();
  showError(null);
  const model = chosen();
  const facts = [
    model.parameters && `${compact(model.parameters)} parameters`,
    model.layers && counted(model.layers, "layer"),
    model.attention && `attention: ${model.attention}`,
    model.max_length === null ? "reads any number of tokens" : `reads ${whole(model.max_length)} tokens at once`,
    model.backend,
  ];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  byId("run").textContent = TASKS[model.task]?.verb ?? "Run";
  byId("query-field").hidden = model.task !== "embed";
  byId("mask").hidden = model.task !== "fill";
  byId("mask").textContent = `Insert ${model.mask_token}`;
  byId("hint").textContent = hint(model);
  options.show(model);
  headView.show(model);
  answer.replaceChildren(el("p", { class: "empty" }, "The answer appears here, with how much of the document was read and how long it took."));
}

function hint(model) {
  if (model.input === "features") return "This model reads numbers: a JSON list of positions, each a list of numbers.";
  if (model.task === "fill") return `Put ${model.mask_token} where a word is missing.`;
  if (model.task === "embed") return "The document is cut into passages, and those nearest to what you search for are shown.";
  return "";
}

const compact = (value) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

function insertMask() {
  if (!input.insert(chosen().mask_token)) showError(invalid("A document of this length cannot be edited here. Put the mask into the file.", "input"));
}

function cancel() {
  running?.abort();
}

async function run() {
  const model = chosen();
  if (running || !model) return;
  const controller = new AbortController();
  running = controller;
  showError(null);
  answer.classList.remove("live");
  setBusy(true);
  const begun = performance.now();
  const tick = setInterval(() => (byId("clock").textContent = `${((performance.now() - begun) / 1000).toFixed(1)} s`), 100);
  try {
    if (!input.text.trim()) throw invalid("There is no document. Paste or drop one.", "input");
    const body = { model: model.id, ...options.values(invalid) };
    say("Waiting for the answer.");
    if (model.task === "embed") await search(model, body, controller.signal);
    else if (model.task === "generate") await write(model, body, controller.signal);
    else await ask(model, body, controller.signal);
  } catch (error) {
    if (error.name === "AbortError") {
      say("Cancelled.");
    } else {
      say("");
      if (!answer.classList.contains("live")) answer.replaceChildren();
      showError(error, run);
    }
  } finally {
    clearInterval(tick);
    running = null;
    setBusy(false);
  }
}

function setBusy(busy) {
  byId("run").setAttribute("aria-disabled", String(busy));
  const button = byId("cancel");
  if (!busy && document.activeElement === button) byId("run").focus();
  button.hidden = !busy;
  byId("results").setAttribute("aria-busy", String(busy));
  byId("clock").textContent = "";
}

async function ask(model, body, signal) {
  const { text } = input;
  const got = await requestJson("predict", { body: { ...body, input: value(model, text) }, signal });
  const [result] = got.results;
  const shown = show(model, result, text, body, signal);
  answer.replaceChildren(readingPart(result), timePart(got, "the whole document at once"), shown.part);
  await shown.done;
  ready(`${counted(result.answers.length, "answer")}, ${duration(got.seconds)}.`);
}

function value(model, text) {
  if (model.input !== "features") return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw invalid(`This model reads a JSON list of numbers, and the document is not JSON: ${error.message}.`, "input");
  }
}

function show(model, result, text, body, signal) {
  const { answers } = result;
  if (model.task === "fill") return { part: fillPart(answers, text, model.mask_token) };
  if (model.task === "classify") return { part: el("div", { class: "part" }, el("h3", {}, "Labels"), scoreList(answers)) };
  if (model.task === "tag" && !body.redact) return tagPart(answers, text, model.labels, signal);
  return textPart(answers[0].text, model.task === "tag" ? "Redacted document" : "Translation", signal);
}

async function write(model, body, signal) {
  const { text } = input;
  const written = new WrittenText(text);
  const response = await request("predict", { body: { ...body, input: text, stream: true }, signal });
  answer.replaceChildren(written.part);
  answer.classList.add("live"); // what is written so far stays, whatever happens
  say("Writing.");
  const begun = performance.now();
  try {
    for await (const event of streamedEvents(response)) {
      if (event.done) {
        answer.prepend(readingPart(event), timePart(event, ""));
        written.say(`${counted(event.tokens_written, "token")} written; ${event.finish_reason === "length" ? "it ended at the number of tokens to write" : "the model ended it"}.`);
        ready(`${counted(event.tokens_written, "token")} written in ${duration(event.seconds)}.`);
      } else {
        written.add(event.text);
        const seconds = (performance.now() - begun) / 1000;
        written.say(`${counted(event.tokens, "token")}, ${whole(Math.round(event.tokens / Math.max(seconds, 0.001)))} a second`);
      }
    }
  } catch (error) {
    written.say(`${written.counter.textContent} The text is not complete.`.trim());
    throw error;
  }
}

async function search(model, { passage_words: words = 100, ...body }, signal) {
  const { text } = input;
  const query = byId("query").value.trim();
  if (!query) throw invalid("There is nothing to search for. Fill in “Search for”.", "query");
  if (!(words >= 1)) throw invalid(`A passage must have at least one word: got ${words}.`, "passage_words");
  const embed = (texts) => requestJson("predict", { body: { ...body, input: texts }, signal });
  const wanted = await embed([query]);
  await vectors.fill(JSON.stringify([body, words]), text, Math.floor(words), embed, (done, all) => say(`${whole(done)} of ${counted(all, "passage")} embedded.`));
  const sums = vectors.sums.plus(wanted);
  const { cut } = sums;
  const notes = cut ? [`${counted(cut, "passage was", "passages were")} too long for the model and not read to the end. Choose fewer words in a passage.`] : [];
  const nearest = vectors.nearest(wanted.results[0].answers[0].vector, NEAREST);
  answer.replaceChildren(readingPart({ ...sums, notes }), timePart(sums, "the same passages"), passagePart(nearest, vectors.passages.length));
  ready(`${counted(nearest.length, "passage")} found.`);
}

function ready(line) {
  say(line);
  const top = byId("results").getBoundingClientRect().top;
  if (top > window.innerHeight * 0.8) byId("results").scrollIntoView({ block: "start" });
}

// An error, with a button to try again where that may help.
function showError(error, again = null) {
  errorBox.replaceChildren();
  byId("document").removeAttribute("aria-invalid");
  byId("query").removeAttribute("aria-invalid");
  options.mark(error?.param ?? null);
  if (!error) return;
  error = asRequestError(error);
  if (error.param === "input") byId("document").setAttribute("aria-invalid", "true");
  if (error.param === "query") byId("query").setAttribute("aria-invalid", "true");
  const box = failurePart(error, again);
  errorBox.append(box);
  if (box.getBoundingClientRect().top > window.innerHeight * 0.9) box.scrollIntoView({ block: "center" });
}

start();
