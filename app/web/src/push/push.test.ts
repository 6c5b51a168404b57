import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import { BrowserStorage } from "../browser/browser-storage.ts";
import { openChat, showPush } from "./push-events.ts";
import type { NotificationScope, PushMessage } from "./push-events.ts";
import { GUEST, PUSH_STORAGE_KEY, claimPush, expectConfirmation } from "../browser/push-account.ts";
import { hideDetails, storeTexts } from "../browser/push-texts.ts";
import { PATH_REQUEST } from "../browser/shown-path.ts";
import { PushNote } from "./push-note.ts";

const ORIGIN = "https://khala.test";
const WAITING: PushMessage = { kind: "waiting", threadId: "t1", title: "Trip to Aiur", tool: "delete_file" };
const GERMAN = { language: "de", direction: "ltr", waiting: "Dieser Chat wartet.", waitingTool: "{tool} wartet.", answer: "Fertig." } as const;

type Shown = { title: string; options: NotificationOptions };
let stored: Map<string, string>;
beforeEach(() => {
  stored = new Map();
  const cache = {
    match: (path: string) => Promise.resolve(stored.has(path) ? new Response(stored.get(path)) : undefined),
    put: async (path: string, response: Response) => void stored.set(path, await response.text()),
  };
  vi.stubGlobal("caches", { open: () => Promise.resolve(cache) });
});
afterEach(() => vi.unstubAllGlobals());

/** A browser with windows at these paths; the first ones are visible. They were `loadedAt` others, if that is given, and may be silent. */
function browser(paths: readonly string[], { visible = paths.length, mayNavigate = true, loadedAt = paths, isSilent = false } = {}) {
  const [shown, done]: [Shown[], string[]] = [[], []];
  const windows = paths.map((path, at) => ({
    url: ORIGIN + (loadedAt[at] ?? path),
    postMessage: (message: unknown, [port]: Transferable[]) => {
      if (message === PATH_REQUEST && !isSilent) (port as MessagePort).postMessage(path);
    },
    visibilityState: at < visible ? ("visible" as const) : ("hidden" as const),
    focus: () => Promise.resolve(done.push(`focus ${path}`)),
    navigate: (url: string) => (mayNavigate ? Promise.resolve(done.push(`navigate ${path} to ${url}`)) : Promise.reject(new TypeError("not controlled"))),
  }));
  const scope: NotificationScope = {
    clients: { matchAll: () => Promise.resolve(windows), openWindow: (url) => Promise.resolve(done.push(`open ${url}`)) },
    registration: { showNotification: (title, options) => Promise.resolve(void shown.push({ title, options })) },
  };
  return { scope, shown, done };
}

describe("a push message", () => {
  test("is shown in the language of the page, with the title of the chat", async () => {
    await storeTexts(GERMAN);
    const { scope, shown } = browser([]);
    await showPush(scope, WAITING);
    await showPush(scope, { kind: "waiting", threadId: "t2" });
    await showPush(scope, { kind: "answer", threadId: "t2" });
    expect(shown.map(({ title, options }) => [title, options.body, options.tag, options.lang])).toEqual([
      ["Trip to Aiur", "delete_file wartet.", "waiting t1", "de"],
      ["Khala", "Dieser Chat wartet.", "waiting t2", "de"],
      ["Khala", "Fertig.", "answer t2", "de"],
    ]);
  });

  test("calls a tool as the page does, and by its name with the texts of an older page", async () => {
    const tools = { builtIn: { delete_file: "Datei löschen" }, quoted: "„{tool}“", ofServer: "„{tool}“ ({server})" };
    const { scope, shown } = browser([]);
    await storeTexts({ ...GERMAN, tools });
    for (const tool of ["delete_file", "mail__send_message", "toString", "datei_löschen"]) await showPush(scope, { ...WAITING, tool });
    await storeTexts(GERMAN);
    await showPush(scope, WAITING);
    expect(shown.map(({ options }) => options.body)).toEqual([
      "„Datei löschen“ wartet.",
      "„Send message“ (mail) wartet.",
      "„ToString“ wartet.",
      "„datei_löschen“ wartet.",
      "delete_file wartet.",
    ]);
  });

  test("says what a plan needs, or how it has ended", async () => {
    const plan = { review: "Prüfen.", paused: "Angehalten.", completed: "Abgeschlossen.", stopped: "Gestoppt." };
    const { scope, shown } = browser([]);
    await storeTexts({ ...GERMAN, plan });
    const about = { threadId: "t1", planId: "p1" };
    await showPush(scope, { ...about, kind: "waiting", reason: "review" });
    await showPush(scope, { ...about, kind: "waiting", reason: "budget" });
    await showPush(scope, { ...about, kind: "answer", reason: "completed" });
    await showPush(scope, { ...about, kind: "answer", reason: "error" });
    await storeTexts(GERMAN);
    await showPush(scope, { ...about, kind: "answer", reason: "completed" });
    await storeTexts({ ...GERMAN, plan, general: true });
    await showPush(scope, { ...about, kind: "waiting", reason: "review" });
    expect(shown.map(({ options }) => options.body)).toEqual(["Prüfen.", "Angehalten.", "Abgeschlossen.", "Gestoppt.", "Fertig.", "Dieser Chat wartet."]);
  });

  test("says nothing of the chat after its person has signed out, until texts are stored again", async () => {
    const { scope, shown } = browser([]);
    await hideDetails();
    expect(stored.size).toBe(0);
    await storeTexts(GERMAN);
    await hideDetails();
    await showPush(scope, WAITING);
    await storeTexts(GERMAN);
    await showPush(scope, WAITING);
    expect(shown.map(({ title, options }) => [title, options.body])).toEqual([
      ["Khala", "Dieser Chat wartet."],
      ["Trip to Aiur", "delete_file wartet."],
    ]);
  });

  test("is shown before the page has stored its texts", async () => {
    const { scope, shown } = browser([]);
    await showPush(scope, WAITING);
    expect(shown[0]).toMatchObject({ title: "Trip to Aiur", options: { body: "", data: { path: "/t/t1" } } });
  });

  test("is not shown to somebody who looks at the chat", async () => {
    const looking = browser(["/", "/t/t1"]);
    await showPush(looking.scope, WAITING);
    expect(looking.shown).toEqual([]);
    for (const elsewhere of [browser(["/t/t1"], { visible: 0 }), browser(["/t/t2"])]) {
      await showPush(elsewhere.scope, WAITING);
      expect(elsewhere.shown).toHaveLength(1);
    }
  });

  test("counts what a window shows now, and not where it was loaded", async () => {
    const looking = browser(["/t/t1"], { loadedAt: ["/"] });
    await showPush(looking.scope, WAITING);
    expect(looking.shown).toEqual([]);
    const left = browser(["/t/t2"], { loadedAt: ["/t/t1"] });
    await showPush(left.scope, WAITING);
    expect(left.shown).toHaveLength(1);
  });

  test("is shown if a window does not say what it shows", async () => {
    vi.useFakeTimers();
    const silent = browser(["/t/t1"], { isSilent: true });
    const done = showPush(silent.scope, WAITING);
    await vi.runAllTimersAsync();
    vi.useRealTimers();
    await done;
    expect(silent.shown).toHaveLength(1);
  });
});

