// The attachments of the next message: uploaded as soon as they are added, and kept until they are sent.

import { ApiError, isRequestError, withoutInvisible } from "@khala/client";
import type { BlobRef } from "@khala/client";
import { errorMessage, isPermanent } from "../state/error-messages.ts";
import { UNTITLED_FILE } from "../state/strings.ts";
import type { ChatView } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";

export const MAX_FILES = 10;

/** An attachment of the next message. `share` is the upload progress from 0 to 1. */
export class Attachment {
  readonly name: string;
  readonly size: number;
  readonly file: File | null;
  phase: "uploading" | "ready" | "failed" = $state("uploading");
  share = $state(0);
  why = $state("");
  blob: BlobRef | null = $state.raw(null);
  /** Whether another attempt would fail as well, because the server does not take this file. */
  isFinal = $state(false);
  /** The address of a preview in this page; null if it is no picture that this browser shows. */
  preview: string | null = $state.raw(null);
  abort = new AbortController();

  constructor(name: string, size: number, given: { file: File } | { blob: BlobRef }) {
    this.name = withoutInvisible(name) || UNTITLED_FILE;
    this.size = size;
    this.file = "file" in given ? given.file : null;
    if (this.file?.type.startsWith("image/")) this.preview = URL.createObjectURL(this.file);
    if (!("blob" in given)) return;
    this.blob = given.blob;
    this.phase = "ready";
  }

  /** Stop its upload, and release its preview. */
  release(): void {
    this.abort.abort();
    this.dropPreview();
  }

  dropPreview(): void {
    if (this.preview !== null) URL.revokeObjectURL(this.preview);
    this.preview = null;
  }
}

export class Attachments {
  entries: readonly Attachment[] = $state.raw([]);
  readonly #upload: ChatView["upload"];
  readonly #notify: (words: string) => void;

  /** `upload` is the chat's; `notify(words)` shows a message to the person. */
  constructor(upload: ChatView["upload"], notify: (words: string) => void) {
    this.#upload = upload;
    this.#notify = notify;
  }

  /** The reason why the attachments can't be sent yet, or null. */
  get obstacle(): string | null {
    if (this.entries.some(({ phase }) => phase === "uploading")) return m.a_file_is_still_uploading();
    if (this.entries.some(({ isFinal }) => isFinal)) return m.a_file_cant_be_sent_remove_it();
    return this.entries.some(({ phase }) => phase === "failed") ? m.a_file_failed_to_upload_retry_or_remove_it() : null;
  }

  add(files: readonly File[]): void {
    const room = MAX_FILES - this.entries.length;
    if (files.length > room) this.#notify(m.max_files({ count: MAX_FILES }));
    const fresh = files.slice(0, room).map((file) => new Attachment(file.name, file.size, { file }));
    this.entries = [...this.entries, ...fresh];
    for (const entry of fresh) void this.send(entry);
  }

  /** Uploads the file; also the retry after a failure. */
  async send(entry: Attachment): Promise<void> {
    if (!entry.file) return;
    Object.assign(entry, { phase: "uploading", share: 0, why: "", isFinal: false, abort: new AbortController() });
    const { signal } = entry.abort;
    try {
      entry.blob = await this.#upload(entry.file, { signal, progress: (share) => (entry.share = share) });
      entry.phase = "ready";
    } catch (error) {
      if (signal.aborted) return;
      if (!isRequestError(error)) throw error;
      entry.phase = "failed";
      entry.why = uploadErrorMessage(error);
      entry.isFinal = error instanceof ApiError && isPermanent(error.code);
    }
  }

  remove(entry: Attachment): void {
    entry.release();
    this.entries = this.entries.filter((other) => other !== entry);
  }

  /** Removes and returns the uploaded attachments, to send them. */
  take(): BlobRef[] {
    const blobs = this.entries.flatMap(({ blob }) => blob ?? []);
    this.clear();
    return blobs;
  }

  /** Restores the attachments of an unsent message. */
  put(blobs: readonly BlobRef[]): void {
    this.clear();
    this.entries = blobs.map((blob) => new Attachment(blob.name ?? UNTITLED_FILE, blob.size, { blob }));
  }

  clear(): void {
    for (const entry of this.entries) entry.release();
    this.entries = [];
  }
}

function uploadErrorMessage(error: unknown): string {
  if (error instanceof ApiError && error.code === "payload_too_large") return m.file_too_large();
  const says = error instanceof ApiError && (error.code === "invalid_input" || error.status === 415);
  return says ? (error.errors[0]?.message ?? error.message) : errorMessage(error);
}
