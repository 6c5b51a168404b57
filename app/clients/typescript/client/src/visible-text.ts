// Text for people who decide by what they see: characters that are invisible, or that reverse the text, are shown or left out.

/**
 * One character that a person cannot see, or that changes where others are shown: controls of direction and format, blank
 * letters, variation selectors, tags, spaces other than U+0020, controls, lone surrogates, and characters without a meaning
 * (private or unassigned). Tabs and line breaks are not among them.
 */
const INVISIBLE = String.raw`(?![\t\n]|\r(?:\n|$))(?! )[\p{C}\p{Default_Ignorable_Code_Point}\u{16fe4}\p{Z}\u2800\ufffc\u{13441}\u{13442}\u{1d159}]`;
/** An emoji with the variation selectors and joiners that belong to it. */
const EMOJI = String.raw`\p{Extended_Pictographic}\p{Emoji_Modifier}?\ufe0f?(?:\u200d\p{Extended_Pictographic}\p{Emoji_Modifier}?\ufe0f?)*|[#*0-9]\ufe0f?\u20e3`;

const EACH_INVISIBLE = new RegExp(INVISIBLE, "gu");
/** Emoji, and the ideographic space, which is wide, are matched to be left as they are; the group is what is invisible. */
const EACH_BUT_IN_EMOJI = new RegExp(`${EMOJI}|\\u3000|(${INVISIBLE})`, "gu");
const BLANK = /[\p{Z}\s]/u;

/** JSON with every such character escaped (`\u202e`), also inside emoji. It has the same value. */
export function escapeInvisible(json: string): string {
  return json.replace(EACH_INVISIBLE, (found) => escaped(found, 0) + (found.length > 1 ? escaped(found, 1) : ""));
}

/** A value as indented JSON in which a person sees every character, for the arguments of calls that wait for approval. */
export function visibleJson(value: unknown, indent = 2): string {
  return escapeInvisible(JSON.stringify(value, null, indent));
}

/** Text with every such character named (`⟨U+202E⟩`), except inside emoji and the ideographic space. */
export function markInvisible(text: string): string {
  return text.replace(EACH_BUT_IN_EMOJI, (found: string, invisible?: string) => (invisible === undefined ? found : named(invisible)));
}

/** Text on one line without such characters, except inside emoji, for names of files. Other spaces become U+0020. */
export function withoutInvisible(text: string): string {
  const visible = text.replace(EACH_BUT_IN_EMOJI, (found: string, invisible?: string) => (invisible === undefined ? found : BLANK.test(invisible) ? " " : ""));
  return visible.replace(/\s+/g, " ").trim();
}

function escaped(character: string, at: number): string {
  return `\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`;
}

function named(character: string): string {
  return `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