describe("a click", () => {
  test.each([
    [["/", "/t/t1"], ["focus /t/t1"]],
    [["/console/runs", "/"], ["focus /", "navigate / to /t/t1"]],
    [["/console/runs"], ["open /t/t1"]],
    [[], ["open /t/t1"]],
  ])("with windows at %j does %j", async (paths, expected) => {
    const { scope, done } = browser(paths);
    await openChat(scope, "/t/t1");
    expect(done).toEqual(expected);
  });

  test("opens a window where the browser refuses to navigate one", async () => {
    const { scope, done } = browser(["/"], { mayNavigate: false });
    await openChat(scope, "/t/t1");
    expect(done).toEqual(["focus /", "open /t/t1"]);
  });
});

describe("the note of a browser", () => {
  const refused = () => {
    throw new Error("no storage");
  };

  test("is for the people who turned notifications on", () => {
    const note = new PushNote(new BrowserStorage(refused));
    note.turnOn("ann", true);
    expect([note.isOnFor("ann"), note.isOnFor("bob"), note.isOnFor(GUEST), note.answers]).toEqual([true, false, false, true]);
    note.confirm("ann", "s1", "de");
    expect(note.turnOff()).toEqual({ ann: "s1" });
    expect(note.isOnFor("ann")).toBe(false);
  });

  test("is confirmed once a day, in another language, and for each chat of a guest", () => {
    let now = 0;
    const note = new PushNote(new BrowserStorage(refused), () => now);
    expect(note.isDue("chat 1", "de")).toBe(true);
    note.confirm("chat 1", "s1", "de");
    expect([note.isDue("chat 1", "de"), note.isDue("chat 1", "ar"), note.isDue("chat 2", "de")]).toEqual([false, true, true]);
    now = 25 * 3_600_000;
    expect(note.isDue("chat 1", "de")).toBe(true);
  });

  test("is confirmed at once after the account has changed, and keeps the ids", () => {
    const kept = new BrowserStorage(refused);
    const note = new PushNote(kept);
    expectConfirmation(kept);
    expect(kept.read(PUSH_STORAGE_KEY)).toBe(null);
    note.turnOn("ann", false);
    note.confirm("ann", "s1", "en");
    expect(note.isDue("ann", "en")).toBe(false);
    expectConfirmation(kept);
    expect([note.isDue("ann", "en"), note.isOnFor("ann"), note.turnOff()]).toEqual([true, true, { ann: "s1" }]);
  });

  test("is for the account that claims a chat of a guest with notifications, and of no other", () => {
    const kept = new BrowserStorage(refused);
    const note = new PushNote(kept);
    claimPush(kept, ["key 1"], "ann");
    expect(kept.read(PUSH_STORAGE_KEY)).toBe(null);
    note.turnOn(GUEST, true);
    note.confirm("key 1", "s1", "en");
    note.confirm("key 2", "s2", "en");
    claimPush(kept, ["key 3"], "ann");
    expect(note.isOnFor("ann")).toBe(false);
    claimPush(kept, ["key 1", "key 3"], "ann");
    expect([note.isOnFor("ann"), note.isOnFor(GUEST), note.answers, note.isDue("ann", "en")]).toEqual([true, true, true, true]);
    expect(note.turnOff()).toEqual({ "key 2": "s2" });
  });

  test("remembers the last hundred chats", () => {
    const note = new PushNote(new BrowserStorage(refused));
    for (let at = 0; at < 150; at++) note.confirm(`chat ${at}`, `s${at}`, "en");
    expect([note.isDue("chat 0", "en"), note.isDue("chat 149", "en"), Object.keys(note.turnOff()).length]).toEqual([true, false, 100]);
  });
});
