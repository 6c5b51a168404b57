// The list of chats.

import { chatMenu } from "../../src/chats/chat-menu-state.svelte.ts";
import { idOf, minutesAgo } from "../fixtures/ids.ts";
import { ADA } from "../fixtures/people.ts";
import { thread, THREADS } from "../fixtures/threads.ts";
import { NOW } from "../frozen.ts";
import { component, type GalleryState, type Group, type Scenario } from "../state.ts";
import Sidebar from "../views/Sidebar.svelte";

const view = component(Sidebar, {});
const height = 640;
const LIST: Scenario = { user: ADA, threads: THREADS };

const states: readonly GalleryState[] = [
  { name: "a guest without chats", view, height },
  { name: "a guest with chats", view, height, scenario: { known: [chat(1, "Groceries", 10), chat(2, "What to read next", 90), chat(3, "From a link", 100, { shareKey: "key" })] } },
  { name: "a guest with an empty chat", view, height, scenario: { known: [chat(1, "Groceries", 10), { ...chat(2, "", 5), unused: true }] } },
  { name: "an account", view, height: 860, scenario: LIST },
  { name: "an account without chats", view, height, scenario: { user: ADA } },
  { name: "a call and a plan wait", view, height, scenario: { user: ADA, threads: [...THREADS.slice(0, 4), thread(20, "Photo albums", 20, { planWaits: true, unread: true }), thread(21, "Move the archive to another bucket", 25, { planWaits: true, running: true })] } },
  { name: "a folder is closed", view, height: 860, scenario: LIST, act: (driver) => driver.press("h3 button") },
  { name: "the menu of a folder", view, height: 860, scenario: LIST, act: (driver) => driver.press("h3 .icon") },
  { name: "the archive", view, height, scenario: LIST, prepare: () => void (chatMenu.showsArchived = true) },
  { name: "the menu of a chat", view, height: 860, scenario: LIST, act: (driver) => driver.press(".tools button") },
  { name: "a chat is being renamed", view, height: 860, scenario: LIST, act: beginRename },
  { name: "invitations", view, height: 860, scenario: { user: { ...ADA, name: "Ada Augusta King, Countess of Lovelace" }, threads: THREADS.slice(0, 2), invitations: [{ threadId: idOf(5020), title: "Minutes", role: "editor", inviterId: idOf(102), invitedBy: "Grace Hopper", createdAt: minutesAgo(1) }, { threadId: idOf(5021), role: "viewer", createdAt: minutesAgo(2) }] } },
];

/** The sheet has many frames, and takes the focus from each: the field would close. */
function beginRename(): void {
  addEventListener("blur", (event) => event.stopImmediatePropagation(), { capture: true });
  chatMenu.editingId = idOf(5002);
}

function chat(number: number, title: string, minutes: number, keys: { key?: string; shareKey?: string } = { key: "key" }) {
  return { id: idOf(5100 + number), title, created: true, usedAt: NOW - 60_000 * minutes, ...keys };
}

export const sidebar: Group = { name: "sidebar", width: 320, states };
