// The lines of a text, as they are numbered beside it.

/** The number of lines. A line break at the end begins no further line. */
export function countLines(text: string): number {
  let lines = 1;
  for (let at = text.indexOf("\n"); at !== -1 && at < text.length - 1; at = text.indexOf("\n", at + 1)) lines += 1;
  return lines;
}

/** The numbers of the lines, each in a line of its own. */
export function numbersOf(text: string): string {
  return Array.from({ length: countLines(text) }, (_, index) => index + 1).join("\n");
}
