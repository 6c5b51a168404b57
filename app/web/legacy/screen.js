// What is on the screen: a function of what the page knows, drawn at most once a frame.

import { account } from "./account.js";
import * as chats from "./chats.js";
import { drawAccount, listed } from "./drawer.js";
import { activeAnswer, standing, textOf, waiting } from "./khala.js";
import { Company, others } from "./presence.js";

const $ = (id) => document.getElementById(id);
const SPOKEN = 1000;
const company = new Company();

/** What the person may do in the open chat; null while that is not known. */
export function roleIn({ chat, role, list }) {
  if (chat.key || chat.ownerId) return "owner";
  return role ?? list.entries.get(chat.id)?.role ?? null;
}

/** Whether others than us may read the chat, as far as is known here. */
export function isShared({ chat, state, role, list }) {
  const authors = new Set(state.messages.map((message) => message.authorId).filter(Boolean));
  return authors.size > 1 || state.thread?.visibility !== "private" || roleIn({ chat, role, list }) !== "owner";
}

/** Names the author of a message that somebody else wrote; null for our own, and where nobody else can be. */
export function authorsOf(shown) {
  if (!shown.state.thread || !isShared(shown)) return () => null;
  const mine = new Set([...chats.own(shown.chat.id).authors, account.user?.id]);
  return ({ role, authorId, authorName, pending }) => (role !== "user" || pending || !authorId || mine.has(authorId) ? null : (authorName ?? "Guest"));
}

/** What the chat is called here: by its own name, or by what was said first. */
export function titleOf({ chat, state, list }) {
  return state.thread?.title ?? chat.title ?? list.entries.get(chat.id)?.thread.title ?? null;
}

export function draw(shown, { messages, composer, attachments, drawer, outbox, isBusy, hasAsked }) {
  const { chat, state, refused, list, lag } = shown;
  const now = Date.now();
  const role = roleIn(shown);
  const mayWrite = role === "owner" || role === "editor";
  const pending = outbox.of(chat.id);
  messages.update(refused ? [] : [...state.messages, ...pending], { now, lag: Number.isFinite(lag) ? lag : 0, authorOf: authorsOf(shown), mayWrite });
  $("loading").hidden = state.revision !== null || refused !== null;
  $("earlier").hidden = !state.hasMore;
  const fresh = state.revision !== null && refused === null && !hasAsked;
  $("suggestions").hidden = !fresh || !mayWrite;
  document.body.classList.toggle("fresh", fresh);
  const title = titleOf(shown);
  $("title").textContent = title ?? "New chat";
  document.title = title ? `${title} · Khala` : "Khala";
  $("reset").hidden = $("share-open").hidden = role !== "owner" && role !== null;
  $("reset").disabled = refused !== null || !hasAsked || role !== "owner";
  $("share-open").disabled = refused !== null || state.revision === null || role !== "owner";
  const stoppable = mayWrite && (activeAnswer(state) !== null || pending.some((one) => one.pending.runId));
  attachments.draw(refused === null && mayWrite && state.revision !== null);
  composer.draw({ busy: isBusy, closed: refused !== null || !mayWrite, stoppable });
  drawOnlooker(shown, role);
  drawBanner(shown);
  drawConnection(shown, now);
  drawCompany(shown);
  drawAccount();
  drawer.draw(listed(list, account.user?.id), { id: chat.id, title }, list.hasMore);
}

/** In place of the composer, for who may only read; and the offer to keep a shared chat. */
function drawOnlooker({ chat, refused, list, state, joining }, role) {
  const looksOn = role === "viewer" && refused === null;
  const canJoin = chat.shareKey && !chat.key && account.user && refused === null && state.thread?.ownerId && !list.entries.has(chat.id) && list.revision !== null;
  $("composer").hidden = $("under").hidden = looksOn || refused !== null;
  $("onlooker").hidden = !looksOn && !canJoin;
  $("onlooker-text").textContent = looksOn ? "You are looking on. You may not write here." : "This chat was shared with you.";
  $("join").hidden = !canJoin;
  $("join").disabled = joining;
}

function drawBanner({ chat, refused, keepable }) {
  $("banner").hidden = refused === null;
  $("banner-text").textContent = refused ?? "";
  $("banner-forget").hidden = !chats.find(chat.id);
  $("banner-sign-in").hidden = account.user !== null || Boolean(chat.key);
  $("keep").hidden = keepable === 0;
  $("keep-text").textContent = `Keep your ${keepable === 1 ? "chat" : `${keepable} chats`} from this browser in your account?`;
}

function drawConnection({ connection, refused }, now) {
  const { phase, until } = connection;
  const seconds = Math.max(1, Math.ceil(((until ?? now) - now) / 1000));
  const offline = phase !== "live" && !navigator.onLine;
  const words = { connecting: "Connecting …", live: "Live", waiting: `Reconnecting in ${seconds} s`, offline: "Offline", closed: "Closed" };
  const name = refused ? "closed" : offline ? "offline" : phase;
  if ($("connection").textContent !== words[name]) $("connection").textContent = words[name];
  document.body.dataset.connection = name;
  $("wake").hidden = name !== "waiting" && name !== "offline";
}

function drawCompany({ chat, present, refused }) {
  const isAlone = refused !== null || present.participants.length === 0;
  if (isAlone) return company.draw([], 0);
  company.draw(others(present.participants, chats.own(chat.id).name, account.user?.id), present.more);
}

function speakOfWaiting(before, after) {
  const known = new Set(before.map(({ toolCallId }) => toolCallId));
  const fresh = after.filter(({ toolCallId }) => !known.has(toolCallId));
  if (fresh.length) $("announce").textContent = fresh.length > 1 ? `${fresh.length} tool calls need approval.` : `${fresh[0].tool} needs approval.`;
}

/** Tell a screen reader once, when an answer ends or begins to wait while it is being watched. */
export function speak(before, after) {
  const was = before && activeAnswer(before);
  const is = was && after.messages.find((message) => message.id === was.id);
  if (is && standing(is) === "writing") return speakOfWaiting(waiting(was.content) ?? [], waiting(is.content) ?? []);
  if (!is) return;
  const words = { done: "Answer finished.", stopped: "Answer stopped.", failed: "Answer failed." };
  $("announce").textContent = `${words[standing(is)]} ${textOf(is).slice(0, SPOKEN)}`;
}
