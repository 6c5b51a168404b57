// Avatars: the initials of a person on one of six colours.

const TONE_COUNT = 6;

/** One or two initials of a name; "?" without one. */
export function initials(name: string): string {
  const words = name.trim().split(/\s+/);
  const ends = words.length > 1 ? [words[0], words.at(-1)] : [words[0]];
  return ends.map((word) => Array.from(word ?? "")[0] ?? "").join("").toUpperCase() || "?";
}

/** The colour `[data-tone]` of an id, from 0 to 5; the same id always has the same colour. */
export function avatarTone(id: string): number {
  return Array.from(id).reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0) % TONE_COUNT;
}
