// Markdown as sanitised elements. While an answer is written, only the blocks that changed are rendered again.

import DOMPurify from "dompurify";
import { Marked } from "marked";

const marked = new Marked({ gfm: true, breaks: true });
const ALLOWED_URI = /^(?:https?:|mailto:)/i;
/** No styles, forms or media: what a model writes must not look like a part of the page, nor load anything. */
const CONFIG = {
  ALLOWED_TAGS: ["p", "br", "strong", "em", "del", "code", "pre", "a", "ul", "ol", "li", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "table", "thead", "tbody", "tr", "th", "td", "input"],
  ALLOWED_ATTR: ["href", "start", "type", "checked", "disabled", "align"],
  ALLOWED_URI_REGEXP: ALLOWED_URI,
  /** Of values that are no addresses. */
  ADD_URI_SAFE_ATTR: ["start", "type", "checked", "disabled", "align"],
  RETURN_DOM_FRAGMENT: true,
} as const;
const MAX_CHARACTERS = 200_000;

/** Renders a text that grows into an element. */
export class MarkdownText {
  readonly element: HTMLElement;
  #sources: string[] = [];

  constructor(element: HTMLElement) {
    this.element = element;
    element.className = "markdown";
    element.dir = "auto";
  }

  /** Show this text. */
  render(text: string): void {
    if (text.length > MAX_CHARACTERS) {
      this.#sources = [];
      this.element.textContent = text;
      return;
    }
    const blocks = marked.lexer(text).filter(({ type }) => type !== "space" && type !== "def");
    const sources = blocks.map(({ raw }) => raw);
    let same = 0;
    while (same < sources.length && sources[same] === this.#sources[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild?.remove();
    for (const block of blocks.slice(same)) this.element.append(rendered(marked.parser([block])));
    this.#sources = sources;
  }
}

/** One block as one element. */
function rendered(html: string): HTMLElement {
  const holder = document.createElement("div");
  holder.append(DOMPurify.sanitize(html, { ...CONFIG, ALLOWED_TAGS: [...CONFIG.ALLOWED_TAGS], ALLOWED_ATTR: [...CONFIG.ALLOWED_ATTR], ADD_URI_SAFE_ATTR: [...CONFIG.ADD_URI_SAFE_ATTR] }));
  for (const input of holder.querySelectorAll("input")) {
    // Of task lists only: nobody is to type anything into what a model writes.
    if (input.type === "checkbox") input.disabled = true;
    else input.remove();
  }
  for (const link of holder.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  // The outermost blocks alone: what has a direction of its own does not count for that of the block around it.
  for (const block of holder.querySelectorAll<HTMLElement>(":scope > :not(pre, table), th, td")) block.dir = "auto";
  for (const code of holder.querySelectorAll("pre")) {
    code.dir = "ltr";
    code.tabIndex = 0;
  }
  return holder;
}
