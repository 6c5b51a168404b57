// Labels and messages of the dialogs: failed requests, failed logins, expiry dates and browsers.

import { ApiError } from "@khala/client";
import { errorMessage } from "../state/error-messages.ts";

const BROWSERS = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]] as const;
const SYSTEMS = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]] as const;

export const COPY_NOW = "Copy it now: you won’t see it again";
export const MIN_PASSWORD_CHARACTERS = 8;
export const PASSWORD_HINT = `Use at least ${MIN_PASSWORD_CHARACTERS} characters.`;

const LOGIN_ERRORS: Readonly<Record<string, string>> = {
  conflict: "That login is linked to another account.",
  invalid_input: "The login was cancelled or took too long. Try again.",
  unavailable: "The sign-in service is unavailable. Try again later.",
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
  return `${match(BROWSERS) ?? "App"}${system ? ` on ${system}` : ""}`;
}

/** The message for the error code of a login at another provider. */
export function loginErrorMessage(code: string): string {
  return LOGIN_ERRORS[code] ?? "Couldn’t sign you in. Try again.";
}
