// Elements, numbers and long texts. Text is always a text node, so markup in it has no effect.

export const BLOCK = 4000; // characters of a long text that are laid out together
const BLOCKS_A_FRAME = 25;

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : String(value));
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const whole = (value) => new Intl.NumberFormat("en").format(value);

export function counted(value, one, many = `${one}s`) {
  return `${whole(value)} ${value === 1 ? one : many}`;
}

export function percent(share) {
  return new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 }).format(share);
}

export function duration(seconds) {
  if (seconds < 0.0005) return "under 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const all = Math.round(seconds);
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  return `${whole(Math.floor(all / 3600))} h ${Math.floor((all % 3600) / 60)} min`;
}

// A bar that fills `share` of its width. The number is always beside it as text.
export function bar(share, kind = "") {
  const fill = el("div", { class: `fill ${kind}` });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("div", { class: "bar", "aria-hidden": "true" }, fill);
}

// A token whose spaces and line breaks can be seen.
export function visible(text) {
  const shown = text.trim().replace(/\r?\n/g, "↵").replace(/\t/g, "⇥");
  return shown || (text.includes("\n") ? "↵" : "␣");
}

export function countWords(text) {
  let words = 0;
  let inside = false;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    const space = code === 32 || (code >= 9 && code <= 13) || code === 0xa0 || code === 0x3000;
    if (!space && !inside) words++;
    inside = !space;
  }
  return words;
}

// An index that does not cut a surrogate pair in two.
export function safeIndex(text, index) {
  const code = text.charCodeAt(index);
  return code >= 0xdc00 && code <= 0xdfff ? index - 1 : index;
}

// The end of a block that begins at `start`: after a line, else after a word.
export function blockEnd(text, start, size = BLOCK) {
  const most = start + size;
  if (most >= text.length) return text.length;
  const line = text.lastIndexOf("\n", most - 1);
  if (line > start + size / 2) return line + 1;
  const word = text.lastIndexOf(" ", most - 1);
  return word > start + size / 2 ? word + 1 : safeIndex(text, most);
}

export const nextFrame = () => new Promise((resolve) => setTimeout(resolve, 0));

// Fill a box with a long text in blocks, a few at a time. `nodes(start, end)` makes the content of
// a block, and may move its end; a block off the screen is not laid out (content-visibility).
export async function fillWithBlocks(box, text, nodes, signal) {
  let start = 0;
  const kind = text.length > 2 * BLOCK ? "block lazy" : "block";
  for (let count = 1; start < text.length; count++) {
    const made = nodes(start, blockEnd(text, start));
    box.append(el("span", { class: kind }, ...made.children));
    start = made.end;
    if (count % BLOCKS_A_FRAME === 0) {
      await nextFrame();
      if (signal?.aborted) return;
    }
  }
}

// A box with a long text that scrolls and that the keyboard reaches.
export function textBox(label) {
  return el("div", { class: "text", role: "region", tabindex: "0", "aria-label": label });
}

export function plainBlocks(box, text, signal) {
  return fillWithBlocks(box, text, (start, end) => ({ children: [text.slice(start, end)], end }), signal);
}

// A button that copies a text; none where the browser does not let a page do that.
export function copyButton(text) {
  if (!navigator.clipboard) return null;
  const button = el("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

// Items of a list, the first ones at once and more by a button.
export function longList(tag, items, make, first = 50) {
  const list = el(tag, { class: "list" });
  const outside = el("div", {}, list);
  let shown = 0;
  const more = el("button", { type: "button", class: "quiet" });
  const show = (count) => {
    const end = Math.min(items.length, shown + count);
    for (; shown < end; shown++) list.append(make(items[shown], shown));
    const left = items.length - shown;
    more.textContent = `Show ${whole(Math.min(left, 200))} more of ${whole(left)}`;
    if (left === 0) more.remove();
  };
  outside.append(more);
  more.addEventListener("click", () => show(200));
  show(first);
  return outside;
}
