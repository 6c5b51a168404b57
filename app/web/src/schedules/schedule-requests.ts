// Requests about schedules, as the account: a schedule acts without the keys of a chat.

import { ApiError, isRequestError, newId, request, withRetry } from "@khala/client";
import type { NewSchedule, Page, RunOptions, Schedule, ScheduleEdit, SchedulePreview, StartedBySchedule } from "@khala/client";
import { errorMessage } from "../state/error-messages.ts";
import { m } from "../i18n/messages.ts";

/** Schedules that have not ended, of one account. */
const MAX_SCHEDULES = 100;
const MAX_ATTEMPTS = 4;
const PATH = "/api/schedules";

const send = <T>(method: string, path: string, body?: unknown): Promise<T> =>
  withRetry(() => request<T>(method, path, body === undefined ? {} : { body }), { maxAttempts: MAX_ATTEMPTS });

export function listSchedules({ limit, cursor, threadId }: { limit: number; cursor?: string | undefined; threadId?: string }): Promise<Page<Schedule>> {
  const query = new URLSearchParams({ limit: String(limit), ...(cursor !== undefined && { cursor }), ...(threadId !== undefined && { threadId }) });
  return send("GET", `${PATH}?${query}`);
}

export function createSchedule(schedule: NewSchedule): Promise<Schedule> {
  return send("POST", PATH, { id: newId(), ...schedule });
}

export function changeSchedule(id: string, changes: ScheduleEdit): Promise<Schedule> {
  return send("PATCH", `${PATH}/${id}`, changes);
}

export async function deleteSchedule(id: string): Promise<void> {
  try {
    await send("DELETE", `${PATH}/${id}`);
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "not_found") throw error;
  }
}

/** Fire it now, beside its own times. */
export function runSchedule(id: string): Promise<StartedBySchedule> {
  return send("POST", `${PATH}/${id}/run`, { messageId: newId() });
}

/**
 * Send what waits for one time now instead. It is paused first, so that it is never sent twice. If the server refuses to send
 * it, it waits for its time again; `onpaused` is called if it can't, or may have been sent all the same.
 */
export async function sendNow(schedule: Schedule, onpaused: () => void): Promise<void> {
  const { id, status } = schedule;
  if (status === "active") await changeSchedule(id, { paused: true });
  try {
    await send("POST", `${PATH}/${id}/run`, { messageId: id });
  } catch (error) {
    if (status === "active" && !(isRefusal(error) && (await waitsAgain(schedule)))) onpaused();
    throw error;
  }
  await deleteSchedule(id);
}

const isRefusal = (error: unknown): boolean => error instanceof ApiError && error.status < 500;

/** Resume a paused schedule whose time is still to come; returns whether it is active. */
async function waitsAgain({ id, at, nextAt }: Schedule): Promise<boolean> {
  if (Date.parse(nextAt ?? at ?? "") <= Date.now()) return false;
  try {
    return (await changeSchedule(id, { paused: false })).status === "active";
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return false;
  }
}

export function previewTimes(cron: string, timeZone: string, count: number): Promise<SchedulePreview> {
  return send("GET", `${PATH}/preview?${new URLSearchParams({ cron, timeZone, count: String(count) })}`);
}

/** Send a message to a chat at a later time. */
export function sendLater(threadId: string, message: { text: string; at: Date; options: RunOptions }): Promise<Schedule> {
  const { text, at, options } = message;
  return send("POST", `/api/threads/${threadId}/send`, { messageId: newId(), text, sendAt: at.toISOString(), options });
}

/** The message for a failed request. `creates`: it was to create a schedule. */
export function scheduleError(error: unknown, { creates = false } = {}): string {
  if (!(error instanceof ApiError)) return errorMessage(error);
  if (error.code === "conflict") return creates ? m.too_many_schedules({ count: MAX_SCHEDULES }) : m.schedule_is_being_sent();
  if (error.code === "forbidden") return m.schedule_needs_membership();
  if (error.code === "not_found") return m.schedule_is_gone();
  if (error.code === "unauthorized") return m.schedules_need_an_account();
  if (error.code === "invalid_input") return inputError(error);
  return errorMessage(error);
}

function inputError(error: ApiError): string {
  switch (error.errors[0]?.path) {
    case "cron":
      return m.not_a_cron_expression();
    case "at":
    case "sendAt":
      return m.not_within_ten_years();
    case "timeZone":
      return m.server_does_not_know_this_time_zone();
    default:
      return errorMessage(error);
  }
}
