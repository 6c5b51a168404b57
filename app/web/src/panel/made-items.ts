// What the answers of a chat made: files that tools wrote, files of answers, and large or showable code blocks.

import type { BlobRef, Block, ToolBlock } from "@khala/client";
import type { MessageView } from "../state/page-model.ts";
import { kindOfBlob, kindOfLanguage, languageOfName, parseInfo, type ItemKind } from "./item-kinds.ts";
import { m } from "../i18n/messages.ts";

/** Where the content of a version comes from. A change builds on the version before it. */
export type ItemSource =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "blob"; readonly blob: BlobRef }
  /** The arguments of a `write_file`, which are so long that they are in a blob. */
  | { readonly type: "arguments"; readonly blob: BlobRef }
  | { readonly type: "change"; readonly before: ItemSource; readonly old: string; readonly fresh: string; readonly all: boolean };

export type ItemVersion = { readonly messageId: string; readonly source: ItemSource };

/** One thing with all its versions, oldest first. `title`: what its content is called, such as a plan, where its name does not say it. `isFile`: a tool wrote it. `isDeleted`: a tool deleted the file afterwards. */
export type MadeItem = { readonly key: string; readonly name: string; title: string | null; readonly kind: ItemKind; readonly language: string; isFile: boolean; isDeleted: boolean; readonly versions: ItemVersion[] };

type Found = { name: string; title?: string | null; isFile: boolean; key: string; kind: ItemKind; language: string; source: ItemSource };
type Answer = Pick<MessageView, "id" | "head" | "blocks">;

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
/** As the server reads plans: `prd.json`, or a name that ends with it. */
const PLAN_FILE = /(?:^|[./])prd\.json$/i;
const PLAN_NAME = /"(?:name|project)"\s*:\s*"([^"\\\n]+)"/;
const MAX_TITLE_CHARACTERS = 200;
const MAX_ITEMS = 500;
/** Unnamed code is worth a panel from this many lines on. */
const MIN_CODE_LINES = 20;
const MIN_SHOWABLE_LINES = 3;
const DIAGRAM = "mermaid";

/** All things of these messages, in the order in which they were made first; at most 500. */
export function madeItems(messages: readonly Answer[]): readonly MadeItem[] {
  const items = new Map<string, MadeItem>();
  for (const { id, head, blocks } of messages) {
    if (head.role !== "assistant") continue;
    blocks.forEach(({ block }, index) => {
      if (block.type === "tool") applyTool(items, id, block);
      for (const found of knownThings(block, `${id} ${index}`)) add(items, id, found);
    });
  }
  return [...items.values()];
}

/** The things that this answer made or changed, of all that there are. */
export function itemsOf(answer: Answer, items: readonly MadeItem[]): readonly MadeItem[] {
  return items.filter(({ versions }) => versions.some(({ messageId }) => messageId === answer.id));
}

function add(items: Map<string, MadeItem>, messageId: string, { source, ...found }: Found): void {
  const item = items.get(found.key) ?? { ...found, title: null, isDeleted: false, versions: [] };
  if (!items.has(found.key) && items.size >= MAX_ITEMS) return;
  items.set(found.key, item);
  item.isDeleted = false;
  item.isFile ||= found.isFile;
  item.title = found.title ?? item.title;
  item.versions.push({ messageId, source });
}

/** Blocks never change, so each is read once, although every answer looks at those before it. */
const known = new WeakMap<Block, Found[]>();

function knownThings(block: Block, prefix: string): Found[] {
  const found = known.get(block) ?? thingsOf(block, prefix);
  known.set(block, found);
  return found;
}

function thingsOf(block: Block, prefix: string): Found[] {
  if (block.type === "text") return codeBlocks(block.text).flatMap((code, index) => codeItem(code, `${prefix} ${index}`));
  if (block.type !== "file") return [];
  const name = block.blob.name ?? m.untitled_file();
  return [{ key: block.blob.name ? `file ${name}` : prefix, name, isFile: false, kind: kindOfBlob(block.blob.mediaType, name), language: languageOfName(name), source: { type: "blob", blob: block.blob } }];
}

