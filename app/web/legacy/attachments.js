// The files that go with the next message: chosen, dropped or pasted, uploaded at once, and shown as chips.

import { drawing, make, size } from "./elements.js";
import { PAPER } from "./files.js";
import { Refusal, isPassing } from "./khala.js";
import { inWords } from "./outbox.js";

export const MOST_FILES = 10;
const CROSS = "M5 5l10 10M15 5 5 15";

function whyNot(error) {
  if (error.code === "payload_too_large" || error.status === 415 || error.code === "invalid_input") return error.errors?.[0]?.message ?? error.message;
  return inWords(error);
}

export class Attachments {
  #entries = [];
  #isOpen = false;
  #upload;
  #changed;
  #say;
  #list = document.getElementById("attached");
  #button = document.getElementById("attach");
  #field = document.getElementById("attach-field");

  /** `upload(file, signal)` uploads, `changed()` is told of every change, `say(words)` tells the person. */
  constructor({ upload, changed, say }) {
    this.#upload = upload;
    this.#changed = changed;
    this.#say = say;
    this.#button.addEventListener("click", () => this.#field.click());
    this.#field.addEventListener("change", () => (this.#add(this.#field.files), (this.#field.value = "")));
    document.getElementById("text").addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    addEventListener("dragover", (event) => this.#hover(event));
    addEventListener("dragleave", (event) => event.relatedTarget === null && this.#mark(false));
    addEventListener("drop", (event) => (this.#mark(false), event.dataTransfer.types.includes("Files") && this.#take(event, event.dataTransfer)));
  }

  /** Files can be added only where one may write. */
  draw(isOpen) {
    this.#isOpen = isOpen;
    this.#button.disabled = !isOpen;
  }

  get count() {
    return this.#entries.length;
  }

  /** Why they can't be sent yet, if so. */
  get obstacle() {
    if (this.#entries.some(({ phase }) => phase === "uploading")) return "A file is still on its way.";
    return this.#entries.some(({ phase }) => phase === "failed") ? "A file was not uploaded; try again or remove it." : null;
  }

  /** Take what is attached, to be sent. */
  take() {
    const blobs = this.#entries.map(({ blob }) => blob);
    this.clear();
    return blobs;
  }

  /** Attach again what was not sent. */
  put(blobs) {
    this.#entries = blobs.map((blob) => ({ name: blob.name ?? "File", size: blob.size, phase: "ready", blob }));
    this.#show();
  }

  clear() {
    for (const { abort } of this.#entries) abort?.abort();
    this.#entries = [];
    this.#show();
  }

  #take(event, data) {
    if (!data.files.length) return;
    event.preventDefault();
    this.#add(data.files);
  }

  #hover(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = this.#isOpen ? "copy" : "none";
    this.#mark(this.#isOpen);
  }

  #mark(isOver) {
    document.body.classList.toggle("dropping", isOver);
  }

  #add(files) {
    if (!this.#isOpen) return;
    const room = MOST_FILES - this.#entries.length;
    if (files.length > room) this.#say(`A message takes ${MOST_FILES} files at most.`);
    for (const file of [...files].slice(0, room)) {
      const entry = { name: file.name, size: file.size, file };
      this.#entries.push(entry);
      this.#send(entry);
    }
  }

  async #send(entry) {
    Object.assign(entry, { phase: "uploading", why: "", abort: new AbortController() });
    this.#show();
    try {
      entry.blob = await this.#upload(entry.file, entry.abort.signal);
      entry.phase = "ready";
    } catch (error) {
      if (!(error instanceof Refusal) && !isPassing(error)) throw error;
      entry.phase = "failed";
      entry.why = whyNot(error);
    }
    this.#show();
  }

  #remove(entry) {
    entry.abort?.abort();
    this.#entries = this.#entries.filter((one) => one !== entry);
    this.#show();
    document.getElementById("text").focus({ preventScroll: true });
  }

  #show() {
    this.#list.replaceChildren(...this.#entries.map((entry) => this.#chip(entry)));
    this.#list.hidden = this.#entries.length === 0;
    this.#changed();
  }

  #chip(entry) {
    const { name, phase, why } = entry;
    const said = { uploading: "Uploading …", ready: size(entry.size), failed: `Not uploaded. ${why}` }[phase];
    const again = make("button", { type: "button", className: "quiet", textContent: "Retry", onclick: () => this.#send(entry) });
    const remove = make("button", { type: "button", className: "chip-remove", onclick: () => this.#remove(entry) }, drawing(CROSS));
    remove.setAttribute("aria-label", `Remove ${name}`);
    const words = make("span", { className: "file-size", role: phase === "failed" ? "alert" : null, textContent: said });
    return make("li", { className: `chip ${phase}` }, drawing(PAPER), make("span", { className: "file-name", textContent: name }), words, ...(phase === "failed" ? [again] : []), remove);
  }
}
