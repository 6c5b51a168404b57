// The page: what it knows of the open chat, the account and the connection, and what the person does about it.

import * as accounts from "./account.js";
import { Asked } from "./asked.js";
import * as asking from "./asking.js";
import { Attachments } from "./attachments.js";
import { Autopilot } from "./autopilot.js";
import { Belonging } from "./belonging.js";
import { Blobs } from "./blobs.js";
import * as chats from "./chats.js";
import { Composer } from "./composer.js";
import { EMPTY, Feed, Refusal, UNLISTED, activeAnswer, call, insist, textOf } from "./khala.js";
import { Drawer, addressOf } from "./drawer.js";
import { Outbox, inWords } from "./outbox.js";
import { Presence } from "./presence.js";
import { ReadMarks } from "./reading.js";
import * as screen from "./screen.js";
import { Scroller } from "./scroll.js";
import { Settings } from "./settings.js";
import { Share } from "./share.js";
import { SignIn } from "./signin.js";
import { Messages } from "./view.js";

const MOST_PARTS = 1000;
const NOBODY = { participants: [], more: 0 };
const ELSEWHERE = "This chat belongs to somebody else, or its key is in another browser.";
const CUT = "You no longer have access to this chat.";
const REFUSED = {
  thread_not_found: "There is no such chat on the server, or not any more.",
  forbidden: ELSEWHERE,
  unauthorized: ELSEWHERE,
  protocol: "This page is older than the server. Please reload it.",
};

const $ = (id) => document.getElementById(id);
const { account } = accounts;
const shown = {
  chat: null,
  state: EMPTY,
  list: UNLISTED,
  role: null,
  present: NOBODY,
  connection: { phase: "connecting" },
  refused: null,
  implicit: false,
  joining: false,
  keepable: 0,
  lag: Infinity,
};

