// The direction of a text in Markdown.

const MAX_CHARACTERS = 2000;
/** What has a direction of its own, or none that a reader sees: code, tags, addresses. */
const OTHER = /(```|~~~)[^]*?(?:\1|$)|`[^`\n]*`|<[^>\n]*>|\]\([^)\n]*\)|https?:\S+|\[![A-Z]+\]/g;
const LETTER = /\p{L}/u;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]|\p{Script=Adlam}/u;

/** That of its first letter; undefined without one. `dir="auto"` does not see the text of elements with a direction of their own. */
export function textDirection(markdown: string): "ltr" | "rtl" | undefined {
  const letter = LETTER.exec(markdown.slice(0, MAX_CHARACTERS).replaceAll(OTHER, " "))?.[0];
  return letter === undefined ? undefined : RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}
