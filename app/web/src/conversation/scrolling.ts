// Scroll arithmetic: when to follow the newest message, and which messages to draw.

/** The distance from the end that still counts as the end. */
const NEAR_END_PIXELS = 64;

/** The scroll position and sizes of an area, in pixels. */
type Extent = { top: number; inSight: number; whole: number };

function isAtEnd({ top, inSight, whole }: Extent): boolean {
  return whole - top - inSight < NEAR_END_PIXELS;
}

/**
 * Whether to follow the end after the area has scrolled from `before`. Only scrolling up stops it: content that grows at the
 * end moves the end away, too, and a scroll down may be about to reach it.
 */
export function isFollowingEnd(isFollowing: boolean, before: number, now: Extent): boolean {
  if (isAtEnd(now)) return true;
  return isFollowing && now.top >= before - 1;
}

/** The time in which a step towards the end gets two thirds of the way. */
const EASING_MS = 90;
const MIN_STEP_PIXELS = 0.5;

/** The next position on the way from `top` to `end`, after `elapsed` ms. */
export function easedTop(top: number, end: number, elapsed: number): number {
  const step = Math.max(MIN_STEP_PIXELS, (end - top) * (1 - Math.exp(-Math.max(0, elapsed) / EASING_MS)));
  return Math.min(end, top + step);
}

/** The number of messages after the last one that was seen; 0 if that one is unknown. */
export function unseenCount(ids: readonly string[], seen: string | null): number {
  const at = seen === null ? -1 : ids.lastIndexOf(seen);
  return at < 0 ? 0 : ids.length - 1 - at;
}

/** How many messages of a long chat are drawn at first, and how many more each time. */
export const INITIAL_MESSAGES = 40;
export const MESSAGES_PER_PAGE = 30;
/** Jumping to the end with more drawn messages than this drops all but the newest. */
export const MAX_DRAWN_MESSAGES = 200;
/** The distance from the first drawn message at which earlier ones are drawn. */
export const LOAD_AHEAD_PIXELS = 600;

/** The index of the first drawn message: that of `first`, or such that the newest messages are drawn. */
export function firstDrawnIndex(ids: readonly string[], first: string | null): number {
  const at = first === null ? -1 : ids.indexOf(first);
  return at < 0 ? Math.max(0, ids.length - INITIAL_MESSAGES) : at;
}
