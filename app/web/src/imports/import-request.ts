// Sends an export to the server. Only XMLHttpRequest reports how much of the file is sent.

import { ApiError, NetworkError } from "@khala/client";
import type { ImportCounts, ImportEnded, ImportFailed } from "@khala/client";
import { ImportEventReader } from "./import-events.ts";

const PATH = "/api/imports";

export interface ImportListener {
  /** The share of the file that is sent, from 0 to 1. */
  sent: (share: number) => void;
  /** What is imported so far. */
  counted: (report: ImportCounts) => void;
}

/** Import the chats of this file. Throws `ApiError` if the server refuses, `NetworkError` if the connection breaks off, and an `AbortError` after `signal`. */
export function importChats(file: Blob, { sent, counted }: ImportListener, signal: AbortSignal): Promise<ImportEnded | ImportFailed> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const reader = new ImportEventReader();
    const read = (): void => {
      if (request.status !== 200) return;
      for (const event of reader.next(request.responseText)) {
        counted(event.report);
        if (event.type !== "progress") resolve(event);
      }
    };
    const stop = (): void => request.abort();
    const breakOff = (): void => reject(signal.aborted ? new DOMException("The import was canceled.", "AbortError") : new NetworkError("The connection broke off."));
    request.open("POST", PATH);
    request.setRequestHeader("Accept", "text/event-stream, application/json");
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = ({ lengthComputable, loaded, total }) => lengthComputable && sent(loaded / total);
    request.upload.onload = () => sent(1);
    request.onprogress = read;
    request.onerror = request.onabort = breakOff;
    request.onload = () => {
      read();
      if (request.status !== 200) reject(refusal(request));
      else breakOff(); // without a last event; after one, this changes nothing
    };
    request.onloadend = () => signal.removeEventListener("abort", stop);
    signal.addEventListener("abort", stop);
    if (signal.aborted) breakOff();
    else request.send(file);
  });
}

function refusal(request: XMLHttpRequest): ApiError {
  const seconds = Number.parseFloat(request.getResponseHeader("Retry-After") ?? "");
  return new ApiError(request.status, problemOf(request.responseText), Number.isFinite(seconds) ? seconds : null);
}

/** The fields of a problem; none for an error page of a proxy. */
function problemOf(body: string): object {
  try {
    const problem: unknown = JSON.parse(body);
    return typeof problem === "object" && problem !== null ? problem : {};
  } catch (error) {
    if (error instanceof SyntaxError) return {};
    throw error;
  }
}
