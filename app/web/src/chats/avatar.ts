// Avatars: the initials of a person on one of six colours; a shape for a person without a name.

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

/** Paths of shapes in a box of 20 by 20. */
const SHAPES = ["M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14z", "M10 3l7.5 13.5h-15z", "M4 4h12v12H4z", "M10 2l8 8-8 8-8-8z", "M10 2.5l7 5.2-2.7 8.3H5.7L3 7.7z", "M7.5 3h5v4.5H17v5h-4.5V17h-5v-4.5H3v-5h4.5z"] as const;

export type GuestMark = { shape: string; tone: number };

/**
 * A shape and a colour for each of these guests without a name, by id. A guest keeps them while the others stay; guests that are here
 * at the same time have different ones, as far as there are enough.
 */
export function guestMarks(ids: readonly string[]): ReadonlyMap<string, GuestMark> {
  const marks = new Map<string, GuestMark>();
  const taken = new Set<number>();
  for (const id of ids.toSorted()) {
    let at = avatarTone(id);
    while (taken.has(at) && taken.size < SHAPES.length) at = (at + 1) % SHAPES.length;
    taken.add(at);
    marks.set(id, { shape: SHAPES[at] ?? SHAPES[0], tone: at % TONE_COUNT });
  }
  return marks;
}
