// Updates a part of the DOM to match another with minimal changes, so that a text selection survives.

/** Makes the children of `parent` match those of `wanted`, whose nodes are moved or dropped. */
export function morph(parent: Node, wanted: Node): void {
  let at = parent.firstChild;
  for (const want of [...wanted.childNodes]) {
    const next = at?.nextSibling ?? null;
    if (!at) parent.appendChild(want);
    else if (at.nodeName === want.nodeName) patch(at, want);
    else parent.replaceChild(want, at);
    at = next;
  }
  while (at) {
    const next: ChildNode | null = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(node: Node, want: Node): void {
  if (node instanceof Text && want instanceof Text) return retext(node, want.data);
  if (!(node instanceof Element) || !(want instanceof Element)) return;
  // What the person has opened or closed stays so.
  const isOwn = (name: string): boolean => name === "open" && node.nodeName === "DETAILS";
  for (const { name } of [...node.attributes]) if (!want.hasAttribute(name) && !isOwn(name)) node.removeAttribute(name);
  for (const { name, value } of want.attributes) if (node.getAttribute(name) !== value && !isOwn(name)) node.setAttribute(name, value);
  morph(node, want);
}

/** Appends to text that has grown; replaces other text. */
function retext(node: Text, text: string): void {
  if (text === node.data) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/** Sets the text of an element with minimal changes. */
export function setText(element: Element, text: string): void {
  const [first, second] = element.childNodes;
  if (first instanceof Text && !second) retext(first, text);
  else element.textContent = text;
}
