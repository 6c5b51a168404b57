// The account's dialog: what one is called, sessions, password, API tokens, usage, and the ways out.

import * as account from "./account.js";
import { quietly } from "./asking.js";
import { button, closable, confirmed, fill, moment, onSubmit, row, tried } from "./dialogs.js";
import { call } from "./khala.js";
import { inWords } from "./outbox.js";
import { copyButton } from "./elements.js";

const $ = (id) => document.getElementById(id);
const DAY_MS = 86_400_000;
const MEASURES = { runs: "Answers", tokens: "Tokens", usd: "Cost in USD", seconds: "Seconds of writing" };
const SCOPES = { run: "one answer", thread: "one chat", user: "your account", key: "this browser", network: "your network", anonymous: "all guests" };

function words(error) {
  return ["forbidden", "conflict"].includes(error.code) ? error.message : inWords(error);
}

export class Settings {
  #dialog = $("account");
  #user = null;
  #signOut;
  #remove;

  /** `signOut()` and `remove(password)` end it all. */
  constructor({ signOut, remove }) {
    this.#signOut = signOut;
    this.#remove = remove;
    closable(this.#dialog);
    onSubmit($("account-name-form"), ({ name }) => this.#do(() => account.rename(name.trim() || null), "Saved."));
    onSubmit($("password-form"), (fields) => this.#changePassword(fields));
    onSubmit($("token-form"), (fields) => this.#makeToken(fields));
    onSubmit($("delete-form"), ({ password }) => this.#deleteAccount(password));
    $("token-secret").onfocus = ({ target }) => target.select();
    $("token-copy").append(copyButton(() => $("token-secret").value));
    $("sign-out").onclick = () => this.#end(this.#signOut);
    $("link-oidc").onclick = () => account.expect();
  }

  async open() {
    for (const id of ["account-sessions", "account-tokens"]) fill($(id), [], "…");
    for (const form of this.#dialog.querySelectorAll("form")) form.reset();
    $("token-made").hidden = true;
    $("token-secret").value = "";
    $("account-usage").hidden = true;
    this.#draw(account.account.user);
    this.#dialog.showModal();
    const user = await this.#ask("GET", "/api/me");
    if (user) this.#draw(user);
    await Promise.all([this.#drawSessions(), this.#drawTokens(), this.#drawUsage(), this.#drawOidc()]);
  }

  close() {
    this.#dialog.close();
  }

  #ask(method, path, body) {
    return tried(this.#dialog, () => call(method, path, { body }), words);
  }

  async #do(act, done) {
    const well = await tried(this.#dialog, async () => (await act(), true), words);
    $("account-done").textContent = well ? done : "";
    return well;
  }

  #draw(user) {
    this.#user = user;
    $("account-who").textContent = user.email ?? "";
    $("account-name").value = user.name ?? "";
    $("password-current-field").hidden = $("password-current").disabled = user.password === false;
    $("password-email-field").hidden = $("password-email").disabled = user.password !== false;
    $("delete-password-field").hidden = $("delete-password").disabled = user.password === false;
  }

  async #drawSessions() {
    const found = await quietly("GET", "/api/me/sessions");
    fill($("account-sessions"), found?.items.map((session) => this.#session(session)), "None.");
  }

  #session({ id, current, userAgent, network, seenAt }) {
    const browser = browserOf(userAgent ?? "");
    const detail = `${network ? `${network}, ` : ""}seen ${moment(seenAt)}`;
    if (current) return row(`${browser}, this one`, detail);
    return row(browser, detail, button("End", () => this.#drop(`/api/me/sessions/${id}`, () => this.#drawSessions()), { label: `End ${browser}`, danger: true }));
  }

  async #drawTokens() {
    const found = await quietly("GET", "/api/tokens");
    fill($("account-tokens"), found?.items.map((token) => this.#token(token)), "None.");
  }

  #token({ id, name, scopes, usedAt, expiresAt }) {
    const used = usedAt ? `used ${moment(usedAt)}` : "never used";
    const ends = expiresAt ? `, ends ${moment(expiresAt)}` : "";
    const revoke = () => this.#drop(`/api/tokens/${id}`, () => this.#drawTokens());
    return row(name, `${scopes.join(", ")}; ${used}${ends}`, button("Revoke", revoke, { label: `Revoke ${name}`, danger: true }));
  }

  async #drop(path, drawAgain) {
    await this.#ask("DELETE", path);
    await drawAgain();
  }

  async #makeToken({ name, scopes, days }) {
    const expiresAt = days ? new Date(Date.now() + Number(days) * DAY_MS).toISOString() : undefined;
    const made = await this.#ask("POST", "/api/tokens", { name: name.trim(), scopes: scopes.split(" "), expiresAt });
    if (!made) return;
    $("token-form").reset();
    $("token-made").hidden = false;
    $("token-secret").value = made.token;
    $("token-secret").focus();
    await this.#drawTokens();
  }

  async #changePassword({ current, email, new: fresh }) {
    const body = { new: fresh, ...(current ? { current } : {}), ...(email ? { email } : {}) };
    if (!(await this.#do(() => call("POST", "/api/auth/password", { body }), "The password is changed; all other sessions are over."))) return;
    $("password-form").reset();
    this.#draw({ ...this.#user, password: true, email: email ?? this.#user.email });
    await this.#drawSessions();
  }

  /** A server without limits has nothing to tell. */
  async #drawUsage() {
    const found = await quietly("GET", "/api/me/usage");
    const items = found?.items ?? [];
    $("account-usage").hidden = items.length === 0;
    fill($("account-used"), items.map(used), "");
  }

  async #drawOidc() {
    const ways = await quietly("GET", "/api/auth");
    $("link-oidc").hidden = !ways?.oidc || this.#user.identities?.length > 0;
    if (!ways?.oidc) return;
    $("link-oidc").textContent = `Also sign in with ${ways.oidc.name}`;
    $("link-oidc").href = `/api/auth/oidc/login?link=true&returnTo=${encodeURIComponent(location.pathname)}`;
  }

  async #deleteAccount(password) {
    const yes = await confirmed({
      title: "Delete your account?",
      text: "The account and all chats that it owns are deleted, for everyone. This can’t be undone.",
      yes: "Delete account",
    });
    if (yes) await this.#end(() => this.#remove(password));
  }

  async #end(act) {
    if (await this.#do(act, "")) this.#dialog.close();
  }
}

function used({ scope, measure, used: settled, reserved, most, endsAt }) {
  const number = (text) => Number(text).toLocaleString("en", { maximumFractionDigits: 4 });
  const held = Number(reserved) > 0 ? `, ${number(reserved)} held back for answers under way` : "";
  const again = endsAt ? `; counts anew ${moment(endsAt)}` : "";
  return row(`${MEASURES[measure] ?? measure}: ${number(settled)} of ${number(most)}`, `For ${SCOPES[scope] ?? scope}${held}${again}`);
}

/** "Firefox on Linux", as well as a user agent tells. */
function browserOf(agent) {
  const browser = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]].find(([sign]) => agent.includes(sign));
  const system = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]].find(([sign]) => agent.includes(sign));
  return [browser?.[1] ?? "A program", system?.[1]].filter(Boolean).join(" on ");
}
