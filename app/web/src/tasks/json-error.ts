// Where a text stops being JSON. The messages of `JSON.parse` differ between browsers, and not all of them name a position.

const BLANK = /[ \t\n\r]*/y;
const TOKEN = /[{}[\],:]|"(?:[ !#-[\]-\uffff]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

type Expected = "value" | "value-or-end" | "key" | "key-or-end" | "colon" | "comma-or-end";

/** The line and column, both from 1, of the first character that is no JSON; just after the end if the text is incomplete; null if it is valid. */
export function jsonErrorPosition(text: string): { line: number; column: number } | null {
  const offset = jsonErrorOffset(text);
  if (offset === null) return null;
  const before = text.slice(0, offset).split("\n");
  return { line: before.length, column: Array.from(before.at(-1) ?? "").length + 1 };
}

function jsonErrorOffset(text: string): number | null {
  const open: ("{" | "[")[] = [];
  let expected: Expected = "value";
  for (let at = skipBlank(text, 0); ; ) {
    const isComplete: boolean = expected === "comma-or-end" && open.length === 0;
    if (at === text.length) return isComplete ? null : at;
    TOKEN.lastIndex = at;
    const token = TOKEN.exec(text)?.[0];
    const next: Expected | null = token === undefined || isComplete ? null : afterToken(token, expected, open);
    if (next === null || token === undefined) return at;
    expected = next;
    at = skipBlank(text, at + token.length);
  }
}

/** What may follow the token; null if it may not stand here. `open` has the brackets that are not closed. */
function afterToken(token: string, expected: Expected, open: ("{" | "[")[]): Expected | null {
  const inObject = open.at(-1) === "{";
  if (token === "}" || token === "]") {
    const mayEnd = expected === "comma-or-end" || expected === (inObject ? "key-or-end" : "value-or-end");
    if (!mayEnd || (token === "}") !== inObject || open.pop() === undefined) return null;
    return "comma-or-end";
  }
  if (token === ",") return expected === "comma-or-end" ? (inObject ? "key" : "value") : null;
  if (token === ":") return expected === "colon" ? "value" : null;
  if (expected === "key" || expected === "key-or-end") return token.startsWith('"') ? "colon" : null;
  if (expected !== "value" && expected !== "value-or-end") return null;
  if (token !== "{" && token !== "[") return "comma-or-end";
  open.push(token);
  return token === "{" ? "key-or-end" : "value-or-end";
}

function skipBlank(text: string, at: number): number {
  BLANK.lastIndex = at;
  BLANK.exec(text);
  return BLANK.lastIndex;
}
