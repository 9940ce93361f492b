// Text that arrives piece by piece.

import { BLOCK, blockEnd, copyButton, el, safeIndex, textBox } from "./dom.js";

const PROMPT = 400; // characters of the prompt that are shown
const NEAR = 40; // pixels from the end within which the view follows the text

export class WrittenText {
  constructor(prompt) {
    const from = prompt.length > PROMPT ? safeIndex(prompt, prompt.length - PROMPT) : 0;
    this.text = "";
    this.waiting = "";
    this.scheduled = false;
    this.box = textBox("Text that was written");
    this.counter = el("p", { class: "small" });
    this.part = el("div", { class: "part" },
      el("div", { class: "row" }, el("h3", {}, "Text"), copyButton(() => this.text)), this.box, this.counter);
    this.newBlock(el("span", { class: "prompt" }, (from ? "… " : "") + prompt.slice(from)));
  }

  newBlock(...before) {
    this.node = document.createTextNode("");
    this.box.append(el("span", { class: "block lazy" }, ...before, this.node));
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
    this.node.appendData(this.waiting);
    this.waiting = "";
    while (this.node.length > BLOCK) {
      const { data } = this.node;
      const end = blockEnd(data, 0);
      this.node.data = data.slice(0, end);
      this.newBlock();
      this.node.data = data.slice(end);
    }
    if (follows) box.scrollTop = box.scrollHeight;
  }

  say(line) {
    this.counter.textContent = line;
  }
}
