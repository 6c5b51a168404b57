// Loads the messages of one language. Each language is a file of its own.

import { LANGUAGES, chooseLocale, directionOf, setFormatLocale, type Locale } from "./locale.ts";
import { languagePreference } from "./language-preference.ts";
import { setMessages, type Catalog } from "./messages.ts";

const CATALOGS: Readonly<Record<Locale, () => Promise<{ default: Catalog }>>> = {
  en: () => import("virtual:messages/en"),
  de: () => import("virtual:messages/de"),
  es: () => import("virtual:messages/es"),
  fr: () => import("virtual:messages/fr"),
  zh: () => import("virtual:messages/zh"),
  ja: () => import("virtual:messages/ja"),
  ar: () => import("virtual:messages/ar"),
};

/** Choose the language, load its messages and set the language and direction of the document. */
export async function loadMessages(): Promise<void> {
  const locale = chooseLocale(languagePreference(), navigator.languages);
  setMessages((await CATALOGS[locale]()).default, locale);
  setFormatLocale(locale, navigator.languages);
  document.documentElement.lang = LANGUAGES[locale].tag;
  document.documentElement.dir = directionOf(locale);
}
