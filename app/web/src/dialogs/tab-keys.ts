// The keys of a list of tabs, as the ARIA pattern for tabs has them.

/** The index of the tab that a key moves to, around both ends; null for other keys. */
export function tabAfter(key: string, at: number, count: number, isRightToLeft: boolean): number | null {
  const [forward, back] = isRightToLeft ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
  if (key === forward || key === "ArrowDown") return (at + 1) % count;
  if (key === back || key === "ArrowUp") return (at + count - 1) % count;
  if (key === "Home") return 0;
  return key === "End" ? count - 1 : null;
}
