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

const SVG = "http://www.w3.org/2000/svg";

/** A button with an icon: the path of one in a box of 20 by 20. */
export function iconButton(label: string, path: string, action: () => void, part: string): HTMLButtonElement {
  const element = button("", action, part);
  element.setAttribute("aria-label", label);
  element.title = label;
  const icon = document.createElementNS(SVG, "svg");
  const shape = document.createElementNS(SVG, "path");
  icon.setAttribute("viewBox", "0 0 20 20");
  icon.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", path);
  icon.append(shape);
  element.append(icon);
  return element;
}

/** A button that calls `action`. */
export function button(text: string, action: () => void, part = "button"): HTMLButtonElement {
  const element = make("button", { part, text });
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}
