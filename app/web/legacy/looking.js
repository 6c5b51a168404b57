// Looking into a blob: how it begins, its first and last lines, those with a pattern, and the whole of it as a file.

import { tried } from "./dialogs.js";
import { make, seen, size } from "./elements.js";
import { pictureOf } from "./files.js";

const LINES = 100;

export class BlobPanel {
  #blob;
  #blobs;
  #shown = make("div", { className: "lines", tabIndex: 0 });
  #more = make("button", { type: "button", className: "small", textContent: "More", hidden: true });
  #pattern = make("input", { className: "blob-pattern", type: "search", placeholder: "Search (regular expression)", ariaLabel: "Search in this", maxLength: 500 });
  element = make("div", { className: "blob" });

  /** `blobs`: `lines(blobId, query)`, `download(blob)` and `bytes(blobId)`. */
  constructor(blob, blobs) {
    this.#blob = blob;
    this.#blobs = blobs;
    const act = (textContent, onclick) => make("button", { type: "button", className: "small", textContent, onclick });
    const download = act("Download", () => this.#tried(() => blobs.download(blob)));
    const preview = blob.preview ?? "";
    const isText = Boolean(preview) || /^text\/|json/.test(blob.mediaType);
    const isImage = blob.mediaType.startsWith("image/");
    const search = make("form", { className: "blob-search", onsubmit: (event) => (event.preventDefault(), this.#search()) }, this.#pattern, make("button", { className: "small", textContent: "Search" }));
    const looks = isText ? [act("First lines", () => this.#look({ mode: "head" })), act("Last lines", () => this.#look({ mode: "tail" })), download, search] : [download];
    const about = [blob.name, size(blob.size), blob.mediaType.split(";")[0]].filter(Boolean).join(" · ");
    this.element.append(make("p", { className: "blob-about", textContent: about }), isImage ? pictureOf(blob, blobs) : this.#shown);
    this.element.append(this.#more, make("div", { className: "blob-buttons" }, ...looks), make("p", { className: "wrong", role: "alert" }));
    this.#shown.hidden = !isText;
    const begins = this.#plain(preview);
    this.#shown.textContent = preview.length < blob.size ? `${begins} …` : begins;
  }

  #search() {
    const pattern = this.#pattern.value;
    if (pattern) this.#look({ mode: "grep", pattern, ignoreCase: true });
  }

  /** Show the lines that the question is for; its next page comes behind them. */
  async #look(question, isNext = false) {
    const seen = await this.#tried(() => this.#blobs.lines(this.#blob.blobId, { lines: LINES, ...question }));
    if (!seen) return;
    const { items = [], next, binary } = seen;
    const rows = items.map((line) => lineOf({ ...line, text: this.#plain(line.text) }));
    if (!isNext) this.#shown.replaceChildren();
    this.#shown.hidden = false;
    if (binary) this.#shown.textContent = "This is no text.";
    else if (!rows.length && !next && !isNext) this.#shown.textContent = question.mode === "grep" ? "No line has this." : "There are no lines.";
    this.#shown.append(...rows);
    this.#more.hidden = !next;
    this.#more.onclick = () => this.#look({ ...question, after: next }, true);
    if (!isNext) this.#shown.scrollTop = 0;
  }

  #plain(text) {
    return /json/.test(this.#blob.mediaType) ? seen(text) : text;
  }

  async #tried(ask) {
    this.element.setAttribute("aria-busy", "true");
    const answer = await tried(this.element, ask);
    this.element.removeAttribute("aria-busy");
    return answer;
  }
}

function lineOf({ line, text, match, cut }) {
  const number = make("span", { className: "line-number", textContent: line, ariaHidden: "true" });
  return make("div", { className: match ? "blob-line found" : "blob-line" }, number, make("span", { textContent: cut && !text.includes("…") ? `${text} …` : text }));
}
