// Loads the messages of the parts that few visits need, in the language of the page. `messages.js` has their folders.

import { LANGUAGES, LOCALES, type Locale } from "./locale.ts";
import { addMessages, type Catalog } from "./messages.ts";

const CATALOGS: Readonly<Record<Locale, () => Promise<{ default: Catalog }>>> = {
  en: () => import("virtual:messages/later-en"),
  de: () => import("virtual:messages/later-de"),
  es: () => import("virtual:messages/later-es"),
  fr: () => import("virtual:messages/later-fr"),
  zh: () => import("virtual:messages/later-zh"),
  ja: () => import("virtual:messages/later-ja"),
  ar: () => import("virtual:messages/later-ar"),
};

let loading: Promise<void> | null = null;

/** Load a part of the page after its messages. What failed is tried again by the next call. */
export async function withMessages<T>(part: () => Promise<T>): Promise<T> {
  loading ??= loadLaterMessages();
  try {
    await loading;
  } catch (error) {
    loading = null;
    throw error;
  }
  return part();
}

async function loadLaterMessages(): Promise<void> {
  // The choice of another tab may be a newer one: the document has the language of this page.
  const locale = LOCALES.find((each) => LANGUAGES[each].tag === document.documentElement.lang) ?? "en";
  addMessages((await CATALOGS[locale]()).default, locale);
}
