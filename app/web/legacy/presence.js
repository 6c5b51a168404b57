// Who else is here, and who is typing; and telling the others the same of us.

import { make } from "./elements.js";

const QUIET_MS = 2000;
const TYPING_MS = 4000;
const MOST_SHOWN = 5;
const TONES = 6;

/** Up to two letters that stand for a name. */
export function initials(name) {
  const words = name.trim().split(/\s+/);
  const letters = words.length > 1 ? [words[0], words.at(-1)].map((word) => [...word][0]) : [[...words[0]][0]];
  return letters.join("").toUpperCase() || "?";
}

export function avatar(name, id) {
  const tone = [...id].reduce((sum, letter) => sum + letter.codePointAt(0), 0) % TONES;
  return make("span", { className: "avatar", textContent: initials(name), ariaHidden: "true", data: { tone } });
}

/** The others, each once, however many pages they have open; `name` is what our own pages go by here. */
export function others(participants, name, userId) {
  const found = new Map();
  for (const one of participants) {
    if (one.state.page === name || (userId && one.userId === userId)) continue;
    const who = one.userId ?? one.state.page ?? one.id;
    const typing = one.state.typing === true || found.get(who)?.typing === true;
    found.set(who, { id: String(who), name: one.name ?? "Guest", typing });
  }
  return [...found.values()];
}

/** "Ada is typing …", or nothing. */
export function typingWords(people) {
  const names = people.filter((one) => one.typing).map((one) => one.name);
  if (!names.length) return "";
  return names.length === 1 ? `${names[0]} is typing …` : names.length === 2 ? `${names[0]} and ${names[1]} are typing …` : `${names.length} people are typing …`;
}

export class Presence {
  #announce;
  #name = null;
  #typing = false;
  #said = null;
  #turnedAt = -Infinity;
  #timers = {};

  /** `announce(state)` tells the others, null that we are not here. */
  constructor(announce) {
    this.#announce = announce;
    document.addEventListener("visibilitychange", () => this.#tell());
  }

  /** We look at a chat where we go by this name; null where nobody needs to know. */
  enter(name) {
    if (name === this.#name) return;
    this.#name = name;
    this.#typing = false;
    this.#said = null;
    this.#tell();
  }

  /** A chat was left; the feed tells that by itself. */
  leave() {
    this.#name = this.#said = null;
    this.#typing = false;
  }

  /** The person has changed the text that they write; `isEmpty` also when it was sent. */
  typed(isEmpty) {
    clearTimeout(this.#timers.rest);
    this.#typing = !isEmpty;
    if (!isEmpty) this.#timers.rest = setTimeout(() => this.typed(true), TYPING_MS);
    this.#tell();
  }

  /** Tell what has changed: coming and going at once, typing at most every two seconds. */
  #tell() {
    clearTimeout(this.#timers.turn);
    const here = this.#name !== null && !document.hidden;
    const state = here ? { page: this.#name, typing: this.#typing } : null;
    if (state?.page === this.#said?.page && state?.typing === this.#said?.typing) return;
    const wait = this.#turnedAt + QUIET_MS - performance.now();
    if (state && this.#said && wait > 0) return void (this.#timers.turn = setTimeout(() => this.#tell(), wait));
    if (state?.typing || this.#said?.typing) this.#turnedAt = performance.now();
    this.#said = state;
    this.#announce(state);
  }
}

/** The others in the header, and above the composer who of them is typing. */
export class Company {
  #list = document.getElementById("present");
  #typing = document.getElementById("typing");
  #narrow = matchMedia("(max-width: 480px)");
  #shown = "";

  draw(people, more) {
    const key = JSON.stringify([people, more]);
    if (key === this.#shown) return;
    this.#shown = key;
    const most = this.#narrow.matches ? 2 : MOST_SHOWN;
    const unseen = Math.max(0, people.length - most) + more;
    const rows = people.slice(0, most).map(person);
    if (unseen > 0) rows.push(make("li", { className: "avatar rest", textContent: `+${unseen}` }));
    this.#list.replaceChildren(...rows);
    this.#list.hidden = rows.length === 0;
    this.#typing.textContent = typingWords(people);
  }
}

function person({ id, name }) {
  return make("li", { title: `${name} is here` }, avatar(name, id), make("span", { className: "unseen", textContent: name }));
}
