// Focus after a dialog closes.

/**
 * Returns the focus to the element that had it before a dialog. If that element is gone, the message field gets it, except on
 * touch devices, where a keyboard would open.
 */
export function focusAfter(before: Element | null): void {
  setTimeout(() => {
    if (hasFocus()) return;
    if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    if (!hasFocus() && matchMedia("(hover: hover)").matches) focusMessage();
  });
}

/** Focuses the message field. */
export function focusMessage(): void {
  document.getElementById("text")?.focus({ preventScroll: true });
}

function hasFocus(): boolean {
  return document.activeElement !== null && document.activeElement !== document.body;
}
