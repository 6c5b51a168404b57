// Repairs the end of growing Markdown: incomplete markup is held back, open markup is closed.

/** The beginning of an alert, of details or of a footnote. */
const PARTIAL_MARK = /^(?:> ?\[!?[a-z]*\]?|<\/?(?:d[etails]*|s[umary]*)?>?|<summary>[^<]*(?:<\/?[a-z]*)?|\[\^[^\]\s]*\]?:?)$/i;

/** The text without an incomplete end: a list marker without its item, or the head of a table. */
export function withoutPartialEnd(text: string): string {
  const line = text.lastIndexOf("\n") + 1;
  if (PARTIAL_MARK.test(text.slice(line).trim())) return text.slice(0, line);
  if (/^(?:[-*+]|\d{1,9}[.)]?|#{1,6}|>|[\s:|-]*)$/.test(text.slice(line).trimStart())) return withoutPartialTable(text.slice(0, line));
  return withoutPartialTable(text);
}

/** The text without the header row of a table whose delimiter row has not arrived. */
function withoutPartialTable(text: string): string {
  const head = /(?:^|\n)\|[^\n]*\n?$/.exec(text);
  if (!head) return text;
  const before = text.slice(0, head.index);
  const isFirst = !/(?:^|\n)\|[^\n]*$/.test(before);
  return isFirst ? before : text;
}

/** The text with open code and strong text of its last paragraph closed, and a partial link as its text. */
export function closeOpenMarks(text: string): string {
  const begin = text.lastIndexOf("\n\n") + 1;
  const last = text.slice(begin).replace(/!?\[([^\][\n]*)\]\([^()\s]*$/, "$1").replace(/\*+$/, "");
  return text.slice(0, begin) + closeMarks(last);
}

function closeMarks(paragraph: string): string {
  const plain = paragraph.replace(/`+[^`]*`+/g, "");
  if (plain.includes("`")) return /`[^`\n]*[^`\s][^`\n]*$/.test(plain) && !plain.includes("``") ? `${paragraph}\`` : paragraph;
  return (plain.match(/\*\*/g)?.length ?? 0) % 2 === 1 && !plain.endsWith("**") ? `${paragraph}**` : paragraph;
}
