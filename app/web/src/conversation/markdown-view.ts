// Renders pieces of Markdown to the DOM: settled pieces are rendered once and never touched again.

import { COPY_LABELS } from "../state/strings.ts";
import { sanitizeHtml } from "./sanitize.ts";
import { highlight } from "./highlight.ts";
import { morph, setText } from "./morph.ts";
import type { CodePiece, Piece, Prose } from "./incremental-markdown.ts";
import { endPreview, previewDocument, togglePreview } from "./code-preview.ts";
import { hasPicture, isDiagram } from "./picture-languages.ts";
import { RevealQueue } from "./reveal-queue.ts";
import { RevealTree } from "./reveal-tree.ts";
import { cancelOnceVisible, onceVisible } from "./visibility.ts";
import { typeset } from "./typeset.ts";
import { m } from "../i18n/messages.ts";

const COPY_FEEDBACK_MS = 1500;

type Drawn = { piece: Piece; element: HTMLElement };

export class MarkdownView {
  readonly #host: HTMLElement;
  readonly #queue = new RevealQueue();
  #drawn: Drawn[] = [];
  #lastLength = 0;

  constructor(host: HTMLElement) {
    this.#host = host;
  }

  /**
   * Shows these pieces; pieces that did not change keep their elements. Unless `isInstant`, as much is shown as before, and the
   * rest by `reveal`.
   */
  update(pieces: readonly Piece[], isInstant = true): void {
    this.#queue.complete();
    const begin = this.#sameAtBegin(pieces);
    const end = this.#sameAtEnd(pieces, begin);
    const old = this.#drawn.slice(begin, this.#drawn.length - end);
    const after = this.#drawn[this.#drawn.length - end]?.element ?? null;
    const changed = pieces.slice(begin, pieces.length - end);
    if (!isInstant && end === 0) return this.#queueChanges(changed, old, begin);
    const fresh = changed.map((piece, at) => this.#place(piece, old[at], after));
    for (const { element } of old.slice(fresh.length)) removeElement(element);
    this.#drawn.splice(begin, old.length, ...fresh);
  }

  /** The characters that are not shown yet. */
  get pending(): number {
    return this.#queue.pending;
  }

  /** The length of the last character, shown or not, which may change while the text grows. */
  get lastCharacterLength(): number {
    return this.#lastLength;
  }

  /** Shows up to `count` more characters, and returns how many. */
  reveal(count: number): number {
    return this.#queue.advance(Math.min(count, this.#queue.pending));
  }

  /** Keeps as many characters as the old pieces show. */
  #queueChanges(changed: readonly Piece[], old: readonly Drawn[], begin: number): void {
    let shown = old.reduce((sum, { element }) => sum + new RevealTree(element).weight, 0);
    const kept = changed.map((piece) => {
      const tree = new RevealTree(contentOf(piece));
      const skip = Math.min(shown, tree.weight);
      shown -= skip;
      return { piece, tree, skip };
    });
    for (const [at, { element }] of old.entries()) if (!kept[at]?.skip) removeElement(element);
    this.#drawn.length = begin;
    this.#lastLength = kept.at(-1)?.tree.lastLength ?? 0;
    for (const [at, { piece, tree, skip }] of kept.entries())
      this.#queue.add({ tree, open: () => this.#open(piece, skip ? old[at] : undefined), close: () => this.#close(piece) }, skip);
  }

