// The list of chats, the account's and those of this browser: beside the chat where there is room, else a drawer over it.

import { account, nameOf } from "./account.js";
import * as chats from "./chats.js";
import { avatar } from "./presence.js";
import { drawing, make } from "./elements.js";

export const addressOf = (id) => `/t/${id}`;
const PENCIL = "M4 16l.8-3.4L13.5 4l2.5 2.5-8.6 8.7zM12 5.5 14.5 8";
const CROSS = "M5 5l10 10M15 5 5 15";

/** All chats to list, those used last first; where the account has a chat, its word counts. */
export function listed({ entries }, userId) {
  const own = chats.all().filter(({ id, ownerId }) => !entries.has(id) && (!ownerId || ownerId === userId));
  const mine = own.map((chat) => ({ id: chat.id, title: chat.title, at: chat.usedAt, role: chat.shareKey && !chat.key ? "guest" : "owner", note: noteOf(chat, userId) }));
  const theirs = [...entries.values()].map((entry) => ({
    ...entry,
    id: entry.thread.id,
    title: entry.thread.title,
    at: Date.parse(entry.thread.updatedAt),
    note: entry.role === "owner" ? "" : "Shared with you",
  }));
  return [...mine, ...theirs].sort((one, other) => other.at - one.at);
}

function noteOf({ key, shareKey }, userId) {
  if (shareKey && !key) return "By a link";
  return userId && key ? "Only in this browser" : "";
}

export class Drawer {
  #drawer = document.getElementById("drawer");
  #list = document.getElementById("chats");
  #menu = document.getElementById("menu");
  #scrim = document.getElementById("scrim");
  #narrow = matchMedia("(max-width: 859px)");
  #rows = new Map();
  #actions;