const feed = new Feed(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/ws`, {
  state: takeState,
  listed: takeList,
  present: (participants, more) => change({ present: { participants, more } }),
  connection: (connection) => change({ connection }),
  refused: takeRefusal,
  signedOut: () => accounts.lose(),
});
const outbox = new Outbox(() => draw());
const presence = new Presence((state) => feed.announce(state));
const composer = new Composer({
  send: (text) => asked.send(text, attachments.take()),
  stop: () => asked.stop(),
  busy: () => asked.isBusy,
  typed: (isEmpty) => presence.typed(isEmpty),
  files: () => attachments.count,
  obstacle: () => attachments.obstacle,
});
const blobs = new Blobs(() => shown.chat);
const attachments = new Attachments({
  upload: (file, signal) => blobs.upload(file, signal),
  changed: () => draw(),
  say: (words) => composer.say(words),
});
const autopilot = new Autopilot();
const scroller = new Scroller($("scroll"), $("newest"));
const asked = new Asked({ shown, outbox, composer, attachments, autopilot, scroller, feed, attempt });
const messages = new Messages($("messages"), {
  resend: (id) => outbox.resend(id),
  edit: (id) => asked.edit(id),
  again: (id) => asked.again(id),
  decide: (runId, callId, body) => ask("POST", `/api/runs/${runId}/approvals/${encodeURIComponent(callId)}`, { body }),
  approvals: (runId) => ask("GET", `/api/runs/${runId}/approvals`),
  blobs,
  unfolded: () => scroller.notice(),
  folding: (element, act) => scroller.folding(element, act),
});
const reading = new ReadMarks();
const share = new Share();
const belonging = new Belonging({ shown, change, feed, open, follow, forget, learnRole, attempt, say: (words) => composer.say(words) });
const drawer = new Drawer({
  goTo: (id) => goTo(chats.known(id)),
  rename: (item, title) => belonging.rename(item, title),
  remove: (item) => belonging.remove(item),
});
const settings = new Settings({ signOut: () => belonging.signOut(), remove: (password) => belonging.removeAccount(password) });
const signIn = new SignIn({
  signIn: (way, fields) => belonging.signIn(way, fields),
  waiting: () => chats.anonymous().filter(({ title }) => title).length,
});

function change(changes) {
  Object.assign(shown, changes);
  draw();
}

// Chats

/** Open the chat that the address names; a bare one leads to the chat that was open last, or to a new one. */
function openFromAddress() {
  const named = /^\/t\/([\w-]+)/.exec(location.pathname)?.[1].toLowerCase();
  if (!named) return openLast();
  const shareKey = new URLSearchParams(location.hash.slice(1)).get("share");
  if (!shareKey) return open(chats.known(named), false);
  history.replaceState(null, "", addressOf(named));
  return open(chats.addShared(named, shareKey), false);
}

function openLast() {
  const last = chats.last();
  const chat = last && (chats.find(last) || account.user) ? chats.known(last) : startChat();
  history.replaceState(null, "", addressOf(chat.id));
  return open(chat, true);
}

function goTo(chat) {
  if (chat.id === shown.chat?.id && !shown.refused) return drawer.toggle(false);
  history.pushState(null, "", addressOf(chat.id));
  return open(chat, false);
}

function startChat() {
  return chats.unmade(account.user?.id) ?? chats.add(account.user?.id);
}

async function open(chat, implicit) {
  feed.leave();
  closeChat();
  change({ chat, state: EMPTY, role: null, present: NOBODY, refused: null, implicit, connection: { phase: "connecting" } });
  scroller.following = true;
  drawer.toggle(false);
  if (!chat.created) await createOpen(chat);
  else follow();
}

/** Nothing of the chat that was open may stay behind. */
function closeChat() {
  presence.leave();
  share.close();
  attachments.clear();
  $("announce").textContent = "";
}

/** Follow the open chat by the keys that this browser has to it now. */
function follow() {
  const { id, key, shareKey } = shown.chat;
  feed.follow(id, { ...(key && { anonKey: key }), ...(shareKey && { shareKey }) });
}

async function createOpen(chat) {
  const wanted = () => shown.chat.id === chat.id;
  try {
    const made = await asking.create(chat, { wanted, waits: (until) => change({ connection: { phase: "waiting", until } }) });
    if (made) take(chats.settleMade(chat, made));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (wanted()) takeRefusal(error.code, inWords(error));
  }
}

/** The open chat is made. */
function take(chat) {
  if (shown.chat.id !== chat.id) return;
  change({ chat, role: "owner" });
  follow();
}

function newChat() {
  drawer.toggle(false);
  const unused = !shown.refused && shown.state.revision !== null && !screen.isShared(shown) && !asked.any;
  if (!unused) goTo(startChat());
  composer.focus();
}

function takeState(state, frame) {
  const before = shown.chat && shown.state;
  const fromEnd = scroller.fromEnd();
  if (frame?.reset) outbox.clear(shown.chat.id);
  if (frame?.parts?.length) shown.lag = Math.min(shown.lag, Date.now() - Date.parse(frame.parts.at(-1).createdAt));
  if (frame) chats.noteAuthors(shown.chat.id, frame.messages);
  outbox.settle(shown.chat.id, state);
  screen.speak(before, state);
  change({ state });
  if (before.revision === null) enter();
  nameChat(state, frame);
  share.update(shown.chat.id, state.thread.visibility);
  if (frame === null) scroller.keep(fromEnd);
  if (frame?.type === "snapshot") learnProgress(state);
}

/** A snapshot doesn't say how far an answer is that is being written; its newest parts mostly do. */
async function learnProgress(state) {
  const answer = activeAnswer(state);
  if (!answer?.runId || !answer.content.some((block) => block.type === "tool")) return;
  const { id } = shown.chat;
  const path = `/api/runs/${answer.runId}/parts?after=${Math.max(-1, answer.seq - MOST_PARTS - 1)}&limit=${MOST_PARTS}`;
  const page = await asking.quietly("GET", path, { chat: shown.chat });
  if (page) feed.adoptProgress(id, answer.id, page.items);
}

/** The chat has opened: this is where the person is, until another does. */
function enter() {
  chats.open(shown.chat.id);
  learnRole();
}

/** Ask what we may do here, where that is not plain from our own key. */
async function learnRole() {
  const { chat } = shown;
  if (chat.key) return;
  const { role } = (await asking.quietly("GET", `/api/threads/${chat.id}/access`, { chat })) ?? {};
  if (role && shown.chat.id === chat.id) change({ role });
}

function takeRefusal(code, message) {
  const { chat, state, implicit } = shown;
  const wasOpen = state.revision !== null;
  if (implicit && !wasOpen && (code === "thread_not_found" || !chat.key)) {
    if (code === "thread_not_found") chats.forgetAll(chat.id);
    const fresh = startChat();
    history.replaceState(null, "", addressOf(fresh.id));
    return void open(fresh, true);
  }
  const words = code === "forbidden" && (wasOpen || chat.shareKey) ? CUT : REFUSED[code];
  closeChat();
  change({ state: code === "protocol" ? state : EMPTY, present: NOBODY, refused: words ?? (message || "This chat is closed.") });
}

/** A chat without a name is called by what was said first; an account's chat is given that name, for its other browsers. */
function nameChat(state, frame) {
  const { chat } = shown;
  const first = state.messages.find((message) => message.role === "user");
  const guess = first && !state.hasMore ? chats.titleFrom(textOf(first)) : frame?.reset ? null : chat.title;
  const title = state.thread.title ?? guess;
  const named = Boolean(state.thread.title);
  if (title === chat.title && named === Boolean(chat.named)) return;
  const changes = { title, named };
  change({ chat: chats.find(chat.id) ? chats.update(chat, changes) : { ...chat, ...changes } });
  const isOurs = account.user && first?.authorId === account.user.id && !chat.key;
  if (!named && title && isOurs) accounts.nameOnce(chat.id, title);
}

function takeList(list) {
  const { id } = shown.chat;
  const before = shown.list.entries.get(id)?.role;
  change({ list });
  if (shown.state.revision !== null && before && list.entries.has(id) && list.entries.get(id).role !== before) learnRole();
}

/** Forget what this browser knows of the chat; if it is open, another is. */
function forget(id) {
  chats.forgetAll(id);
  if (id === shown.chat.id) {
    const chat = startChat();
    history.replaceState(null, "", addressOf(chat.id));
    open(chat, false);
  }
  draw();
}

/** Ask and insist, where the answer is shown where it was asked for. */
function ask(method, path, given = {}) {
  return insist(() => call(method, path, { ...given, ...chats.keysOf(shown.chat) }), { tries: 5 });
}

function attempt(what, method, path, given = {}) {
  return asking.attempt((words) => composer.say(words), what, method, path, { chat: shown.chat, ...given });
}

// What the page shows

let due = null;

/** Draw soon, once for many changes; hidden tabs get no animation frames, so a timer stands by. */
function draw() {
  if (shown.chat) due ??= { frame: requestAnimationFrame(drawNow), timer: setTimeout(drawNow, 250) };
}

function drawNow() {
  cancelAnimationFrame(due?.frame);
  clearTimeout(due?.timer);
  due = null;
  screen.draw(shown, { messages, composer, attachments, drawer, outbox, isBusy: asked.isBusy, hasAsked: asked.any });
  presence.enter(isSeen() ? chats.own(shown.chat.id).name : null);
  reading.consider(shown, (id, revision) => asking.quietly("PUT", `/api/threads/${id}/read`, { body: { revision } }));
  scroller.follow();
  tick(Date.now());
}

/** Whether anybody else could care that we are here. */
function isSeen() {
  return shown.state.revision !== null && !shown.refused && (account.user !== null || shown.state.thread.visibility !== "private");
}

/** Count down what counts down. */
let ticking = null;

function tick(now) {
  clearTimeout(ticking);
  const counts = shown.connection.until > now || outbox.of(shown.chat.id).some(({ pending }) => pending.retryAt > now - 1000);
  if (counts) ticking = setTimeout(draw, 300);
}

function wake() {
  dispatchEvent(new Event("khala-wake"));
  feed.wake();
  draw();
}

/** What had opened a dialog may be gone when it closes, and the focus with it. */
function keepFocus() {
  if (document.activeElement === document.body && matchMedia("(hover: hover)").matches) composer.focus();
}

$("new").onclick = $("banner-new").onclick = newChat;
$("banner-forget").onclick = () => forget(shown.chat.id);
$("banner-sign-in").onclick = $("sign-in").onclick = () => signIn.open();
$("account-open").onclick = () => settings.open();
$("share-open").onclick = () => share.open(shown.chat, shown.state.thread.visibility);
$("join").onclick = () => belonging.join();
$("keep-yes").onclick = () => belonging.keepAll();
$("keep-no").onclick = () => change({ keepable: 0 });
$("reset").onclick = () => asked.reset();
$("earlier").onclick = () => asked.loadEarlier($("earlier"));
$("wake").onclick = wake;
$("suggestions").onclick = ({ target }) => target.matches("button") && composer.put(target.textContent);
addEventListener("khala-account", () => {
  if (!shown.chat) return;
  if (account.user === null) settings.close();
  feed.as(() => belonging.take());
});
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => setTimeout(keepFocus));
addEventListener("popstate", openFromAddress);
addEventListener("storage", draw);
addEventListener("online", wake);
addEventListener("offline", wake);
addEventListener("pageshow", (event) => event.persisted && wake());
document.addEventListener("visibilitychange", () => document.hidden || wake());

const problem = new URLSearchParams(location.search).get("signin");
const cameBack = await accounts.begin(problem !== null);
if (problem !== null) history.replaceState(null, "", location.pathname);
openFromAddress();
if (account.user) feed.watch(true);
if (cameBack) belonging.offerToKeep();
if (problem !== null) signIn.open(problem);
