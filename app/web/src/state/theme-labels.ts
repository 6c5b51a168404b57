// The names of the themes.

import { m } from "../i18n/messages.ts";
import type { Theme } from "./appearance.ts";

export const THEME_LABELS: Readonly<Record<Theme, string>> = { system: m.language_system(), light: m.theme_light(), dark: m.theme_dark() };
