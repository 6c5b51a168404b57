// What kind of thing a file or a code block is, and what it is called.

export type ItemKind = "html" | "svg" | "markdown" | "table" | "image" | "pdf" | "code" | "file";

const EXTENSIONS: Readonly<Record<string, string>> = {
  ...{ html: "html", htm: "html", svg: "svg", md: "markdown", markdown: "markdown", csv: "csv", tsv: "tsv", pdf: "pdf" },
  ...{ py: "python", js: "javascript", mjs: "javascript", ts: "typescript", json: "json", css: "css", sql: "sql", sh: "bash", rs: "rust", go: "go", yml: "yaml", yaml: "yaml", xml: "xml", txt: "text" },
};
const KINDS: Readonly<Record<string, ItemKind>> = { html: "html", svg: "svg", markdown: "markdown", md: "markdown", csv: "table", tsv: "table", pdf: "pdf" };
const NAME = /(?:^|[\s:])(?:(?:title|file|filename|name)=)?["']?([\w./-]*\w\.[a-zA-Z]\w{0,9})["']?(?=\s|$)/;

/** The language of a file, by the end of its name; "" if that is unknown. */
export function languageOfName(name: string): string {
  const end = /\.(\w+)$/.exec(name)?.[1]?.toLowerCase() ?? "";
  return Object.hasOwn(EXTENSIONS, end) ? (EXTENSIONS[end] ?? "") : "";
}

/** The kind of a text in this language. */
export function kindOfLanguage(language: string): ItemKind {
  return Object.hasOwn(KINDS, language) ? (KINDS[language] ?? "code") : "code";
}

/** The kind of a blob, by its type and its name. */
export function kindOfBlob(mediaType: string, name: string): ItemKind {
  const [type = ""] = mediaType.toLowerCase().split(";");
  if (type === "image/svg+xml") return "svg";
  if (type.startsWith("image/")) return "image";
  if (type === "application/pdf") return "pdf";
  if (type === "text/html") return "html";
  if (type === "text/csv" || type === "text/tab-separated-values") return "table";
  if (type === "text/markdown") return "markdown";
  const byName = kindOfLanguage(languageOfName(name));
  if (type.startsWith("text/") || type.includes("json")) return byName === "pdf" ? "code" : byName;
  return "file";
}

/** The language and the file name in the info string of a code block, such as `html title="a.html"` or `html:a.html`. */
export function parseInfo(info: string): { language: string; name: string | null } {
  const [language = ""] = info.trim().toLowerCase().split(/[\s:]+/);
  const name = NAME.exec(info.trim())?.[1] ?? null;
  return name?.toLowerCase() === language ? { language: languageOfName(name), name } : { language, name };
}

/** A file name for a text in this language: `title` without the characters that file names can't have. */
export function fileNameOf(title: string, language: string): string {
  const plain = title.replace(/[\s\p{Cc}\\/:*?"<>|]+/gu, " ").trim().slice(0, 100) || "code";
  if (languageOfName(plain) !== "") return plain;
  const extension = Object.entries(EXTENSIONS).find(([, name]) => name === language)?.[0] ?? "txt";
  return `${plain}.${extension}`;
}
