// What a request's failure, a time and a browser are called when a person is told of them.

import { ApiError } from "../khala/requests.ts";
import { inWords } from "../state/words.ts";

const BROWSERS = [["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]] as const;
const SYSTEMS = [["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]] as const;

const FAILED: Readonly<Record<string, string>> = {
  conflict: "That login belongs to another account.",
  invalid_input: "The login was not finished, or took too long. Please try again.",
  unavailable: "The sign-in service can’t be reached right now. Please try again later.",
};

/** As `inWords`, but where the code is one of these the server's own words say more. */
export function inItsWords(codes: readonly string[]): (error: unknown) => string {
  return (error) => (error instanceof ApiError && codes.includes(error.code) ? error.message : inWords(error));
}

/** "12 Mar 2026, 14:05" */
export function moment(time: string): string {
  return new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** So many days from `now` (ms), as the server reads times; undefined for no days. */
export function daysFrom(now: number, days: string): string | undefined {
  return days ? new Date(now + Number(days) * 86_400_000).toISOString() : undefined;
}

/** "Firefox on Linux", as well as a user agent tells. */
export function browserOf(agent: string): string {
  const named = (signs: readonly (readonly [string, string])[]): string | undefined => signs.find(([sign]) => agent.includes(sign))?.[1];
  const system = named(SYSTEMS);
  return `${named(BROWSERS) ?? "A program"}${system ? ` on ${system}` : ""}`;
}

/** What the code means with which a login elsewhere has ended. */
export function failed(code: string): string {
  return FAILED[code] ?? "Signing in did not work. Please try again.";
}
