// Pieces of Markdown as DOM: those that are settled are drawn once and never touched again.

import { COPY_LABELS } from "../state/strings.ts";
import { clean } from "./clean.ts";
import { coloured } from "./highlighting.ts";
import { morph, setText } from "./morph.ts";
import type { Code, Piece, Prose } from "./pieces.ts";
import { endPreview, previewOf, togglePreview } from "./previewing.ts";
import { unwatch, whenSeen } from "./sight.ts";
import { typeset } from "./typesetting.ts";

const COPIED_MS = 1500;

type Drawn = { piece: Piece; element: HTMLElement };

export class Drawing {
  readonly #host: HTMLElement;
  #drawn: Drawn[] = [];

  constructor(host: HTMLElement) {
    this.#host = host;
  }

  /** Show these pieces. */
  draw(pieces: readonly Piece[]): void {
    const begin = this.#sameAtBegin(pieces);
    const end = this.#sameAtEnd(pieces, begin);
    const old = this.#drawn.slice(begin, this.#drawn.length - end);
    const after = this.#drawn[this.#drawn.length - end]?.element ?? null;
    const fresh = pieces.slice(begin, pieces.length - end).map((piece, at) => this.#place(piece, old[at], after));
    for (const { element } of old.slice(fresh.length)) drop(element);
    this.#drawn.splice(begin, old.length, ...fresh);
  }

  /** Nothing of it is looked for any more. */
  end(): void {
    forget(this.#host);
  }

  #sameAtBegin(pieces: readonly Piece[]): number {
    const at = pieces.findIndex((piece, index) => !isSame(piece, this.#drawn[index]?.piece));
    return at < 0 ? pieces.length : at;
  }

  #sameAtEnd(pieces: readonly Piece[], begin: number): number {
    const most = Math.min(pieces.length, this.#drawn.length) - begin;
    let count = 0;
    while (count < most) {
      const piece = pieces[pieces.length - 1 - count];
      if (!piece || !isSame(piece, this.#drawn[this.#drawn.length - 1 - count]?.piece)) break;
      count++;
    }
    return count;
  }

  /** Draw over what was there, or else before `after`. */
  #place(piece: Piece, old: Drawn | undefined, after: HTMLElement | null): Drawn {
    const element = old ? redrawn(old, piece) : created(piece);
    if (!old) this.#host.insertBefore(element, after);
    else if (old.element !== element) {
      this.#host.replaceChild(element, old.element);
      forget(old.element);
    }
    if (piece.settled) embellish(element);
    return { piece, element };
  }
}

function drop(element: HTMLElement): void {
  forget(element);
  element.remove();
}

/** Nothing is waited for in there, and nothing runs. */
function forget(element: HTMLElement): void {
  for (const watched of element.querySelectorAll(".code, .math")) {
    unwatch(watched);
    endPreview(watched);
  }
}

function isSame(piece: Piece, other: Piece | undefined): boolean {
  if (piece === other) return true;
  if (other?.settled !== piece.settled) return false;
  if (piece.kind === "code") return other.kind === "code" && piece.text === other.text && piece.language === other.language;
  return other.kind === "prose" && piece.html === other.html && piece.rest === other.rest;
}

function created(piece: Piece): HTMLElement {
  const element = document.createElement("div");
  element.className = "piece";
  element.append(piece.kind === "code" ? frameOf(piece) : proseOf(piece));
  return element;
}

function redrawn({ element, piece: before }: Drawn, piece: Piece): HTMLElement {
  if (piece.kind !== before.kind) return created(piece);
  if (piece.kind === "prose") morph(element, proseOf(piece));
  else fill(element, piece);
  return element;
}

function proseOf({ html, rest }: Prose): DocumentFragment {
  const fragment = clean(html);
  for (const bar of fragment.querySelectorAll(".code-bar")) bar.append(copyButton());
  if (rest) lastOf(fragment).append(rest);
  return fragment;
}

/** Where text that follows belongs: the innermost of the last block. */
function lastOf(fragment: DocumentFragment): ParentNode {
  let last: Element | null = fragment.lastElementChild;
  if (!last) return fragment.appendChild(document.createElement("p"));
  while (last.lastElementChild?.matches("p, li, ul, ol, blockquote, pre, code, table, tbody, tr, td, th, .code")) last = last.lastElementChild;
  return last;
}

function frameOf(piece: Code): HTMLElement {
  const frame = document.createElement("div");
  frame.className = "code";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const language = document.createElement("span");
  language.className = "language";
  const box = document.createElement("pre");
  box.tabIndex = 0;
  box.append(document.createElement("code"));
  bar.append(language, copyButton());
  frame.append(bar, box);
  fill(frame, piece);
  return frame;
}

function fill(element: HTMLElement, { language, text }: Code): void {
  const [label, code] = [element.querySelector(".language"), element.querySelector("code")];
  if (label) setText(label, language);
  if (code && code.textContent !== text) setText(code, text);
}

function buttonOf(name: string, words: string): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.className = `quiet ${name}`;
  button.textContent = words;
  return button;
}

function copyButton(): HTMLButtonElement {
  const button = buttonOf("copy", COPY_LABELS.ready);
  button.hidden = !("clipboard" in navigator);
  return button;
}

/** What can be looked at gets a button for that, once it is whole. */
function offerPreview(frame: Element): void {
  const [bar, label] = [frame.querySelector(".code-bar"), frame.querySelector(".language")];
  if (bar?.querySelector(".look") !== null || previewOf(label?.textContent ?? "", frame.querySelector("code")?.textContent ?? "") === null) return;
  label?.after(buttonOf("look", "Preview"));
}

/** Do what the button of a block of code is for, if the event is of one. */
export async function press({ target }: Event): Promise<void> {
  const button = target instanceof Element ? target.closest<HTMLButtonElement>(".code-bar button") : null;
  const frame = button?.closest(".code");
  if (!button || !frame) return;
  if (button.matches(".copy")) await copy(button, frame.querySelector("code")?.textContent ?? "");
  else await togglePreview(frame);
}

async function copy(button: HTMLButtonElement, text: string): Promise<void> {
  const copied = await navigator.clipboard.writeText(text).then(() => true, () => false);
  button.textContent = copied ? COPY_LABELS.copied : COPY_LABELS.failed;
  setTimeout(() => (button.textContent = COPY_LABELS.ready), COPIED_MS);
}

/** What may come later: colours and formulas. */
function embellish(element: HTMLElement): void {
  for (const frame of element.querySelectorAll(".code")) {
    offerPreview(frame);
    whenSeen(frame, () => void colour(frame));
  }
  for (const formula of element.querySelectorAll(".math")) whenSeen(formula, () => void set(formula));
}

async function colour(frame: Element): Promise<void> {
  const code = frame.querySelector("code");
  const text = code?.textContent ?? "";
  const found = await coloured(text, frame.querySelector(".language")?.textContent ?? "");
  if (found && code?.textContent === text) code.replaceChildren(found);
}

async function set(formula: Element): Promise<void> {
  const source = formula.textContent;
  const found = await typeset(source);
  if (found && formula.textContent === source) formula.replaceChildren(found);
}