  /** `actions`: `goTo(id)`, `rename(item, title)` and `remove(item)`. */
  constructor(actions) {
    this.#actions = actions;
    this.#menu.addEventListener("click", () => this.toggle(!this.#drawer.classList.contains("open")));
    this.#scrim.addEventListener("click", () => this.toggle(false));
    this.#narrow.addEventListener("change", () => this.toggle(false));
    document.addEventListener("keydown", (event) => this.#key(event));
    this.toggle(false);
  }

  toggle(isOpen) {
    this.#drawer.classList.toggle("open", isOpen);
    this.#drawer.inert = this.#narrow.matches && !isOpen;
    this.#scrim.hidden = !(this.#narrow.matches && isOpen);
    this.#menu.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) this.#drawer.querySelector("button").focus();
  }

  /** Show these chats; `open` is the one that is open, by the name that the page has for it. */
  draw(items, open, hasMore) {
    const gone = new Set(this.#rows.keys());
    for (const item of items) {
      gone.delete(item.id);
      if (!this.#rows.has(item.id)) this.#rows.set(item.id, new Row(this.#actions));
      const title = item.title ?? (item.id === open.id ? open.title : null);
      this.#rows.get(item.id).update({ ...item, title, unread: item.unread && item.id !== open.id }, item.id === open.id);
    }
    for (const id of gone) this.#drop(id);
    this.#arrange(items.map(({ id }) => this.#rows.get(id)));
    document.getElementById("chats-more").hidden = !hasMore;
  }

  #drop(id) {
    this.#rows.get(id).element.remove();
    this.#rows.delete(id);
  }

  /** In this order, moving as little as possible; what has the focus keeps it, and nothing moves under a name's edit. */
  #arrange(rows) {
    if (rows.every((row, index) => this.#list.children[index] === row.element)) return;
    if (rows.some((row) => row.isEdited && row.element.isConnected)) return;
    const focused = this.#list.contains(document.activeElement) ? document.activeElement : null;
    rows.forEach((row, index) => {
      if (this.#list.children[index] !== row.element) this.#list.insertBefore(row.element, this.#list.children[index] ?? null);
    });
    if (focused?.isConnected) focused.focus({ preventScroll: true });
  }

  #key(event) {
    if (event.key !== "Escape" || this.#scrim.hidden || document.querySelector("dialog[open]")) return;
    this.toggle(false);
    this.#menu.focus();
  }
}

/** One chat in the list, which can be renamed in its place. */
class Row {
  #actions;
  #item = null;
  #shown = "";
  #name = make("span", { className: "name" });
  #note = make("span", { className: "note" });
  #marks = make("span", { className: "marks" });
  #link = make("a", { onclick: (event) => this.#follow(event) }, make("span", { className: "line" }, this.#name, this.#marks), this.#note);
  #rename = tool("Rename", PENCIL, () => this.#edit());
  #remove = tool("Delete", CROSS, () => this.#actions.remove(this.#item));
  element = make("li", {}, this.#link, make("span", { className: "tools" }, this.#rename, this.#remove));

  constructor(actions) {
    this.#actions = actions;
  }

  get isEdited() {
    return this.element.classList.contains("edited");
  }

  update(item, isOpen) {
    this.#item = item;
    const { id, title, note, role, unread, running, needsApproval } = item;
    const key = JSON.stringify([id, title, note, role, unread, running, needsApproval, isOpen]);
    if (key === this.#shown) return;
    this.#shown = key;
    const name = title ?? "New chat";
    this.#link.href = addressOf(id);
    this.#name.textContent = name;
    this.#note.textContent = note;
    this.#note.hidden = !note;
    this.#marks.replaceChildren(...marks(item));
    this.#link.classList.toggle("unread", unread === true);
    isOpen ? this.#link.setAttribute("aria-current", "page") : this.#link.removeAttribute("aria-current");
    this.#rename.hidden = !["owner", "editor"].includes(role);
    this.#rename.setAttribute("aria-label", `Rename ${name}`);
    this.#remove.setAttribute("aria-label", `${role === "owner" ? "Delete" : "Remove"} ${name}`);
    this.#remove.title = role === "owner" ? "Delete" : "Remove from list";
  }

  /** A plain click stays on this page; any other is the browser's. */
  #follow(event) {
    if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.#actions.goTo(this.#item.id);
  }

  #edit() {
    const { title } = this.#item;
    const field = make("input", { className: "rename", value: title ?? "", maxLength: 200, ariaLabel: "Name of the chat" });
    const end = (keeps) => {
      if (!this.isEdited) return;
      this.element.classList.remove("edited");
      const hadFocus = document.activeElement === field;
      field.replaceWith(this.#link);
      if (hadFocus) this.#rename.focus();
      const name = field.value.trim();
      if (keeps && name && name !== title) this.#actions.rename(this.#item, name);
    };
    field.onblur = () => end(true);
    field.onkeydown = (event) => {
      if (!["Enter", "Escape"].includes(event.key) || event.isComposing) return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    };
    this.element.classList.add("edited");
    this.#link.replaceWith(field);
    field.focus();
    field.select();
  }
}

function tool(title, path, onclick) {
  const button = make("button", { type: "button", className: "tool-button", title, onclick });
  button.append(drawing(path));
  return button;
}

function marks({ unread, running, needsApproval }) {
  const found = [];
  if (needsApproval) found.push(make("span", { className: "mark approval", textContent: "needs approval" }));
  else if (running) found.push(make("span", { className: "mark writing", textContent: "writing" }));
  if (unread) found.push(make("span", { className: "mark dot-mark" }, make("span", { className: "unseen", textContent: "unread" })));
  return found;
}

/** The foot of the drawer: who is signed in, or the way to do so. */
export function drawAccount() {
  const { user } = account;
  document.getElementById("sign-in").hidden = document.getElementById("fine").hidden = user !== null;
  const button = document.getElementById("account-open");
  button.hidden = user === null;
  if (user === null || button.dataset.shown === `${user.id} ${nameOf(user)}`) return;
  button.dataset.shown = `${user.id} ${nameOf(user)}`;
  button.replaceChildren(avatar(nameOf(user), user.id), make("span", { className: "name", textContent: nameOf(user) }));
}
