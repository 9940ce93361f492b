// The document: typed, pasted, opened or dropped. A text that is too long for an editor is kept
// beside it, and its beginning is shown.

import { byId, countWords, counted, safeIndex, whole } from "./dom.js";

const EDITABLE = 200_000; // characters: every key makes the browser lay out the paragraph again
const SHOWN = 20_000;
const LARGEST_FILE = 64 * 2 ** 20; // bytes: the browser holds it several times

export class DocumentInput {
  constructor({ changed, failed }) {
    this.area = byId("document");
    this.count = byId("count");
    this.changed = changed;
    this.failed = failed;
    this.kept = null; // the text that is not in the editor
    this.timer = null;
    this.area.addEventListener("input", () => {
      if (this.area.value.length > EDITABLE) this.set(this.area.value);
      else this.refresh();
    });
    this.area.addEventListener("paste", (event) => this.paste(event));
    byId("clear").addEventListener("click", () => {
      this.set("");
      this.area.focus();
    });
    byId("file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) this.open(file);
      event.target.value = "";
    });
    this.listenToDrops();
  }

  get text() {
    return this.kept ?? this.area.value;
  }

  set(text, name = null) {
    const plain = text.replace(/\r\n?/g, "\n"); // as a textarea has it
    const isLong = plain.length > EDITABLE;
    this.kept = isLong ? plain : null;
    this.name = name;
    this.area.readOnly = isLong;
    this.area.value = isLong ? plain.slice(0, safeIndex(plain, SHOWN)) : plain;
    this.area.scrollTop = 0;
    this.refresh();
  }

  insert(text) {
    if (this.kept !== null) return false;
    const { selectionStart, selectionEnd } = this.area;
    this.area.setRangeText(text, selectionStart, selectionEnd, "end");
    this.area.focus();
    this.refresh();
    return true;
  }

  async open(file) {
    if (file.size > LARGEST_FILE) {
      this.failed("This file is too large", `${file.name} has ${whole(Math.ceil(file.size / 2 ** 20))} MB; the page reads files of at most ${LARGEST_FILE / 2 ** 20} MB. Send it to POST /predict.`);
      return;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      this.set(text, file.name);
    } catch {
      this.failed("This file cannot be read", `${file.name} is not a text file in UTF-8. Save it as plain text first.`);
    }
  }

  paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (this.kept === null && this.area.value.length + text.length <= EDITABLE) return;
    event.preventDefault();
    const { value, selectionStart, selectionEnd } = this.area;
    this.set(this.kept === null ? value.slice(0, selectionStart) + text + value.slice(selectionEnd) : text);
  }

  refresh() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.describe(), this.area.value.length > 100_000 ? 300 : 50);
    this.changed();
  }

  describe() {
    const { text } = this;
    const parts = [counted(countWords(text), "word"), counted(text.length, "character")];
    if (this.name && text) parts.unshift(this.name);
    this.count.textContent = parts.join(" · ") + (this.kept === null ? "" : `. The first ${whole(SHOWN)} characters are shown here and cannot be edited; the whole document is sent.`);
  }

  listenToDrops() {
    const zone = byId("drop");
    let inside = 0;
    const mark = () => zone.classList.toggle("over", inside > 0);
    window.addEventListener("dragenter", (event) => {
      event.preventDefault();
      inside++;
      mark();
    });
    window.addEventListener("dragleave", () => {
      inside = Math.max(0, inside - 1);
      mark();
    });
    window.addEventListener("dragover", (event) => event.preventDefault());
    window.addEventListener("drop", (event) => {
      event.preventDefault(); // the browser would leave the page for the file
      inside = 0;
      mark();
      const { files } = event.dataTransfer;
      const text = event.dataTransfer.getData("text/plain");
      if (files.length > 1) this.failed("One document at a time", `${whole(files.length)} files were dropped. Drop one.`);
      else if (files.length === 1) this.open(files[0]);
      else if (text) this.set(text);
    });
  }
}
