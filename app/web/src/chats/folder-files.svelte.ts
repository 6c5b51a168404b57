// The files of one folder of the account, and those that are being uploaded to it.

import { SvelteMap } from "svelte/reactivity";
import { ApiError, isRequestError, request, upload, withoutInvisible, withRetry } from "@khala/client";

import { errorMessage, isPermanent } from "../state/error-messages.ts";
import { UNTITLED_FILE } from "../state/strings.ts";
import { m } from "../i18n/messages.ts";

const PATH = "/api/me/folder/files";
/** The server's limit of one folder. */
export const MAX_FILES = 30;

/** A file of a folder, as the server has it. */
export interface FolderFile {
  readonly id: string;
  readonly name: string;
  readonly size: number;
  readonly mediaType: string;
  readonly createdAt: string;
}

/** A file on its way to the folder. `share` is the upload progress from 0 to 1; `why` says why it failed, and is "" before. */
export class FolderUpload {
  readonly file: File;
  readonly name: string;
  share = $state(0);
  why = $state("");
  /** Whether another attempt would fail as well, because the server does not take this file. */
  isFinal = $state(false);
  abort = new AbortController();

  constructor(file: File) {
    this.file = file;
    this.name = withoutInvisible(file.name) || UNTITLED_FILE;
  }
}

/** `mayContinue`: whether the account is still the one to which the folder belongs. `onFailed` is called for each file that is not added. */
export type BackgroundUploads = { readonly mayContinue: () => boolean; readonly onFailed: (entry: FolderUpload) => void };

/** Lists whose dialog was closed during an upload, by their folder and account. */
const released = new SvelteMap<string, FolderFileList>();

/** The list of a folder: the one that was closed during an upload, or a new one. Pass it to `closeFileList` in the end. */
export function openFileList(folder: string, userId: string | null, onAdded: () => void): FolderFileList {
  const key = JSON.stringify([userId, folder]);
  const list = released.get(key) ?? new FolderFileList(folder, onAdded);
  released.delete(key);
  list.resume();
  return list;
}

/** Close the list. What is being uploaded goes on in the background, and what fails there is in the list when it is opened again. */
export function closeFileList(list: FolderFileList, userId: string | null, background: BackgroundUploads): void {
  const key = JSON.stringify([userId, list.folder]);
  if (list.release(background)) released.set(key, list);
}

export class FolderFileList {
  /** By name; undefined before they are loaded, null if they could not be. */
  files: readonly FolderFile[] | null | undefined = $state.raw(undefined);
  uploads: readonly FolderUpload[] = $state.raw([]);
  /** The number of files that were not added last, because the folder is full. */
  omitted = $state(0);
  readonly folder: string;
  readonly #onAdded: () => void;
  /** Set while the list is closed. */
  #background: BackgroundUploads | null = null;

  /** `onAdded` is called after each file that the folder has got. */
  constructor(folder: string, onAdded: () => void) {
    this.folder = folder;
    this.#onAdded = onAdded;
  }

  async load(): Promise<void> {
    try {
      const { items } = await withRetry(() => request<{ items: FolderFile[] }>("GET", this.#path()), { maxAttempts: 3 });
      this.files = items;
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.files = null;
    }
  }

  async add(files: readonly File[]): Promise<void> {
    const room = MAX_FILES - (this.files?.length ?? 0) - this.uploads.filter(({ why }) => why === "").length;
    const fresh = files.slice(0, Math.max(0, room)).map((file) => new FolderUpload(file));
    this.omitted = files.length - fresh.length;
    this.uploads = [...this.uploads, ...fresh];
    // One after the other: the server counts them against the limits of the folder, and the first ones get in.
    for (const entry of fresh) {
      if (this.#background?.mayContinue() === false) this.#stop();
      if (this.uploads.includes(entry)) await this.send(entry);
    }
  }

  /** Uploads the file; also the retry after a failure. */
  async send(entry: FolderUpload): Promise<void> {
    Object.assign(entry, { share: 0, why: "", isFinal: false, abort: new AbortController() });
    const { signal } = entry.abort;
    try {
      const path = `${this.#path()}&file=${encodeURIComponent(entry.name)}`;
      const added = await upload<FolderFile>(path, entry.file, { signal, onProgress: (share) => (entry.share = share) });
      this.uploads = this.uploads.filter((other) => other !== entry);
      this.files = [...(this.files ?? []).filter(({ id }) => id !== added.id), added].toSorted((a, b) => a.name.localeCompare(b.name));
      this.#onAdded();
    } catch (error) {
      if (signal.aborted) return;
      if (!isRequestError(error)) throw error;
      entry.why = uploadErrorMessage(error, this.files?.some(({ name }) => name === entry.name) ?? false);
      entry.isFinal = error instanceof ApiError && (error.status === 415 || isPermanent(error.code));
      this.#background?.onFailed(entry);
    }
  }

  /** Stops the upload, or forgets one that failed. */
  cancel(entry: FolderUpload): void {
    entry.abort.abort();
    this.uploads = this.uploads.filter((other) => other !== entry);
  }

  /** Removes the file from the folder. Errors as those of `request`. */
  async remove(file: FolderFile): Promise<void> {
    await request("DELETE", `${PATH}/${file.id}`);
    this.files = this.files?.filter(({ id }) => id !== file.id);
  }

  /** The list is shown. */
  resume(): void {
    this.#background = null;
  }

  /** The list is closed. Returns whether anything is still being uploaded. */
  release(background: BackgroundUploads): boolean {
    this.#background = background;
    this.uploads = this.uploads.filter(({ why }) => why === "");
    this.omitted = 0;
    if (!background.mayContinue()) this.#stop();
    return this.uploads.length > 0;
  }

  #stop(): void {
    for (const entry of this.uploads) entry.abort.abort();
    this.uploads = [];
  }

  #path(): string {
    return `${PATH}?name=${encodeURIComponent(this.folder)}`;
  }
}

/** The address of a file's content. */
export function folderFilePath(file: FolderFile): string {
  return `${PATH}/${file.id}`;
}

/** What the person can do about it: of errors with one meaning here, in their language. */
function uploadErrorMessage(error: unknown, hasName: boolean): string {
  if (!(error instanceof ApiError)) return errorMessage(error);
  if (error.status === 415) return m.file_type_not_accepted();
  if (error.code === "payload_too_large") return m.no_room_in_folder();
  if (error.code === "conflict") return hasName ? m.folder_has_this_file() : m.folder_is_full({ count: MAX_FILES });
  return error.code === "invalid_input" ? (error.errors[0]?.message ?? error.message) : errorMessage(error);
}
