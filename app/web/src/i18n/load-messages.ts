// Loads the messages of one language. Each language is a file of its own.

import { LANGUAGES, chooseLocale, directionOf, setFormatLocale, type Locale } from "./locale.ts";
import { languagePreference } from "./language-preference.ts";
import { setMessages, type Messages } from "./messages.ts";

const CATALOGS: Readonly<Record<Locale, () => Promise<Messages>>> = {
  en: () => import("../../catalogs/compiled/messages/en.js"),
  de: () => import("../../catalogs/compiled/messages/de.js"),
  es: () => import("../../catalogs/compiled/messages/es.js"),
  fr: () => import("../../catalogs/compiled/messages/fr.js"),
  zh: () => import("../../catalogs/compiled/messages/zh.js"),
  ja: () => import("../../catalogs/compiled/messages/ja.js"),
  ar: () => import("../../catalogs/compiled/messages/ar.js"),
};

/** Choose the language, load its messages and set the language and direction of the document. */
export async function loadMessages(): Promise<void> {
  const locale = chooseLocale(languagePreference(), navigator.languages);
  setMessages(await CATALOGS[locale]());
  setFormatLocale(locale, navigator.languages);
  document.documentElement.lang = LANGUAGES[locale].tag;
  document.documentElement.dir = directionOf(locale);
}
