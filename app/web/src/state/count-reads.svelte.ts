// A test helper that counts how often reactive values are read.

/** Read each value now and after each change. `of()` returns how often each was read. */
export function countReads<Name extends string>(reads: Record<Name, () => unknown>): { of: () => Record<string, number>; stop: () => void } {
  const counts: Record<string, number> = {};
  const stop = $effect.root(() => {
    for (const name of Object.keys(reads) as Name[]) {
      $effect.pre(() => {
        reads[name]();
        counts[name] = (counts[name] ?? 0) + 1;
      });
    }
  });
  return { of: () => ({ ...counts }), stop };
}
