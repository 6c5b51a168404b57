// Tells the service worker what the page shows: it knows only the address with which a window was loaded.

/** The service worker's question to a window. The reply is a path, sent to the port that comes with the question. */
export const PATH_REQUEST = "path?";

export function tellShownPath(worker: ServiceWorkerContainer): void {
  worker.addEventListener("message", ({ data, ports }: MessageEvent<unknown>) => {
    if (data === PATH_REQUEST) ports[0]?.postMessage(location.pathname);
  });
  worker.startMessages();
}
