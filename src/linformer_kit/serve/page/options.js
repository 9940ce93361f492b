// The fields of a model's options. A field that is empty is left to the server.

import { byId, counted, el, whole } from "./dom.js";

const OVERFLOW = {
  error: "refuse",
  truncate: "cut off",
  chunk: "read in pieces",
  extend: "extend the model",
};

const NUMBERS = {
  top: { label: "Number of answers", value: 5, min: 1, step: 1 },
  max_new_tokens: { label: "Tokens to write, at most", value: { generate: 200 }, min: 1, step: 1 },
  temperature: { label: "Temperature", hint: "0: always the likeliest token", value: 0.8, min: 0, step: "any" },
  top_p: { label: "Top p", hint: "the likeliest tokens with this share in all", min: 0, max: 1, step: "any" },
  seed: { label: "Seed", hint: "the same seed gives the same text", min: 0, step: 1 },
};

const PASSAGE_WORDS = { label: "Words in a passage", value: 100, min: 5, step: 1 };

export class OptionFields {
  constructor() {
    this.box = byId("option-fields");
    this.fields = new Map(); // key of the request: its field
  }

  show(model) {
    this.fields.clear();
    this.box.replaceChildren();
    if (model.task === "embed") this.addNumber("passage_words", PASSAGE_WORDS, model);
    for (const key of model.options) {
      if (key in NUMBERS) this.addNumber(key, NUMBERS[key], model);
      else if (key === "stop") this.add(key, el("input", { type: "text", autocomplete: "off" }), "Stop at", "the text ends before these characters");
      else if (key === "redact") this.addSwitch(key, "Replace the spans by their labels");
      else if (key === "size") this.addSize(model);
      else if (key === "on_overflow") this.addOverflow(model);
    }
    byId("options").hidden = this.fields.size === 0;
  }

  // The keys of the request. A RequestError-like object is thrown by `invalid` for a bad number.
  values(invalid) {
    const found = {};
    for (const [key, field] of this.fields) {
      if (field.type === "checkbox") {
        if (field.checked) found[key] = true;
      } else if (field.validity.badInput) {
        throw invalid(`${field.labels[0].textContent}: this is not a number.`, key);
      } else if (field.value !== "") {
        const isNumber = field.type === "number" || key === "size";
        found[key] = isNumber ? Number(field.value) : field.value;
      }
    }
    return found;
  }

  // Mark the field that an error is about, and nothing if there is none.
  mark(key) {
    for (const [name, field] of this.fields) {
      if (name === key) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
    if (this.fields.has(key)) byId("options").open = true;
  }

  addNumber(key, { label, hint, value, min, max, step }, model) {
    const first = typeof value === "object" ? value[model.task] : value;
    this.add(key, el("input", { type: "number", inputmode: "decimal", value: first, min, max, step }), label, hint);
  }

  addSwitch(key, label) {
    const field = el("input", { type: "checkbox", id: `option-${key}` });
    this.fields.set(key, field);
    this.box.append(el("div", { class: "field switch" }, field, el("label", { for: field.id }, label)));
  }

  addSize(model) {
    if (!model.matryoshka) return;
    const sizes = [...model.matryoshka].sort((a, b) => b - a);
    const choices = sizes.map((size) => el("option", { value: size }, counted(size, "number")));
    choices.unshift(el("option", { value: "" }, `all ${whole(model.dimensions)}`));
    this.add("size", el("select", {}, ...choices), "Length of a vector");
  }

  addOverflow(model) {
    const { allowed } = model.on_overflow;
    if (model.max_length === null || allowed.length < 2) return;
    const choices = allowed.map((policy) => el("option", { value: policy, selected: policy === model.on_overflow.default }, OVERFLOW[policy] ? `${policy}: ${OVERFLOW[policy]}` : policy));
    this.add("on_overflow", el("select", {}, ...choices), `Over ${whole(model.max_length)} tokens`);
  }

  add(key, field, label, hint = null) {
    field.id = `option-${key}`;
    if (hint) field.setAttribute("aria-describedby", `${field.id}-hint`);
    this.fields.set(key, field);
    this.box.append(
      el("div", { class: "field" }, el("label", { for: field.id }, label), field, hint && el("p", { class: "small", id: `${field.id}-hint` }, hint)),
    );
  }
}
