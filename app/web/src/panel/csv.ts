// Tables of comma or tab separated values (RFC 4180).

const MAX_ROWS = 1_000;
const MAX_COLUMNS = 100;

export type Table = { readonly rows: readonly (readonly string[])[]; readonly hasMore: boolean };

/** The first 1,000 rows and 100 columns of a table. The separator is the tab, the semicolon or the comma, whichever the first line has most of. */
export function parseTable(text: string): Table {
  const separator = separatorOf(text);
  const rows: string[][] = [];
  let row: string[] = [];
  let at = 0;
  while (at < text.length && rows.length < MAX_ROWS) {
    const { value, end } = readField(text, at, separator);
    if (row.length < MAX_COLUMNS) row.push(value);
    at = end;
    if (text[at] === separator && at + 1 < text.length) at += 1;
    else {
      rows.push(row);
      row = [];
      at += text.startsWith("\r\n", at) ? 2 : 1;
    }
  }
  return { rows, hasMore: at < text.length };
}

function separatorOf(text: string): string {
  const line = text.slice(0, text.search(/[\r\n]|$/));
  const count = (separator: string) => line.split(separator).length;
  return ["\t", ";"].reduce((best, other) => (count(other) > count(best) ? other : best), ",");
}

/** One field from `at` on, and where it ends: at a separator, at the end of its line, or at the end. */
function readField(text: string, at: number, separator: string): { value: string; end: number } {
  let value = "";
  let from = at;
  if (text[at] === '"') {
    for (from = at + 1; ; ) {
      const quote = text.indexOf('"', from);
      const stop = quote < 0 ? text.length : quote;
      value += text.slice(from, stop);
      from = stop + 1;
      if (quote < 0 || text[from] !== '"') break;
      value += '"';
      from += 1;
    }
  }
  let end = Math.min(from, text.length);
  while (end < text.length && text[end] !== separator && text[end] !== "\n" && !text.startsWith("\r\n", end)) end += 1;
  return { value: value + text.slice(from, end), end };
}
