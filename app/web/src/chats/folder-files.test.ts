import { afterEach, describe, expect, it, vi } from "vitest";

import { closeFileList, FolderFileList, openFileList, type BackgroundUploads, type FolderFile } from "./folder-files.svelte.ts";

const stored = (name: string): FolderFile => ({ id: `id of ${name}`, name, size: 3, mediaType: "text/plain", createdAt: "2026-03-12T14:05:00Z" });
const file = (name: string): File => new File(["abc"], name, { type: "text/plain" });
const refusal = (status: number, code: string): Response => Response.json({ code, detail: "No." }, { status });

/** A server that has these files, and refuses those with a response of their own. Uploads wait for the gate. */
function serve(names: readonly string[], refusals: Readonly<Record<string, () => Response>> = {}, gate: Promise<void> = Promise.resolve()): string[] {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (path: string, { method = "GET" }: RequestInit = {}) => {
    const query = new URL(path, "http://localhost").searchParams;
    const name = query.get("file") ?? "";
    asked.push(`${method} ${name || path}`);
    if (method === "POST") return gate.then(() => refusals[name]?.() ?? Response.json(stored(name), { status: 201 }));
    if (method === "DELETE") return Promise.resolve(new Response(null, { status: 204 }));
    return Promise.resolve(Response.json({ items: names.map(stored) }));
  });
  return asked;
}

function closedGate(): { gate: Promise<void>; open: () => void } {
  let open = (): void => undefined;
  const gate = new Promise<void>((resolve) => (open = resolve));
  return { gate, open: () => open() };
}

const namesOf = ({ files }: FolderFileList): string[] | undefined => files?.map(({ name }) => name);

describe("the files of a folder", () => {
  afterEach(() => vi.unstubAllGlobals());

  it("are uploaded one after the other and listed by name", async () => {
    const asked = serve(["m.txt"]);
    const added = vi.fn();
    const list = new FolderFileList("Trips & more", added);
    await list.load();
    await list.add([file("z.txt"), file("a.txt")]);
    expect(namesOf(list)).toEqual(["a.txt", "m.txt", "z.txt"]);
    expect(list.uploads).toEqual([]);
    expect(added).toHaveBeenCalledTimes(2);
    expect(asked).toEqual(["GET /api/me/folder/files?name=Trips%20%26%20more", "POST z.txt", "POST a.txt"]);
  });

  it("that are refused say why, and can be tried again or forgotten", async () => {
    const refusals: Record<string, () => Response> = {
      "m.txt": () => refusal(409, "conflict"),
      "other.txt": () => refusal(409, "conflict"),
      "film.mov": () => refusal(415, "unsupported_media_type"),
      "large.txt": () => refusal(413, "payload_too_large"),
    };
    serve(["m.txt"], refusals);
    const list = new FolderFileList("Trips", () => undefined);
    await list.load();
    await list.add(Object.keys(refusals).map(file));
    expect(list.uploads.map(({ why }) => why)).toEqual([
      "The folder has a file of this name already. Remove that one first.",
      "A folder has up to 30 files.",
      "Text, PDFs and images (PNG, JPEG, GIF, WebP) are accepted.",
      "The file is too large, or the folder has no room for it.",
    ]);
    expect(list.uploads.map(({ isFinal }) => isFinal)).toEqual([false, false, true, true]);
    delete refusals["other.txt"];
    const [same, other] = list.uploads;
    if (!same || !other) throw new Error("Both should be there.");
    list.cancel(same);
    await list.send(other);
    expect(namesOf(list)).toEqual(["m.txt", "other.txt"]);
    expect(list.uploads.map(({ name }) => name)).toEqual(["film.mov", "large.txt"]);
  });

  it("are removed", async () => {
    serve(["a.txt", "m.txt"]);
    const list = new FolderFileList("Trips", () => undefined);
    await list.load();
    await list.remove(stored("a.txt"));
    expect(namesOf(list)).toEqual(["m.txt"]);
  });

  it("are uploaded in the background after the list was closed, and are in it when it is opened again", async () => {
    const { gate, open } = closedGate();
    const refusals: Record<string, () => Response> = { "c.mov": () => refusal(415, "unsupported_media_type") };
    const asked = serve([], refusals, gate);
    const failed: string[] = [];
    const background: BackgroundUploads = { mayContinue: () => true, onFailed: ({ name }) => failed.push(name) };
    const list = openFileList("Trips", "ada", () => undefined);
    await list.load();
    const added = list.add([file("a.txt"), file("b.txt"), file("c.mov")]);
    closeFileList(list, "ada", background);
    open();
    await added;
    expect(asked.slice(1)).toEqual(["POST a.txt", "POST b.txt", "POST c.mov"]);
    expect(failed).toEqual(["c.mov"]);
    const again = openFileList("Trips", "ada", () => undefined);
    expect([namesOf(again), again.uploads.map(({ name }) => name)]).toEqual([["a.txt", "b.txt"], ["c.mov"]]);
    expect(openFileList("Trips", "ada", () => undefined)).not.toBe(again);
  });

  it("are uploaded no further once another account is signed in", async () => {
    const { gate, open } = closedGate();
    const asked = serve([], {}, gate);
    let isSame = true;
    const list = openFileList("Trips", "ada", () => undefined);
    await list.load();
    const added = list.add([file("a.txt"), file("b.txt")]);
    closeFileList(list, "ada", { mayContinue: () => isSame, onFailed: () => undefined });
    isSame = false;
    open();
    await added;
    expect(asked.slice(1)).toEqual(["POST a.txt"]);
  });

  it("are not added beyond the limit of a folder", async () => {
    const asked = serve(Array.from({ length: 28 }, (_, at) => `${at}.txt`));
    const list = new FolderFileList("Trips", () => undefined);
    await list.load();
    await list.add(["a", "b", "c", "d", "e"].map(file));
    expect([asked.length, list.files?.length, list.omitted]).toEqual([3, 30, 3]);
    await list.add([file("f")]);
    expect([asked.length, list.omitted, list.uploads]).toEqual([3, 1, []]);
  });

  it("may fail to load", async () => {
    vi.stubGlobal("fetch", () => Promise.resolve(refusal(403, "forbidden")));
    const list = new FolderFileList("Trips", () => undefined);
    await list.load();
    expect(list.files).toBeNull();
  });
});
