// The theme and the size of text that the person has chosen for the page in this browser.

export const THEMES = ["system", "light", "dark"] as const;
export const TEXT_SIZES = ["small", "normal", "large", "larger"] as const;
export type Theme = (typeof THEMES)[number];
export type TextSize = (typeof TEXT_SIZES)[number];

/** The names of the choices in the storage. */
export const THEME_STORAGE_KEY = "khala.theme";
export const TEXT_SIZE_STORAGE_KEY = "khala.text-size";

/** A choice from `values`; the default without one, and without a storage. */
function choice<T extends string>(name: string, values: readonly T[], otherwise: T): T {
  try {
    const found = localStorage.getItem(name);
    return values.find((value) => value === found) ?? otherwise;
  } catch {
    return otherwise; // the browser blocks the storage
  }
}

export function theme(): Theme {
  return choice(THEME_STORAGE_KEY, THEMES, "system");
}

export function textSize(): TextSize {
  return choice(TEXT_SIZE_STORAGE_KEY, TEXT_SIZES, "normal");
}

/** Show the page in the chosen theme and size. `style/base.css` has their styles. */
export function applyAppearance(): void {
  Object.assign(document.documentElement.dataset, { theme: theme(), textSize: textSize() });
}

/** Store a choice and apply it. Returns whether the browser could store it. */
export function setAppearance(name: typeof THEME_STORAGE_KEY | typeof TEXT_SIZE_STORAGE_KEY, value: Theme | TextSize): boolean {
  try {
    localStorage.setItem(name, value);
    return true;
  } catch {
    return false; // the browser blocks the storage, or it is full
  } finally {
    applyAppearance();
  }
}
