// Components in an answer: code blocks marked as components, as HTML documents for the preview frame.

/** Upper bound of the components of one answer. */
const MAX_COMPONENTS = 10;
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;

/** The HTML documents of the closed code blocks marked `html component` or `js component`, in order. */
export function componentsOf(text: string): string[] {
  const documents: string[] = [];
  let open: { fence: string; info: string; lines: string[] } | null = null;
  for (const line of text.split(/\r?\n/)) {
    const [, fence = "", info = ""] = FENCE.exec(line) ?? [];
    if (open && fence.startsWith(open.fence) && info.trim() === "") {
      documents.push(...documentOf(open.info, open.lines.join("\n")));
      open = null;
    } else if (open) open.lines.push(line);
    else if (fence) open = { fence, info, lines: [] };
  }
  return documents.slice(0, MAX_COMPONENTS);
}

/** Whether the info string of a code block marks a component. */
export function isComponent(info: string): boolean {
  const [language = "", ...marks] = info.trim().toLowerCase().split(/\s+/);
  return marks.includes("component") && ["html", "js", "javascript"].includes(language);
}

/** HTML as it is; a script wrapped in a document with an element `root` to render into; nothing for unmarked code. */
export function documentOf(info: string, code: string): string[] {
  if (!isComponent(info)) return [];
  if (/^\s*html\s/i.test(info)) return [code];
  const script = code.replaceAll(/<\/(?=script)/gi, "<\\/");
  return [`<!doctype html><div id="root"></div><script type="module">${script}</script>`];
}
