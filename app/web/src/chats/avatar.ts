// What stands for a person where there is no picture: letters of the name, on one of a few colours.

const TONES = 6;

/** Up to two letters that stand for a name. */
export function initials(name: string): string {
  const words = name.trim().split(/\s+/);
  const ends = words.length > 1 ? [words[0], words.at(-1)] : [words[0]];
  return ends.map((word) => Array.from(word ?? "")[0] ?? "").join("").toUpperCase() || "?";
}

/** Which of the colours `[data-tone]` somebody of this id has, always the same. */
export function toneOf(id: string): number {
  return Array.from(id).reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0) % TONES;
}
