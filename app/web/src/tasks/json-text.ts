// JSON as text for people: indented, and with every invisible character escaped.

const INVISIBLE = /[\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Escapes invisible characters and those that reverse the text, so that the person who approves a call sees all of it. */
export function escapeInvisible(json: string): string {
  return json.replace(INVISIBLE, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The text without invisible characters. */
export function withoutInvisible(text: string): string {
  return text.replace(INVISIBLE, "");
}

/** A value as indented JSON to read and edit. */
export function prettyJson(value: unknown): string {
  return escapeInvisible(JSON.stringify(value, null, 2));
}
