// Which code is a picture, by the language of its block.

const MAX_PICTURE_CHARACTERS = 200_000;

/** Whether the code can be shown as a picture. */
export function hasPicture(language: string, code: string): boolean {
  return code.trim() !== "" && code.length <= MAX_PICTURE_CHARACTERS && (isDiagram(language) || isSvg(language, code));
}

export function isDiagram(language: string): boolean {
  return language.toLowerCase() === "mermaid";
}

export function isSvg(language: string, code: string): boolean {
  const name = language.toLowerCase();
  return name === "svg" || (name === "xml" && /^\s*(?:<\?xml[^>]*>\s*)?<svg[\s>]/.test(code.slice(0, 500)));
}
