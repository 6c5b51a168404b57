// The passage of a message that a selection can be quoted as.

/** Longer passages are cut. */
const MAX_PASSAGE_CHARACTERS = 2_000;

type Selected = Pick<Selection, "rangeCount" | "getRangeAt" | "toString">;

/** The selected text, if all of it is in the text of one message in `area`; otherwise empty. */
export function passageOf(selection: Selected, area: Element): string {
  if (selection.rangeCount === 0) return "";
  const range = selection.getRangeAt(0);
  const [message, last] = [range.startContainer, endOf(range)].map(messageOf);
  if (!message || message !== last || !area.contains(message)) return "";
  return shortened(selection.toString().trim().replaceAll(/\n{3,}/g, "\n\n"));
}

/** A passage that is not too long to quote. */
export function shortened(text: string): string {
  return text.length > MAX_PASSAGE_CHARACTERS ? `${text.slice(0, MAX_PASSAGE_CHARACTERS - 1).trimEnd()}…` : text;
}

/** Where the selected text ends. A triple click selects to the beginning of what comes next. */
export function endOf({ commonAncestorContainer, endContainer, endOffset }: Range): Node {
  if (endOffset > 0) return endContainer;
  const walker = document.createTreeWalker(commonAncestorContainer, NodeFilter.SHOW_TEXT, (node) => (node.textContent?.trim() ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT));
  walker.currentNode = endContainer;
  return walker.previousNode() ?? endContainer;
}

function messageOf(node: Node): Element | null {
  const element = node instanceof Element ? node : node.parentElement;
  return element?.closest(".text")?.closest(".message") ?? null;
}