  #open(piece: Piece, old: Drawn | undefined): HTMLElement {
    const element = old?.element ?? pieceElement();
    if (!old) this.#host.append(element);
    this.#drawn.push({ piece, element });
    return element;
  }

  #close(piece: Piece): void {
    const element = this.#drawn.at(-1)?.element;
    if (element && piece.settled) enhance(element);
  }

  /** Cancels pending work on the rendered elements. */
  destroy(): void {
    cancelPending(this.#host);
  }

  #sameAtBegin(pieces: readonly Piece[]): number {
    const at = pieces.findIndex((piece, index) => !isSamePiece(piece, this.#drawn[index]?.piece));
    return at < 0 ? pieces.length : at;
  }

  #sameAtEnd(pieces: readonly Piece[], begin: number): number {
    const most = Math.min(pieces.length, this.#drawn.length) - begin;
    let count = 0;
    while (count < most) {
      const piece = pieces[pieces.length - 1 - count];
      if (!piece || !isSamePiece(piece, this.#drawn[this.#drawn.length - 1 - count]?.piece)) break;
      count++;
    }
    return count;
  }

  /** Renders over the old element, or else before `after`. */
  #place(piece: Piece, old: Drawn | undefined, after: HTMLElement | null): Drawn {
    const element = old ? updateElement(old, piece) : createElement(piece);
    if (!old) this.#host.insertBefore(element, after);
    else if (old.element !== element) {
      this.#host.replaceChild(element, old.element);
      cancelPending(old.element);
    }
    if (piece.settled) enhance(element);
    return { piece, element };
  }
}

function removeElement(element: HTMLElement): void {
  cancelPending(element);
  element.remove();
}

/** Cancels pending highlighting, formulas and previews within the element. */
function cancelPending(element: HTMLElement): void {
  for (const watched of element.querySelectorAll(".code, .math")) {
    cancelOnceVisible(watched);
    endPreview(watched);
  }
}

function isSamePiece(piece: Piece, other: Piece | undefined): boolean {
  if (piece === other) return true;
  if (other?.settled !== piece.settled) return false;
  if (piece.kind === "code") return other.kind === "code" && piece.text === other.text && piece.language === other.language;
  return other.kind === "prose" && piece.html === other.html && piece.rest === other.rest;
}

function pieceElement(): HTMLElement {
  const element = document.createElement("div");
  element.className = "piece";
  return element;
}

function createElement(piece: Piece): HTMLElement {
  const element = pieceElement();
  element.append(contentOf(piece));
  return element;
}

function contentOf(piece: Piece): DocumentFragment {
  if (piece.kind === "prose") return proseOf(piece);
  const fragment = document.createDocumentFragment();
  fragment.append(frameOf(piece));
  return fragment;
}

function updateElement({ element, piece: before }: Drawn, piece: Piece): HTMLElement {
  if (piece.kind !== before.kind) return createElement(piece);
  if (piece.kind === "prose") morph(element, proseOf(piece));
  else fill(element, piece);
  return element;
}

function proseOf({ html, rest }: Prose): DocumentFragment {
  const fragment = sanitizeHtml(html);
  for (const bar of fragment.querySelectorAll(".code-bar")) bar.append(copyButton());
  if (rest) lastOf(fragment).append(rest);
  return fragment;
}

/** The element to append text to: the innermost one of the last block. */
function lastOf(fragment: DocumentFragment): ParentNode {
  let last: Element | null = fragment.lastElementChild;
  if (!last) return fragment.appendChild(document.createElement("p"));
  while (last.lastElementChild?.matches("p, li, ul, ol, blockquote, pre, code, table, tbody, tr, td, th, .code")) last = last.lastElementChild;
  return last;
}

function frameOf(piece: CodePiece): HTMLElement {
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

function fill(element: HTMLElement, { language, text }: CodePiece): void {
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

/** Adds a preview button to complete code that can be previewed. */
function offerPreview(frame: Element): void {
  const [bar, label] = [frame.querySelector(".code-bar"), frame.querySelector(".language")];
  const [language, code] = [label?.textContent ?? "", frame.querySelector("code")?.textContent ?? ""];
  if (bar?.querySelector(".look") !== null || (previewDocument(language, code) === null && !hasPicture(language, code))) return;
  label?.after(buttonOf("look", m.preview_action()));
}

/** Handles a click on a button of a code block. */
export async function handleCodeButton({ target }: Event): Promise<void> {
  const button = target instanceof Element ? target.closest<HTMLButtonElement>(".code-bar button") : null;
  const frame = button?.closest(".code");
  if (!button || !frame) return;
  if (button.matches(".copy")) await copy(button, frame.querySelector("code")?.textContent ?? "");
  else if (hasPicture(frame.querySelector(".language")?.textContent ?? "", frame.querySelector("code")?.textContent ?? "")) await (await import("./picture.ts")).handlePictureButton(button, frame);
  else await togglePreview(frame);
}

async function copy(button: HTMLButtonElement, text: string): Promise<void> {
  const copied = await navigator.clipboard.writeText(text).then(() => true, () => false);
  button.textContent = copied ? COPY_LABELS.copied : COPY_LABELS.failed;
  setTimeout(() => (button.textContent = COPY_LABELS.ready), COPY_FEEDBACK_MS);
}

/** Adds what may come later: highlighting, formulas and preview buttons. */
function enhance(element: HTMLElement): void {
  for (const frame of element.querySelectorAll(".code")) {
    offerPreview(frame);
    onceVisible(frame, () => void finishFrame(frame));
  }
  for (const formula of element.querySelectorAll(".math")) onceVisible(formula, () => void typesetFormula(formula));
}

/** Diagrams are drawn, other code is coloured. */
async function finishFrame(frame: Element): Promise<void> {
  const language = frame.querySelector(".language")?.textContent ?? "";
  await (isDiagram(language) ? (await import("./picture.ts")).showPicture(frame) : highlightFrame(frame));
}

async function highlightFrame(frame: Element): Promise<void> {
  const code = frame.querySelector("code");
  const text = code?.textContent ?? "";
  const highlighted = await highlight(text, frame.querySelector(".language")?.textContent ?? "");
  if (highlighted && code?.textContent === text) code.replaceChildren(highlighted);
}

async function typesetFormula(formula: Element): Promise<void> {
  const source = formula.textContent;
  const mathml = await typeset(source);
  if (mathml && formula.textContent === source) formula.replaceChildren(mathml);
}
