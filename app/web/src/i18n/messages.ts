// The texts of the page in the chosen language.

import type { Messages } from "../../catalogs/messages.js";
import { directionOf, type Locale } from "./locale.ts";

/** The texts of a language by the names of their messages. A message with a number has one text for each plural form. */
export type Catalog = Readonly<Record<string, string | Readonly<Record<string, string>>>>;

type Inputs = Readonly<Record<string, string | number>>;

/**
 * One function per message, such as `m.save()`. It is set before any module of the page is loaded, and stays until the page is
 * reloaded, so constants may use it. Those of `later-messages.ts` are there once it has loaded them.
 */
export let m: Messages;

export function setMessages(catalog: Catalog, locale: Locale): void {
  m = messagesOf(catalog, locale);
}

/** Add the messages of a part of the page that is loaded later. */
export function addMessages(catalog: Catalog, locale: Locale): void {
  m = { ...m, ...messagesOf(catalog, locale) };
}

/** The functions of a catalogue. In text that runs from right to left, what takes the place of `{name}` keeps its own direction. */
export function messagesOf(catalog: Catalog, locale: Locale): Messages {
  const plurals = new Intl.PluralRules(locale);
  const numbers = new Intl.NumberFormat(locale);
  const [before, after] = directionOf(locale) === "rtl" ? ["\u2068", "\u2069"] : ["", ""];

  function fill(text: string, inputs: Inputs): string {
    return text.replace(/\{(\w+)\}/g, (_, name: string) => (name === "n" ? String(inputs[name]) : `${before}${inputs[name]}${after}`));
  }

  function functionOf(message: Catalog[string]): (inputs?: Inputs) => string {
    if (typeof message === "string") return (inputs = {}) => fill(message, inputs);
    return (inputs = {}) => fill(message[plurals.select(Number(inputs.count))] ?? "", { ...inputs, n: numbers.format(Number(inputs.count)) });
  }

  return Object.fromEntries(Object.entries(catalog).map(([name, message]) => [name, functionOf(message)])) as unknown as Messages;
}
