// The languages of the page, and the choice among them.

/** The languages, each with its name in itself and its tag for `<html lang>`. */
export const LANGUAGES = {
  en: { name: "English", tag: "en" },
  de: { name: "Deutsch", tag: "de" },
  es: { name: "Español", tag: "es" },
  fr: { name: "Français", tag: "fr" },
  zh: { name: "简体中文", tag: "zh-Hans" },
  ja: { name: "日本語", tag: "ja" },
  ar: { name: "العربية", tag: "ar" },
} as const satisfies Record<string, { name: string; tag: string }>;

export type Locale = keyof typeof LANGUAGES;

export const LOCALES = Object.keys(LANGUAGES) as Locale[];
const BASE: Locale = "en";
const RIGHT_TO_LEFT: readonly Locale[] = ["ar"];
/** Dates of English have the day first. */
const FORMATS: Partial<Record<Locale, string>> = { en: "en-GB" };

let format = "en-GB";
let direction: "ltr" | "rtl" = "ltr";

function languageOf(tag: string): string {
  return tag.toLowerCase().split("-", 1)[0] ?? "";
}

function isLocale(language: string | null): language is Locale {
  return language !== null && Object.hasOwn(LANGUAGES, language);
}

/** The chosen language if there is one, else the first of the person's languages that the page has, else English. */
export function chooseLocale(chosen: string | null, languages: readonly string[]): Locale {
  return isLocale(chosen) ? chosen : (languages.map(languageOf).find(isLocale) ?? BASE);
}

/** Whether text of the language runs from right to left. */
export function directionOf(locale: Locale): "ltr" | "rtl" {
  return RIGHT_TO_LEFT.includes(locale) ? "rtl" : "ltr";
}

/** Format numbers and dates as in this language: in the variant of the person's country, if `languages` has one. */
export function setFormatLocale(locale: Locale, languages: readonly string[]): void {
  direction = directionOf(locale);
  format = FORMATS[locale] ?? languages.find((tag) => languageOf(tag) === locale) ?? LANGUAGES[locale].tag;
}

/** Whether text of the chosen language runs from right to left. */
export function isRightToLeft(): boolean {
  return direction === "rtl";
}

/** The tag for `Intl`. */
export function formatLocale(): string {
  return format;
}
