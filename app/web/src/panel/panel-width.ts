// The width of a panel beside the conversation, in CSS pixels.

/** The conversation keeps this much room, in units of the page's size of text. */
const CONVERSATION_REM = 22;
const MIN_PANEL_REM = 20;
/** Without a choice of the person, a panel has this part of the window at most. */
const DEFAULT_SHARE = 0.45;
const STEP = 16;

export type WidthLimits = { min: number; max: number };

/** The limits where the panel and the conversation share `room`, in a window of this width, with this size of text. */
export function widthLimits(room: number, windowWidth: number, rem: number): WidthLimits {
  const min = Math.round(Math.min(MIN_PANEL_REM * rem, DEFAULT_SHARE * windowWidth));
  return { min, max: Math.max(min, Math.round(room - CONVERSATION_REM * rem)) };
}

/** The width without a choice of the person, for a panel that wants `wanted` units of the size of text. */
export function defaultWidth(wanted: number, windowWidth: number, rem: number): number {
  return Math.round(Math.min(wanted * rem, DEFAULT_SHARE * windowWidth));
}

export function clampWidth(width: number, { min, max }: WidthLimits): number {
  return Math.round(Math.min(max, Math.max(min, width)));
}

/** The width after a key press on the edge; null if the key does not move it. The panel is at the end of the line. */
export function widthAfterKey(key: string, width: number, { min, max }: WidthLimits, isRightToLeft: boolean): number | null {
  if (key === "Home") return min;
  if (key === "End") return max;
  if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
  return clampWidth(width + ((key === "ArrowLeft") !== isRightToLeft ? STEP : -STEP), { min, max });
}

/** A stored width; null if there is none. */
export function parseWidth(stored: string | null): number | null {
  const width = Number(stored);
  return stored !== null && Number.isFinite(width) && width > 0 ? width : null;
}
