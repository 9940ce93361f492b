// Text that arrives piece by piece.

import { copyButton, el, safeIndex, textBox } from "./dom.js";

const PROMPT = 400; // characters of the prompt that are shown
const BLOCK = 4000;
const NEAR = 40; // pixels from the end within which the view follows the text

export class WrittenText {
  constructor(prompt) {
    const from = prompt.length > PROMPT ? safeIndex(prompt, prompt.length - PROMPT) : 0;
    this.text = "";
    this.waiting = "";
    this.scheduled = false;
    this.box = textBox("Text that was written");
    this.box.append(el("span", { class: "prompt" }, (from ? "… " : "") + prompt.slice(from)));
    this.counter = el("p", { class: "small" });
    this.part = el("div", { class: "part" },
      el("div", { class: "row" }, el("h3", {}, "Text"), copyButton(() => this.text)), this.box, this.counter);
    this.newBlock();
  }

  newBlock() {
    this.node = document.createTextNode("");
    this.box.append(el("span", { class: "written" }, this.node));
  }

  // Pieces that arrive between two frames are drawn together.
  add(piece) {
    this.text += piece;
    this.waiting += piece;
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.scheduled = false;
    const { box } = this;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    if (this.node.length > BLOCK) this.newBlock();
    this.node.appendData(this.waiting);
    this.waiting = "";
    if (follows) box.scrollTop = box.scrollHeight;
  }

  say(line) {
    this.counter.textContent = line;
  }
}
