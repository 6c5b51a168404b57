// The dialog to share a chat: who may see it, links to it, and its members.

import { account } from "./account.js";
import { quietly } from "./asking.js";
import { keysOf } from "./chats.js";
import { button, closable, fill, moment, onSubmit, row, tried } from "./dialogs.js";
import { call } from "./khala.js";
import { inWords } from "./outbox.js";
import { copyButton, make } from "./elements.js";

const $ = (id) => document.getElementById(id);
const DAY_MS = 86_400_000;
const MAY = { viewer: "May look on", editor: "May write", owner: "Owner" };

function words(error) {
  return error.code === "forbidden" ? error.message : inWords(error);
}

export class Share {
  #dialog = $("share");
  #chat = null;
  #visibility = "private";

  constructor() {
    closable(this.#dialog);
    onSubmit($("share-form"), (fields) => this.#makeLink(fields));
    for (const choice of this.#dialog.querySelectorAll("[name=visibility]")) choice.onchange = () => this.#setVisibility(choice.value);
    $("share-url").onfocus = ({ target }) => target.select();
    $("share-copy").append(copyButton(() => $("share-url").value));
  }

  /** Share this chat, which has this `visibility` now. */
  async open(chat, visibility) {
    this.#chat = chat;
    this.#showVisibility(visibility);
    $("share-made").hidden = true;
    $("share-url").value = "";
    for (const id of ["share-links", "share-members"]) fill($(id), [], "…");
    this.#dialog.showModal();
    await Promise.all([this.#drawLinks(), this.#drawMembers()]);
  }

  /** The chat is open to others than before, by this dialog or another. */
  update(chatId, visibility) {
    if (this.#dialog.open && chatId === this.#chat.id) this.#showVisibility(visibility);
  }

  /** The chat is not open any more. */
  close() {
    this.#dialog.close();
  }

  #ask(method, path, body) {
    return tried(this.#dialog, () => call(method, `/api/threads/${this.#chat.id}${path}`, { body, ...keysOf(this.#chat) }), words);
  }

  #read(path) {
    return quietly("GET", `/api/threads/${this.#chat.id}${path}`, { chat: this.#chat });
  }

  #showVisibility(visibility) {
    this.#visibility = visibility;
    for (const choice of this.#dialog.querySelectorAll("[name=visibility]")) choice.checked = choice.value === visibility;
  }

  async #setVisibility(visibility) {
    const thread = await this.#ask("PATCH", "", { visibility });
    this.#showVisibility(thread?.visibility ?? this.#visibility);
    $("share-made").hidden ||= this.#visibility === "private";
    await this.#drawLinks();
  }

  async #makeLink({ role, days }) {
    const expiresAt = days ? new Date(Date.now() + Number(days) * DAY_MS).toISOString() : undefined;
    const link = await this.#ask("POST", "/links", { role, expiresAt });
    if (!link) return;
    $("share-made").hidden = false;
    $("share-url").value = link.url;
    $("share-url").focus();
    if (this.#visibility === "private") this.#showVisibility("link");
    await this.#drawLinks();
  }

  async #drawLinks() {
    const links = await this.#read("/links");
    fill($("share-links"), links?.items.map((link) => this.#link(link)), "There are no links.");
  }

  #link({ id, role, createdAt, expiresAt }) {
    const ends = expiresAt ? `ends ${moment(expiresAt)}` : "never ends";
    const revoke = async () => {
      await this.#ask("DELETE", `/links/${id}`);
      await this.#drawLinks();
    };
    return row(MAY[role], `Made ${moment(createdAt)}, ${ends}`, button("Revoke", revoke, { danger: true }));
  }

  async #drawMembers() {
    const members = await this.#read("/members");
    fill($("share-members"), members?.items.map((member, index) => this.#member(member, index === 0)), "Nobody with an account yet.");
  }

  #member({ userId, name, role }, isFirst) {
    const mine = userId === account.user?.id ? " (you)" : "";
    const who = `${name ?? "Somebody without a name"}${mine}`;
    if (isFirst && role === "owner") return row(who, MAY.owner);
    const choice = make("select", { ariaLabel: `Role of ${who}`, onchange: () => this.#change("PUT", userId, { role: choice.value }) });
    choice.append(...Object.entries(MAY).map(([value, textContent]) => make("option", { value, textContent, selected: value === role })));
    return row(who, "", choice, button("Remove", () => this.#change("DELETE", userId), { label: `Remove ${who}`, danger: true }));
  }

  async #change(method, userId, body) {
    await this.#ask(method, `/members/${userId}`, body);
    await this.#drawMembers();
  }
}
