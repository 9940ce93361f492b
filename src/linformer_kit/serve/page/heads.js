// The head view: the attention of one head to the rows of E and to its window, the E of its layer,
// and what the rows are made of, on the beginning of the document.

import { requestJson, RequestError } from "./api.js";
import { bar, byId, counted, duration, el, percent, visible, whole } from "./dom.js";
import { asRequestError, failurePart } from "./failure.js";

const ROWS = 12; // of the table
const STRONGEST = 3; // cells of an image that are told in words
const DARK = matchMedia("(prefers-color-scheme: dark)");

export class HeadView {
  // `text()` is the document.
  constructor(text) {
    this.text = text;
    this.model = null;
    this.running = null; // the AbortController of what runs
    byId("heads-show").addEventListener("click", () => (this.running ? this.cancel() : this.ask()));
    DARK.addEventListener("change", () => byId("heads-view").querySelectorAll("canvas").forEach(paint));
  }

  show(model) {
    this.cancel();
    this.model = model;
    const { head_view: view } = model;
    byId("heads").hidden = !view;
    byId("heads-error").replaceChildren();
    byId("heads-view").replaceChildren();
    say("");
    this.mark(null);
    if (!view) return;
    const choices = (numbers) => numbers.map((number) => el("option", { value: number }, whole(number)));
    byId("heads-layer").replaceChildren(...choices(view.layers));
    byId("heads-head").replaceChildren(...choices(Array.from({ length: view.heads }, (_, place) => place + 1)));
    byId("heads-length").max = view.max_length;
  }

  cancel() {
    this.running?.abort();
  }

  async ask() {
    const controller = new AbortController();
    this.running = controller;
    const { model } = this;
    const button = byId("heads-show");
    byId("heads-error").replaceChildren();
    this.mark(null);
    button.textContent = "Cancel";
    byId("heads").setAttribute("aria-busy", "true");
    try {
      const got = await requestJson("heads", { body: this.body(), signal: controller.signal });
      byId("heads-view").replaceChildren(...parts(got));
      say(`Layer ${whole(got.layer)}, head ${whole(got.head)} is shown, ${duration(got.seconds)}.`);
    } catch (error) {
      if (error.name === "AbortError") say(model === this.model ? "Cancelled." : "");
      else this.fail(asRequestError(error));
    } finally {
      this.running = null;
      button.textContent = "Show this head";
      byId("heads").setAttribute("aria-busy", "false");
    }
  }

  body() {
    const length = Number(byId("heads-length").value);
    if (!this.text().trim()) throw new RequestError("This request cannot be answered", "There is no document. Paste or drop one.", { param: "input" });
    return { model: this.model.id, input: this.text(), layer: Number(byId("heads-layer").value), head: Number(byId("heads-head").value), length };
  }

  fail(error) {
    say("");
    byId("heads-view").replaceChildren();
    byId("heads-error").replaceChildren(failurePart(error, () => this.ask()));
    this.mark(error.param);
  }

  mark(param) {
    for (const name of ["layer", "head", "length"]) {
      if (name === param) byId(`heads-${name}`).setAttribute("aria-invalid", "true");
      else byId(`heads-${name}`).removeAttribute("aria-invalid");
    }
  }
}

const say = (line) => (byId("heads-status").textContent = line);

function parts(got) {
  const { tokens_read: read, tokens_total: total } = got;
  const beginning = read < total ? `The first ${whole(read)} of ${counted(total, "token")} (${percent(read / total)}) are shown.` : `All ${counted(total, "token")} of the document are shown.`;
  const token = (place) => `token ${whole(place + 1)} “${visible(got.tokens[place])}”`;
  const rows = figure(got.attention, {
    title: "To the rows of E",
    axes: ["row of E", "token"],
    cell: (down, across) => `${token(down)} to row ${whole(across + 1)}`,
  });
  const exact = got.exact && figure(got.exact, {
    title: `Exactly, in a window of ${whole(got.window)}${got.global_tokens ? ` and ${counted(got.global_tokens, "global token")}` : ""}`,
    axes: ["token", "token"],
    cell: (down, across) => `${token(down)} to ${token(across)}`,
  });
  const matrices = got.matrices.map((matrix) => figure(matrix, {
    title: `${matrix.name} of layer ${whole(got.layer)}`,
    axes: ["token", "row of E"],
    cell: (down, across) => `row ${whole(down + 1)}, ${token(across)}`,
    wide: true,
    weight: true,
  }));
  return [
    el("p", {}, `${beginning} Projection ${got.projection}, sharing ${got.sharing}.`),
    got.shares ? sharesPart(got.shares) : null,
    el("h3", {}, `Attention of layer ${whole(got.layer)}, head ${whole(got.head)}`),
    el("div", { class: exact ? "maps pair" : "maps" }, rows, exact ?? null),
    el("h3", {}, "What the rows are made of"),
    el("div", { class: "maps" }, ...matrices),
    table(got.rows),
  ].filter(Boolean);
}

