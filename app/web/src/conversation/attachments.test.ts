import { describe, expect, it } from "vitest";

import { ApiError, NetworkError } from "@khala/client";
import type { BlobRef } from "@khala/client";
import { Attachments, MAX_FILES } from "./attachments.svelte.ts";

const blobOf = (name: string): BlobRef => ({ blobId: name, size: 3, sha256: "00", mediaType: "text/plain", name });
const file = (name: string): File => new File(["abc"], name);

/** Uploads that end when the test says so. */
class Uploads {
  readonly open = new Map<string, { resolve: (blob: BlobRef) => void; reject: (error: Error) => void; progress: (share: number) => void; signal: AbortSignal }>();

  readonly upload = ({ name }: File, { progress, signal }: { progress?: (share: number) => void; signal?: AbortSignal }): Promise<BlobRef> =>
    new Promise((resolve, reject) => {
      this.open.set(name, { resolve, reject, progress: progress ?? (() => undefined), signal: signal ?? new AbortController().signal });
    });

  at(name: string) {
    const found = this.open.get(name);
    if (!found) throw new Error(`Nobody uploads ${name}.`);
    return found;
  }
}

const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));

describe("attachments", () => {
  it("are sent once all of them are uploaded", async () => {
    const uploads = new Uploads();
    const attachments = new Attachments(uploads.upload, () => undefined);
    attachments.add([file("a"), file("b")]);
    expect(attachments.obstacle).toBe("A file is still uploading.");
    uploads.at("a").progress(0.5);
    expect(attachments.entries.map(({ share }) => share)).toEqual([0.5, 0]);
    uploads.at("b").resolve(blobOf("b"));
    uploads.at("a").resolve(blobOf("a"));
    await settled();
    expect(attachments.obstacle).toBeNull();
    expect(attachments.take().map(({ blobId }) => blobId)).toEqual(["a", "b"]);
    expect(attachments.entries).toEqual([]);
  });

  it("say why one was not taken, and can be tried again or removed", async () => {
    const uploads = new Uploads();
    const attachments = new Attachments(uploads.upload, () => undefined);
    attachments.add([file("a"), file("b")]);
    uploads.at("a").reject(new ApiError(415, { code: "unsupported_media_type", detail: "This is no file that is taken." }));
    uploads.at("b").reject(new NetworkError("x"));
    await settled();
    expect(attachments.entries.map(({ why }) => why)).toEqual(["This is no file that is taken.", "Can’t reach the server. Check your connection."]);
    expect(attachments.obstacle).toContain("failed to upload");
    const [first, second] = attachments.entries;
    if (!first || !second) throw new Error("Both should be there.");
    attachments.remove(first);
    const again = attachments.send(second);
    uploads.at("b").resolve(blobOf("b"));
    await again;
    expect(attachments.take().map(({ blobId }) => blobId)).toEqual(["b"]);
  });

  it("stop their uploads when they are removed", async () => {
    const uploads = new Uploads();
    const attachments = new Attachments(uploads.upload, () => undefined);
    attachments.add([file("a"), file("b")]);
    attachments.clear();
    expect([uploads.at("a").signal.aborted, uploads.at("b").signal.aborted]).toEqual([true, true]);
    uploads.at("a").reject(new Error("called off"));
    await settled();
    expect(attachments.entries).toEqual([]);
  });

  it("are ten at most, which is said", () => {
    const said: string[] = [];
    const attachments = new Attachments(new Uploads().upload, (words) => said.push(words));
    attachments.add(Array.from({ length: MAX_FILES + 1 }, (_, at) => file(`${at}`)));
    expect(attachments.entries).toHaveLength(MAX_FILES);
    expect(said).toEqual(["You can attach up to 10 files."]);
  });

  it("come back with a message that was not sent", () => {
    const attachments = new Attachments(new Uploads().upload, () => undefined);
    attachments.put([blobOf("a")]);
    expect(attachments.obstacle).toBeNull();
    expect(attachments.take()).toEqual([blobOf("a")]);
  });
});
