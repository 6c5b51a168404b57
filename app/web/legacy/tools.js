// Tool calls in an answer: a card for each, the cards of one step in a group, which folds away when it has ended.

import { Question } from "./approving.js";
import { drawing, make, milliseconds, pretty, setText } from "./elements.js";
import { BlobPanel } from "./looking.js";

const LINGER_MS = 2000;
const LONGEST_ARGS = 60;
const MOST_NAMES = 4;
const WORDS = { queued: "queued", running: "running", completed: "done", failed: "failed", blocked: "needs approval", cancelled: "cancelled" };
/** Shapes that tell the states apart without colour. */
const SHAPES = {
  queued: "M6 10h.01M10 10h.01M14 10h.01",
  running: "M10 3a7 7 0 1 1-7 7",
  completed: "M4.5 10.5 8.5 14.5 15.5 6",
  failed: "M5.5 5.5l9 9M14.5 5.5l-9 9",
  blocked: "M10 3.5 17 16H3zM10 8.5v3.2M10 13.9v.01",
  cancelled: "M4 10a6 6 0 1 0 12 0 6 6 0 1 0-12 0M5.8 5.8l8.4 8.4",
};
const CHEVRON = "M7.5 5l5 5-5 5";
const ENDED = ["completed", "failed", "cancelled"];

const hasEnded = ({ state }) => ENDED.includes(state);

/** What a call is given, in one line of at most 60 characters. */
export function argsLine(args) {
  const entries = Object.entries(args ?? {});
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const line = entries.length === 1 ? shown(entries[0][1]) : entries.map(([name, value]) => `${name}: ${shown(value)}`).join(", ");
  const letters = [...line.slice(0, 4 * LONGEST_ARGS).replace(/[\s\p{C}]+/gu, " ").trim()];
  return letters.length > LONGEST_ARGS ? `${letters.slice(0, LONGEST_ARGS - 1).join("")}…` : letters.join("");
}

/** "3 of 4 done, 1 failed": how the calls of a step stand. */
export function standingOf(tools) {
  const count = (state) => tools.filter((tool) => tool.state === state).length;
  const others = ["failed", "cancelled", "blocked"].filter(count).map((state) => `, ${count(state)} ${state === "blocked" ? "waiting" : state}`);
  return `${count("completed")} of ${tools.length} done${others.join("")}`;
}

/** "todo_add ×30, glob" */
export function namesOf(tools) {
  const counts = new Map();
  for (const { tool } of tools) counts.set(tool, (counts.get(tool) ?? 0) + 1);
  const names = [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name));
  return names.length > MOST_NAMES ? `${names.slice(0, MOST_NAMES).join(", ")} …` : names.join(", ");
}

/** How long calls took that ran side by side: as long as the longest of them. Nobody knows it of those that were cancelled. */
function longest(tools) {
  const took = Math.max(...tools.map((tool) => tool.durationMs ?? 0));
  return took > 0 && !tools.some(({ state }) => state === "cancelled") && milliseconds(took);
}

