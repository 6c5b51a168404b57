// The end of a text that still grows, made to look as it will: half a mark is held back, an open one is closed.

/** The text without an end that can't be shown yet: a marker without its item, half a link, the head of a table. */
export function holding(text: string): string {
  const line = text.lastIndexOf("\n") + 1;
  if (/^(?:[-*+]|\d{1,9}[.)]?|#{1,6}|>|[\s:|-]*)$/.test(text.slice(line).trimStart())) return withoutHead(text.slice(0, line));
  return withoutHead(text);
}

/** Without the first row of a table whose second one is not there yet. */
function withoutHead(text: string): string {
  const head = /(?:^|\n)\|[^\n]*\n?$/.exec(text);
  if (!head) return text;
  const before = text.slice(0, head.index);
  const isFirst = !/(?:^|\n)\|[^\n]*$/.test(before);
  return isFirst ? before : text;
}

/** The text with what is open in its last paragraph closed: code, strong text, and half a link as its words. */
export function mended(text: string): string {
  const begin = text.lastIndexOf("\n\n") + 1;
  const last = text.slice(begin).replace(/!?\[([^\][\n]*)\]\([^()\s]*$/, "$1").replace(/\*+$/, "");
  return text.slice(0, begin) + closed(last);
}

function closed(paragraph: string): string {
  const plain = paragraph.replace(/`+[^`]*`+/g, "");
  if (plain.includes("`")) return /`[^`\n]*[^`\s][^`\n]*$/.test(plain) && !plain.includes("``") ? `${paragraph}\`` : paragraph;
  return (plain.match(/\*\*/g)?.length ?? 0) % 2 === 1 && !plain.endsWith("**") ? `${paragraph}**` : paragraph;
}
