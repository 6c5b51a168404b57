// Scrolling, as numbers: the newest stays in sight unless the person went elsewhere.

/** How near to the end (pixels) counts as there. */
const NEAR_END = 64;

/** What an area scrolls, in pixels. */
type Extent = { top: number; inSight: number; whole: number };

function isAtEnd({ top, inSight, whole }: Extent): boolean {
  return whole - top - inSight < NEAR_END;
}

/**
 * Whether the end is followed, after the area has scrolled from `before`. Only going up leaves it: what grows at the end
 * moves it away, too, and a scroll down may be on its way to it.
 */
export function follows(isFollowing: boolean, before: number, now: Extent): boolean {
  if (isAtEnd(now)) return true;
  return isFollowing && now.top >= before - 1;
}

/** How many messages came after the last one that was seen; 0 if that is not known. */
export function unseenAfter(ids: readonly string[], seen: string | null): number {
  const at = seen === null ? -1 : ids.lastIndexOf(seen);
  return at < 0 ? 0 : ids.length - 1 - at;
}

/** How many messages of a long chat are drawn at first, and how many more at a time. */
export const FIRST = 40;
export const MORE = 30;
/** Whoever goes to the end while more than these are drawn begins again with the first few. */
export const MOST_KEPT = 200;
/** How near to where they begin (pixels) more are drawn. */
export const AHEAD = 600;

/** The index of the message from which on messages are drawn: of `first`, or so that the newest few are. */
export function drawnFrom(ids: readonly string[], first: string | null): number {
  const at = first === null ? -1 : ids.indexOf(first);
  return at < 0 ? Math.max(0, ids.length - FIRST) : at;
}
