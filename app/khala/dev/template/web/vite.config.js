import { defineConfig } from "vite";

const server = process.env.KHALA_URL ?? "http://127.0.0.1:8000";

/** Requests of the API go to Khala: by Vite while you develop, and by a reverse proxy in production. */
export default defineConfig({
  server: { proxy: { "/api": { target: server, ws: true, changeOrigin: true, headers: { origin: server } } } },
});
