// Downloads the files of a chat with the access keys of this browser.

import { downloadBlob, isRequestError, withRetry } from "@khala/client";
import type { BlobRef } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";
import { saveFile as save } from "../tasks/save-file.ts";

/** The bytes, through our own server (`direct`): the content security policy allows no other origin. */
function bytesOf({ keys }: Pick<ChatView, "keys">, { blobId }: BlobRef): Promise<Blob> {
  return withRetry(() => downloadBlob(`/api/blobs/${blobId}?direct=true`, { keys }), { maxAttempts: 3 });
}

/** The bytes, or null if the download fails. */
export async function fileBytesOrNull(chat: ChatView, blob: BlobRef): Promise<Blob | null> {
  try {
    return await bytesOf(chat, blob);
  } catch (error) {
    if (isRequestError(error)) return null;
    throw error;
  }
}

/** Saves the file as a browser download. */
export async function downloadFile(chat: ChatView, blob: BlobRef): Promise<void> {
  save(blob, await bytesOf(chat, blob));
}