// How a head with a window divides its attention.
function sharesPart(shares) {
  const rows = Object.entries(shares).map(([name, share]) => el("li", { class: "score" }, el("span", { class: "name" }, name), bar(share), el("span", { class: "number" }, percent(share))));
  return el("div", { class: "part" }, el("h3", {}, "Where the attention goes"), el("ol", { class: "scores" }, ...rows));
}

// `cell(down, across)` names a cell; in an image that was averaged the first cell of a block.
function figure(image, { title, axes: [across, down], cell, wide = false, weight = false }) {
  const { values, rows, columns, pooled } = image;
  const canvas = el("canvas", { class: wide ? "map wide" : "map", width: values[0].length, height: values.length, role: "img" });
  canvas.values = values;
  const most = paint(canvas);
  const number = (value) => (weight ? value.toPrecision(2) : percent(value));
  const averaged = pooled ? ` ${whole(rows)} × ${whole(columns)}, ${weight ? "root mean square" : "mean"} of blocks.` : "";
  const strongest = strongestCells(values).map(([i, j, value]) => {
    const at = [i, j].map((place, axis) => Math.floor((place * [rows, columns][axis]) / [values.length, values[0].length][axis]));
    return `${pooled ? "near " : ""}${cell(...at)}: ${number(value)}`;
  });
  const axes = `Across: ${across}, 1 to ${whole(columns)}. Down: ${down}, 1 to ${whole(rows)}.${averaged}`;
  canvas.setAttribute("aria-label", `${title}. ${axes}`);
  const negative = values.some((row) => row.some((value) => value < 0));
  return el("figure", {},
    el("figcaption", {}, el("span", { class: "strong" }, title), el("span", { class: "small" }, axes)),
    canvas,
    el("div", { class: "scale small", "aria-hidden": "true" }, el("span", {}, negative ? number(-most) : "0"), el("span", { class: negative ? "ramp both" : "ramp" }), el("span", {}, number(most))),
    el("p", { class: "small" }, `Largest: ${strongest.join("; ")}.`));
}

function strongestCells(values) {
  const cells = values.flatMap((row, i) => row.map((value, j) => [i, j, value]));
  return cells.sort((a, b) => Math.abs(b[2]) - Math.abs(a[2])).slice(0, STRONGEST);
}

// Values by colour: 0 is transparent, the largest is solid; negative ones have another colour.
function paint(canvas) {
  const { values } = canvas;
  const style = getComputedStyle(document.documentElement);
  const colours = ["--accent", "--full"].map((name) => rgb(style.getPropertyValue(name).trim()));
  const most = values.reduce((top, row) => row.reduce((best, value) => Math.max(best, Math.abs(value)), top), 1e-12);
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  values.flat().forEach((value, at) => {
    pixels.data.set([...colours[value < 0 ? 1 : 0], Math.round((255 * Math.abs(value)) / most)], at * 4);
  });
  context.putImageData(pixels, 0, 0);
  return most;
}

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function table(rows) {
  const sorted = rows.map((row, place) => ({ ...row, number: place + 1 })).sort((a, b) => b.used - a.used).slice(0, ROWS);
  const names = ["Row", "Attention it gets", "Middle", "Tokens it is made of", "Largest"];
  const heaviest = ({ tokens }) => tokens.map((token) => `${token.sign < 0 ? "−" : "+"}${visible(token.text)}@${whole(token.position + 1)}`).join("  ");
  const cells = (row) => [percent(row.used), `${whole(Math.round(row.middle + 1))} ± ${whole(Math.round(row.width))}`, whole(Math.round(row.positions_in_use)), heaviest(row)];
  const body = sorted.map((row) => el("tr", {}, el("th", { scope: "row" }, whole(row.number)), ...cells(row).map((text) => el("td", {}, text))));
  const caption = `The ${whole(sorted.length)} of ${whole(rows.length)} rows of E with most attention. +a@3: token 3, “a”, has a positive weight.`;
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Rows of E" },
    el("table", {}, el("caption", { class: "small" }, caption), el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...body)));
}
