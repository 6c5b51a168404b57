// Where the focus goes when a dialog is gone.

/**
 * Give the focus back to what had it before a dialog. That may be gone, too; then, and where it can't be a touch keyboard that
 * comes up, it goes to the message field.
 */
export function focusAfter(before: Element | null): void {
  setTimeout(() => {
    if (hasFocus()) return;
    if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    if (!hasFocus() && matchMedia("(hover: hover)").matches) focusMessage();
  });
}

/** Begin to write. */
export function focusMessage(): void {
  document.getElementById("text")?.focus({ preventScroll: true });
}

function hasFocus(): boolean {
  return document.activeElement !== null && document.activeElement !== document.body;
}
