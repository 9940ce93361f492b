// How much was read, how long it took, and the estimate for full attention.

import { bar, counted, duration, el, percent, whole } from "./dom.js";

const WORTH_SAYING = 1.5; // times the operations: less is within what an estimate may be off

export function readingPart({ tokens_read: read, tokens_total: total, notes = [] }) {
  const all = read >= total;
  const line = all
    ? `Read completely: ${counted(total, "token")}.`
    : `Not everything was read: ${whole(read)} of ${counted(total, "token")} (${percent(read / total)}).`;
  return el(
    "div",
    { class: all ? "reading" : "reading box warning" },
    el("p", { class: all ? "" : "strong" }, line),
    all ? null : bar(read / total, "part"),
    notes.length ? el("ul", { class: "small" }, ...notes.map((note) => el("li", {}, note))) : null,
  );
}

export function timePart({ seconds, seconds_computing: computing, full_attention: full, tokens_read: read, tokens_total: total }, scope) {
  const facts = [`Answered in ${duration(seconds)}`];
  if (computing !== undefined && computing !== null) facts.push(`${duration(computing)} of it in the model`);
  const part = el("div", { class: "times" }, el("p", {}, `${facts.join(", ")}.`));
  const ratio = full ? full.seconds_estimate / Math.max(computing, 1e-9) : 0; // known for encoders only
  if (ratio < WORTH_SAYING) return part;
  const most = Math.max(computing, full.seconds_estimate, 1e-9);
  const row = (name, time, kind) =>
    el("div", { class: "time" }, el("span", {}, name), bar(time / most, kind), el("span", { class: "number" }, duration(time)));
  part.append(
    row("this model", computing, ""),
    row("full attention (estimate)", full.seconds_estimate, "full"),
    el("p", { class: "small" }, `Estimated from the cost model: full attention over ${scope} takes ${compared(ratio)} the operations. The time assumes the speed that was measured here.${read < total ? " This model read a part only." : ""}`),
  );
  return part;
}

function compared(ratio) {
  return `${ratio < 9.95 ? ratio.toFixed(1) : whole(Math.round(ratio))} times`;
}
