// Labels and messages of the dialogs: failed requests, failed logins, expiry dates and browsers.

import { ApiError } from "@khala/client";
import { errorMessage } from "../state/error-messages.ts";
import { m } from "../i18n/messages.ts";

const BROWSERS = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]] as const;
const SYSTEMS = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]] as const;

export const COPY_NOW = m.copy_it_now_you_wont_see_it_again();
export const MIN_PASSWORD_CHARACTERS = 8;
export const PASSWORD_HINT = m.use_at_least_characters({ count: MIN_PASSWORD_CHARACTERS });

const LOGIN_ERRORS: Readonly<Record<string, string>> = {
  conflict: m.that_login_is_linked_to_another_account(),
  invalid_input: m.the_login_was_cancelled_or_took_too_long(),
  unavailable: m.the_sign_in_service_is_unavailable_try(),
};

/** As `errorMessage`, but with the server's own message for these codes, where it says more. */
export function serverMessageFor(codes: readonly string[]): (error: unknown) => string {
  return (error) => (error instanceof ApiError && codes.includes(error.code) ? error.message : errorMessage(error));
}

/** The time `days` days after `now` (ms) in ISO 8601; undefined if `days` is empty. */
export function expiryAfterDays(now: number, days: string): string | undefined {
  return days ? new Date(now + Number(days) * 86_400_000).toISOString() : undefined;
}

/** "Firefox on Linux", as far as the user agent says. */
export function browserName(userAgent: string): string {
  const match = (signs: readonly (readonly [string, string])[]): string | undefined => signs.find(([sign]) => userAgent.includes(sign))?.[1];
  const system = match(SYSTEMS);
  const browser = match(BROWSERS) ?? m.app();
  return system ? m.browser_on_system({ browser, system }) : browser;
}

/** The message for the error code of a login at another provider. */
export function loginErrorMessage(code: string): string {
  return LOGIN_ERRORS[code] ?? m.couldnt_sign_you_in_try_again();
}
