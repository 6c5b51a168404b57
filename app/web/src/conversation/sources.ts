// The web pages that the tools of an answer found or read, from the results that the page has already.

import type { BlobRef, Block, ToolBlock } from "@khala/client";

/** `title` is empty if none is known. */
export type Source = { readonly url: string; readonly domain: string; readonly title: string };

type Found = { url: string; title: string };

const MAX_SOURCES = 50;
const MAX_TITLE_CHARACTERS = 200;
/** Limits what is read of each result. */
const MAX_VALUES = 2_000;
const MAX_TEXT_CHARACTERS = 100_000;
const MAX_DEPTH = 8;
/** Tools whose argument `url` is a page that they read. */
const READS_PAGE = /(?:^|_)(?:visit|browse|crawl|crawling|scrape|(?:fetch|read|open|extract)(?=$|_(?:web|webpage|website|urls?|uri|pages?|site|link|html|markdown|content|text|txt|json|article)(?:_|$)))(?:_|$)/i;
/** What follows an address in a text, unless the address goes on. */
const ADDRESS_END = /\/?[.,;:!?*_~`'"]*(?:$|[\s<>()[\]{}|"'`#]|[^\x21-\x7e])/y;
/** The summary of `fetch_url` for content without a title. */
const SIZE = /^[\d,]+ bytes? of \S+ from /;
const TITLED = /^Title: *(.{1,200})\n(?:(?!Title:).*\n){0,4}?(?:URL|Link): *(https?:\/\/\S{1,2000})/gim;

/** Sources in the order of their calls, those that the text of the answer links to first; at most 50. */
export function sourcesOf(blocks: readonly Block[], text: string): readonly Source[] {
  const sources = new Map<string, Source>();
  for (const block of blocks) {
    if (block.type !== "tool" || block.state !== "completed") continue;
    for (const found of foundIn(block)) add(sources, found);
  }
  const all = [...sources.values()];
  const cited = new Set(all.filter(({ url }) => hasAddress(text, url.replace(/\/$/, ""))));
  return [...cited, ...all.filter((source) => !cited.has(source))];
}

/** Whether the text has this address, not only a longer one that begins with it. */
function hasAddress(text: string, address: string): boolean {
  for (let at = text.indexOf(address); at !== -1; at = text.indexOf(address, at + 1)) {
    ADDRESS_END.lastIndex = at + address.length;
    if (ADDRESS_END.test(text)) return true;
  }
  return false;
}

/** The name of a tool with underscores between its words. */
function snakeCase(tool: string): string {
  return tool.replace(/([a-z])(?=[A-Z])/g, "$1_").replaceAll("-", "_");
}

function add(sources: Map<string, Source>, { url, title }: Found): void {
  const address = safeAddress(url);
  if (address === null) return;
  const key = `${address.host}${address.pathname}${address.search}`;
  const known = sources.get(key);
  if (known ? known.title !== "" : sources.size >= MAX_SOURCES) return;
  const plain = title.replace(/\s+/g, " ").trim().slice(0, MAX_TITLE_CHARACTERS);
  sources.set(key, { url: known?.url ?? address.href, domain: address.hostname.replace(/^www\./, ""), title: plain });
}

/** Only addresses that lead where they seem to: http and https, without a user. */
function safeAddress(url: string): URL | null {
  const address = URL.canParse(url) ? new URL(url) : null;
  return address && /^https?:$/.test(address.protocol) && !address.username && !address.password ? address : null;
}

function foundIn(block: ToolBlock): Found[] {
  const { tool, args, output, blob, summary = "" } = block;
  const page = READS_PAGE.test(snakeCase(tool)) && typeof args?.url === "string" ? args.url : null;
  if (page !== null) return [{ url: page, title: tool === "fetch_url" && summary !== page && !SIZE.test(summary) ? summary : "" }];
  const result = output ?? previewOf(blob);
  return typeof result === "string" ? inText(result.slice(0, MAX_TEXT_CHARACTERS)) : inValue(result);
}

function previewOf(blob: BlobRef | undefined): string {
  return /^text\/plain|json/.test(blob?.mediaType ?? "") ? (blob?.preview ?? "") : "";
}

/** The objects with an address and a title in a JSON value. */
function inValue(value: unknown): Found[] {
  const found: Found[] = [];
  let left = MAX_VALUES;
  const visit = (at: unknown, depth: number): void => {
    if (typeof at !== "object" || at === null || depth > MAX_DEPTH || left-- <= 0) return;
    if (!Array.isArray(at)) found.push(...sourceIn(at as Record<string, unknown>));
    // Texts of a tool's result may be JSON, too.
    if ("text" in at && typeof at.text === "string" && depth <= 2) found.push(...inText(at.text.slice(0, MAX_TEXT_CHARACTERS)));
    for (const inner of Object.values(at)) visit(inner, depth + 1);
  };
  visit(value, 0);
  return found;
}

function sourceIn({ url, link, href, uri, title, name }: Record<string, unknown>): Found[] {
  const address = [url, link, href, uri].find((each) => typeof each === "string");
  const words = [title, name].find((each) => typeof each === "string");
  return typeof address === "string" && typeof words === "string" && words.trim() !== "" ? [{ url: address, title: words }] : [];
}

/** In JSON, which may be cut off, and in lists of "Title: …" and "URL: …". */
function inText(text: string): Found[] {
  if (!/^\s*[[{]/.test(text)) return [...text.matchAll(TITLED)].map(([, title = "", url = ""]) => ({ title, url }));
  try {
    return inValue(JSON.parse(text));
  } catch {
    return text.split(/[{}]/, MAX_VALUES).flatMap((part) => sourceIn({ url: stringIn(part, "url|link|href|uri"), title: stringIn(part, "title|name") }));
  }
}

/** The value of the first of these keys in a part of JSON. */
function stringIn(part: string, keys: string): unknown {
  const literal = new RegExp(String.raw`"(?:${keys})"\s*:\s*("(?:[^"\\]|\\.){1,2000}")`).exec(part)?.[1];
  try {
    return literal === undefined ? undefined : JSON.parse(literal);
  } catch {
    return undefined;
  }
}
