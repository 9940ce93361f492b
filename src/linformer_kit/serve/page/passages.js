// Passages of a document, their vectors, and the nearest ones.

import { countWords, nextFrame } from "./dom.js";

export const INPUTS = 32; // passages of a request

// Pieces of about `words` words, in order, that cover the text: they end after a paragraph or a
// sentence where that is not too early. `start` and `first` count UTF-16 units and words.
export function split(text, words) {
  const units = /[^\s](?:[^\n.!?\u2026\u3002\uff01\uff1f]|[.!?\u2026](?=\S))*[.!?\u2026\u3002\uff01\uff1f]*["')\]\u00bb\u201d]*\s*/gu;
  const passages = [];
  let open = null;
  let seen = 0;
  const close = () => {
    if (open) passages.push({ text: text.slice(open.start, open.end).trim(), first: open.first, words: open.words });
    open = null;
  };
  for (const { 0: unit, index } of text.matchAll(units)) {
    for (const piece of pieces(unit, index, words)) {
      if (open && open.words + piece.words > words) close();
      open ??= { start: piece.start, first: seen + 1, words: 0 };
      open.end = piece.end;
      open.words += piece.words;
      seen += piece.words;
      if (/\n\s*\n\s*$/.test(unit) && open.words > words / 2) close();
    }
  }
  close();
  return passages;
}

// A sentence, cut where it has more than `most` words.
function* pieces(unit, index, most) {
  const words = countWords(unit);
  if (words <= most) {
    yield { start: index, end: index + unit.length, words };
    return;
  }
  let start = 0;
  let count = 0;
  for (const word of unit.matchAll(/\S+\s*/g)) {
    count++;
    const end = word.index + word[0].length;
    if (count === most || end === unit.length) {
      yield { start: index + start, end: index + end, words: count };
      start = end;
      count = 0;
    }
  }
}

// The vectors of a document, kept until the document, the model or an option changes.
export class PassageVectors {
  constructor() {
    this.settings = null;
    this.text = null;
  }

  // Embed what is not embedded yet. `embed(texts)` answers /predict; `progress(done, all)` is told.
  async fill(settings, text, words, embed, progress) {
    if (this.settings !== settings || this.text !== text) {
      this.passages = split(text, words);
      this.vectors = [];
      this.sums = new Sums();
      Object.assign(this, { settings, text });
    }
    while (this.vectors.length < this.passages.length) {
      progress(this.vectors.length, this.passages.length);
      const next = this.passages.slice(this.vectors.length, this.vectors.length + INPUTS);
      const answer = await embed(next.map((passage) => passage.text));
      this.sums.add(answer);
      for (const result of answer.results) this.vectors.push(Float32Array.from(result.answers[0].vector));
      await nextFrame();
    }
    progress(this.vectors.length, this.passages.length);
  }

  // Passages by their cosine with a vector; all vectors have norm 1.
  nearest(query, count) {
    const scored = this.vectors.map((vector, number) => {
      let score = 0;
      for (let i = 0; i < vector.length; i++) score += vector[i] * query[i];
      return { ...this.passages[number], score };
    });
    return scored.sort((a, b) => b.score - a.score).slice(0, count);
  }
}

// Tokens, times and notes of several answers of /predict.
export class Sums {
  constructor() {
    Object.assign(this, { tokens_read: 0, tokens_total: 0, seconds: 0, seconds_computing: 0 });
    this.full_attention = { seconds_estimate: 0 };
    this.cut = 0; // inputs that were not read completely
  }

  add(answer) {
    for (const name of ["tokens_read", "tokens_total", "seconds", "seconds_computing"]) this[name] += answer[name] ?? 0;
    if (answer.full_attention && this.full_attention) this.full_attention.seconds_estimate += answer.full_attention.seconds_estimate;
    else this.full_attention = null;
    this.cut += answer.results.filter((result) => result.tokens_read < result.tokens_total).length;
  }

  plus(answer) {
    const made = Object.assign(new Sums(), this, { full_attention: this.full_attention && { ...this.full_attention } });
    made.add(answer);
    return made;
  }
}
