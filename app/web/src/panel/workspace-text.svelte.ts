// The text that a file has in the workspace now, which the person can edit.

import { ApiError } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";
import { loadFileDraft, saveFileDraft, type FileDraft } from "./file-drafts.ts";

type Requests = Pick<ChatView, "id" | "call" | "download">;

export class WorkspaceText {
  /** null: it is not loaded, it is no text, or the workspace does not have the file. */
  text: string | null = $state.raw(null);
  readonly #requests: Requests;
  readonly #path: string;

  constructor(requests: Requests, path: string) {
    this.#requests = requests;
    this.#path = path;
  }

  /** Read the text. Errors as those of `download`, but a missing file has the text null. */
  async load(): Promise<void> {
    try {
      this.text = await decoded(await this.#requests.download(this.#url));
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
      this.text = null;
    }
  }

  /** Replace `before` by another text. Errors as those of `call`: ApiError with the code `conflict` if the file has another text. */
  async save(before: string, edited: string): Promise<void> {
    const content = withLineEnds(edited, before);
    await this.#requests.call("PUT", this.#url, { before, content });
    this.text = content;
    this.draft = null;
  }

  /** What was edited and not saved. */
  get draft(): FileDraft | null {
    return loadFileDraft(this.#requests.id, this.#path);
  }

  set draft(draft: FileDraft | null) {
    saveFileDraft(this.#requests.id, this.#path, draft);
  }

  get #url(): string {
    return `/api/threads/${this.#requests.id}/workspace/file?path=${encodeURIComponent(this.#path)}`;
  }
}

/** A form field has line feeds only: the text with the line ends of the one before it. */
export function withLineEnds(text: string, before: string): string {
  const hasOnlyPairs = before.includes("\r\n") && !/(?<!\r)\n/.test(before);
  return hasOnlyPairs ? text.replaceAll(/\r?\n/g, "\r\n") : text;
}

/** The text of a file, with a byte order mark if it has one; null if it is no UTF-8. */
async function decoded(bytes: Blob): Promise<string | null> {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await bytes.arrayBuffer());
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}
