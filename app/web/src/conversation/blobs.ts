// Files of a chat: their bytes, with the keys that this browser has to it.

import type { BlobRef } from "../khala/frames.ts";
import { downloadBlob, withRetry, isRequestError } from "../khala/requests.ts";
import type { ChatView } from "../state/page-model.ts";
import { saveFile as save } from "../tasks/save-file.ts";

/** The bytes; from here, not from where the server keeps them, for the page may load from here alone. */
function bytesOf({ keys }: Pick<ChatView, "keys">, { blobId }: BlobRef): Promise<Blob> {
  return withRetry(() => downloadBlob(`/api/blobs/${blobId}?direct=true`, { keys }), { maxAttempts: 3 });
}

/** The bytes, or null if they can't be had. */
export async function quietly(chat: ChatView, blob: BlobRef): Promise<Blob | null> {
  try {
    return await bytesOf(chat, blob);
  } catch (error) {
    if (isRequestError(error)) return null;
    throw error;
  }
}

/** Save the file as the browser saves files. */
export async function download(chat: ChatView, blob: BlobRef): Promise<void> {
  save(blob, await bytesOf(chat, blob));
}
