// Blobs over REST, with the keys that this browser has to the chat.

import { keysOf } from "./chats.js";
import { make } from "./elements.js";
import { bytes, call, insist, isPassing, Refusal } from "./khala.js";

export class Blobs {
  #chat;

  /** `chat()` is the open chat. */
  constructor(chat) {
    this.#chat = chat;
  }

  /** Upload a file, to be sent with a message. */
  upload(file, signal) {
    const { id } = this.#chat();
    return call("POST", `/api/threads/${id}/blobs?${new URLSearchParams({ name: file.name })}`, { file, signal, ...this.#keys() });
  }

  lines(blobId, query) {
    return insist(() => call("GET", `/api/blobs/${blobId}/lines?${new URLSearchParams(query)}`, this.#keys()), { tries: 3 });
  }

  /** The bytes; from here, not from where the server keeps them. */
  bytes(blobId) {
    return insist(() => bytes(`/api/blobs/${blobId}?direct=true`, this.#keys()), { tries: 3 });
  }

  /** The bytes, or null. */
  async quietly(blobId) {
    try {
      return await this.bytes(blobId);
    } catch (error) {
      if (!(error instanceof Refusal) && !isPassing(error)) throw error;
      return null;
    }
  }

  async download({ blobId, name, mediaType }) {
    const url = URL.createObjectURL(await this.bytes(blobId));
    make("a", { href: url, download: name ?? `${blobId}${/json/.test(mediaType) ? ".json" : mediaType.startsWith("text/") ? ".txt" : ""}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    return true;
  }

  #keys() {
    return keysOf(this.#chat());
  }
}
