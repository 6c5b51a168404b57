// The page: what it shows is a function of the followed thread, the messages on their way, and the connection.

import * as chats from "./chats.js";
import { Composer } from "./composer.js";
import { EMPTY, Feed, Refusal, activeAnswer, backoff, call, insist, isPassing, pause, standing, textOf } from "./khala.js";
import { Drawer, addressOf } from "./drawer.js";
import { Outbox, inWords } from "./outbox.js";
import { Scroller } from "./scroll.js";
import { Messages } from "./view.js";

const SPOKEN = 1000;
const REFUSED = {
  thread_not_found: "There is no such chat on the server, or not any more.",
  forbidden: "This chat belongs to somebody else, or its key is in another browser.",
  unauthorized: "This chat belongs to somebody else, or its key is in another browser.",
  protocol: "This page is older than the server. Please reload it.",
};

const $ = (id) => document.getElementById(id);
const shown = { chat: null, state: EMPTY, connection: { phase: "connecting" }, refused: null, implicit: false };

const feed = new Feed(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/ws`, {
  state: takeState,
  connection: (connection) => change({ connection }),
  refused: takeRefusal,
});
const outbox = new Outbox(() => draw());
const composer = new Composer({ send, stop, busy: () => isBusy() });
const drawer = new Drawer(goTo);
const scroller = new Scroller($("scroll"), $("newest"));
const list = new Messages($("messages"), { resend: (id) => outbox.resend(id), edit, again });

function change(changes) {
  Object.assign(shown, changes);
  draw();
}

// Chats

/** Open the chat that the address names; a bare one leads to the chat that was open last, or to a new one. */
function openFromAddress() {
  const named = /^\/t\/([\w-]+)/.exec(location.pathname)?.[1].toLowerCase();
  if (named) return open(chats.find(named) ?? { id: named, key: null, created: true }, false);
  const chat = chats.find(chats.last() ?? "") ?? startChat();
  history.replaceState(null, "", addressOf(chat.id));
  return open(chat, true);
}

function goTo(chat) {
  if (chat.id === shown.chat?.id) return drawer.toggle(false);
  history.pushState(null, "", addressOf(chat.id));
  return open(chat, false);
}

function startChat() {
  return chats.all().find((chat) => !chat.created) ?? chats.add();
}

async function open(chat, implicit) {
  feed.stop();
  change({ chat, state: EMPTY, refused: null, implicit, connection: { phase: "connecting" } });
  scroller.following = true;
  if (chat.key) chats.open(chat.id);
  drawer.toggle(false);
  if (!chat.created && !(await create(chat))) return;
  if (shown.chat.id === chat.id) feed.follow(chat.id, chat.key ?? undefined);
}

/** Create the chat on the server, however long that takes; false if it says no or another chat was opened meanwhile. */
async function create(chat) {
  for (let attempt = 0; shown.chat.id === chat.id; attempt++) {
    try {
      await call("POST", "/api/threads", { body: { id: chat.id, anonKey: chat.key } });
      chats.update(chat, { created: true });
      return true;
    } catch (error) {
      if (!(error instanceof Refusal) && !isPassing(error)) throw error;
      if (shown.chat.id !== chat.id) return false;
      if (!isPassing(error) && error.status !== 429) return takeRefusal(error.code, inWords(error));
      const delay = Math.max(backoff(attempt, Math.random()), 1000 * (error.retryAfter ?? 0));
      change({ connection: { phase: "waiting", until: Date.now() + delay } });
      await pause(delay);
    }
  }
  return false;
}

function newChat() {
  drawer.toggle(false);
  const unused = shown.chat.key && !shown.refused && shown.state.revision !== null && !mine().length;
  if (!unused) goTo(startChat());
  composer.focus();
}

function forgetChat() {
  chats.forget(shown.chat.id);
  newChat();
}

function takeState(state, frame) {
  const before = shown.chat && shown.state;
  const fromEnd = scroller.fromEnd();
  if (frame?.reset) outbox.clear(shown.chat.id);
  outbox.settle(shown.chat.id, state);
  speak(before, state);
  change({ state });
  nameChat(state, frame);
  if (frame === null) scroller.keep(fromEnd);
}

function takeRefusal(code, message) {
  if (code === "thread_not_found" && shown.implicit && shown.chat.key) {
    chats.forget(shown.chat.id);
    const chat = startChat();
    history.replaceState(null, "", addressOf(chat.id));
    open(chat, true);
    return false;
  }
  change({ refused: REFUSED[code] ?? (message || "This chat is closed.") });
  return false;
}

function nameChat(state, frame) {
  const { chat } = shown;
  const first = state.messages.find((message) => message.role === "user");
  const title = first && !state.hasMore ? chats.titleFrom(textOf(first)) : frame?.reset ? null : chat.title;
  if (chat.key && title !== chat.title) change({ chat: chats.update(chat, { title }) });
}

// What the person does

function mine() {
  return [...shown.state.messages.filter((message) => message.role === "user"), ...outbox.of(shown.chat.id)];
}

function isBusy() {
  return activeAnswer(shown.state) !== null || outbox.of(shown.chat.id).some(({ pending }) => pending.phase !== "failed");
}

function send(text) {
  if (shown.chat.key) shown.chat = chats.update(shown.chat, { usedAt: Date.now() });
  scroller.following = true;
  outbox.add(shown.chat, text);
}

async function stop() {
  const runId = activeAnswer(shown.state)?.runId ?? outbox.of(shown.chat.id).find(({ pending }) => pending.runId)?.pending.runId;
  if (runId) await attempt("stop the answer", "POST", `/api/runs/${runId}/cancel`, {});
}

function edit(id) {
  composer.put(textOf(outbox.take(id)));
}

function again(id) {
  const index = shown.state.messages.findIndex((message) => message.id === id);
  const asked = shown.state.messages.slice(0, index).findLast((message) => message.role === "user");
  if (asked && !isBusy()) send(textOf(asked));
}

async function reset() {
  $("confirm").returnValue = "no";
  $("confirm").showModal();
  await new Promise((resolve) => $("confirm").addEventListener("close", resolve, { once: true }));
  if ($("confirm").returnValue !== "yes") return;
  await attempt("reset the conversation", "POST", `/api/threads/${shown.chat.id}/reset`);
  composer.focus();
}

async function loadEarlier() {
  const { chat, state } = shown;
  const path = `/api/threads/${chat.id}/messages?before=${state.messages[0].id}&limit=50`;
  $("earlier").disabled = true;
  const page = await attempt("load earlier messages", "GET", path);
  $("earlier").disabled = false;
  if (page) feed.adoptEarlier(chat.id, page);
}

/** Ask and insist; what can't be done is said under the composer. */
async function attempt(what, method, path, body) {
  try {
    return await insist(() => call(method, path, { body, key: shown.chat.key }), { tries: 5 });
  } catch (error) {
    if (!(error instanceof Refusal) && !isPassing(error)) throw error;
    composer.say(`Could not ${what}. ${inWords(error)}`);
    return null;
  }
}

// What the page shows

let due = null;

/** Draw soon, once for many changes; hidden tabs get no animation frames, so a timer stands by. */
function draw() {
  due ??= { frame: requestAnimationFrame(drawNow), timer: setTimeout(drawNow, 250) };
}

function drawNow() {
  cancelAnimationFrame(due?.frame);
  clearTimeout(due?.timer);
  due = null;
  const { chat, state, refused } = shown;
  const now = Date.now();
  list.update([...state.messages, ...outbox.of(chat.id)], now);
  $("loading").hidden = state.revision !== null || refused !== null;
  $("earlier").hidden = !state.hasMore;
  const fresh = state.revision !== null && refused === null && mine().length === 0;
  $("suggestions").hidden = !fresh;
  document.body.classList.toggle("fresh", fresh);
  $("title").textContent = chat.title ?? "New chat";
  document.title = chat.title ? `${chat.title} · Khala` : "Khala";
  $("reset").disabled = refused !== null || mine().length === 0;
  composer.draw({ busy: isBusy(), closed: refused !== null, stoppable: activeAnswer(state) !== null || outbox.of(chat.id).some(({ pending }) => pending.runId) });
  drawBanner();
  drawConnection(now);
  drawer.draw(chat.id);
  scroller.follow();
  tick(now);
}

function drawBanner() {
  $("banner").hidden = shown.refused === null;
  $("banner-text").textContent = shown.refused ?? "";
  $("banner-forget").hidden = !shown.chat.key;
}

function drawConnection(now) {
  const { phase, until } = shown.connection;
  const seconds = Math.max(1, Math.ceil(((until ?? now) - now) / 1000));
  const offline = phase !== "live" && !navigator.onLine;
  const words = { connecting: "Connecting …", live: "Live", waiting: `Reconnecting in ${seconds} s`, offline: "Offline", closed: "Closed" };
  const name = shown.refused ? "closed" : offline ? "offline" : phase;
  if ($("connection").textContent !== words[name]) $("connection").textContent = words[name];
  document.body.dataset.connection = name;
  $("wake").hidden = name !== "waiting" && name !== "offline";
}

/** Count down what counts down. */
let ticking = null;

function tick(now) {
  clearTimeout(ticking);
  const counts = shown.connection.until > now || outbox.of(shown.chat.id).some(({ pending }) => pending.retryAt > now - 1000);
  if (counts) ticking = setTimeout(draw, 300);
}

/** Tell a screen reader once, when an answer ends while it is being watched. */
function speak(before, after) {
  const was = before && activeAnswer(before);
  const is = was && after.messages.find((message) => message.id === was.id);
  if (!is || standing(is) === "writing") return;
  const words = { done: "Answer finished.", stopped: "Answer stopped.", failed: "Answer failed." };
  $("announce").textContent = `${words[standing(is)]} ${textOf(is).slice(0, SPOKEN)}`;
}

function wake() {
  dispatchEvent(new Event("khala-wake"));
  feed.wake();
  draw();
}

$("new").onclick = $("banner-new").onclick = newChat;
$("banner-forget").onclick = forgetChat;
$("reset").onclick = reset;
$("earlier").onclick = loadEarlier;
$("wake").onclick = wake;
$("suggestions").onclick = ({ target }) => target.matches("button") && composer.put(target.textContent);
addEventListener("popstate", openFromAddress);
addEventListener("storage", draw);
addEventListener("online", wake);
addEventListener("offline", wake);
addEventListener("pageshow", (event) => event.persisted && wake());
document.addEventListener("visibilitychange", () => document.hidden || wake());

openFromAddress();
