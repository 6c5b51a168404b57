// A small HTTP server in Node, for tests of HTTP requests.

/** The part of `node:http` that tests use. Its types are not available beside those of the browser. */
interface Incoming extends AsyncIterable<Uint8Array> {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string | undefined>;
}
interface Outgoing {
  writeHead(status: number, headers?: Record<string, string | number>): void;
  write(text: string | Uint8Array): void;
  end(text?: string | Uint8Array): void;
  destroy(): void;
}
interface Listening {
  listen(port: number, host: string, done: () => void): void;
  address(): { port: number };
  closeAllConnections(): void;
  close(done: () => void): void;
}
type Http = { createServer: (handle: (request: Incoming, response: Outgoing) => void) => Listening };

export interface ReceivedRequest {
  method: string;
  path: string;
  headers: Record<string, string | undefined>;
  body: string;
}

/** Serves with `answer` until `close` is called. `asked` has the received requests. */
export async function startServer(answer: (asked: ReceivedRequest, response: Outgoing) => void): Promise<{ url: string; asked: ReceivedRequest[]; close: () => Promise<void> }> {
  const name = "node:http";
  const { createServer } = (await import(/* @vite-ignore */ name)) as Http;
  const asked: ReceivedRequest[] = [];
  const handle = async (request: Incoming, response: Outgoing): Promise<void> => {
    let body = "";
    for await (const chunk of request) body += new TextDecoder().decode(chunk);
    const received = { method: request.method, path: request.url, headers: request.headers, body };
    asked.push(received);
    answer(received, response);
  };
  const server = createServer((request, response) => void handle(request, response));
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const close = (): Promise<void> => {
    server.closeAllConnections();
    return new Promise((done) => server.close(done));
  };
  return { url: `http://127.0.0.1:${server.address().port}`, asked, close };
}