function applyTool(items: Map<string, MadeItem>, messageId: string, { tool, state, args, argsBlob }: ToolBlock): void {
  if (state !== "completed") return;
  const path = typeof args?.path === "string" ? args.path : pathInPreview(tool, argsBlob);
  if (path === null) return;
  const key = `file ${path}`;
  const file = { key, name: path, isFile: true, kind: kindOfLanguage(languageOfName(path)), language: languageOfName(path) };
  const titled = { ...file, title: planTitle(path, args?.content, argsBlob) };
  const before = items.get(key)?.versions.at(-1)?.source;
  if (tool === "write_file" && argsBlob) add(items, messageId, { ...titled, source: { type: "arguments", blob: argsBlob } });
  else if (tool === "write_file" && typeof args?.content === "string") add(items, messageId, { ...titled, source: { type: "text", text: args.content } });
  else if (tool === "edit_file" && before && typeof args?.old === "string" && typeof args.new === "string") {
    add(items, messageId, { ...file, source: { type: "change", before, old: args.old, fresh: args.new, all: args.all === true } });
  } else if (tool === "delete_file") {
    const item = items.get(key);
    if (item) item.isDeleted = true;
  }
}

/** The name of the plan in a `prd.json`; null for other files, and if it has none. Of long arguments, their preview is read. */
function planTitle(path: string, content: unknown, argsBlob: BlobRef | undefined): string | null {
  if (!PLAN_FILE.test(path)) return null;
  const text = typeof content === "string" ? content : (argsBlob?.preview ?? "").replaceAll('\\"', '"');
  const found = PLAN_NAME.exec(text)?.[1];
  const title = found?.trim().slice(0, MAX_TITLE_CHARACTERS) ?? "";
  return title === "" ? null : title;
}

/** The path in the preview of long arguments, which begins with it or has it before the content. */
function pathInPreview(tool: string, argsBlob: BlobRef | undefined): string | null {
  if (tool !== "write_file" || !argsBlob?.preview) return null;
  const found = /^\s*\{\s*"path"\s*:\s*("(?:[^"\\]|\\.)*")/.exec(argsBlob.preview)?.[1];
  return found === undefined ? null : (JSON.parse(found) as string);
}

type Code = { info: string; text: string };

/** The closed code blocks of a Markdown text. */
function codeBlocks(text: string): Code[] {
  const found: Code[] = [];
  let open: { fence: string; info: string; lines: string[] } | null = null;
  for (const line of text.split(/\r?\n/)) {
    const [, fence = "", info = ""] = FENCE.exec(line) ?? [];
    if (open && fence.startsWith(open.fence) && info.trim() === "") {
      found.push({ info: open.info, text: open.lines.join("\n") });
      open = null;
    } else if (open) open.lines.push(line);
    else if (fence) open = { fence, info, lines: [] };
  }
  return found;
}

function codeItem({ info, text }: Code, key: string): Found[] {
  const { language, name } = parseInfo(info);
  const kind = kindOfLanguage(language || languageOfName(name ?? ""));
  const lines = text.split("\n").length;
  const isLarge = lines >= (kind === "code" ? MIN_CODE_LINES : MIN_SHOWABLE_LINES) || (kind === "svg" && text.length > 0);
  if (language === DIAGRAM || kind === "pdf" || (name === null && !isLarge)) return [];
  const title = name ?? titleOf(kind, text);
  const shown = title ?? (language ? m.code_in_language({ language }) : m.code());
  return [{ key: title === null ? key : `file ${title}`, name: shown, isFile: false, kind, language: language || languageOfName(name ?? ""), source: { type: "text", text } }];
}

/** The title in a document: versions of a document are told by it. */
function titleOf(kind: ItemKind, text: string): string | null {
  const found = kind === "html" || kind === "svg" ? /<title>([^<]{1,200})<\/title>/i.exec(text) : kind === "markdown" ? /^#{1,2} +(.{1,200})$/m.exec(text) : null;
  return found?.[1]?.trim() ?? null;
}
