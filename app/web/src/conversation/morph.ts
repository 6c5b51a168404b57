// One piece of the page made to look like another by changing as little as possible, so that a selection survives.

/** Make what is in `parent` what is in `wanted`, whose nodes are used up. */
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
  for (const { name } of [...node.attributes]) if (!want.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of want.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  morph(node, want);
}

/** Text that grew is appended to; only other text is replaced. */
function retext(node: Text, text: string): void {
  if (text === node.data) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/** Show this text, and nothing else, in an element. */
export function setText(element: Element, text: string): void {
  const [first, second] = element.childNodes;
  if (first instanceof Text && !second) retext(first, text);
  else element.textContent = text;
}
