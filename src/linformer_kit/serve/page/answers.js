// The answers of each task.

import { bar, copyButton, counted, el, fillWithBlocks, longList, percent, plainBlocks, safeIndex, textBox, visible, whole } from "./dom.js";

const COLOURS = 8;
const AROUND = 90; // characters shown on each side of a mask

export function scoreList(answers) {
  const rows = answers.map((answer) =>
    el("li", { class: "score" }, el("span", { class: "name" }, visible(answer.token ?? answer.text)), bar(answer.score), el("span", { class: "number" }, percent(answer.score))),
  );
  return el("ol", { class: "scores" }, ...rows);
}

export function fillPart(answers, text, maskToken) {
  const masks = new Map();
  for (const answer of answers) {
    const mask = answer.mask ?? 0;
    if (!masks.has(mask)) masks.set(mask, []);
    masks.get(mask).push(answer);
  }
  const places = occurrences(text, maskToken);
  return longList("ol", [...masks], ([mask, found]) =>
    el("li", { class: "part" }, el("h3", {}, `Mask ${whole(mask + 1)}`), context(text, places[mask], maskToken, found[0]), scoreList(found)), 20);
}

function context(text, place, maskToken, best) {
  if (place === undefined) return null;
  const end = place + maskToken.length;
  const from = safeIndex(text, Math.max(0, place - AROUND));
  const to = safeIndex(text, Math.min(text.length, end + AROUND));
  return el("p", { class: "context" }, `${from ? "… " : ""}${text.slice(from, place)}`, el("mark", {}, visible(best.token)), `${text.slice(end, to)}${to < text.length ? " …" : ""}`);
}

function occurrences(text, part) {
  const found = [];
  if (!part) return found;
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) found.push(at);
  return found;
}

export function textPart(text, label, signal) {
  const box = textBox(label);
  const part = el("div", { class: "part" }, el("div", { class: "row" }, el("h3", {}, label), copyButton(() => text)), box);
  if (!text) box.append(el("span", { class: "empty" }, "The answer is an empty text."));
  return { part, done: plainBlocks(box, text, signal) };
}

// Spans count Unicode code points, strings of JavaScript UTF-16 units.
export function utf16Spans(text, spans) {
  const sorted = [...spans].sort((a, b) => a.start - b.start);
  if (!/[\ud800-\udbff]/.test(text)) return sorted;
  let point = 0;
  let unit = 0;
  const unitOf = (wanted) => {
    for (; point < wanted && unit < text.length; point++) unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
    return unit;
  };
  return sorted.map((span) => {
    const start = unitOf(span.start);
    return { ...span, start, end: unitOf(span.end) };
  });
}

export function tagPart(answers, text, labels, signal) {
  const spans = utf16Spans(text, answers);
  const colour = new Map(labels.map((label, number) => [label, number % COLOURS]));
  const box = textBox("Document with its spans");
  const counts = labels.map((label) => [label, spans.filter((span) => span.label === label).length]);
  const legend = el("ul", { class: "legend" }, ...counts.map(([label, count]) =>
    el("li", {}, el("span", { class: `label c${colour.get(label)}` }, label), ` ${whole(count)}`)));
  const part = el("div", { class: "part" }, el("h3", {}, counted(spans.length, "span")), legend, box);
  if (spans.length) part.append(el("details", {}, el("summary", {}, "Spans as a list"), longList("ol", spans, spanItem)));
  let next = 0;
  const done = fillWithBlocks(box, text, (start, wanted) => {
    const children = [];
    let at = start;
    for (; next < spans.length && spans[next].start < Math.max(wanted, at); next++) {
      const span = spans[next];
      children.push(text.slice(at, span.start), marked(text.slice(span.start, span.end), span.label, colour));
      at = span.end;
    }
    const end = Math.max(wanted, at); // a span is not cut
    children.push(text.slice(at, end));
    return { children, end };
  }, signal);
  return { part, done };
}

function marked(text, label, colour) {
  return el("mark", { class: `span c${colour.get(label) ?? 0}` }, text, el("span", { class: "label" }, label));
}

function spanItem({ text, label, score }) {
  return el("li", {}, `${text} `, el("span", { class: "small" }, `${label}${score === undefined ? "" : `, ${percent(score)}`}`));
}

export function passagePart(nearest, all) {
  const items = nearest.map((passage) =>
    el("li", { class: "part" },
      el("div", { class: "score" }, el("span", { class: "name small" }, `words ${whole(passage.first)} to ${whole(passage.first + passage.words - 1)}`), bar(passage.score), el("span", { class: "number" }, passage.score.toFixed(3))),
      el("p", { class: "passage" }, passage.text)));
  return el("div", { class: "part" }, el("h3", {}, `The nearest ${whole(nearest.length)} of ${counted(all, "passage")}, by cosine`), el("ol", { class: "list" }, ...items));
}
