// How fast text is revealed: at the rate at which it arrives, so that a chunk has just been shown when the next one comes. Pure.

/** The interval that is assumed before two chunks have arrived: that of the server's flushes. */
const FIRST_INTERVAL_MS = 350;
const MIN_INTERVAL_MS = 50;
const MAX_INTERVAL_MS = 700;
/** After a longer pause the next chunk says nothing about the interval. */
const MAX_GAP_MS = 2000;
/** The share of a new interval in the estimate. */
const NEW_SHARE = 0.3;
/** A chunk is shown in this share of the interval, because the next one may come a little early. */
const SHARE_OF_INTERVAL = 0.9;

/** `interval` is the estimate in ms, `rate` in characters per ms. `carry` is the part of a character that is due. */
export type Pace = { readonly interval: number; readonly rate: number; readonly carry: number; readonly arrivedAt: number | null };

export const START_PACE: Pace = { interval: FIRST_INTERVAL_MS, rate: 0, carry: 0, arrivedAt: null };

/** The pace after text arrived at `now`, in ms, with `pending` characters to show. */
export function paceAfterArrival({ interval, arrivedAt }: Pace, pending: number, now: number): Pace {
  const gap = arrivedAt === null ? Infinity : now - arrivedAt;
  const seen = Math.min(MAX_INTERVAL_MS, Math.max(MIN_INTERVAL_MS, gap));
  const expected = gap > MAX_GAP_MS ? interval : interval + NEW_SHARE * (seen - interval);
  return { interval: expected, rate: pending / (expected * SHARE_OF_INTERVAL), carry: 0, arrivedAt: now };
}

/** How many characters are due after `elapsed` ms. */
export function dueCharacters(pace: Pace, elapsed: number): { count: number; pace: Pace } {
  const due = pace.carry + pace.rate * Math.max(0, elapsed);
  const count = Math.max(0, Math.floor(due));
  return { count, pace: { ...pace, carry: due - count } };
}

/** The pace after `count` characters were due and `shown` were shown: fewer within a long one, more if they can't be divided. */
export function afterShowing(pace: Pace, count: number, shown: number): Pace {
  return { ...pace, carry: pace.carry + count - shown };
}
