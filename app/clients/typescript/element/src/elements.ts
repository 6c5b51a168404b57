// A short way to make elements.

/** An element with this class, text and children. */
export function make<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, { part, text, children = [] }: { part?: string; text?: string; children?: readonly Node[] } = {}): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  if (part !== undefined) {
    element.className = part;
    element.setAttribute("part", part);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

/** A button that calls `action`. */
export function button(text: string, action: () => void, part = "button"): HTMLButtonElement {
  const element = make("button", { part, text });
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}
