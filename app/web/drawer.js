// The list of this browser's chats: beside the chat where there is room, else a drawer over it.

import * as chats from "./chats.js";
import { make } from "./view.js";

export const addressOf = (id) => `/t/${id}`;

export class Drawer {
  #drawer = document.getElementById("drawer");
  #list = document.getElementById("chats");
  #menu = document.getElementById("menu");
  #scrim = document.getElementById("scrim");
  #narrow = matchMedia("(max-width: 859px)");
  #shown = "";
  #goTo;

  constructor(goTo) {
    this.#goTo = goTo;
    this.#menu.addEventListener("click", () => this.toggle(!this.#drawer.classList.contains("open")));
    this.#scrim.addEventListener("click", () => this.toggle(false));
    this.#narrow.addEventListener("change", () => this.toggle(false));
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  toggle(isOpen) {
    this.#drawer.classList.toggle("open", isOpen);
    this.#drawer.inert = this.#narrow.matches && !isOpen;
    this.#scrim.hidden = !(this.#narrow.matches && isOpen);
    this.#menu.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) this.#drawer.querySelector("button").focus();
  }

  draw(openId) {
    const all = chats.all();
    const key = JSON.stringify([openId, all.map(({ id, title }) => [id, title])]);
    if (key === this.#shown) return;
    this.#shown = key;
    this.#list.replaceChildren(...all.map((chat) => make("li", {}, this.#link(chat, chat.id === openId))));
  }

  #link({ id, title }, isOpen) {
    const link = make("a", { href: addressOf(id), textContent: title ?? "New chat", onclick: (event) => this.#follow(event, id) });
    if (isOpen) link.setAttribute("aria-current", "page");
    return link;
  }

  /** A plain click stays on this page; any other is the browser's. */
  #follow(event, id) {
    const chat = chats.find(id);
    if (!chat || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.#goTo(chat);
  }

  #key(event) {
    if (event.key !== "Escape" || this.#scrim.hidden) return;
    this.toggle(false);
    this.#menu.focus();
  }
}
