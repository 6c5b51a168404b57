// Which code is a picture, by the language of its block.

export function isDiagram(language: string): boolean {
  return language.toLowerCase() === "mermaid";
}

export function isSvg(language: string, code: string): boolean {
  const name = language.toLowerCase();
  return name === "svg" || (name === "xml" && /^\s*(?:<\?xml[^>]*>\s*)?<svg[\s>]/.test(code.slice(0, 500)));
}
