// Bundles a repository's files into at most ten text attachments, which is the limit of one message.

import type { RepoFile } from "../workers/session.messages.ts";
import { SessionError } from "./session-error.ts";

export const MAX_FILES = 1000;
/** In bytes of UTF-8. A bundle holds three files of the maximum size, so ten bundles always hold the maximum total. */
export const MAX_FILE_BYTES = 512 * 1024;
const MAX_TOTAL_BYTES = 8 * 1024 * 1024;
const MAX_BUNDLE_BYTES = 3 * MAX_FILE_BYTES;
const MAX_PATH_CHARACTERS = 512;

export type Bundle = { readonly name: string; readonly text: string; readonly files: number };

/** Joins all files, ordered by path, into at most ten bundles. Throws SessionError `too_large`, `not_text` or `invalid_input`. */
export function bundleFiles(files: readonly RepoFile[]): { bundles: Bundle[]; bytes: number } {
  if (files.length === 0) throw new SessionError("invalid_input", "There are no files.");
  if (files.length > MAX_FILES) throw new SessionError("too_large", `There are ${files.length} files; at most ${MAX_FILES} are taken.`);
  const sorted = files.toSorted((a, b) => (a.path < b.path ? -1 : 1));
  const sections = sorted.map((file) => ({ text: section(file), bytes: sizeOf(file) }));
  const bytes = sections.reduce((sum, section) => sum + section.bytes, 0);
  if (bytes > MAX_TOTAL_BYTES) throw new SessionError("too_large", `The files have ${bytes} bytes together; at most ${MAX_TOTAL_BYTES} are taken.`);
  return { bundles: joinSections(sections), bytes };
}

function section({ path, content }: RepoFile): string {
  return `===== ${path} =====\n${content}${content.endsWith("\n") ? "" : "\n"}\n`;
}

/** The size in bytes of a file with its heading. Throws SessionError for a file that is not accepted. */
function sizeOf(file: RepoFile): number {
  const { path, content } = file;
  if (path.length < 1 || path.length > MAX_PATH_CHARACTERS || /\p{Cc}/u.test(path)) throw new SessionError("invalid_input", "A path must have 1 to 512 characters, none of them a control character.");
  if (content.includes("\0") || /\p{Surrogate}/u.test(content)) throw new SessionError("not_text", `${path} is not text.`);
  const bytes = new TextEncoder().encode(section(file)).length;
  if (bytes > MAX_FILE_BYTES) throw new SessionError("too_large", `${path} is too large: at most ${MAX_FILE_BYTES} bytes are taken.`);
  return bytes;
}

function joinSections(sections: readonly { text: string; bytes: number }[]): Bundle[] {
  const groups: { texts: string[]; bytes: number }[] = [];
  for (const { text, bytes } of sections) {
    const last = groups.at(-1);
    if (!last || last.bytes + bytes > MAX_BUNDLE_BYTES) groups.push({ texts: [text], bytes });
    else {
      last.texts.push(text);
      last.bytes += bytes;
    }
  }
  return groups.map(({ texts }, index) => ({ name: `repository-${index + 1}.txt`, text: texts.join(""), files: texts.length }));
}
