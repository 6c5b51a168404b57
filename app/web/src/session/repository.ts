// Files of a repository as uploads of a thread: a message takes ten, so files are joined into a few bundles of text.

import type { RepoFile } from "../workers/session.messages.ts";
import { Failed } from "./failing.ts";

export const MOST_FILES = 1000;
/** In bytes of UTF-8. With bundles of three times a file, ten of them always hold the total. */
export const MOST_FILE = 512 * 1024;
const MOST_TOTAL = 8 * 1024 * 1024;
const MOST_BUNDLE = 3 * MOST_FILE;
const MOST_PATH = 512;

export type Bundle = { readonly name: string; readonly text: string; readonly files: number };

/** At most ten bundles in which all files are, in order of their paths; or Failed, `too_large`, `not_text` or `invalid_input`. */
export function bundled(files: readonly RepoFile[]): { bundles: Bundle[]; bytes: number } {
  if (files.length === 0) throw new Failed("invalid_input", "There are no files.");
  if (files.length > MOST_FILES) throw new Failed("too_large", `There are ${files.length} files; at most ${MOST_FILES} are taken.`);
  const sorted = files.toSorted((one, other) => (one.path < other.path ? -1 : 1));
  const sections = sorted.map((file) => ({ text: section(file), bytes: sizeOf(file) }));
  const bytes = sections.reduce((sum, one) => sum + one.bytes, 0);
  if (bytes > MOST_TOTAL) throw new Failed("too_large", `The files have ${bytes} bytes together; at most ${MOST_TOTAL} are taken.`);
  return { bundles: joined(sections), bytes };
}

function section({ path, content }: RepoFile): string {
  return `===== ${path} =====\n${content}${content.endsWith("\n") ? "" : "\n"}\n`;
}

/** The bytes of a file with its heading, if it can be taken. */
function sizeOf(file: RepoFile): number {
  const { path, content } = file;
  if (path.length < 1 || path.length > MOST_PATH || /\p{Cc}/u.test(path)) throw new Failed("invalid_input", "A path must have 1 to 512 characters, none of them a control character.");
  if (content.includes("\0") || /\p{Surrogate}/u.test(content)) throw new Failed("not_text", `${path} is not text.`);
  const bytes = new TextEncoder().encode(section(file)).length;
  if (bytes > MOST_FILE) throw new Failed("too_large", `${path} is too large: at most ${MOST_FILE} bytes are taken.`);
  return bytes;
}

function joined(sections: readonly { text: string; bytes: number }[]): Bundle[] {
  const groups: { texts: string[]; bytes: number }[] = [];
  for (const { text, bytes } of sections) {
    const last = groups.at(-1);
    if (!last || last.bytes + bytes > MOST_BUNDLE) groups.push({ texts: [text], bytes });
    else {
      last.texts.push(text);
      last.bytes += bytes;
    }
  }
  return groups.map(({ texts }, index) => ({ name: `repository-${index + 1}.txt`, text: texts.join(""), files: texts.length }));
}
