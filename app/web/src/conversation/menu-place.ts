// Where a floating menu stands, and which of its items the arrow keys reach.

type Box = { readonly top: number; readonly bottom: number; readonly left: number; readonly right: number };
type Size = { readonly width: number; readonly height: number };

/** The distance to the edges of the window, and to the button. In pixels, as all numbers here. */
const MARGIN = 8;
const GAP = 6;
/** The largest share of the window's height. */
const MAX_SHARE = 0.7;

/** Above its button if there is room, or more room than below; in reach of both sides of the window. */
export function menuPlace(anchor: Box, menu: Size, window: Size & { readonly isRightToLeft: boolean }): { top: number; left: number; maxHeight: number } {
  const most = Math.round(MAX_SHARE * window.height);
  const above = Math.min(most, anchor.top - GAP - MARGIN);
  const below = Math.min(most, window.height - anchor.bottom - GAP - MARGIN);
  const isAbove = menu.height <= above || above >= below;
  const height = Math.min(menu.height, isAbove ? above : below);
  const start = window.isRightToLeft ? anchor.right - menu.width : anchor.left;
  const left = Math.max(MARGIN, Math.min(start, window.width - menu.width - MARGIN));
  return { top: isAbove ? anchor.top - GAP - height : anchor.bottom + GAP, left, maxHeight: isAbove ? above : below };
}

/** The index of the item that gets the focus by this key, from the one at `index`; null for other keys, and without items. */
export function nextItem(key: string, index: number, count: number): number | null {
  if (count === 0) return null;
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (key === "ArrowDown") return (index + 1) % count;
  return key === "ArrowUp" ? (index <= 0 ? count : index) - 1 : null;
}
