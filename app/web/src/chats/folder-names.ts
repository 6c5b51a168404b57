// Names of folders, as the server takes them.

export const MAX_FOLDER_CHARACTERS = 80;

/** The name without blank characters at its ends and in a row. */
export function tidyName(typed: string): string {
  return typed.replace(/\s+/g, " ").trim();
}
