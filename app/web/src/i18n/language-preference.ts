// The language that the person has chosen for the page in this browser.

const STORAGE_KEY = "khala.language";

/** The chosen language; null for the language of the system, and without a storage. */
export function languagePreference(): string | null {
  try {
    return localStorage.getItem(STORAGE_KEY);
  } catch {
    return null; // the browser blocks the storage
  }
}

/** Store the choice, null for the language of the system. Returns whether the browser could store it. */
export function setLanguagePreference(language: string | null): boolean {
  try {
    if (language === null) localStorage.removeItem(STORAGE_KEY);
    else localStorage.setItem(STORAGE_KEY, language);
    return true;
  } catch {
    return false; // the browser blocks the storage, or it is full
  }
}
