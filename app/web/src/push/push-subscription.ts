// The browser's subscription to notifications: asks for the permission, subscribes, and sends the subscription to the server.

import { isRequestError, request, withRetry } from "@khala/client";
import type { PreferenceOwner } from "../conversation/model-list.svelte.ts";
import { isRightToLeft } from "../i18n/locale.ts";
import { m } from "../i18n/messages.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import { GUEST } from "../browser/push-account.ts";
import { storeTexts } from "../browser/push-texts.ts";
import { builtInTools } from "../tasks/tool-labels.ts";
import { PushNote } from "./push-note.ts";

/** Whose notifications: `person` is the account's id, or `GUEST`, who has an owner for each chat. */
export type PushPerson = { person: string; owner: PreferenceOwner };

/** `refused`: the person, or the browser by itself. `off`: the operator has turned notifications off. */
export type PushResult = "on" | "refused" | "off" | "failed";

const PATH = "/api/me/push";
const WORKER_TIMEOUT_MS = 10_000;

export const pushNote = new PushNote(new BrowserStorage(() => localStorage));

/** Whether this browser can show notifications while the page is closed. */
export function isPushSupported(): boolean {
  return "serviceWorker" in navigator && typeof PushManager !== "undefined" && typeof Notification !== "undefined";
}

/** Whether the person has blocked notifications in the browser. */
export function isPushBlocked(): boolean {
  return isPushSupported() && Notification.permission === "denied";
}

export function personOf(owner: PreferenceOwner): PushPerson {
  return { person: owner.keys.anonKey === undefined ? owner.id : GUEST, owner };
}

/** Whether notifications are on in this browser for this person. */
export function isPushOn({ person }: PushPerson): boolean {
  return isPushSupported() && Notification.permission === "granted" && pushNote.isOnFor(person);
}

/** Turn notifications on, also for long `answers` if the person wishes so. Call it from a click: the browser asks for the permission. */
export async function turnPushOn(who: PushPerson, answers: boolean): Promise<PushResult> {
  if ((await Notification.requestPermission()) !== "granted") return "refused";
  try {
    const { publicKey } = await withRetry(() => request<{ publicKey: string }>("GET", PATH, { keys: who.owner.keys }), { maxAttempts: 3 });
    const subscription = await subscribe(publicKey);
    if (subscription === null) return "refused";
    pushNote.turnOn(who.person, answers);
    await sendSubscription(who, subscription);
    return "on";
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return "code" in error && error.code === "not_found" ? "off" : "failed";
  }
}

/** Turn notifications off in this browser, for all people who use it. The push service tells the server if this page can't. */
export async function turnPushOff(who: PushPerson): Promise<void> {
  const ids = pushNote.turnOff();
  await (await currentSubscription())?.unsubscribe();
  const id = ids[who.owner.id];
  if (id === undefined) return;
  try {
    await request("DELETE", `${PATH}/subscriptions/${id}`, { keys: who.owner.keys });
  } catch (error) {
    if (!isRequestError(error)) throw error;
  }
}

/** Tell the server that the subscription is still in use, at most once a day, and once for each chat of a guest. */
export async function confirmPush(owner: PreferenceOwner): Promise<void> {
  const who = personOf(owner);
  if (!isPushOn(who) || !pushNote.isDue(owner.id, document.documentElement.lang)) return;
  const subscription = await currentSubscription();
  if (subscription === null) return;
  try {
    await sendSubscription(who, subscription);
  } catch (error) {
    // The next visit tries again.
    if (!isRequestError(error)) throw error;
  }
}

async function sendSubscription({ owner }: PushPerson, subscription: PushSubscription): Promise<void> {
  const locale = document.documentElement.lang;
  await storeTexts({
    language: locale,
    direction: isRightToLeft() ? "rtl" : "ltr",
    waiting: m.chat_waits_for_you(),
    waitingTool: m.tool_waits_for_approval({ tool: "{tool}" }),
    answer: m.answer_is_complete(),
    tools: { builtIn: builtInTools(), quoted: m.tool_quoted({ tool: "{tool}" }), ofServer: m.tool_of_server({ tool: "{tool}", server: "{server}" }) },
    plan: {
      review: m.a_step_is_ready_for_your_review(),
      paused: m.the_plan_is_paused_and_needs_you(),
      completed: m.the_plan_is_complete(),
      stopped: m.the_plan_stopped_before_it_was_complete(),
    },
  });
  const { endpoint, keys } = subscription.toJSON();
  const body = { endpoint, keys: { p256dh: keys?.p256dh, auth: keys?.auth }, answers: pushNote.answers };
  const stored = await withRetry(() => request<{ id: string }>("PUT", `${PATH}/subscriptions`, { keys: owner.keys, body }), { maxAttempts: 3 });
  pushNote.confirm(owner.id, stored.id, locale);
}

/** The subscription with this key of the server, null if the browser refuses. One with another key of it is replaced. */
async function subscribe(publicKey: string): Promise<PushSubscription | null> {
  const registration = await worker();
  if (registration === null) return null;
  const key = decoded(publicKey);
  const found = await registration.pushManager.getSubscription();
  if (found && sameBytes(found.options.applicationServerKey, key)) return found;
  await found?.unsubscribe();
  try {
    return await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  } catch (error) {
    // No permission, or no push service, as in private windows.
    if (error instanceof DOMException) return null;
    throw error;
  }
}

async function currentSubscription(): Promise<PushSubscription | null> {
  return (await (await worker())?.pushManager.getSubscription()) ?? null;
}

/** The service worker, null if there is none within ten seconds: it is registered in the built page only. */
async function worker(): Promise<ServiceWorkerRegistration | null> {
  return Promise.race([navigator.serviceWorker.ready, new Promise<null>((resolve) => setTimeout(() => resolve(null), WORKER_TIMEOUT_MS))]);
}

function decoded(base64url: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64url.replaceAll("-", "+").replaceAll("_", "/")), (character) => character.charCodeAt(0));
}

function sameBytes(one: ArrayBuffer | null, other: Uint8Array): boolean {
  return one !== null && new Uint8Array(one).join() === other.join();
}