/** The cards of a step. */
export class Group {
  #actions;
  #cards = new Map();
  #tools = [];
  #about = {};
  #isOpen = true;
  #isTouched = false;
  #timer = null;
  #words = make("span", { className: "group-words" });
  #names = make("span", { className: "group-names" });
  #head = make("button", { type: "button", className: "group-head", onclick: () => this.#toggle() }, drawing(CHEVRON), this.#words, this.#names);
  #list = make("ul", { className: "cards" });
  element = make("div", { className: "group" }, this.#head, this.#list);

  /** `actions`: `decide(runId, toolCallId, body)`, `approvals(runId)`, `blobs`, `unfolded()` and `folding(element, act)`. */
  constructor(actions) {
    this.#actions = actions;
  }

  update({ step, tools }, about) {
    const isNew = this.#tools.length === 0;
    const ended = tools.every(hasEnded);
    this.#tools = tools;
    this.#about = about;
    if (isNew && ended) this.#isOpen = false;
    const words = [step > 0 && `Step ${step}`, standingOf(tools), ended && longest(tools)];
    setText(this.#words, words.filter(Boolean).join(" · "));
    setText(this.#names, namesOf(tools));
    this.element.dataset.ended = ended;
    this.#draw();
    if (!ended) clearTimeout(this.#timer);
    if (!ended) this.#timer = null;
    else if (this.#isOpen && !this.#isTouched) this.#timer ??= setTimeout(() => this.#fold(), LINGER_MS);
  }

  #toggle() {
    this.#isTouched = true;
    this.#isOpen = !this.#isOpen;
    this.#draw();
    this.#actions.unfolded();
  }

  /** Fold away by itself, unless the person has opened something of it. */
  #fold() {
    if (this.#isTouched || !this.#isOpen) return;
    const hadFocus = this.#list.contains(document.activeElement);
    this.#isOpen = false;
    this.#actions.folding(this.element, () => this.#draw());
    if (hadFocus) this.#head.focus({ preventScroll: true });
  }

  /** Cards are there only while they are to be seen. */
  #draw() {
    this.#head.setAttribute("aria-expanded", String(this.#isOpen));
    this.#list.hidden = !this.#isOpen;
    if (!this.#isOpen) return void (this.#cards.clear(), this.#list.replaceChildren());
    for (const tool of this.#tools) {
      if (!this.#cards.has(tool.toolCallId)) this.#add(tool);
      this.#cards.get(tool.toolCallId).update(tool, this.#about);
    }
  }

  #add({ toolCallId }) {
    const touched = () => (this.#isTouched = true);
    const card = new Card(toolCallId, { ...this.#actions, touched });
    this.#cards.set(toolCallId, card);
    this.#list.append(card.element);
  }
}

const running = new Set();
let ticking = null;

/** Count the seconds of what runs, for as long as something does. */
function count(card) {
  running.add(card);
  ticking ??= setInterval(() => {
    for (const one of running) if (!one.tick()) running.delete(one);
    if (running.size === 0) ticking = clearInterval(ticking) ?? null;
  }, 1000);
}

/** One tool call: a line, and behind it all that is known of the call. */
class Card {
  #actions;
  #block = null;
  #about = null;
  #seenAt = null;
  #isOpen = false;
  #question = null;
  #picture = make("span", { className: "card-state" });
  #name = make("span", { className: "card-name" });
  #args = make("span", { className: "card-args" });
  #summary = make("span", { className: "card-summary" });
  #time = make("span", { className: "card-time" });
  #head = make("button", { type: "button", className: "card-head", onclick: () => this.#toggle() }, this.#picture, this.#name, this.#args, this.#summary, this.#time);
  #body = make("div", { className: "card-body", hidden: true });
  element = make("li", { className: "card" }, this.#head, this.#body);

  constructor(toolCallId, actions) {
    this.element.dataset.call = toolCallId;
    this.#actions = actions;
  }

  update(block, about) {
    const isSame = block === this.#block && about.mayWrite === this.#about.mayWrite && about.runId === this.#about.runId;
    this.#about = about;
    if (isSame) return;
    this.#block = block;
    this.#drawState(block.state);
    setText(this.#name, block.tool);
    setText(this.#args, block.argsBlob ? argsLine({ args: block.argsBlob.preview ?? "" }) : argsLine(block.args));
    setText(this.#summary, hasEnded(block) ? (block.summary ?? "") : "");
    this.#drawTime();
    this.#drawQuestion();
    this.#drawBody();
  }

  #drawState(state) {
    if (this.element.dataset.state === state) return;
    this.element.dataset.state = state;
    this.#picture.replaceChildren(drawing(SHAPES[state] ?? SHAPES.queued), make("span", { className: "unseen", textContent: `${WORDS[state] ?? state}: ` }));
    if (state !== "running") return;
    this.#seenAt = Date.now();
    count(this);
  }

  /** When it began to run, by our clock; no later than we saw it run. */
  get #startedAt() {
    const { began, lag } = this.#about;
    return Math.min(this.#seenAt, (began[this.#block.toolCallId] ?? Infinity) + lag);
  }

  #drawTime() {
    const { state, durationMs } = this.#block;
    const seconds = Math.floor((Date.now() - this.#startedAt) / 1000);
    const took = durationMs > 0 ? milliseconds(durationMs) : "";
    const words = { running: `running ${seconds} s`, completed: took || "done", failed: took ? `failed · ${took}` : "failed" };
    setText(this.#time, words[state] ?? WORDS[state] ?? state);
  }

  /** A second later; whether there is a next one to count. */
  tick() {
    const counts = this.element.isConnected && this.#block.state === "running";
    if (counts) this.#drawTime();
    return counts;
  }

  #toggle() {
    this.#isOpen = !this.#isOpen;
    this.#actions.touched();
    this.#drawBody();
    this.#actions.unfolded();
  }

  /** A call that waits asks for an answer, and shows whole what is to be approved of. */
  #drawQuestion() {
    const isAsked = this.#block.state === "blocked";
    if (isAsked && this.#question?.fits(this.#block, this.#about)) return;
    const hadFocus = this.#question?.element.contains(document.activeElement);
    this.#question?.element.remove();
    this.#question = isAsked ? new Question(this.#block, this.#about, { ...this.#actions, leave: () => this.#head.focus({ preventScroll: true }) }) : null;
    if (isAsked) this.element.append(this.#question.element);
    if (hadFocus) this.#head.focus({ preventScroll: true });
  }

  #drawBody() {
    this.#head.setAttribute("aria-expanded", String(this.#isOpen));
    this.#body.hidden = !this.#isOpen;
    this.#body.replaceChildren(...(this.#isOpen ? this.#sections() : []));
  }

  #sections() {
    const { args, argsBlob, output, blob, state, reason } = this.#block;
    const { blobs } = this.#actions;
    const found = [];
    if (reason && state !== "blocked") found.push(make("p", { className: "card-said", textContent: reason }));
    if (argsBlob) found.push(section("Arguments", new BlobPanel(argsBlob, blobs).element));
    else found.push(section("Arguments", make("pre", { tabIndex: 0, textContent: pretty(args ?? {}) })));
    if (output != null) found.push(section("Result", make("pre", { tabIndex: 0, textContent: readable(output) })));
    if (blob) found.push(section("Result", new BlobPanel(blob, blobs).element));
    if (hasEnded(this.#block) && output == null && !blob) found.push(make("p", { className: "card-said", textContent: "There is no result." }));
    return found;
  }
}

function section(title, content) {
  return make("section", { ariaLabel: title }, make("h4", { textContent: title }), content);
}

/** An output as people read it: text as it is, also where it is JSON in a text. */
function readable(output) {
  if (typeof output !== "string") return pretty(output);
  if (!/^\s*[[{]/.test(output)) return output;
  try {
    return pretty(JSON.parse(output));
  } catch {
    return output;
  }
}
